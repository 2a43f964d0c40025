"""Figures of lesson 13: MFU by width, and the roofline of recorded products.

draw_mfu(recorded_steps().mfu)
draw_roofline(recorded_steps().products)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distlab.course.lesson_13_step_cost.recorded import MeasuredMfu, MeasuredProduct
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


def draw_roofline(rows: Sequence[MeasuredProduct]) -> Figure:
    """Draws the speed of recorded products against their FLOPs for each byte, below two limits."""
    figure, axes = panels(height=3.4)
    places = [row.flops_per_byte for row in rows]
    speeds = [row.gflops_per_sec for row in rows]
    peak, bandwidth = max(speeds), speeds[0] / places[0]
    ridge = peak / bandwidth
    axes.plot([places[0], ridge, places[-1]], [speeds[0], peak, peak], color=REFERENCE, lw=1)
    style = {**category(0).line(size=6), "linestyle": "none"}
    axes.plot(places, speeds, **style)
    for row in rows[:-1:2]:
        axes.annotate(
            f"{row.rows} row" + "s" * (row.rows > 1),
            (row.flops_per_byte, row.gflops_per_sec),
            xytext=(-6, 5) if row.flops_per_byte < ridge / 2 else (0, -16),
            ha="right" if row.flops_per_byte < ridge / 2 else "center",
            textcoords="offset points",
            fontsize=9,
            color=NOTE,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(places[0] / 2.5, 1.5 * places[-1])
    axes.set_ylim(speeds[0] / 1.6, 1.6 * peak)
    label_axes(axes, x="FLOPs for each byte", y="GFLOP/s")
    points = ", ".join(
        f"{row.rows} rows {row.gflops_per_sec:.0f} GFLOP/s in {1e6 * row.secs:.0f} µs"
        for row in rows[:: len(rows) // 5]
    )
    return finish(
        figure,
        title="Few rows wait for memory, many rows for arithmetic",
        alt=f"Speed of products of some rows and a 1,024 by 1,024 matrix. {points}. The line "
        f"rises to {ridge:.0f} FLOPs for each byte and is flat beyond.",
    )
