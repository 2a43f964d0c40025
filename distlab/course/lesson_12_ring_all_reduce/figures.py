"""Figures: what each rank of an all-reduce sends, and how long that takes.

draw_traffic({"naive": network, "ring": other}, vector_bytes=4000)     # simulated networks
draw_busiest({"naive": {2: 1.0, 4: 3.0}, "ring": {2: 1.0, 4: 1.5}})    # by the number of ranks
draw_seconds({"tree": {1e3: 1e-4}, "ring": {1e3: 1e-3}}, ranks=64)     # by the size in bytes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distlab.course.lesson_12_ring_all_reduce.simulated_network import Network
from distlab.course.palette import (
    NOTE,
    REFERENCE,
    Look,
    add_legend,
    category,
    finish,
    label_axes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS = {"naive": category(0), "tree": category(1), "ring": category(2)}
_SENT, _RECEIVED = category(3), Look(NOTE, hatch="////")


def draw_traffic(networks: Mapping[str, Network], *, vector_bytes: int) -> Figure:
    """Draws what each rank has sent and received, one panel for each network."""
    import matplotlib.pyplot as plt

    figure: Figure = plt.figure(figsize=(2.6 * len(networks) + 1.4, 2.7), layout="constrained")
    panels, says = figure.subplots(1, len(networks), squeeze=False, sharey=True)[0], []
    for axes, (title, network) in zip(panels, networks.items(), strict=True):
        sent = network.bytes_sent / vector_bytes
        received = network.bytes_received / vector_bytes
        ranks = range(network.ranks)
        axes.bar([rank - 0.2 for rank in ranks], sent, 0.4, label="sent", **_SENT.bar())
        axes.bar([rank + 0.2 for rank in ranks], received, 0.4, label="received", **_RECEIVED.bar())
        axes.set_title(f"{title}: {_steps(network)}", fontsize=10)
        axes.set_xticks(list(ranks))
        label_axes(axes, x="rank", y="")
        says.append(
            f"{title}, {_steps(network)}: sent {_listed(sent)}, received {_listed(received)}"
        )
    panels[0].set_ylabel("bytes / bytes of the vector")
    handles, labels = panels[0].get_legend_handles_labels()
    add_legend(figure, handles=handles, labels=labels, loc="outside right center")
    words = ". ".join(says)
    return finish(figure, alt=f"By rank, in sizes of the vector that is reduced. {words}.")


def draw_busiest(sizes: Mapping[str, Mapping[int, float]]) -> Figure:
    """Draws the bytes on the busiest link against the number of ranks, a line an algorithm."""
    import matplotlib.pyplot as plt

    figure: Figure
    figure, axes = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
    says = []
    for name, points in sizes.items():
        axes.plot(list(points), list(points.values()), label=name, **_look(name).line())
        pairs = ", ".join(f"{size:.3g} with {ranks}" for ranks, size in points.items())
        says.append(f"{name}: {pairs}")
    axes.axhline(2, color=REFERENCE, linewidth=0.8)
    axes.annotate("2", (1.01, 2), xycoords=("axes fraction", "data"), va="center", color=REFERENCE)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ranks = sorted({number for points in sizes.values() for number in points})
    axes.set_xticks(ranks, [str(number) for number in ranks])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    label_axes(axes, x="ranks", y="busiest link / size of the vector")
    add_legend(axes)
    words = ". ".join(says)
    return finish(
        figure, alt=f"The busiest link in sizes of the vector, by number of ranks. {words}."
    )


def draw_seconds(
    times: Mapping[str, Mapping[float, float]], *, ranks: int, x: str = "size of the vector"
) -> Figure:
    """Draws how long an all-reduce takes against the size of its vector, on two log axes."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    figure: Figure
    figure, axes = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
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
    axes.yaxis.set_minor_formatter("")
    axes.grid(color=NOTE, alpha=0.2)
    label_axes(axes, x=f"{x}, {ranks} ranks", y="time", y_unit="ms")
    add_legend(axes)
    return finish(figure, alt=f"Time of all-reduces of {ranks} ranks, by {x}. {'. '.join(says)}.")


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


def _listed(numbers: Any) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers)
