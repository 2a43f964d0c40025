"""Figures: the map of parallelism in the card's order, and the decision card."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distlab.course.figures.shapes import arrow, box
from distlab.course.lesson_21_choosing_a_strategy.strategy_card import ORDER
from distlab.course.palette import NOTE, PALE, category, diagram, finish, ink, replica

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LAYERS = 3
_WHOLE = ((0.0, 1.0),) * _LAYERS


@dataclass(frozen=True)
class Part:
    """The parts of the batch, of each text in it, and of the layers that one device has."""

    device: str
    batch: tuple[float, float] | None
    layers: tuple[tuple[float, float] | None, ...] = _WHOLE
    fetches: bool = False
    text: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Kind:
    """One kind of parallelism, and when and where to use it."""

    name: str
    parts: tuple[Part, ...]
    when: str
    travels: str


_SPLIT = (((0.0, 0.5),) * _LAYERS, ((0.5, 1.0),) * _LAYERS)
_FIRST, _SECOND = (0.0, 0.5), (0.5, 1.0)

# What the two devices of each way to divide a model have.
_PARTS = {
    "sharded_data": (
        Part("device 0", _FIRST, _SPLIT[0], fetches=True),
        Part("device 1", _SECOND, _SPLIT[1], fetches=True),
    ),
    "tensor": (Part("device 0", (0, 1), _SPLIT[0]), Part("device 1", (0, 1), _SPLIT[1])),
    "pipeline": (
        Part("device 0", (0, 1), (_WHOLE[0], _WHOLE[0], None)),
        Part("device 1", None, (None, None, _WHOLE[0])),
    ),
    "expert": (
        Part("device 0", _FIRST, (_WHOLE[0], _FIRST, _WHOLE[0])),
        Part("device 1", _SECOND, (_WHOLE[0], _SECOND, _WHOLE[0])),
    ),
    "text": (
        Part("device 0", (0, 1), text=(0.0, 0.5)),
        Part("device 1", (0, 1), text=(0.5, 1.0)),
    ),
}
# Data parallelism, which divides no model, and then the ways that do, in the card's order.
FIELD = (
    Kind(
        "data",
        (Part("device 0", _FIRST), Part("device 1", _SECOND)),
        "as long as a device can hold everything",
        "the gradients, once a step",
    ),
    *(
        Kind(f"{number}. {way.name}", _PARTS[name], f"{way.when} ({way.where})", way.travels)
        for number, (name, way) in enumerate(ORDER.items(), 1)
    ),
)


_ROW, _DEVICE, _DEVICES_AT, _QUESTIONS_AT = 0.98, 0.74, 2.1, 5.45  # in inches


def draw_map(kinds: Sequence[Kind] = FIELD) -> Figure:
    """Draws for each kind what each device has of the batch and of three layers."""
    figure, axes = diagram(x=(0, 8), y=(_ROW * len(kinds) + 0.75, 0))
    legend = (
        "coloured: its examples of the batch, as wide as its part of each text\n"
        "grey: what it keeps of each of three layers\n"
        "hatched: what it fetches to compute that layer"
    )
    axes.text(_DEVICES_AT, 0.6, legend, fontsize=9, color=NOTE)
    axes.text(_QUESTIONS_AT, 0.6, "when to use it, and where", fontsize=9, weight="bold")
    for row, kind in enumerate(kinds):
        top = 0.75 + _ROW * row
        middle = {"va": "center", "fontsize": 9, "linespacing": 1.25}
        axes.plot([0, 8], [top, top], color=PALE, linewidth=0.8)
        axes.text(0, top + 0.3, textwrap.fill(kind.name, 24), weight="bold", **middle)
        travels = {"color": NOTE, "fontsize": 8.5, "va": "center", "linespacing": 1.25}
        axes.text(0, top + 0.68, textwrap.fill(f"sends {kind.travels}", 26), **travels)
        axes.text(_QUESTIONS_AT, top + 0.5, textwrap.fill(kind.when, 36), **middle)
        for number, part in enumerate(kind.parts):
            left = _DEVICES_AT + (_DEVICE + 0.1) * number
            _draw_device(axes, part, replica(number).colour, (left, top + 0.28))
    caption = " ".join(
        f"{kind.name}: {_told(kind)}; it sends {kind.travels}. When: {kind.when}." for kind in kinds
    )
    return finish(
        figure,
        title="Data parallelism, and five ways to divide a model, in their order",
        alt="A map of the kinds of parallelism. Each row shows what each device has of a batch and "
        f"of a model with three layers, and when to use it. {caption}",
    )


def _draw_device(axes: Any, part: Part, colour: str, corner: tuple[float, float]) -> None:
    left, top = corner
    name = {"ha": "center", "fontsize": 8, "color": ink(colour) if part.batch else NOTE}
    axes.text(left + _DEVICE / 2, top - 0.06, part.device, **name)
    box(axes, corner, (_DEVICE, 0.62), edge=PALE)
    if part.batch:
        (start, end), (begin, stop) = part.batch, part.text
        box(axes, (left + 0.06, top + 0.06), (0.12, 0.5), edge=PALE)
        corner = (left + 0.06 + 0.12 * begin, top + 0.06 + 0.5 * start)
        box(axes, corner, (0.12 * (stop - begin), 0.5 * (end - start)), fill=colour)
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
        if part.text != (0, 1):
            batch = "half of each text of the batch"
    names = {0: "no part", 0.5: "half", 1: "all"}
    amounts = [names[columns[1] - columns[0] if columns else 0] for columns in part.layers]
    if len(set(amounts)) == 1:
        rest_of_it = {"half": "the other half", "no part": "the whole"}.get(amounts[0])
        fetched = f", and fetches {rest_of_it} while it computes the layer"
        return f"{batch} and {amounts[0]} of each layer{fetched * part.fetches}"
    layers = [f"{amount} of layer {number}" for number, amount in enumerate(amounts, 1)]
    return f"{batch} and {', '.join(layers)}"


_QUESTION_WIDTH, _ANSWER_WIDTH, _QUESTION_HEIGHT, _QUESTION_ROW = 6.4, 2.8, 0.85, 1.15


def draw_card(questions: Sequence[tuple[str, str]], *, otherwise: str) -> Figure:
    """Draws questions to be asked from the top; the first yes names the strategy."""
    right = _QUESTION_WIDTH + 1.1
    last = len(questions) * _QUESTION_ROW
    question, answer = (_QUESTION_WIDTH, _QUESTION_HEIGHT), (_ANSWER_WIDTH, _QUESTION_HEIGHT)
    look = {"edge": category(0).colour, "weight": "bold"}
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
