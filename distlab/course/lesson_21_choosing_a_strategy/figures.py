"""Figures: the map of parallelism, where strategies keep what, and the decision card."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distlab.course.figures.shapes import arrow, box
from distlab.course.palette import GROUND, NOTE, PALE, category, diagram, finish, ink, replica

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LAYERS = 3
_WHOLE = ((0.0, 1.0),) * _LAYERS


@dataclass(frozen=True)
class Part:
    """The parts of the batch and of the layers that one device has."""

    device: str
    batch: tuple[float, float] | None
    layers: tuple[tuple[float, float] | None, ...] = _WHOLE
    fetches: bool = False


@dataclass(frozen=True)
class Kind:
    """One kind of parallelism."""

    name: str
    parts: tuple[Part, ...]
    question: str
    example: str


_SPLIT = (((0.0, 0.5),) * _LAYERS, ((0.5, 1.0),) * _LAYERS)
_NOTHING = (None,) * _LAYERS
_FIRST, _SECOND = (0.0, 0.5), (0.5, 1.0)

# The kinds in the order in which their questions are asked.
FIELD = (
    Kind(
        "data parallelism",
        (Part("device 0", _FIRST), Part("device 1", _SECOND)),
        "Does one device hold a replica, its activations and all state?",
        "MirroredStrategy, DDP",
    ),
    Kind(
        "sharded data parallelism (FSDP, ZeRO 3)",
        (
            Part("device 0", _FIRST, _SPLIT[0], fetches=True),
            Part("device 1", _SECOND, _SPLIT[1], fetches=True),
        ),
        "If not: does one device hold the largest layer and all activations?",
        "PyTorch FSDP, DeepSpeed",
    ),
    Kind(
        "tensor parallelism",
        (Part("device 0", (0, 1), _SPLIT[0]), Part("device 1", (0, 1), _SPLIT[1])),
        "If not: is the link between the devices fast enough for several messages a layer?",
        "DTensor, Megatron-LM",
    ),
    Kind(
        "pipeline parallelism",
        (
            Part("device 0", (0, 1), (_WHOLE[0], _WHOLE[0], None)),
            Part("device 1", None, (None, None, _WHOLE[0])),
        ),
        "If the link is slow: can you send many small batches one after the other?",
        "GPipe, Megatron-LM",
    ),
    Kind(
        "expert parallelism",
        (
            Part("device 0", _FIRST, (_WHOLE[0], _FIRST, _WHOLE[0])),
            Part("device 1", _SECOND, (_WHOLE[0], _SECOND, _WHOLE[0])),
        ),
        "Does each example use only a few experts of a layer?",
        "GShard, DeepSpeed-MoE",
    ),
    Kind(
        "parameter servers (each worker: its own batch)",
        (
            Part("worker 0", (0, 1), _NOTHING, fetches=True),
            Part("worker 1", (0, 1), _NOTHING, fetches=True),
            Part("server 0", None, _SPLIT[0]),
            Part("server 1", None, _SPLIT[1]),
        ),
        "Are large tables read a few rows at a time, or do hosts come and go?",
        "ParameterServerStrategy",
    ),
)


_ROW, _DEVICE, _DEVICES_AT, _QUESTIONS_AT = 0.98, 0.74, 2.1, 5.45  # in inches


def draw_map(kinds: Sequence[Kind] = FIELD) -> Figure:
    """Draws for each kind what each device has of the batch and of three layers."""
    figure, axes = diagram(x=(0, 8), y=(_ROW * len(kinds) + 0.75, 0))
    legend = (
        "coloured strip: its examples of the batch\ngrey: what it keeps of each of three layers\n"
        "hatched: what it fetches to compute that layer"
    )
    axes.text(_DEVICES_AT, 0.6, legend, fontsize=9, color=NOTE)
    axes.text(_QUESTIONS_AT, 0.6, "the question that decides", fontsize=9, weight="bold")
    for row, kind in enumerate(kinds):
        top = 0.75 + _ROW * row
        middle = {"va": "center", "fontsize": 9, "linespacing": 1.25}
        axes.plot([0, 8], [top, top], color=PALE, linewidth=0.8)
        axes.text(0, top + 0.36, textwrap.fill(kind.name, 24), weight="bold", **middle)
        axes.text(0, top + 0.76, kind.example, color=NOTE, fontsize=8.5, va="center")
        axes.text(_QUESTIONS_AT, top + 0.5, textwrap.fill(kind.question, 36), **middle)
        for number, part in enumerate(kind.parts):
            left = _DEVICES_AT + (_DEVICE + 0.1) * number
            _draw_device(axes, part, replica(number).colour, (left, top + 0.28))
    caption = " ".join(f"{kind.name}: {_told(kind)}. {kind.question}" for kind in kinds)
    return finish(
        figure,
        title="What each device has, by the kind of parallelism",
        alt="A map of the kinds of parallelism. Each row shows what each device has of a batch and "
        f"of a model with three layers, and the question that decides. {caption}",
    )


def _draw_device(axes: Any, part: Part, colour: str, corner: tuple[float, float]) -> None:
    left, top = corner
    name = {"ha": "center", "fontsize": 8, "color": ink(colour) if part.batch else NOTE}
    axes.text(left + _DEVICE / 2, top - 0.06, part.device, **name)
    box(axes, corner, (_DEVICE, 0.62), edge=PALE)
    if part.batch:
        start, end = part.batch
        box(axes, (left + 0.06, top + 0.06), (0.12, 0.5), edge=PALE)
        box(axes, (left + 0.06, top + 0.06 + 0.5 * start), (0.12, 0.5 * (end - start)), fill=colour)
    for layer, columns in enumerate(part.layers):
        bar, level, width = left + 0.24, top + 0.06 + 0.18 * layer, _DEVICE - 0.3
        if columns or part.fetches:
            box(axes, (bar, level), (width, 0.14), edge=PALE, hatch="//////" * part.fetches)
        if columns:
            start, end = columns
            box(axes, (bar + width * start, level), (width * (end - start), 0.14), fill=NOTE)


def _told(kind: Kind) -> str:
    return "; ".join(f"{part.device} has {_share(part)}" for part in kind.parts)


def _share(part: Part) -> str:
    batch = "no examples"
    if part.batch:
        batch = "the whole batch" if part.batch == (0, 1) else "half of the batch"
    names = {0: "no part", 0.5: "half", 1: "all"}
    amounts = [names[columns[1] - columns[0] if columns else 0] for columns in part.layers]
    if len(set(amounts)) == 1:
        rest_of_it = {"half": "the other half", "no part": "the whole"}.get(amounts[0])
        fetched = f", and fetches {rest_of_it} while it computes the layer"
        return f"{batch} and {amounts[0]} of each layer{fetched * part.fetches}"
    layers = [f"{amount} of layer {number}" for number, amount in enumerate(amounts, 1)]
    return f"{batch} and {', '.join(layers)}"


# Words say what the colours say.
_VARIABLES = category(0).colour
_BOX_WIDTH, _BOX_HEIGHT, _GAP, _LAYOUT = 2.1, 1.5, 1.75, 2.3
_QUESTION_WIDTH, _ANSWER_WIDTH, _QUESTION_HEIGHT, _QUESTION_ROW = 6.4, 2.8, 0.85, 1.15


@dataclass(frozen=True)
class Layout:
    """The devices of one strategy: its replicas, its copies of variables, and what they send."""

    name: str
    devices: tuple[str, ...]
    replicas: tuple[int, ...]
    copies: tuple[int, ...]
    moves: tuple[tuple[int, int, str], ...] = ()


def draw_layouts(layouts: Sequence[Layout]) -> Figure:
    """Draws each strategy's devices, with what is on them and what goes between them in a step."""
    most = max(len(layout.devices) for layout in layouts)
    right = most * (_BOX_WIDTH + _GAP) - _GAP
    figure, axes = diagram(x=(-2.8, right + 0.1), y=(_LAYOUT * len(layouts) - 0.2, -0.5))
    for row, layout in enumerate(layouts):
        _draw_layout(axes, layout, top=_LAYOUT * row)
    rows = " ".join(map(_in_words, layouts))
    return finish(figure, alt=f"Each strategy's devices, and what a step sends. {rows}")


