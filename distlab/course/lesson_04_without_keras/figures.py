"""Figures: how far the copies of a weight drift apart.

draw_drift(path, one_device, label="bias of digit 3")      # path: [steps + 1, replicas]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distlab.course.palette import ONE_DEVICE, add_legend, finish, label_axes, replica

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_drift(path: Any, one_device: Any, *, label: str) -> Figure:
    """Draws each replica's copy of a weight after each step, and one device's weight."""
    import matplotlib.pyplot as plt
    import numpy as np

    copies, alone = np.asarray(path), np.asarray(one_device)
    figure: Figure
    figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    axes.plot(alone, **ONE_DEVICE.band(), label="one device")
    for number in range(copies.shape[1]):
        look = replica(number)
        axes.plot(copies[:, number], look.dashes, color=look.colour, label=f"replica {number}")
    label_axes(axes, x="step", y=label)
    add_legend(axes, loc="center left", bbox_to_anchor=(1, 0.5))
    spread = np.ptp(copies, axis=1)
    ends = ", ".join(f"{value:.2f}" for value in copies[-1])
    return finish(
        figure,
        alt=f"The {label} over {len(alone) - 1} steps. The copies of the {copies.shape[1]} "
        f"replicas are at most {spread.max():.2f} apart and end at {ends}; one device ends at "
        f"{alone[-1]:.2f}.",
    )
