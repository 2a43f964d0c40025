"""Losses of one training in several precisions, and the loss scale that finds itself. Lesson 07.

draw_loss_scale({"float32": losses, "float16": others}, scales, skipped=[1, 2, 9])
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart; shapes say it too.
_LOOKS = (("#D55E00", "x", 5), ("#009E73", "o", 6), ("#0072B2", "^", 4))
_SKIPPED = "#CC79A7"


def draw_loss_scale(
    losses: Mapping[str, Sequence[float]], scales: Sequence[float], *, skipped: Sequence[int]
) -> Figure:
    """Draws losses by step, and below them a loss scale; a bar through both is a skipped step.

    Args:
        losses: By way of training, at most four, the loss of each step. The first is what the
            others should be: a broad grey line under them.
        scales: The scale in each step.
        skipped: The steps, counted from 1, that were skipped.

    Returns:
        The figure, closed, so that a notebook shows it once.
    """
    import matplotlib.pyplot as plt

    figure: Figure
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(7.5, 4.6), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    for ax in (above, below):
        for number, step in enumerate(skipped):
            label = "skipped" if ax is above and number == 0 else None
            ax.axvspan(step - 0.5, step + 0.5, color=_SKIPPED, alpha=0.3, lw=0, label=label)
        ax.spines[["top", "right"]].set_visible(False)
    for number, (name, curve) in enumerate(losses.items()):
        steps = range(1, len(curve) + 1)
        if number == 0:
            above.plot(steps, curve, color="0.78", linewidth=8, label=name)
            continue
        colour, shape, size = _LOOKS[number - 1]
        look = {"color": colour, "marker": shape, "markersize": size, "linewidth": 1.0}
        above.plot(steps, curve, fillstyle="none", label=name, **look)
    powers = [math.log2(scale) for scale in scales]
    below.step(range(1, len(powers) + 1), powers, where="mid", color="black", linewidth=1.5)
    above.set(ylabel="loss of the batch")
    below.set(xlabel="step", ylabel="scale, as a power of 2")
    below.yaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    plt.close(figure)
    return figure
