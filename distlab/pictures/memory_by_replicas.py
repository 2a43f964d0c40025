"""What one device holds as replicas are added: flat, falling to a floor, or falling on.

draw_memory_by_replicas([1, 2, 4], {"mirrored": [112, 112, 112], ...}, limit_gb=80)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distlab.pictures import palette
from distlab.pictures.palette import finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_memory_by_replicas(
    replicas: Sequence[int], curves: Mapping[str, Sequence[float]], *, limit_gb: float
) -> Figure:
    """Draws the memory of a step on one device over the number of replicas, on two log axes."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    told = []
    for number, (name, gigabytes) in enumerate(curves.items()):
        look = palette.category(number)
        ax.plot(replicas, gigabytes, **look.line(), linestyle=look.dashes, label=name)
        fitting = [n for n, gb in zip(replicas, gigabytes, strict=True) if gb <= limit_gb]
        fits = f"fits from {fitting[0]} replicas" if fitting else "never fits"
        told.append(
            f"{name}: {gigabytes[0]:.0f} GB with {replicas[0]} and {gigabytes[-1]:.0f} GB with "
            f"{replicas[-1]}; it {fits}."
        )
    ax.axhline(limit_gb, color=palette.REFERENCE, lw=1.5, label=f"one device: {limit_gb:.0f} GB")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(list(replicas), [str(count) for count in replicas])
    top = max(limit_gb, *(max(gigabytes) for gigabytes in curves.values()))
    marks = [2**power for power in range(int(top).bit_length() + 1)]
    ax.set_yticks(marks, [str(mark) for mark in marks])
    ax.set_ylim(min(min(gigabytes) for gigabytes in curves.values()) / 1.4, 1.4 * top)
    palette.label_axes(ax, x="replicas", y="memory on each device", y_unit="GB")
    palette.add_legend(figure, loc="outside right center")
    return finish(
        figure,
        alt="Curves of what one device holds in a step, over the number of replicas, with a line "
        f"at {limit_gb:.0f} GB. {' '.join(told)}",
    )
