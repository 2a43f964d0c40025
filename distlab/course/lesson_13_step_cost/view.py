"""A view of where a transformer's FLOPs are, by its width, its depth and the length of its texts.

explore_flops()      # in the last line of a cell
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distlab.course.palette import MIDDLE, category, finish, label_axes, panels
from distlab.course.tiny_transformer import VOCABULARY
from distlab.course.view import Choices, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("attention's weights", "attention's two products", "layers behind it", "head")


def explore_flops() -> View:
    """Returns a view of the parts of a step's FLOPs, for models like the lesson's."""
    return View(
        "Where the FLOPs of a step are",
        {
            "width": Choices("width", [64, 256, 1024, 4096], start=64),
            "length": Choices("tokens of a text", [64, 1024, 8192, 131072], start=1024),
            "batch": Choices("texts in a batch", [1, 8, 64], start=8),
            "layers": Choices("layers", [2, 32], start=2),
        },
        _numbers,
        _draw,
    )


def _numbers(width: int, length: int, batch: int, layers: int) -> dict[str, Any]:
    """The FLOPs of a training step, by part, in the order of `PARTS`."""
    tokens = 3 * batch * length
    weights = 2 * tokens * layers * width**2
    pairs = 4 * tokens * layers * length * width
    return {"flops": [4 * weights, pairs, 8 * weights, 2 * tokens * width * VOCABULARY]}


def _draw(numbers: Mapping[str, Any], **chosen: Any) -> Figure:
    total = sum(numbers["flops"])
    shares = [100 * part / total for part in numbers["flops"]]
    figure, axes = panels(width=MIDDLE, height=2.2, layout="none")
    figure.subplots_adjust(left=0.34, right=0.93, bottom=0.24, top=0.82)
    looks = [category(number).bar() for number in range(len(PARTS))]
    for place, (share, look) in enumerate(zip(shares, looks, strict=True)):
        axes.barh(place, share, 0.7, **look)
        axes.text(share + 1, place, f"{share:.0f} %", va="center", fontsize=9)
    axes.set_yticks(range(len(PARTS)), PARTS)
    axes.set_ylim(len(PARTS) - 0.5, -0.5)
    axes.set_xlim(0, 112)
    label_axes(axes, x="part of the FLOPs", x_unit="%", y="")
    listed = ", ".join(f"{part} {share:.0f} %" for part, share in zip(PARTS, shares, strict=True))
    sizes = ", ".join(f"{name} {value:,}" for name, value in chosen.items())
    sizes_shown = f"width {chosen['width']:,}, {chosen['length']:,} tokens"
    title = f"{shown_flops(total)} in a step: {sizes_shown}"
    return finish(figure, title=title, alt=f"{sizes}: {listed}.")


def shown_flops(flops: float) -> str:
    """Returns FLOPs for people, such as "856 MFLOP" or "4.2 PFLOP"."""
    for unit in ("", "k", "M", "G", "T", "P"):
        if flops < 1000:
            return f"{flops:.3g} {unit}FLOP"
        flops /= 1000
    return f"{flops:,.0f} EFLOP"
