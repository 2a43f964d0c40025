"""The figure of lesson 16: memory by the number of replicas, as calculated and as measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distlab.course import palette
from distlab.course.palette import WIDE, finish, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_memory_by_replicas(
    replicas: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    *,
    measured: Mapping[str, Mapping[int, float]],
    limit_gb: float,
) -> Figure:
    """Draws the memory of a step on one device over the number of replicas, on two log axes.

    Args:
        replicas: The places along the x axis.
        curves: GB of each way to divide a model, one number for each of `replicas`.
        measured: GB that variables took, by way and number of replicas; drawn as points.
            What a curve goes down to with more and more replicas is drawn as a dotted line.
        limit_gb: The memory of a device, drawn as a line.
    """
    figure, ax = panels(width=WIDE, height=3.4)
    captions, floors, ends = [], [], [replicas[0], replicas[-1]]
    top = max(limit_gb, *(max(gigabytes) for gigabytes in curves.values()))
    bottom = min(min(gigabytes) for gigabytes in curves.values())
    for number, (name, gigabytes) in enumerate(curves.items()):
        look = palette.category(number)
        ax.plot(replicas, gigabytes, **{**look.line(), "marker": ""}, label=name)
        points = measured.get(name, {})
        ax.plot(list(points), list(points.values()), "o", color=look.colour, ms=7)
        fitting = [n for n, gb in zip(replicas, gigabytes, strict=True) if gb <= limit_gb]
        fits = f"fits first with {fitting[0]} replicas" if fitting else "never fits"
        floor = _undivided(replicas, gigabytes)
        if bottom < floor < 0.99 * gigabytes[0]:
            ax.plot(ends, [floor] * 2, color=look.colour, lw=1.5, ls=":", zorder=1)
            ink = palette.ink(look.colour)
            ax.text(replicas[0], floor, f"floor: {floor:.0f}", color=ink, fontsize=9, va="bottom")
            floors.append(f"{name} {floor:.0f} GB")
        captions.append(
            f"{name}: {gigabytes[0]:.0f} GB with {replicas[0]} and {gigabytes[-1]:.0f} GB with "
            f"{replicas[-1]}; it {fits}."
        )
    name = f"one device: {limit_gb:.0f} GB"
    ax.plot(ends, [limit_gb] * 2, color=palette.REFERENCE, lw=1.5, label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(list(replicas), [str(count) for count in replicas])
    marks = [2**power for power in range(int(top).bit_length() + 1)]
    ax.set_yticks(marks, [str(mark) for mark in marks])
    ax.set_ylim(bottom / 1.4, 1.4 * top)
    palette.label_axes(ax, x="replicas", y="memory on each device", y_unit="GB")
    palette.label_ends(ax)
    places = ", ".join(
        str(count) for count in sorted({n for each in measured.values() for n in each})
    )
    return finish(
        figure,
        title="What isn't divided is a floor that no number of devices lowers",
        alt="Curves of what one device holds in a step, over the number of replicas, with a line "
        f"at {limit_gb:.0f} GB. {' '.join(captions)} Floors, as dotted lines: "
        f"{', '.join(floors) or 'none'}. Points, measured with {places} replicas, lie "
        "on the curves.",
    )


def _undivided(replicas: Sequence[int], gigabytes: Sequence[float]) -> float:
    """Returns what stays whole on each device: the rest is divided by the number of replicas."""
    first, last = replicas[0], replicas[-1]
    return (last * gigabytes[-1] - first * gigabytes[0]) / (last - first)
