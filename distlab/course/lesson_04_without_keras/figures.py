"""Figures: how far the copies of a weight drift apart.

draw_drift(path, one_device, label="bias of digit 3")      # path: [steps + 1, replicas]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course.palette import ONE_DEVICE, finish, label_axes, label_ends, panels, replica

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_drift(path: Any, one_device: Any, *, label: str) -> Figure:
    """Draws each replica's copy of a weight after each step, and one device's weight."""
    copies, alone = np.asarray(path), np.asarray(one_device)
    figure, axes = panels()
    axes.plot(alone, **ONE_DEVICE.band(), label="one device")
    for number in range(copies.shape[1]):
        look = replica(number)
        style = {**look.line(size=0), "linestyle": look.dashes}
        axes.plot(copies[:, number], **style, label=f"replica {number}")
    label_axes(axes, x="step", y=label)
    label_ends(axes)
    spread = np.ptp(copies, axis=1)
    ends = ", ".join(f"{value:.2f}" for value in copies[-1])
    return finish(
        figure,
        title="Nothing keeps the copies equal, so they drift apart",
        alt=f"The {label} over {len(alone) - 1} steps. The copies of the {copies.shape[1]} "
        f"replicas are at most {spread.max():.2f} apart and end at {ends}; one device ends at "
        f"{alone[-1]:.2f}.",
    )
