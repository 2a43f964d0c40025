"""Figures: what a replica keeps and sends for each way to fine-tune.

draw_costs({"everything": {"weights": 67968, "sent": 67968, "Adam": 135938}})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from distlab.course.palette import WIDE, category, finish, label_axes, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {"weights": "weights it keeps", "sent": "sent in a step", "Adam": "state of Adam"}


def draw_costs(costs: Mapping[str, Mapping[str, int]]) -> Figure:
    """Draws a panel each for weights, what is sent and Adam's state: a bar for each way."""
    kinds = list(next(iter(costs.values())))
    figure, axes = panels(1, len(kinds), width=WIDE, height=2.2, sharey=True, squeeze=False)
    says = []
    for number, (ax, kind) in enumerate(zip(axes[0], kinds, strict=True)):
        amounts = {way: cost[kind] / 1000 for way, cost in costs.items()}
        ax.barh(list(amounts), list(amounts.values()), 0.6, **category(number).bar())
        ax.set_title(_TITLES.get(kind, kind), fontsize=10, loc="left")
        label_axes(ax, x="thousand numbers", y="")
        says.append(f"{kind}: " + ", ".join(f"{way} {each:.1f}" for way, each in amounts.items()))
    axes[0][0].invert_yaxis()
    return finish(
        figure,
        title="The weights stay, and what exists for gradients shrinks",
        alt=f"Thousands of numbers on each replica, by what learns. {'; '.join(says)}.",
    )
