"""Figures: the map of parallelism, where strategies keep what, and the decision card."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distlab.course.palette import GROUND, NOTE, PALE, REFERENCE, category, finish, replica

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LAYERS, _ROW = 3, 1.9
_WHOLE = ((0.0, 1.0),) * _LAYERS


@dataclass(frozen=True)
class Part:
    """What one device has."""

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


def draw_map(kinds: Sequence[Kind] = FIELD) -> Figure:
    """Draws for each kind what each device has of the batch and of three layers."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9.4, 1.12 * len(kinds) + 0.4), layout="constrained")
    for row, kind in enumerate(kinds):
        _draw_row(axes, kind, top=-_ROW * row)
    legend = (
        "coloured strip: its examples of the batch\ngrey: what it keeps of each of three layers\n"
        "hatched: what it fetches to compute that layer"
    )
    axes.text(0, 0.8, legend, fontsize=9.5, va="bottom", color=NOTE)
    axes.text(8.7, 0.8, "the question that decides", fontsize=9.5, va="bottom", weight="bold")
    axes.set_xlim(-4.4, 15.6)
    axes.set_ylim(-_ROW * len(kinds) + 0.2, 1.8)
    axes.axis("off")
    caption = " ".join(f"{kind.name}: {_told(kind)}. {kind.question}" for kind in kinds)
    return finish(
        figure,
        alt="A map of the kinds of parallelism. Each row shows what each device has of a batch and "
        f"of a model with three layers, and the question that decides. {caption}",
    )


def _draw_row(axes: Any, kind: Kind, *, top: float) -> None:
    name = "\n".join([textwrap.fill(kind.name, 22), textwrap.fill(kind.example, 26)])
    style = {"va": "center", "fontsize": 9.5}
    axes.text(-4.3, top - 0.65, name, **style)
    for number, part in enumerate(kind.parts):
        _draw_device(axes, part, number, corner=(2.1 * number, top))
    axes.text(8.7, top - 0.65, textwrap.fill(kind.question, 42), **style)


def _draw_device(axes: Any, part: Part, number: int, *, corner: tuple[float, float]) -> None:
    left, top = corner
    axes.text(left + 0.85, top + 0.04, part.device, ha="center", va="bottom", fontsize=9)
    _thin_box(axes, (left, top), (1.7, 1.35), fill=False)
    if part.batch:
        start, end = part.batch
        corner = (left + 0.1, top - 0.12 - 1.1 * start)
        _thin_box(axes, (left + 0.1, top - 0.12), (0.3, 1.1), fc=GROUND)
        _thin_box(axes, corner, (0.3, 1.1 * (end - start)), fc=replica(number).colour)
    for layer, columns in enumerate(part.layers):
        level = top - 0.12 - 0.4 * layer
        if columns or part.fetches:
            hatch = "////" if part.fetches else None
            _thin_box(axes, (left + 0.5, level), (1.1, 0.3), fc=GROUND, hatch=hatch)
        if columns:
            start, end = columns
            corner = (left + 0.5 + 1.1 * start, level)
            _thin_box(axes, corner, (1.1 * (end - start), 0.3), fc=PALE)


def _thin_box(
    axes: Any, corner: tuple[float, float], size: tuple[float, float], **look: Any
) -> None:
    _rectangle(axes, corner, size, ec=NOTE, lw=0.9, **look)


def _rectangle(
    axes: Any, corner: tuple[float, float], size: tuple[float, float], **look: Any
) -> None:
    """A rectangle from its upper left corner."""
    import matplotlib.patches as patches

    (left, top), (width, height) = corner, size
    axes.add_patch(patches.Rectangle((left, top - height), width, height, **look))


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
_VARIABLES, _LINE = category(0).colour, NOTE
_BOX_WIDTH, _BOX_HEIGHT, _GAP = 2.1, 1.5, 1.75
_QUESTION_WIDTH, _ANSWER_WIDTH, _QUESTION_ROW = 6.4, 3.4, 1.15


@dataclass(frozen=True)
class Layout:
    """Where one strategy keeps and computes things."""

    name: str
    devices: tuple[str, ...]
    replicas: tuple[int, ...]
    copies: tuple[int, ...]
    moves: tuple[tuple[int, int, str], ...] = ()


def draw_layouts(layouts: Sequence[Layout]) -> Any:
    """Draws each strategy's devices, with what is on them and what goes between them in a step."""
    import matplotlib.pyplot as plt

    most = max(len(layout.devices) for layout in layouts)
    width, height = most * (_BOX_WIDTH + _GAP) + 1.8, len(layouts) * 2.3
    figure, axes = plt.subplots(figsize=(width * 0.66, height * 0.6), layout="constrained")
    for row, layout in enumerate(layouts):
        _draw_layout(axes, layout, top=-2.3 * row)
    axes.set_xlim(-3.0, width - 3.2)
    axes.set_ylim(-height + 0.3, 0.5)
    axes.axis("off")
    rows = " ".join(map(_in_words, layouts))
    return finish(figure, alt=f"Each strategy's devices, and what a step sends. {rows}")