def draw_card(questions: Sequence[tuple[str, str]], *, otherwise: str) -> Figure:
    """Draws questions to be asked from the top; the first yes names the strategy."""
    right = _QUESTION_WIDTH + 1.1
    last = len(questions) * _QUESTION_ROW
    question, answer = (_QUESTION_WIDTH, _QUESTION_HEIGHT), (_ANSWER_WIDTH, _QUESTION_HEIGHT)
    look = {"edge": _VARIABLES, "weight": "bold"}
    figure, axes = diagram(x=(-0.1, right + _ANSWER_WIDTH + 0.1), y=(last + 0.95, -0.1))
    for row, (text, strategy) in enumerate(questions):
        top = row * _QUESTION_ROW
        bottom, middle = top + _QUESTION_HEIGHT, top + _QUESTION_HEIGHT / 2
        box(axes, (0, top), question, textwrap.fill(f"{row + 1}. {text}", 74), edge=NOTE)
        box(axes, (right, top), answer, strategy, **look)
        arrow(axes, (_QUESTION_WIDTH, middle), (right, middle))
        axes.text(_QUESTION_WIDTH + 0.5, middle - 0.05, "yes", ha="center", fontsize=9)
        arrow(axes, (0.5, bottom), (0.5, top + _QUESTION_ROW))
        axes.text(0.62, bottom + 0.15, "no", va="center", fontsize=9)
    box(axes, (0, last), question, otherwise, **look)
    rows = " ".join(f"{text} If yes: {strategy}." for text, strategy in questions)
    return finish(
        figure,
        title="The first yes decides",
        alt=f"A decision card. {rows} Otherwise: {otherwise}.",
    )


