"""Figures: an all-reduce, and what the replicas' gradients and losses are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course.figures.shapes import arrow, box
from distlab.course.palette import (
    GROUND,
    NOTE,
    ONE_DEVICE,
    REFERENCE,
    WIDE,
    add_legend,
    diagram,
    finish,
    ink,
    label_axes,
    label_ends,
    panels,
    replica,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CELL, _ROW, _BETWEEN = 0.8, 1.15, 2.2


def draw_all_reduce(given: Sequence[Any], received: Sequence[Any]) -> Figure:
    """Draws the numbers that each replica gives, the sum of all, and what each receives."""
    total = [float(sum(column)) for column in zip(*given, strict=True)]
    wide, high = len(total) * _CELL, len(given) * _ROW
    middle = wide + _BETWEEN
    right = middle + wide + _BETWEEN
    centre = (high - _ROW) / 2
    figure, axes = diagram(x=(-2.0, right + wide + 0.1), y=(high - 0.2, -0.8))
    for number, (vector, back) in enumerate(zip(given, received, strict=True)):
        top, colour = number * _ROW, replica(number).colour
        name = {"ha": "right", "va": "center", "color": ink(colour), "weight": "bold"}
        axes.text(-0.25, top + _CELL / 2, f"replica {number}", **name)
        _draw_row(axes, vector, left=0, top=top, colour=colour)
        _draw_row(axes, back, left=right, top=top, colour=colour)
        _draw_arrow(axes, (wide, top), (middle, centre))
        _draw_arrow(axes, (middle + wide, centre), (right, top))
    _draw_row(axes, total, left=middle, top=centre, colour=REFERENCE)
    titles = (
        ("each gives its own", 0, 0),
        ("reduce: the sum", middle, centre),
        ("all: each receives it", right, 0),
    )
    for title, left, top in titles:
        axes.text(left + wide / 2, top - 0.2, title, ha="center", fontsize=10)
    gives = "; ".join(f"replica {n} gives {_in_words(row)}" for n, row in enumerate(given))
    gets = sorted({_in_words(row) for row in received})
    return finish(
        figure,
        title="Many rows become one, and every replica receives it",
        alt=f"An all-reduce of {len(given)} replicas. On the left, {gives}. In the middle, their "
        f"sum is {_in_words(total)}. On the right, every replica receives {' or '.join(gets)}.",
    )


def _draw_row(axes: Any, numbers: Sequence[Any], *, left: float, top: float, colour: str) -> None:
    for place, number in enumerate(numbers):
        corner = (left + place * _CELL, top)
        box(axes, corner, (_CELL, _CELL), f"{float(number):g}", edge=colour, fontsize=11)


def _draw_arrow(axes: Any, tail: tuple[float, float], head: tuple[float, float]) -> None:
    arrow(axes, (tail[0] + 0.1, tail[1] + _CELL / 2), (head[0] - 0.1, head[1] + _CELL / 2))


def _in_words(numbers: Sequence[Any]) -> str:
    return ", ".join(f"{float(number):g}" for number in numbers)


_GROUP_WIDTH = 0.76


def draw_gradients(
    per_replica: Sequence[Any], *, mean: Any, one_device: Any, label: str = "class"
) -> Figure:
    """Draws a gradient as bars, one for each replica, with their mean and one device's."""
    figure, axes = panels(width=WIDE)
    width = _GROUP_WIDTH / len(per_replica)
    places = np.arange(len(mean))
    for number, gradient in enumerate(per_replica):
        middles = places + (number - (len(per_replica) - 1) / 2) * width
        look = replica(number).bar()
        axes.bar(middles, gradient, width * 0.94, **look, label=f"replica {number}")
    half = _GROUP_WIDTH / 2
    lines = {"color": REFERENCE, "linewidth": 2, "label": "mean of the replicas"}
    axes.hlines(mean, places - half, places + half, **lines)
    axes.plot(places, one_device, "o", mfc=GROUND, mec=ONE_DEVICE.colour, ms=6, label="one device")
    axes.axhline(0, color=NOTE, linewidth=0.8)
    axes.set_xticks(places)
    label_axes(axes, x=label, y="gradient")
    add_legend(figure, loc="outside lower center", ncols=4)
    apart = max(abs(float(a) - float(b)) for a, b in zip(mean, one_device, strict=True))
    # A millionth is rounding, and its digits differ from machine to machine.
    equal = apart < 1e-6
    near = "Each circle is on its line." if equal else f"They are up to {apart:.2g} apart."
    return finish(
        figure,
        title=f"The mean of the replicas' gradients is {'' if equal else 'not '}that of one device",
        alt=f"Bars of the gradient on {len(per_replica)} replicas, by {label}. A line shows their "
        f"mean and a circle the gradient of one device. {near}",
    )


def draw_losses(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Draws loss by epoch, each curve narrower than the one before, so that all can be seen."""
    figure, axes = panels()
    for index, (name, losses) in enumerate(curves.items()):
        epochs = range(1, len(losses) + 1)
        look = replica(index - 1).line() if index else ONE_DEVICE.band()
        if index and (later := len(curves) - 1 - index):
            look |= {"linewidth": 2 + 3 * later, "markersize": 5 + 3 * later}
        axes.plot(epochs, losses, **look, label=name)
        axes.set_xticks(epochs)
    axes.set_ylim(bottom=0)
    label_axes(axes, x="epoch", y="loss")
    label_ends(axes)
    ends = "; ".join(f"{name} ends at {losses[-1]:.3g}" for name, losses in curves.items())
    first, *others = curves.values()
    equal = all(np.allclose(first, losses, rtol=1e-3) for losses in others)
    return finish(
        figure,
        title="The losses agree, so they don't show which run is wrong" if equal else "",
        alt=f"The loss by epoch. {ends}.",
    )
