"""Figures: what each rank of an all-reduce sends, and how long that takes.

draw_traffic({"naive": network, "ring": other}, vector_bytes=4000)     # simulated networks
draw_busiest({"naive": {2: 1.0, 4: 3.0}, "ring": {2: 1.0, 4: 1.5}})    # by the number of ranks
draw_seconds({"tree": {1e3: 1e-4}, "ring": {1e3: 1e-3}}, ranks=64)     # by the size in bytes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from distlab.course.lesson_12_ring_all_reduce.simulated_network import Network
from distlab.course.palette import (
    MIDDLE,
    NARROW,
    PALE,
    REFERENCE,
    WIDE,
    Look,
    category,
    finish,
    label_axes,
    label_ends,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS = {"naive": category(0), "tree": category(1), "ring": category(2)}


def draw_traffic(networks: Mapping[str, Network], *, vector_bytes: int) -> Figure:
    """Draws how many vectors each rank has sent, one panel for each network."""
    width = {1: NARROW, 2: MIDDLE}.get(len(networks), WIDE)
    figure, axes = panels(1, len(networks), width=width, height=2.6, sharey=True, squeeze=False)
    says, even = [], []
    for ax, (name, network) in zip(axes[0], networks.items(), strict=True):
        sent = network.bytes_sent / vector_bytes
        most = sent > 0.99 * sent.max()
        colours = [category(0).colour if busiest else PALE for busiest in most]
        ax.bar(range(network.ranks), sent, 0.7, color=colours)
        ax.set_title(f"{name}: {_steps(network)}", fontsize=10, loc="left")
        ax.set_xticks(range(network.ranks))
        label_axes(ax, x="rank", y="vectors sent")
        even += [name] * bool(most.all())
        listed = ", ".join(f"{number:.3g}" for number in sent)
        says.append(f"{name}, {_steps(network)}: sent {listed}")
    title = f"Only in a {' and a '.join(even)} do all ranks send equally much"
    if len(even) in (0, len(networks)):
        title = "All ranks send equally much" if even else "The ranks don't send equally much"
    return finish(
        figure,
        title=title,
        alt=f"By rank, in sizes of the vector that is reduced. {'. '.join(says)}.",
    )


def draw_busiest(sizes: Mapping[str, Mapping[int, float]]) -> Figure:
    """Draws the bytes on the busiest link against the number of ranks, a line an algorithm."""
    figure, axes = panels()
    says = []
    for name, points in sizes.items():
        axes.plot(list(points), list(points.values()), label=name, **_look(name).line())
        pairs = ", ".join(f"{size:.3g} with {ranks}" for ranks, size in points.items())
        says.append(f"{name}: {pairs}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ranks = sorted({number for points in sizes.values() for number in points})
    axes.plot([ranks[0], ranks[-1]], [2, 2], color=REFERENCE, linewidth=0.8, zorder=1)
    axes.set_xticks(ranks, [str(number) for number in ranks])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    label_axes(axes, x="ranks", y="vectors on the busiest link")
    label_ends(axes)
    return finish(
        figure,
        title="Only in a ring does the busiest link stay below two vectors",
        alt=f"The busiest link in sizes of the vector, by number of ranks. {'. '.join(says)}.",
    )


def draw_seconds(
    times: Mapping[str, Mapping[float, float]], *, ranks: int, x: str = "size of the vector"
) -> Figure:
    """Draws how long an all-reduce takes against the size of its vector, on two log axes."""
    from matplotlib.ticker import LogLocator

    figure, axes = panels()
    says = []
    for name, points in times.items():
        milliseconds = [1000 * seconds for seconds in points.values()]
        axes.plot(list(points), milliseconds, label=name, **_look(name).line(size=4))
        pairs = [
            f"{shown_bytes(size)} in {ms:.3g} ms"
            for size, ms in zip(points, milliseconds, strict=True)
        ]
        pairs = [*pairs[: -1 : -(-len(pairs) // 7)], pairs[-1]]  # enough to hear the shape
        says.append(f"{name} takes {', '.join(pairs)}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: shown_bytes(value))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    label_axes(axes, x=f"{x}, {ranks} ranks", y="time", y_unit="ms")
    label_ends(axes)
    return finish(
        figure,
        title="The tree is quicker for small vectors, the ring for large ones" * ("tree" in times),
        alt=f"Time of all-reduces of {ranks} ranks, by {x}. {'. '.join(says)}.",
    )


def shown_bytes(size: float) -> str:
    """Returns a size for people, such as "4 KB" or "100 MB"."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _steps(network: Network) -> str:
    return f"{network.steps} step" + "s" * (network.steps != 1)


def _look(algorithm: str) -> Look:
    return _LOOKS.get(algorithm, category(3))
