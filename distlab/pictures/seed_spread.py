"""The picture of one training from several seeds: what chance alone changes. Made for lesson 06.

draw_seeds({"seed 1": [0.2, 0.5, 0.8], "seed 2": [0.3, 0.6, 0.7]})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distlab.pictures.palette import CATEGORIES, ONE_DEVICE, add_legend, finish, label_axes


def draw_seeds(accuracies: Mapping[str, Sequence[float]]) -> Any:
    """Draws the accuracy by epoch, one curve for each seed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 2.9), layout="constrained")
    looks = (ONE_DEVICE, *CATEGORIES)
    for (name, curve), look in zip(accuracies.items(), looks, strict=False):
        percent = [100 * value for value in curve]
        axes.plot(range(1, len(curve) + 1), percent, label=name, **look.line())
    label_axes(axes, x="epoch", y="training accuracy", y_unit="%")
    axes.xaxis.get_major_locator().set_params(integer=True)
    add_legend(figure, loc="outside right center")
    widest = max(max(column) - min(column) for column in zip(*accuracies.values(), strict=True))
    last = [curve[-1] for curve in accuracies.values()]
    return finish(
        figure,
        alt=f"The training accuracy by epoch of {len(accuracies)} runs that differ only in the "
        f"seed. In one epoch they are {100 * widest:.0f} percentage points apart; after the last "
        f"epoch they lie between {100 * min(last):.0f} and {100 * max(last):.0f} %.",
    )
