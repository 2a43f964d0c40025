"""Pictures of strategies: where the variables are and what a step moves, and a card to choose by.

draw_layouts([Layout("mirrored", ("device 0", "device 1"), replicas=(0, 1), copies=(0, 1),
                     moves=((0, 1, "gradients"), (1, 0, "their sum")))])
draw_card([("Is one device enough?", "default")], otherwise="mirrored")
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distlab.pictures.palette import GROUND, NOTE, REFERENCE, category, finish, replica

# Words say what the colours say.
_VARIABLES, _LINE = category(0).colour, NOTE
_BOX_WIDTH, _BOX_HEIGHT, _GAP = 2.1, 1.5, 1.75
_QUESTION_WIDTH, _ANSWER_WIDTH, _ROW = 6.4, 3.4, 1.15


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
        top = -row * _ROW
        text = textwrap.fill(f"{row + 1}. {question}", 64)
        _box(axes, (0, top), (_QUESTION_WIDTH, 0.85), text, edge=_LINE)
        _box(axes, (right, top), (_ANSWER_WIDTH, 0.85), answer, edge=_VARIABLES, weight="bold")
        _arrow(axes, (_QUESTION_WIDTH, top - 0.425), (right, top - 0.425))
        axes.text(_QUESTION_WIDTH + 0.5, top - 0.38, "yes", ha="center", va="bottom", fontsize=8.5)
        _arrow(axes, (0.5, top - 0.85), (0.5, top - _ROW))
        axes.text(0.62, top - 1.0, "no", va="center", fontsize=8.5)
    size_of_last = (_QUESTION_WIDTH, 0.85)
    last = (0, -len(questions) * _ROW)
    _box(axes, last, size_of_last, otherwise, edge=_VARIABLES, weight="bold")
    axes.set_xlim(-0.1, right + _ANSWER_WIDTH + 0.1)
    axes.set_ylim(-len(questions) * _ROW - 0.95, 0.1)
    axes.axis("off")
    rows = " ".join(f"{question} If yes: {answer}." for question, answer in questions)
    return finish(figure, alt=f"A decision card. {rows} Otherwise: {otherwise}.")


def _in_words(layout: Layout) -> str:
    """What a row shows, for the alternative text."""
    replicas = " and ".join(layout.devices[place] for place in layout.replicas)
    copies = " and ".join(layout.devices[place] for place in layout.copies)
    sent = [
        f"{layout.devices[start]} sends {layout.devices[end]} {what}"
        for start, end, what in layout.moves
    ]
    moves = "; ".join(sent) if sent else "nothing is sent"
    return f"{layout.name}: replicas on {replicas}, variables on {copies}; {moves}."


def _draw_layout(axes: Any, layout: Layout, *, top: float) -> None:
    axes.text(-0.35, top - _BOX_HEIGHT / 2, layout.name, ha="right", va="center", weight="bold")
    for place, device in enumerate(layout.devices):
        left = place * (_BOX_WIDTH + _GAP)
        _box(axes, (left, top), (_BOX_WIDTH, _BOX_HEIGHT), "", edge=_LINE)
        axes.text(left + _BOX_WIDTH / 2, top + 0.08, device, ha="center", va="bottom", fontsize=9)
        held = [("variables", _VARIABLES, GROUND)] * (place in layout.copies)
        if place in layout.replicas:
            held.append(("a replica", replica(layout.replicas.index(place)).colour, GROUND))
        for line, (what, fill, colour) in enumerate(held):
            corner = (left + 0.15, top - 0.15 - line * 0.65)
            inner = (_BOX_WIDTH - 0.3, 0.55)
            _box(axes, corner, inner, what, edge=fill, fill=fill, colour=colour)
    levels = dict.fromkeys(layout.moves, 0.0)
    for number, move in enumerate(layout.moves):
        lane = 0.5 * _lanes_before(layout.moves, number)
        levels[move] = top - 0.3 - lane if abs(move[0] - move[1]) == 1 else top
    for (start, end, what), level in levels.items():
        _draw_move(axes, start, end, what, level=level)


def _lanes_before(moves: Sequence[tuple[int, int, str]], number: int) -> int:
    """How many earlier moves go between the same two places: each has a lane of its own."""
    ends = {moves[number][0], moves[number][1]}
    return sum({start, end} == ends for start, end, _ in moves[:number])


def _draw_move(axes: Any, start: int, end: int, what: str, *, level: float) -> None:
    if abs(end - start) > 1:
        _draw_move_below(axes, start, end, what, top=level)
        return
    first, last = sorted((start, end))
    left = first * (_BOX_WIDTH + _GAP) + _BOX_WIDTH
    right = last * (_BOX_WIDTH + _GAP)
    tail, head = ((left, level), (right, level))[:: 1 if start < end else -1]
    _arrow(axes, tail, head)
    axes.text((left + right) / 2, level + 0.04, what, ha="center", va="bottom", fontsize=8)


def _draw_move_below(axes: Any, start: int, end: int, what: str, *, top: float) -> None:
    """An arrow between boxes that are no neighbours: it goes below those that are between."""
    bottom = top - _BOX_HEIGHT
    tail, head = (place * (_BOX_WIDTH + _GAP) + _BOX_WIDTH / 2 for place in (start, end))
    axes.plot([tail, tail, head], [bottom, bottom - 0.3, bottom - 0.3], color=_LINE, linewidth=1)
    _arrow(axes, (head, bottom - 0.3), (head, bottom))
    words = {"ha": "center", "va": "center", "fontsize": 8}
    frame = {"facecolor": GROUND, "edgecolor": "none", "pad": 1}
    axes.text((tail + head) / 2, bottom - 0.3, what, bbox=frame, **words)


def _box(
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
    import matplotlib.patches as patches

    (left, top), (width, height) = corner, size
    frame = patches.Rectangle((left, top - height), width, height, fc=fill, ec=edge, lw=1.4)
    axes.add_patch(frame)
    middle = (left + width / 2, top - height / 2)
    style = {"ha": "center", "va": "center", "fontsize": 9, "color": colour, "weight": weight}
    axes.text(*middle, text, **style)


def _arrow(axes: Any, tail: tuple[float, float], head: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "color": _LINE, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=head, xytext=tail, arrowprops=style)
