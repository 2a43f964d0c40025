"""Figures: what a move of a checkpoint keeps, and how far two models differ.

draw_move(replicas=2, moved_to=4)

draw_differences({".keras": {"one device": 0.0, "mirrored(4)": 0.0},
                  ".weights.h5": {"one device": 0.05, "mirrored(4)": None}}, tolerance=1e-6)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from distlab.course.palette import GROUND, NOTE, PALE, REFERENCE, RIGHT, WRONG, finish, replica

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Hatches and words say what the colours say.
_EQUAL, _DIFFERS, _NOTHING = RIGHT.colour, WRONG.colour, "0.9"
_CELL_WIDTH, _CELL_HEIGHT = 1.45, 0.42  # inches


_PARTS = ("architecture", "weights", "compile", "optimizer")


def draw_move(*, replicas: int, moved_to: int) -> Figure:
    """Draws a training run on some replicas, its file, and the replicas where it continues."""
    import matplotlib.pyplot as plt

    figure: Figure
    figure, ax = plt.subplots(figsize=(8.4, 2.5), layout="constrained")
    for count, left in ((replicas, 0.0), (moved_to, 7.0)):
        for number in range(count):
            top = 0.55 * ((count - 1) / 2 - number)
            _box(ax, left, top, 2.4, 0.46, f"replica {number}", replica(number).colour, GROUND)
    _box(ax, 3.75, 0, 1.9, 2.1, "file\n\n" + "\n".join(f"{p} ?" for p in _PARTS), PALE, REFERENCE)
    for start, end, text in ((2.5, 3.65, "save"), (5.75, 6.9, "load")):
        ax.annotate("", (end, 0), (start, 0), arrowprops={"arrowstyle": "-|>", "color": NOTE})
        ax.text((start + end) / 2, 0.12, text, ha="center", color=NOTE, fontsize=9)
    ax.set(xlim=(-0.1, 9.5), ylim=(-1.25, 1.25))
    ax.axis("off")
    return finish(
        figure,
        alt=f"A model on {replicas} replicas is saved to a file and loaded on {moved_to} replicas. "
        f"The file shows {len(_PARTS)} parts, each with a question mark: {', '.join(_PARTS)}.",
    )


def _box(
    ax: Axes,
    left: float,
    middle: float,
    width: float,
    height: float,
    text: str,
    fill: str,
    ink: str,
) -> None:
    from matplotlib.patches import Rectangle

    corner = (left, middle - height / 2)
    ax.add_patch(Rectangle(corner, width, height, facecolor=fill, edgecolor=GROUND))
    ax.text(left + width / 2, middle, text, ha="center", va="center", color=ink, fontsize=9)


def draw_differences(
    rows: Mapping[str, Mapping[str, float | None]],
    *,
    tolerance: float,
    title: str = "",
    missing: str = "cannot",
) -> Figure:
    """Draws a cell for each way and strategy: equal, or how far apart."""
    import matplotlib.pyplot as plt

    columns = list(next(iter(rows.values())))
    size = (1.6 + _CELL_WIDTH * len(columns), 0.75 + _CELL_HEIGHT * len(rows))
    figure: Figure
    figure, ax = plt.subplots(figsize=size, layout="constrained")
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
    return finish(
        figure,
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
    from matplotlib.patches import Rectangle

    if value is None:
        fill, hatch, colour = _NOTHING, "", NOTE
    elif value < tolerance:
        fill, hatch, colour = _EQUAL, "", GROUND
    else:
        fill, hatch, colour = _DIFFERS, "////", REFERENCE
    text = _text(value, tolerance, missing)
    corner = (column - 0.47, row - 0.44)
    cell = Rectangle(corner, 0.94, 0.88, facecolor=fill, hatch=hatch, edgecolor=GROUND, lw=0)
    ax.add_patch(cell)
    behind = {"boxstyle": "round,pad=0.2", "fc": GROUND, "ec": "none"} if hatch else None
    ax.text(column, row, text, ha="center", va="center", color=colour, fontsize=9, bbox=behind)
