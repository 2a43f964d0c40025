"""The way that weights take, step by step: pictures of lesson 03.

draw_paths({"SGD": {"one device": path, "divided twice": other}}, weights=((36, 0), (34, 6)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.pictures.palette import ONE_DEVICE, REFERENCE, WRONG, add_legend, finish, label_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Marker, size and dashes of the wrong paths of a panel; all have the colour of what is wrong.
# The first is the largest, so that it shows where a later one lies on it.
_STYLES = (("^", 7, "--"), ("s", 4, ":"), ("o", 3, "-."))


def draw_paths(
    panels: Mapping[str, Mapping[str, Sequence[Any]]],
    *,
    weights: tuple[tuple[int, int], tuple[int, int]],
) -> Figure:
    """Draws how two weights of a layer move while it is trained, one marker a step.

    The first path of a panel is what the others should be, a broad grey line under them. The
    others are drawn as wrong. A large hollow marker shows where each path ends.
    """
    import matplotlib.pyplot as plt

    figure: Figure
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 3.6), squeeze=False, layout="constrained"
    )
    across, up = weights
    mistakes = list(dict.fromkeys(name for paths in panels.values() for name in list(paths)[1:]))
    for ax, (title, paths) in zip(axes[0], panels.items(), strict=True):
        for number, (name, path) in enumerate(paths.items()):
            x, y = _way(path, across, up)
            if number == 0:
                ax.plot(x, y, **ONE_DEVICE.band(width=9), label=name)
                ax.plot(x[-1], y[-1], "o", color=ONE_DEVICE.colour, ms=17, fillstyle="none")
                ax.plot(x[0], y[0], "*", color=REFERENCE, markersize=13, label="start", zorder=5)
                continue
            marker, size, dashes = _STYLES[mistakes.index(name) % len(_STYLES)]
            look = {
                "color": WRONG.colour,
                "marker": marker,
                "linestyle": dashes,
                "markersize": size,
            }
            ax.plot(x, y, fillstyle="none" if size > 5 else "full", lw=1.2, label=name, **look)
            ax.plot(x[-1], y[-1], marker, color=WRONG.colour, markersize=15, fillstyle="none")
        ax.set_title(title)
        label_axes(ax, x=_name(across), y=_name(up))
        ax.locator_params(nbins=5)
        add_legend(ax, fontsize=8)
    told = " ".join(_told(title, paths, across, up) for title, paths in panels.items())
    return finish(
        figure,
        alt=f"The paths of two weights while they are trained, one marker a step: the "
        f"{_name(across)} and the {_name(up)}. {told}",
    )


def _way(path: Sequence[Any], across: tuple[int, int], up: tuple[int, int]) -> tuple[Any, Any]:
    """The two weights before the first step and after each."""
    import numpy as np

    kernels = np.asarray(path)
    return kernels[:, across[0], across[1]], kernels[:, up[0], up[1]]


def _told(title: str, paths: Mapping[str, Sequence[Any]], *weights: tuple[int, int]) -> str:
    """Where each path of a panel ends, measured by how far the first one goes."""
    import numpy as np

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