def _in_words(layout: Layout) -> str:
    """Describes a row for the alternative text."""
    replicas = " and ".join(layout.devices[place] for place in layout.replicas)
    copies = " and ".join(layout.devices[place] for place in layout.copies)
    sent = [
        f"{layout.devices[start]} sends {layout.devices[end]} {message}"
        for start, end, message in layout.moves
    ]
    moves = "; ".join(sent) if sent else "nothing is sent"
    return f"{layout.name}: replicas on {replicas}, variables on {copies}; {moves}."


def _draw_layout(axes: Any, layout: Layout, *, top: float) -> None:
    name = {"ha": "right", "va": "center", "weight": "bold", "fontsize": 9}
    axes.text(-0.25, top + _BOX_HEIGHT / 2, layout.name, **name)
    for place, device in enumerate(layout.devices):
        left = place * (_BOX_WIDTH + _GAP)
        box(axes, (left, top), (_BOX_WIDTH, _BOX_HEIGHT), edge=NOTE)
        axes.text(left + _BOX_WIDTH / 2, top - 0.08, device, ha="center", fontsize=9)
        held = [("variables", _VARIABLES)] * (place in layout.copies)
        if place in layout.replicas:
            held.append(("a replica", replica(layout.replicas.index(place)).colour))
        for line, (label, fill) in enumerate(held):
            corner, size = (left + 0.15, top + 0.15 + line * 0.65), (_BOX_WIDTH - 0.3, 0.55)
            box(axes, corner, size, label, fill=fill, color=GROUND)
    for number, move in enumerate(layout.moves):
        _draw_move(axes, move, top=top, lane=_lanes_before(layout.moves, number))


def _lanes_before(moves: Sequence[tuple[int, int, str]], number: int) -> int:
    """How many earlier moves go between the same two places: each has a lane of its own."""
    ends = {moves[number][0], moves[number][1]}
    return sum({start, end} == ends for start, end, _ in moves[:number])


def _draw_move(axes: Any, move: tuple[int, int, str], *, top: float, lane: int) -> None:
    start, end, message = move
    words = {"ha": "center", "fontsize": 8.5}
    if abs(end - start) == 1:
        left = min(start, end) * (_BOX_WIDTH + _GAP) + _BOX_WIDTH
        level, ends = top + 0.4 + 0.65 * lane, (left, left + _GAP)
        tail, head = ends if start < end else ends[::-1]
        arrow(axes, (tail, level), (head, level))
        axes.text(left + _GAP / 2, level - 0.06, message, **words)
        return
    # No neighbours: the arrow goes below the boxes that are between.
    bottom = top + _BOX_HEIGHT
    tail, head = (place * (_BOX_WIDTH + _GAP) + _BOX_WIDTH / 2 for place in (start, end))
    axes.plot([tail, tail, head], [bottom, bottom + 0.3, bottom + 0.3], color=NOTE, linewidth=1.2)
    arrow(axes, (head, bottom + 0.3), (head, bottom))
    frame = {"facecolor": GROUND, "edgecolor": "none", "pad": 1}
    axes.text((tail + head) / 2, bottom + 0.3, message, va="center", bbox=frame, **words)
