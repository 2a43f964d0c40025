"""Figures: what a move of a checkpoint keeps, and how far two models differ.

draw_move(replicas=2, moved_to=4)

draw_differences({".keras": {"one device": 0.0, "mirrored(4)": 0.0},
                  ".weights.h5": {"one device": 0.05, "mirrored(4)": None}}, tolerance=1e-6)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distlab.course.figures.shapes import arrow, box
from distlab.course.palette import (
    GRID,
    GROUND,
    NOTE,
    PALE,
    RIGHT,
    WIDE,
    WRONG,
    diagram,
    finish,
    panels,
    replica,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PARTS = ("architecture", "weights", "compile", "optimizer")


def draw_move(*, replicas: int, moved_to: int) -> Figure:
    """Draws a training run on some replicas, its file, and the replicas where it continues."""
    figure, axes = diagram(x=(-0.1, 9.5), y=(-1.25, 1.25))
    for count, left in ((replicas, 0.0), (moved_to, 7.0)):
        for number in range(count):
            corner = (left, 0.55 * ((count - 1) / 2 - number) - 0.23)
            look = {"fill": replica(number).colour, "color": GROUND}
            box(axes, corner, (2.4, 0.46), f"replica {number}", **look)
    parts = "\n".join(["file", "", *(f"{part} ?" for part in _PARTS)])
    box(axes, (3.75, -1.05), (1.9, 2.1), parts, fill=PALE)
    for start, end, text in ((2.5, 3.65, "save"), (5.75, 6.9, "load")):
        arrow(axes, (start, 0), (end, 0))
        axes.text((start + end) / 2, 0.12, text, ha="center", color=NOTE, fontsize=9)
    return finish(
        figure,
        alt=f"A model on {replicas} replicas is saved to a file and loaded on {moved_to} replicas. "
        f"The file shows {len(_PARTS)} parts, each with a question mark: {', '.join(_PARTS)}.",
    )


def draw_differences(
    rows: Mapping[str, Mapping[str, float | None]],
    *,
    tolerance: float,
    title: str = "",
    missing: str = "cannot",
) -> Figure:
    """Draws a cell for each way and strategy: equal, or how far apart."""
    columns = list(next(iter(rows.values())))
    figure, ax = panels(width=WIDE, height=0.75 + 0.42 * len(rows))
    for row, values in enumerate(rows.values()):
        for column, name in enumerate(columns):
            _draw_cell(ax, row, column, values[name], tolerance=tolerance, missing=missing)
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(len(rows) - 0.5, -0.5)  # the first row on top
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.tick_params(length=0, labelsize=9)
    ax.xaxis.tick_top()
    ax.spines[:].set_visible(False)
    if title:
        ax.set_xlabel(title, fontsize=9)
    caption = " ".join(
        f"{name}: {', '.join(_text(value, tolerance, missing) for value in row.values())}."
        for name, row in rows.items()
    )
    others = [
        name
        for name, row in rows.items()
        if any(value is None or not value < tolerance for value in row.values())
    ]
    return finish(
        figure,
        title=f"All but {' and '.join(others)} arrive unchanged" if others else "All are equal",
        alt=f"A grid of what was saved by strategy: {title or 'how far apart'}. The columns are "
        f"{', '.join(columns)}. {caption}",
    )


def _text(value: float | None, tolerance: float, missing: str) -> str:
    if value is None:
        return missing
    return "equal" if value < tolerance else f"{value:.2g} apart"


def _draw_cell(
    ax: Axes, row: int, column: int, value: float | None, *, tolerance: float, missing: str
) -> None:
    look: dict[str, Any]
    if value is None:
        look = {"fill": GRID, "color": NOTE}
    elif value < tolerance:
        look = {"fill": RIGHT.colour, "color": GROUND}
    else:
        behind = {"boxstyle": "round,pad=0.2", "fc": GROUND, "ec": "none"}
        look = {"fill": WRONG.colour, "hatch": WRONG.hatch, "bbox": behind}
    text = _text(value, tolerance, missing)
    box(ax, (column - 0.47, row - 0.44), (0.94, 0.88), text, **look)
