"""Lesson 15's figure: the peak of a step against its batch, beside a limit.

draw_peaks()          # as recorded; `python -m ...lesson_15_fit_into_memory.peaks --record` again
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from distlab.course.palette import (
    MIDDLE,
    REFERENCE,
    category,
    finish,
    ink,
    label_axes,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECORDED = Path(__file__).with_name("figures.json")
LIMIT_MB, MOST_ROWS = 64, 150


def recorded_peaks() -> dict[str, dict[int, float]]:
    """Returns for each way the peaks in MB, by the rows of the batch."""
    stored = json.loads(RECORDED.read_text(encoding="utf-8"))["peaks_mb"]
    return {way: {int(rows): peak for rows, peak in peaks.items()} for way, peaks in stored.items()}


def draw_peaks() -> Figure:
    """Draws the recorded peak of each way against the batch, with the limit of 64 MB."""
    figure, axes = panels(width=MIDDLE, height=3.2)
    says = []
    for number, (way, peaks) in enumerate(recorded_peaks().items()):
        style = category(number).line()
        axes.plot(list(peaks), list(peaks.values()), **style)
        (few, low), (many, high) = peaks.items()
        per_row = (high - low) / (many - few)
        limit_rows = many + (LIMIT_MB - high) / per_row
        last = min(limit_rows, MOST_ROWS)
        end = high + (last - many) * per_row
        axes.plot([many, last], [high, end], "--", color=style["color"], linewidth=1)
        axes.annotate(
            way,
            (last, end),
            (0, 4),
            textcoords="offset points",
            ha="right" if way in ("4 micro-batches", "both") else "left",
            color=ink(style["color"]),
            fontsize=9,
            weight="bold",
        )
        pairs = ", ".join(f"{peak:.0f} MB with {rows}" for rows, peak in peaks.items())
        says.append(f"{way}: {pairs}, and the limit at about {limit_rows:.0f}")
    axes.axhline(LIMIT_MB, color=REFERENCE, linewidth=0.8, zorder=1)
    axes.annotate(
        "limit", (MOST_ROWS, LIMIT_MB), (0, 4), textcoords="offset points", ha="right", fontsize=9
    )
    axes.set_xlim(0, MOST_ROWS)
    axes.set_ylim(0, 1.15 * LIMIT_MB)
    label_axes(axes, x="rows in the batch", y="peak", y_unit="MB")
    return finish(
        figure,
        title="Each way to save makes the line flatter, so more rows fit below the limit",
        alt=f"Peak memory of a step against the rows of its batch. {'. '.join(says)}. "
        f"A line marks the limit of {LIMIT_MB} MB.",
    )
