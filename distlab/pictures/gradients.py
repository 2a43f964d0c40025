"""Pictures of what replicas compute and what becomes of it: gradients, and loss curves.

draw_gradients([[0.1, -0.2], [0.3, 0.0]], mean=[0.2, -0.1], one_device=[0.2, -0.1])
draw_losses({"one device": [2.0, 1.4], "two replicas": [2.0, 1.4]})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart; hatches, markers and
# line styles say the same again.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
_HATCHES = ("", "///", "...", "xxx")
_MARKERS = ("o", "x", "+", "s")
_GROUP_WIDTH = 0.76


def draw_gradients(
    per_replica: Sequence[Any], *, mean: Any, one_device: Any, label: str = "class"
) -> Any:
    """Draws a gradient as bars, one for each replica, with their mean and one device's.

    Args:
        per_replica: For each replica, at most four, its gradient as a vector.
        mean: The mean over the replicas, drawn as a line across the bars.
        one_device: The gradient of the whole batch on one device, drawn as a circle.
        label: What the places of the vector are.

    Returns:
        A matplotlib `Figure`; as the last line of a cell it is shown.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.4, 2.9), layout="constrained")
    width = _GROUP_WIDTH / len(per_replica)
    places = range(len(mean))
    for replica, gradient in enumerate(per_replica):
        left = [place + (replica - (len(per_replica) - 1) / 2) * width for place in places]
        axes.bar(
            left,
            gradient,
            width * 0.94,
            color=_COLOURS[replica],
            edgecolor="white",
            hatch=_HATCHES[replica],
            label=f"replica {replica}",
        )
    half = _GROUP_WIDTH / 2
    starts, ends = [place - half for place in places], [place + half for place in places]
    axes.hlines(mean, starts, ends, color="black", linewidth=2, label="mean of the replicas")
    axes.plot(places, one_device, "o", mfc="white", mec="black", ms=6, label="one device")
    axes.axhline(0, color="#999999", linewidth=0.8)
    axes.set(xlabel=label, ylabel="gradient", xticks=list(places))
    _finish(axes)
    handles, _ = axes.get_legend_handles_labels()
    handles.sort(key=lambda handle: not handle.get_label().startswith("replica"))
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    plt.close(figure)  # or a notebook would show it twice
    return figure


def draw_losses(curves: Mapping[str, Sequence[float]]) -> Any:
    """Draws loss by epoch, the first curve wide, so that one lying on it can be seen.

    Args:
        curves: For each run, at most four, its loss after each epoch.

    Returns:
        A matplotlib `Figure`; as the last line of a cell it is shown.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.2, 2.9), layout="constrained")
    for index, (name, losses) in enumerate(curves.items()):
        epochs = range(1, len(losses) + 1)
        axes.plot(
            epochs,
            losses,
            color=_COLOURS[index],
            marker=_MARKERS[index],
            markersize=11 - 4 * bool(index),
            linewidth=7 if index == 0 else 1.8,
            alpha=0.45 if index == 0 else 1.0,
            linestyle="-" if index == 0 else "--",
            label=name,
        )
        axes.set_xticks(list(epochs))
    axes.set(xlabel="epoch", ylabel="loss")
    axes.set_ylim(bottom=0)
    _finish(axes)
    axes.legend(frameon=False, fontsize=9)
    plt.close(figure)
    return figure


def _finish(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
