"""Figures of lesson 13: MFU by width, the time of products by rows, and a GPU's roofline.

draw_mfu(recorded_steps().mfu)
draw_rows(recorded_steps())
draw_roofline(peak_tflops=989, bytes_per_sec=3.35e12, rows=(1, 32, 295))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distlab.course.lesson_13_step_cost.recorded import MeasuredMfu, Recording
from distlab.course.palette import (
    NOTE,
    REFERENCE,
    category,
    finish,
    ink,
    label_axes,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_mfu(rows: Sequence[MeasuredMfu]) -> Figure:
    """Draws the MFU of recorded steps against the model's width, without XLA and with it."""
    figure, axes = panels(height=3)
    says = []
    for number, (xla, name) in enumerate(((False, "TensorFlow"), (True, "with XLA"))):
        own = [row for row in rows if row.xla is xla]
        if not own:
            continue
        shares = [100 * row.mfu for row in own]
        look = category(number)
        axes.plot([row.width for row in own], shares, **look.line())
        # Over its first point, since the ends of both lines are close to each other.
        place, style = (
            (own[0].width, shares[0]),
            {"color": ink(look.colour), "weight": "bold", "ha": "right"},
        )
        axes.annotate(name, place, xytext=(2, 12), textcoords="offset points", fontsize=9, **style)
        points = ", ".join(f"{share:.0f} % at {row.width}" for share, row in zip(shares, own))  # noqa: B905
        says.append(f"{name}: {points}.")
    axes.set_xscale("log", base=2)
    widths = sorted({row.width for row in rows})
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.set_ylim(0, 100)
    axes.set_xlim(widths[0] / 1.6, 1.2 * widths[-1])
    label_axes(axes, x="width of the model", y="MFU", y_unit="%")
    return finish(
        figure,
        title="The wider the model, the more of the machine it uses",
        alt=f"MFU of a training step by the model's width. {' '.join(says)}",
    )


def draw_rows(recording: Recording) -> Figure:
    """Draws how long recorded products took, against their number of rows."""
    figure, axes = panels(height=3.2)
    times = {row.rows: 1e6 * row.secs for row in recording.products}
    tiny = 1e6 * recording.tiny_secs
    axes.axhline(tiny, color=REFERENCE, lw=1)
    said = f"a product of two 8 by 8 matrices: {tiny:,.0f} µs"
    style = {"fontsize": 9, "color": NOTE, "va": "top", "ha": "right"}
    axes.annotate(said, (max(times), tiny), xytext=(0, -4), textcoords="offset points", **style)
    axes.plot(list(times), list(times.values()), **category(0).line(size=5))
    named = [count for count in (1, 32, max(times)) if count in times]
    for count in named:
        axes.annotate(
            f"{count:,} row{'s' * (count > 1)}: {times[count]:,.0f} µs",
            (count, times[count]),
            xytext=(0, 10) if count == 1 else (-8, 4),
            ha="left" if count == 1 else "right",
            va="bottom",
            textcoords="offset points",
            fontsize=9,
            color=NOTE,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylim(min(tiny, *times.values()) / 2, 2 * max(times.values()))
    label_axes(axes, x="rows of the first factor", y="time", y_unit="µs")
    points = ", ".join(f"{times[count]:,.0f} µs for {count:,}" for count in times)
    return finish(
        figure,
        title="The first rows cost almost nothing",
        alt=f"Time of a product of some rows and a 1,024 by 1,024 matrix, by rows: {points}. "
        f"Below it, {said}.",
    )


def draw_roofline(*, peak_tflops: float, bytes_per_sec: float, rows: Sequence[int]) -> Figure:
    """Draws the most that a data sheet allows, by the FLOPs for each byte that's read.

    Args:
        peak_tflops: The most TFLOP/s.
        bytes_per_sec: The most bytes that the memory delivers in a second.
        rows: Products to mark, with as many rows; each reads weights of 2 bytes.
    """
    figure, axes = panels(height=3.2)
    slope = bytes_per_sec / 1e12
    ridge, last = peak_tflops / slope, 4 * peak_tflops / slope
    axes.plot([0.5, ridge, last], [0.5 * slope, peak_tflops, peak_tflops], color=REFERENCE, lw=1.5)
    says = []
    for count in rows:
        best = min(count * slope, peak_tflops)
        axes.plot([count], [best], **{**category(0).line(size=6), "linestyle": "none"})
        name = f"{count:,} row{'s' * (count > 1)}: {best:.3g}"
        place = {"xytext": (8, -4), "ha": "left", "va": "top"}
        axes.annotate(
            name, (count, best), textcoords="offset points", fontsize=9, color=NOTE, **place
        )
        says.append(f"{name} TFLOP/s")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0.4 * slope, 2 * peak_tflops)
    label_axes(axes, x="FLOPs for each byte that's read", y="at most, TFLOP/s")
    return finish(
        figure,
        title="Few rows wait for memory, many rows for arithmetic",
        alt=f"The most that a data sheet allows, by FLOPs for each byte: {', '.join(says)}. The "
        f"line rises to {ridge:.0f} FLOPs for each byte and is flat beyond.",
    )
