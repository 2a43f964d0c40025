"""Pictures of what replicas compute and what becomes of it: gradients, and loss curves.

draw_gradients([[0.1, -0.2], [0.3, 0.0]], mean=[0.2, -0.1], one_device=[0.2, -0.1])
draw_losses({"one device": [2.0, 1.4], "two replicas": [2.0, 1.4]})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distlab.pictures.palette import (
    GROUND,
    ONE_DEVICE,
    PALE,
    REFERENCE,
    add_legend,
    finish,
    label_axes,
    replica,
)

_GROUP_WIDTH = 0.76


def draw_gradients(
    per_replica: Sequence[Any], *, mean: Any, one_device: Any, label: str = "class"
) -> Any:
    """Draws a gradient as bars, one for each replica, with their mean and one device's."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.4, 2.9), layout="constrained")
    width = _GROUP_WIDTH / len(per_replica)
    places = range(len(mean))
    for number, gradient in enumerate(per_replica):
        left = [place + (number - (len(per_replica) - 1) / 2) * width for place in places]
        axes.bar(
            left,
            gradient,
            width * 0.94,
            **replica(number).bar(),
            label=f"replica {number}",
        )
    half = _GROUP_WIDTH / 2
    starts, ends = [place - half for place in places], [place + half for place in places]
    axes.hlines(mean, starts, ends, color=REFERENCE, linewidth=2, label="mean of the replicas")
    axes.plot(places, one_device, "o", mfc=GROUND, mec=ONE_DEVICE.colour, ms=6, label="one device")
    axes.axhline(0, color=PALE, linewidth=0.8)
    axes.set_xticks(list(places))
    label_axes(axes, x=label, y="gradient")
    handles, _ = axes.get_legend_handles_labels()
    handles.sort(key=lambda handle: not handle.get_label().startswith("replica"))
    add_legend(figure, handles=handles, loc="outside right upper")
    apart = max(abs(float(a) - float(b)) for a, b in zip(mean, one_device, strict=True))
    return finish(
        figure,
        alt=f"Bars of the gradient on {len(per_replica)} replicas, by {label}. A line shows their "
        f"mean and a circle the gradient of one device. {_how_near(apart)}",
    )


def _how_near(apart: float) -> str:
    # A millionth is rounding, and its digits differ from machine to machine.
    return "Each circle is on its line." if apart < 1e-6 else f"They are up to {apart:.2g} apart."


def draw_losses(curves: Mapping[str, Sequence[float]]) -> Any:
    """Draws loss by epoch, the first curve wide, so that one lying on it can be seen."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.2, 2.9), layout="constrained")
    for index, (name, losses) in enumerate(curves.items()):
        epochs = range(1, len(losses) + 1)
        axes.plot(
            epochs,
            losses,
            **(replica(index - 1).line(width=1.8) if index else ONE_DEVICE.band(width=9)),
            label=name,
        )
        axes.set_xticks(list(epochs))
    axes.set_ylim(bottom=0)
    label_axes(axes, x="epoch", y="loss")
    add_legend(axes)
    ends = "; ".join(f"{name} ends at {losses[-1]:.3g}" for name, losses in curves.items())
    return finish(figure, alt=f"The loss by epoch. {ends}.")
