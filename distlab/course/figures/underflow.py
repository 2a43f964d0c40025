"""Draws how much of a gradient float16 keeps, at one or several loss scales, for lesson 07.

lost_in_float16(gradient, scale=256)                          # Lost(zero=0.12, infinite=0.0)
draw_underflow({"layer 1": g1, "layer 2": g2}, scales=(1, 2**8, 2**30))
draw_training({"float32": losses, "float16": others}, every_steps=10)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course.palette import (
    MIDDLE,
    NOTE,
    ONE_DEVICE,
    PALE,
    REFERENCE,
    RIGHT,
    WIDE,
    WRONG,
    add_legend,
    category,
    finish,
    label_axes,
    label_ends,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# As powers of two: what is not above the first becomes 0, below the second loses digits,
# and from the third on there is only infinity (65520, halfway beyond the largest, 65504).
ZERO_UP_TO, DIGITS_LOST_BELOW, INFINITE_FROM = -25.0, -14.0, math.log2(65520)

_NAMES = {"becomes 0": WRONG, "is kept": RIGHT, "becomes infinite": category(2)}
_CURVES = (ONE_DEVICE.band(), WRONG.line(), RIGHT.line(size=7), category(0).line(size=4))
_ROW_HEIGHT = 0.9  # of the distance of two rows


@dataclass(frozen=True)
class Lost:
    """The shares of a gradient that become 0 and infinite in float16."""

    zero: float
    infinite: float


def lost_in_float16(gradient: Any, *, scale: float = 1.0) -> Lost:
    """Rounds a scaled gradient to float16 and counts what is lost.

    Numbers that are 0 already, as behind a `relu` that is off, are left out of the count.
    """
    sizes = _nonzero(gradient)
    if sizes.size == 0:
        return Lost(0.0, 0.0)
    with np.errstate(over="ignore"):
        rounded = (sizes * scale).astype(np.float16)
    return Lost(float(np.mean(rounded == 0)), float(np.mean(~np.isfinite(rounded))))


def draw_underflow(gradients: Mapping[str, Any], *, scales: Sequence[float] = (1.0,)) -> Figure:
    """Draws how large gradients are, and which of them float16 keeps: a panel for each scale.

    Each layer is a row, with a histogram of the exponents of its gradient. What lies in the
    grey on the left becomes 0 in float16, on the right infinite; left of the dotted line it
    loses digits. The text beside each row is the share that becomes 0 or infinite.
    """
    from matplotlib.patches import Patch

    width = WIDE if len(scales) > 1 else MIDDLE
    height = 1.1 + 0.3 * max(len(gradients), 3)
    figure, axes = panels(1, len(scales), width=width, height=height, sharey=True, squeeze=False)
    low, high = _range(gradients, scales)
    for ax, scale in zip(axes[0], scales, strict=True):
        for row, gradient in enumerate(gradients.values()):
            _draw_row(ax, gradient, scale, bottom=len(gradients) - 1 - row, low=low, high=high)
        _draw_limits(ax, low, high)
        ax.set_title(f"scale {_power(scale)}", fontsize=10, loc="left")
        ax.set_ylim(-0.1, len(gradients) + 0.05)
    middles = [row + 0.42 for row in reversed(range(len(gradients)))]
    axes[0][0].set_yticks(middles, list(gradients))
    axes[0][len(scales) // 2].set_xlabel("size of a number, as a power of two")
    handles = [Patch(**look.bar(), label=name) for name, look in _NAMES.items()]
    add_legend(figure, handles=handles, loc="outside lower center", ncols=3)
    caption = " ".join(_panel_in_words(gradients, scale) for scale in scales)
    lost = any(lost_in_float16(each, scale=scales[0]).zero for each in gradients.values())
    title = f"float16 {'rounds the smallest numbers to 0' if lost else 'keeps every number'}"
    if len(scales) > 1:
        title = "A scale moves all numbers to the right, and must not move them too far"
    return finish(
        figure,
        title=title,
        alt=f"Histograms of how large the numbers of a gradient are, a row for each of "
        f"{len(gradients)} layers and a panel for each scale. {caption}",
    )


def draw_training(
    curves: Mapping[str, Sequence[float]], *, every_steps: int, level: tuple[str, float]
) -> Figure:
    """Draws losses by step, the first curve broad, so that others lying on it can be seen."""
    figure, ax = panels()
    for (name, losses), look in zip(curves.items(), _CURVES, strict=False):
        steps = [every_steps * (index + 1) for index in range(len(losses))]
        ax.plot(steps, losses, label=name, **look)
    name, height = level
    ax.plot([0, steps[-1]], [height, height], ":", color=NOTE, linewidth=1.2, label=name, zorder=0)
    label_axes(ax, x="step", y="loss")
    # Limits that the last digits of a loss do not move, for those differ from machine to machine.
    shown = [height, *(loss for losses in curves.values() for loss in losses)]
    ax.set_ylim(math.floor(min(shown) * 10) / 10, math.ceil(max(shown) * 10) / 10)
    label_ends(ax)
    # One digit: the next ones differ from machine to machine.
    ends = "; ".join(f"{run} ends at {losses[-1]:.1f}" for run, losses in curves.items())
    last = every_steps * max(len(losses) for losses in curves.values())
    return finish(
        figure,
        title=f"Only {list(curves)[1]} leaves the grey curve",
        alt=f"The loss over {last} steps, one curve for each run: {ends}. A dotted line marks "
        f"{name}, at {height:.1f}.",
    )


def _draw_row(ax: Axes, gradient: Any, scale: float, *, bottom: int, low: int, high: int) -> None:
    exponents = np.clip(np.log2(_nonzero(gradient) * scale), low, high)
    # Bins of a whole power of two: the limit of 0 then falls between two of them.
    counts, edges = np.histogram(exponents, bins=np.arange(low, high + 1))
    heights = counts / max(counts.max(), 1) * _ROW_HEIGHT
    starts, heights = edges[:-1][counts > 0], heights[counts > 0]
    zero, infinite = starts < ZERO_UP_TO, starts >= 16
    for look, wanted in zip(_NAMES.values(), (zero, ~zero & ~infinite, infinite), strict=True):
        form = {**look.bar(), "align": "edge", "linewidth": 0.4}
        ax.bar(starts[wanted], heights[wanted], 1.0, bottom, **form)
    text = _share_lost(gradient, scale)
    beside = ax.get_yaxis_transform()  # x in widths of the panel
    ax.text(1.02, bottom + 0.42, text, transform=beside, va="center", fontsize=9)


def _share_lost(gradient: Any, scale: float) -> str:
    lost = lost_in_float16(gradient, scale=scale)
    share = lost.zero + lost.infinite
    return "all kept" if share == 0 else f"{share:.0%} lost" if share >= 0.005 else "< 1% lost"


def _panel_in_words(gradients: Mapping[str, Any], scale: float) -> str:
    rows = (f"{name} {_share_lost(each, scale)}" for name, each in gradients.items())
    exponent = math.log2(scale)
    power = (
        f"2 to the power of {exponent:.0f}" if exponent == round(exponent) != 0 else f"{scale:g}"
    )
    return f"At scale {power}: {', '.join(rows)}."


def _draw_limits(ax: Axes, low: int, high: int) -> None:
    ax.axvspan(low, ZERO_UP_TO, color=PALE, alpha=0.5, zorder=0, linewidth=0)
    ax.axvspan(INFINITE_FROM, high, color=PALE, alpha=0.5, zorder=0, linewidth=0)
    ax.axvline(ZERO_UP_TO, color=REFERENCE, linewidth=1.2)
    ax.axvline(INFINITE_FROM, color=REFERENCE, linewidth=1.2)
    ax.axvline(DIGITS_LOST_BELOW, color=NOTE, linewidth=0.8, linestyle=":")
    ax.set_xlim(low, high)
    ax.set_xticks(range(-10 * (-low // 10), high + 1, 10))
    ax.tick_params(labelsize=8)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right"]].set_visible(False)


def _range(gradients: Mapping[str, Any], scales: Sequence[float]) -> tuple[int, int]:
    """The exponents that all panels show, float16's limits among them."""
    sizes = [np.log2(nonzero) for g in gradients.values() if (nonzero := _nonzero(g)).size]
    # Of the smallest a few in a hundred may be anywhere: they are drawn in the first bin.
    lowest = [float(np.percentile(size, 2)) + math.log2(min(scales)) for size in sizes]
    highest = [float(size.max()) + math.log2(max(scales)) for size in sizes]
    low, high = min([ZERO_UP_TO, *lowest]), max([INFINITE_FROM, *highest])
    return math.floor(low) - 2, math.ceil(high) + 2


def _nonzero(gradient: Any) -> Any:
    numbers = np.abs(np.asarray(gradient, dtype=np.float64)).ravel()
    return numbers[numbers > 0]


def _power(scale: float) -> str:
    exponent = math.log2(scale)
    if exponent != round(exponent) or not exponent:
        return f"{scale:g}"
    return "2" + f"{exponent:.0f}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
