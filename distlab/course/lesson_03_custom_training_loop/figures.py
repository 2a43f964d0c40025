"""Figures: how much each example weighs, and the path that the weights take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course.palette import (
    MIDDLE,
    ONE_DEVICE,
    REFERENCE,
    WIDE,
    WRONG,
    add_legend,
    finish,
    label_axes,
    panels,
    replica,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_example_weights(shares: Sequence[int], rules: Mapping[str, Sequence[float]]) -> Figure:
    """Draws the weight of each example as a bar, in the colour of its replica.

    A line shows what each example weighs on one device: one over the number of examples.
    """
    examples = sum(shares)
    width = WIDE if len(rules) > 1 else MIDDLE
    figure, axes = panels(1, len(rules), width=width, sharey=True, squeeze=False)
    for ax, (title, weights) in zip(axes[0], rules.items(), strict=True):
        _draw_panel(ax, shares, weights)
        ax.set_title(title, fontsize=10, loc="left")
    handles, labels = axes[0][0].get_legend_handles_labels()
    add_legend(figure, handles=handles, labels=labels, loc="outside lower center", ncols=5)
    equal = all(np.ptp(weights) < 1e-6 for weights in rules.values())
    captions = [f"{title}: {_told(shares, weights)}." for title, weights in rules.items()]
    opening = (
        f"Bars for the weight of each of {examples} examples, in the colours of {len(shares)} "
        f"replicas that have {', '.join(map(str, shares))} of them. A line at 1/{examples} shows "
        "the weight on one device."
    )
    return finish(
        figure,
        title="Every example weighs the same" if equal else "One rule favours the smallest share",
        alt=" ".join([opening, *captions]),
    )


def _draw_panel(ax: Any, shares: Sequence[int], weights: Sequence[float]) -> None:
    first = 0
    for number, share in enumerate(shares):
        places = range(first + 1, first + share + 1)
        heights = weights[first : first + share]
        ax.bar(places, heights, label=f"replica {number}", **replica(number).bar())
        first += share
    label = f"one device: 1/{first}"
    ax.axhline(1 / first, color=ONE_DEVICE.colour, linewidth=2, label=label)
    label_axes(ax, x="example of the batch", y="weight in the gradient")
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


# Marker, size and dashes of the wrong paths of a panel; all have the colour of what is wrong.
# The first is the largest, so that it shows where a later one lies on it.
_STYLES = (("^", 7, "--"), ("s", 4, ":"), ("o", 3, "-."))


def draw_paths(
    trainings: Mapping[str, Mapping[str, Sequence[Any]]],
    *,
    weights: tuple[tuple[int, int], tuple[int, int]],
) -> Figure:
    """Draws how two weights of a layer move while it is trained, one marker a step.

    The first path of a panel is what the others should be, a broad grey line under them. The
    others are drawn as wrong. A large hollow marker shows where each path ends.
    """
    figure, axes = panels(1, len(trainings), width=WIDE, height=3.6, squeeze=False)
    across, up = weights
    mistakes = list(dict.fromkeys(name for paths in trainings.values() for name in list(paths)[1:]))
    for ax, (title, paths) in zip(axes[0], trainings.items(), strict=True):
        for number, (name, path) in enumerate(paths.items()):
            x, y = _way(path, across, up)
            if number == 0:
                ax.plot(x, y, **ONE_DEVICE.band(), label=name)
                ax.plot(x[-1], y[-1], "o", color=ONE_DEVICE.colour, ms=17, fillstyle="none")
                ax.plot(x[0], y[0], "*", color=REFERENCE, markersize=13, label="start", zorder=5)
                continue
            marker, size, dashes = _STYLES[mistakes.index(name) % len(_STYLES)]
            look = {**WRONG.line(size=size), "marker": marker, "linewidth": 1.2}
            ax.plot(x, y, fillstyle="none" if size > 5 else "full", ls=dashes, label=name, **look)
            ax.plot(x[-1], y[-1], marker, color=WRONG.colour, markersize=15, fillstyle="none")
        ax.set_title(title, fontsize=10, loc="left")
        label_axes(ax, x=_name(across), y=_name(up))
        ax.locator_params(nbins=5)
        add_legend(ax, fontsize=8)
    caption = " ".join(_caption(title, paths, across, up) for title, paths in trainings.items())
    return finish(
        figure,
        title="Each mistake takes the weights somewhere else",
        alt=f"The paths of two weights while they are trained, one marker a step: the "
        f"{_name(across)} and the {_name(up)}. {caption}",
    )


def _way(path: Sequence[Any], across: tuple[int, int], up: tuple[int, int]) -> tuple[Any, Any]:
    """The two weights before the first step and after each."""
    kernels = np.asarray(path)
    return kernels[:, across[0], across[1]], kernels[:, up[0], up[1]]


def _caption(title: str, paths: Mapping[str, Sequence[Any]], *weights: tuple[int, int]) -> str:
    """Describes where each path of a panel ends, relative to how far the first one goes."""
    ways = {name: np.stack(_way(path, *weights)) for name, path in paths.items()}
    (first, right), *others = ways.items()
    far = np.linalg.norm(right[:, -1] - right[:, 0])
    ends = []
    for name, way in others:
        off = np.linalg.norm(way[:, -1] - right[:, -1])
        ends.append(
            f"The path of {name} ends {off / far:.2g} times as far from the end of {first} as "
            f"{first} moved in all."
        )
    return " ".join([f"In the panel {title}:", *ends])


def _name(weight: tuple[int, int]) -> str:
    return f"weight from pixel {weight[0]} to digit {weight[1]}"