def draw_card(questions: Sequence[tuple[str, str]], *, otherwise: str) -> Any:
    """Draws questions to be asked from the top; the first yes names the strategy."""
    import matplotlib.pyplot as plt

    size = (8.6, 1.0 * (len(questions) + 1))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    right = _QUESTION_WIDTH + 1.1
    for row, (question, answer) in enumerate(questions):
        top = -row * _QUESTION_ROW
        text = textwrap.fill(f"{row + 1}. {question}", 64)
        _role_box(axes, (0, top), (_QUESTION_WIDTH, 0.85), text, edge=_LINE)
        _role_box(axes, (right, top), (_ANSWER_WIDTH, 0.85), answer, edge=_VARIABLES, weight="bold")
        _arrow(axes, (_QUESTION_WIDTH, top - 0.425), (right, top - 0.425))
        axes.text(_QUESTION_WIDTH + 0.5, top - 0.38, "yes", ha="center", va="bottom", fontsize=8.5)
        _arrow(axes, (0.5, top - 0.85), (0.5, top - _QUESTION_ROW))
        axes.text(0.62, top - 1.0, "no", va="center", fontsize=8.5)
    size_of_last = (_QUESTION_WIDTH, 0.85)
    last = (0, -len(questions) * _QUESTION_ROW)
    _role_box(axes, last, size_of_last, otherwise, edge=_VARIABLES, weight="bold")
    axes.set_xlim(-0.1, right + _ANSWER_WIDTH + 0.1)
    axes.set_ylim(-len(questions) * _QUESTION_ROW - 0.95, 0.1)
    axes.axis("off")
    rows = " ".join(f"{question} If yes: {answer}." for question, answer in questions)
    return finish(figure, alt=f"A decision card. {rows} Otherwise: {otherwise}.")


def _in_words(layout: Layout) -> str:
    """What a row shows, for the alternative text."""
    replicas = " and ".join(layout.devices[place] for place in layout.replicas)
    copies = " and ".join(layout.devices[place] for place in layout.copies)
    sent = [
        f"{layout.devices[start]} sends {layout.devices[end]} {message}"
        for start, end, message in layout.moves
    ]
    moves = "; ".join(sent) if sent else "nothing is sent"
    return f"{layout.name}: replicas on {replicas}, variables on {copies}; {moves}."


def _draw_layout(axes: Any, layout: Layout, *, top: float) -> None:
    axes.text(-0.35, top - _BOX_HEIGHT / 2, layout.name, ha="right", va="center", weight="bold")
    for place, device in enumerate(layout.devices):
        left = place * (_BOX_WIDTH + _GAP)
        _role_box(axes, (left, top), (_BOX_WIDTH, _BOX_HEIGHT), "", edge=_LINE)
        axes.text(left + _BOX_WIDTH / 2, top + 0.08, device, ha="center", va="bottom", fontsize=9)
        held = [("variables", _VARIABLES, GROUND)] * (place in layout.copies)
        if place in layout.replicas:
            held.append(("a replica", replica(layout.replicas.index(place)).colour, GROUND))
        for line, (label, fill, colour) in enumerate(held):
            corner = (left + 0.15, top - 0.15 - line * 0.65)
            inner = (_BOX_WIDTH - 0.3, 0.55)
            _role_box(axes, corner, inner, label, edge=fill, fill=fill, colour=colour)
    levels = dict.fromkeys(layout.moves, 0.0)
    for number, move in enumerate(layout.moves):
        lane = 0.5 * _lanes_before(layout.moves, number)
        levels[move] = top - 0.3 - lane if abs(move[0] - move[1]) == 1 else top
    for (start, end, message), level in levels.items():
        _draw_move(axes, start, end, message, level=level)


def _lanes_before(moves: Sequence[tuple[int, int, str]], number: int) -> int:
    """How many earlier moves go between the same two places: each has a lane of its own."""
    ends = {moves[number][0], moves[number][1]}
    return sum({start, end} == ends for start, end, _ in moves[:number])


def _draw_move(axes: Any, start: int, end: int, message: str, *, level: float) -> None:
    if abs(end - start) > 1:
        _draw_move_below(axes, start, end, message, top=level)
        return
    first, last = sorted((start, end))
    left = first * (_BOX_WIDTH + _GAP) + _BOX_WIDTH
    right = last * (_BOX_WIDTH + _GAP)
    tail, head = ((left, level), (right, level))[:: 1 if start < end else -1]
    _arrow(axes, tail, head)
    axes.text((left + right) / 2, level + 0.04, message, ha="center", va="bottom", fontsize=8)


def _draw_move_below(axes: Any, start: int, end: int, message: str, *, top: float) -> None:
    """An arrow between boxes that are no neighbours: it goes below those that are between."""
    bottom = top - _BOX_HEIGHT
    tail, head = (place * (_BOX_WIDTH + _GAP) + _BOX_WIDTH / 2 for place in (start, end))
    axes.plot([tail, tail, head], [bottom, bottom - 0.3, bottom - 0.3], color=_LINE, linewidth=1)
    _arrow(axes, (head, bottom - 0.3), (head, bottom))
    words = {"ha": "center", "va": "center", "fontsize": 8}
    frame = {"facecolor": GROUND, "edgecolor": "none", "pad": 1}
    axes.text((tail + head) / 2, bottom - 0.3, message, bbox=frame, **words)


def _role_box(
    axes: Any,
    corner: tuple[float, float],
    size: tuple[float, float],
    text: str,
    *,
    edge: str,
    fill: str = GROUND,
    colour: str = REFERENCE,
    weight: str = "normal",
) -> None:
    """A rectangle from its upper left corner, with text in its middle."""
    (left, top), (width, height) = corner, size
    _rectangle(axes, corner, size, fc=fill, ec=edge, lw=1.4)
    middle = (left + width / 2, top - height / 2)
    style = {"ha": "center", "va": "center", "fontsize": 9, "color": colour, "weight": weight}
    axes.text(*middle, text, **style)


def _arrow(axes: Any, tail: tuple[float, float], head: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "color": _LINE, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=head, xytext=tail, arrowprops=style)
