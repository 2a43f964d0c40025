"""Figures: an all-reduce, and what the replicas' gradients and losses are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distlab.course.palette import (
    GROUND,
    NOTE,
    ONE_DEVICE,
    PALE,
    REFERENCE,
    add_legend,
    finish,
    label_axes,
    replica,
)

_CELL, _ROW, _BETWEEN = 0.8, 1.15, 2.2


def draw_all_reduce(given: Sequence[Any], received: Sequence[Any]) -> Any:
    """Draws the numbers that each replica gives, the sum of all, and what each receives."""
    import matplotlib.pyplot as plt

    total = [float(sum(column)) for column in zip(*given, strict=True)]
    wide, high = len(total) * _CELL, len(given) * _ROW
    figure, axes = plt.subplots(figsize=(8.4, 0.72 * (high + 1)), layout="constrained")
    middle = wide + _BETWEEN
    right = middle + wide + _BETWEEN
    centre = (high - _ROW) / 2
    for number, (vector, back) in enumerate(zip(given, received, strict=True)):
        top, colour = number * _ROW, replica(number).colour
        name = {"ha": "right", "va": "center", "color": colour, "weight": "bold"}
        axes.text(-0.25, top + _CELL / 2, f"replica {number}", **name)
        _draw_row(axes, vector, left=0, top=top, colour=colour)
        _draw_row(axes, back, left=right, top=top, colour=colour)
        _draw_arrow(axes, (wide, top), (middle, centre))
        _draw_arrow(axes, (middle + wide, centre), (right, top))
    _draw_row(axes, total, left=middle, top=centre, colour=REFERENCE)
    titles = (
        ("each gives its own", 0),
        ("reduce: the sum", middle),
        ("all: each receives it", right),
    )
    for title, left in titles:
        axes.text(left + wide / 2, -0.35, title, ha="center", va="bottom", fontsize=10)
    axes.set_xlim(-2.2, right + wide + 0.1)
    axes.set_ylim(high - _ROW + _CELL + 0.1, -0.9)
    axes.set_aspect("equal")
    axes.axis("off")
    gives = "; ".join(f"replica {n} gives {_in_words(row)}" for n, row in enumerate(given))
    gets = sorted({_in_words(row) for row in received})
    return finish(
        figure,
        alt=f"An all-reduce of {len(given)} replicas. On the left, {gives}. In the middle, their "
        f"sum is {_in_words(total)}. On the right, every replica receives {' or '.join(gets)}.",
    )


def _draw_row(axes: Any, numbers: Sequence[Any], *, left: float, top: float, colour: str) -> None:
    import matplotlib.patches as patches

    for place, number in enumerate(numbers):
        corner = (left + place * _CELL, top)
        cell = patches.Rectangle(corner, _CELL, _CELL, fc=GROUND, ec=colour, lw=2)
        axes.add_patch(cell)
        style = {"ha": "center", "va": "center", "fontsize": 11}
        axes.text(corner[0] + _CELL / 2, top + _CELL / 2, f"{float(number):g}", **style)


def _draw_arrow(axes: Any, tail: tuple[float, float], head: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "color": NOTE, "shrinkA": 4, "shrinkB": 4}
    tail, head = ((x, top + _CELL / 2) for x, top in (tail, head))
    axes.annotate("", xy=head, xytext=tail, arrowprops=style)


def _in_words(numbers: Sequence[Any]) -> str:
    return ", ".join(f"{float(number):g}" for number in numbers)


_GROUP_WIDTH = 0.76


def draw_gradients(
    per_replica: Sequence[Any], *, mean: Any, one_device: Any, label: str = "class"
) -> Any:
    """Draws a gradient as bars, one for each replica, with their mean and one device's."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.4, 2.9), layout="constrained")
    width = _GROUP_WIDTH / len(per_replica)
    places = range(len(mean))
    for number, gradient in enumerate(per_replica):
        left = [place + (number - (len(per_replica) - 1) / 2) * width for place in places]
        axes.bar(
            left,
            gradient,
            width * 0.94,
            **replica(number).bar(),
            label=f"replica {number}",
        )
    half = _GROUP_WIDTH / 2
    starts, ends = [place - half for place in places], [place + half for place in places]
    axes.hlines(mean, starts, ends, color=REFERENCE, linewidth=2, label="mean of the replicas")
    axes.plot(places, one_device, "o", mfc=GROUND, mec=ONE_DEVICE.colour, ms=6, label="one device")
    axes.axhline(0, color=PALE, linewidth=0.8)
    axes.set_xticks(list(places))
    label_axes(axes, x=label, y="gradient")
    handles, _ = axes.get_legend_handles_labels()
    handles.sort(key=lambda handle: not handle.get_label().startswith("replica"))
    add_legend(figure, handles=handles, loc="outside right upper")
    apart = max(abs(float(a) - float(b)) for a, b in zip(mean, one_device, strict=True))
    return finish(
        figure,
        alt=f"Bars of the gradient on {len(per_replica)} replicas, by {label}. A line shows their "
        f"mean and a circle the gradient of one device. {_how_near(apart)}",
    )


def _how_near(apart: float) -> str:
    # A millionth is rounding, and its digits differ from machine to machine.
    return "Each circle is on its line." if apart < 1e-6 else f"They are up to {apart:.2g} apart."


def draw_losses(curves: Mapping[str, Sequence[float]]) -> Any:
    """Draws loss by epoch, the first curve wide, so that one lying on it can be seen."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.2, 2.9), layout="constrained")
    for index, (name, losses) in enumerate(curves.items()):
        epochs = range(1, len(losses) + 1)
        axes.plot(
            epochs,
            losses,
            **(replica(index - 1).line(width=1.8) if index else ONE_DEVICE.band(width=9)),
            label=name,
        )
        axes.set_xticks(list(epochs))
    axes.set_ylim(bottom=0)
    label_axes(axes, x="epoch", y="loss")
    add_legend(axes)
    ends = "; ".join(f"{name} ends at {losses[-1]:.3g}" for name, losses in curves.items())
    return finish(figure, alt=f"The loss by epoch. {ends}.")
