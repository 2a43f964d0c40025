"""The shapes of several lessons' diagrams: boxes with words, arrows, and framed digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distlab.course.palette import GROUND, NOTE, PALE, REFERENCE


def box(
    axes: Any,
    corner: tuple[float, float],
    size: tuple[float, float],
    text: str = "",
    *,
    fill: str = GROUND,
    edge: str = GROUND,
    hatch: str = "",
    **words: Any,
) -> None:
    """Draws a rectangle from the corner with the smallest values, with words in its middle."""
    from matplotlib.patches import Rectangle

    look: dict[str, Any] = {"facecolor": fill, "edgecolor": edge, "hatch": hatch, "linewidth": 1.4}
    axes.add_patch(Rectangle(corner, *size, **look))
    if text:
        style = {"ha": "center", "va": "center", "fontsize": 9, "color": REFERENCE, **words}
        axes.text(corner[0] + size[0] / 2, corner[1] + size[1] / 2, text, **style)


def arrow(axes: Any, tail: tuple[float, float], head: tuple[float, float]) -> None:
    """Draws an arrow from one point to another."""
    style = {"arrowstyle": "-|>", "color": NOTE, "shrinkA": 0, "shrinkB": 0, "linewidth": 1.2}
    axes.annotate("", head, tail, arrowprops=style)


def framed_digit(
    axes: Any,
    image: Any,
    corner: tuple[float, float],
    text: str,
    *,
    frames: Sequence[str] = (PALE,),
    faded: bool = False,
) -> None:
    """Draws an image of one unit with a frame in each colour, and words below it."""
    left, top = corner
    place = (left, left + 1, top + 1, top)
    alpha = 0.25 if faded else 1.0
    axes.imshow(image[..., 0], cmap="gray_r", vmin=0, vmax=1, extent=place, alpha=alpha)
    for number, colour in enumerate(frames):
        inset = 0.09 * number
        side = 1 - 2 * inset
        box(axes, (left + inset, top + inset), (side, side), fill="none", edge=colour)
    axes.text(left + 0.5, top + 1.08, text, ha="center", va="top", fontsize=7)
