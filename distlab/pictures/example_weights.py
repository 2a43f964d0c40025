"""How much each example of a batch weighs in the gradient: a picture of lesson 03.

draw_example_weights([3, 3, 3, 1], {"mean of means": [1 / 12] * 9 + [1 / 4]})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.pictures import palette
from distlab.pictures.palette import finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_example_weights(
    shares: Sequence[int], rules: Mapping[str, Sequence[float]], *, columns: int = 2
) -> Figure:
    """Draws the weight of each example as a bar, in the colour of its replica.

    A line shows what each example weighs on one device: one over the number of examples.
    """
    import matplotlib.pyplot as plt

    examples = sum(shares)
    columns = min(columns, len(rules))
    rows = -(-len(rules) // columns)
    figure: Figure
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(4.6 * columns, 2.6 * rows + 0.4),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for ax, (title, weights) in zip(axes.flat, rules.items(), strict=False):
        _draw_panel(ax, shares, weights)
        ax.set_title(title, fontsize=10)
    for ax in list(axes.flat)[len(rules) :]:
        ax.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    palette.add_legend(figure, handles=handles, labels=labels, loc="outside right upper")
    told = [f"{title}: {_told(shares, weights)}." for title, weights in rules.items()]
    opening = (
        f"Bars for the weight of each of {examples} examples, in the colours of {len(shares)} "
        f"replicas that have {', '.join(map(str, shares))} of them. A line at 1/{examples} shows "
        "the weight on one device."
    )
    return finish(figure, alt=" ".join([opening, *told]))


def _draw_panel(ax: Any, shares: Sequence[int], weights: Sequence[float]) -> None:
    first = 0
    for number, share in enumerate(shares):
        places = range(first + 1, first + share + 1)
        heights = weights[first : first + share]
        ax.bar(places, heights, label=f"replica {number}", **palette.replica(number).bar())
        first += share
    label = f"one device: 1/{first}"
    ax.axhline(1 / first, color=palette.ONE_DEVICE.colour, linewidth=2, label=label)
    palette.label_axes(ax, x="example of the batch", y="weight in the gradient")
    ax.set_xticks(range(1, first + 1) if first <= 10 else range(5, first + 1, 5))


def _told(shares: Sequence[int], weights: Sequence[float]) -> str:
    """For each replica that has examples, what each of them weighs."""
    first, parts = 0, []
    for number, share in enumerate(shares):
        if share:
            each = weights[first]
            parts.append(f"on replica {number} each example weighs {each:.3g}")
        first += share
    return ", ".join(parts)
