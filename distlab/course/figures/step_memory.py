"""Draws the memory that a step needs on one device, beside what it has, for lesson 16.

mirrored = {"weights": 48, "gradients": 48, "optimizer state": 96}
draw_memory({"Mirrored": mirrored}, limit_gb=80, model="12 billion weights")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from distlab.course import palette
from distlab.course.palette import WIDE, finish, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_memory(rows: Mapping[str, Mapping[str, float]], *, limit_gb: float, model: str) -> Figure:
    """Draws the memory of a step on each device as a stacked bar, with the device's limit."""
    figure, ax = panels(width=WIDE, height=0.5 * len(rows) + 1.2)
    left = dict.fromkeys(rows, 0.0)
    for number, part in enumerate(next(iter(rows.values()))):
        sizes = [parts[part] for parts in rows.values()]
        style = palette.category(number).bar()
        ax.barh(list(rows), sizes, left=list(left.values()), label=part, **style)
        left = {name: left[name] + rows[name][part] for name in rows}
    for place, total in enumerate(left.values()):
        look = palette.RIGHT if total <= limit_gb else palette.WRONG
        verdict = "fits" if total <= limit_gb else "too large"
        text = f"{round(total, 1):,g} GB, {verdict}"
        ground = {"facecolor": palette.GROUND, "edgecolor": "none", "pad": 1}
        style = {"va": "center", "fontsize": 9, "color": palette.ink(look.colour), "bbox": ground}
        ax.text(total + 0.01 * limit_gb, place, text, zorder=5, **style)
    ax.axvline(limit_gb, color=palette.REFERENCE, lw=1.5, label=f"one device: {limit_gb:.0f} GB")
    ax.set_xlim(0, 1.25 * max(*left.values(), limit_gb))
    ax.invert_yaxis()
    palette.label_axes(ax, x="memory on each device", y="", x_unit="GB")
    palette.add_legend(figure, loc="outside lower center", ncols=5)
    caption = " ".join(
        f"{name}: {round(total, 1):,g} GB, which {'fits' if total <= limit_gb else 'is too large'}."
        for name, total in left.items()
    )
    parts = ", ".join(next(iter(rows.values())))
    fitting = sum(total <= limit_gb for total in left.values())
    return finish(
        figure,
        title=f"{model}: {fitting} of {len(rows)} fit into {limit_gb:.0f} GB",
        alt=f"Stacked bars of what one device holds in a step ({parts}), with a line at "
        f"{limit_gb:.0f} GB. {caption}",
    )
