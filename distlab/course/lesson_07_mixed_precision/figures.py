"""Figures: the loss scale, step by step.

draw_loss_scale({"float32": losses, "float16": others}, scales, skipped=[1, 2, 9])
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distlab.course.palette import (
    ONE_DEVICE,
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
    from matplotlib.figure import Figure

_LOOKS = (WRONG, RIGHT, category(0))
_SKIPPED = category(2).colour


def draw_loss_scale(
    losses: Mapping[str, Sequence[float]], scales: Sequence[float], *, skipped: Sequence[int]
) -> Figure:
    """Draws losses by step, and below them a loss scale; a bar through both is a skipped step."""
    from matplotlib.patches import Patch

    figure, (above, below) = panels(2, width=WIDE, height=4.6, sharex=True, height_ratios=(3, 2))
    for ax in (above, below):
        for step in skipped:
            ax.axvspan(step - 0.5, step + 0.5, color=_SKIPPED, alpha=0.3, lw=0)
    for number, (name, curve) in enumerate(losses.items()):
        steps = range(1, len(curve) + 1)
        look = _LOOKS[number - 1].line(size=4) if number else ONE_DEVICE.band()
        above.plot(steps, curve, label=name, **look)
    powers = [math.log2(scale) for scale in scales]
    below.step(range(1, len(powers) + 1), powers, where="mid", color=REFERENCE, linewidth=1.8)
    label_axes(above, x="", y="loss of the batch")
    label_axes(below, x="step", y="scale, as a power of 2")
    below.yaxis.get_major_locator().set_params(integer=True)
    label_ends(above)
    band = Patch(color=_SKIPPED, alpha=0.3, linewidth=0, label="a skipped step")
    add_legend(figure, handles=[band], loc="outside lower center")
    ends = "; ".join(f"{name} ends at {curve[-1]:.1f}" for name, curve in losses.items())
    return finish(
        figure,
        alt=f"Above, the loss by step: {ends}. Below, the loss scale by step, from 2 to the power "
        f"of {powers[0]:.0f} to 2 to the power of {powers[-1]:.0f}. Skipped steps: "
        f"{', '.join(map(str, skipped)) or 'none'}.",
    )
