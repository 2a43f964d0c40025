"""Which worker read which example, what it logs, and where it waits. Lesson 09.

draw_readers(images, {"FILE": [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]})   # batches of each worker
draw_losses(one_device, {"worker:0": losses, "worker:1": others})
draw_lanes({"worker:0": [("computes", 2.0), ("waits", 1.0)], "worker:1": [("computes", 3.0)]})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.course.figures.shapes import framed_digit
from distlab.course.palette import (
    GROUND,
    NARROW,
    NOTE,
    ONE_DEVICE,
    PALE,
    REFERENCE,
    WIDE,
    add_legend,
    category,
    diagram,
    finish,
    label_axes,
    label_ends,
    panels,
    worker,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

_STEP, _ROW = 1.2, 1.6  # of digits, in widths of one

_Lane = Sequence[tuple[str, float] | tuple[str, float, str]]


def draw_readers(
    images: Any,
    read: Mapping[str, Sequence[Sequence[Sequence[int]]]],
    *,
    columns: int = 8,
) -> Figure:
    """Draws all examples in their order, in the colours of the workers that train on them.

    Under each stands the global batch that it was in, counted from 1. An example that several
    workers train on has a frame of several colours; one that none trains on is pale.
    """
    rows = -(-len(images) // columns)
    width = columns * _STEP + 0.6
    figure, axes = diagram(
        width=WIDE if len(read) > 1 else NARROW,
        x=(-0.1, len(read) * width - 0.6),
        y=(rows * _ROW + 1.3, -0.8),
    )
    says, faults, times, unread = [], [], set[int](), False
    for panel, (title, batches) in enumerate(read.items()):
        readers = _readers(batches)
        left = panel * width
        axes.text(left, -0.25, f"{title}: {len(readers)} of {len(images)} trained", fontsize=10)
        says.append(_in_words(title, readers, len(images), workers=len(batches)))
        read_times = {len(readers.get(number, ())) for number in range(len(images))}
        unread |= 0 in read_times
        if read_times != {1}:
            faults.append(title)
            times |= read_times
        for number, image in enumerate(images):
            row, column = divmod(number, columns)
            who = readers.get(number, [])
            framed_digit(
                axes,
                image,
                (left + column * _STEP, row * _ROW),
                ", ".join(str(batch) for batch in dict.fromkeys(batch for _, batch in who)),
                frames=[worker(index).colour for index, _ in who] or [PALE],
                faded=not who,
            )
    _draw_legend(axes, workers=max(len(batches) for batches in read.values()), unread=unread)
    title = "Every example is trained exactly once"
    if faults:
        every = "every example is trained twice"
        some = "not every example is trained exactly once"
        title = f"Under {' and '.join(faults)}, {every if times == {2} else some}"
    return finish(figure, title=title, alt=" ".join(says))


def draw_losses(one_device: Sequence[float], workers: Mapping[str, Sequence[float]]) -> Figure:
    """Draws what each worker logs over what one device logs, a broad grey line."""
    figure, ax = panels()
    epochs = range(1, len(one_device) + 1)
    ax.plot(epochs, one_device, **ONE_DEVICE.band(), label="one device")
    ends = [f"one device ends at {one_device[-1]:.3f}"]
    for number, (name, losses) in enumerate(workers.items()):
        look = worker(number).line(size=8 - 3 * min(number, 1))
        if len(losses):
            ax.plot(range(1, len(losses) + 1), losses, label=name, **look)
        ends.append(f"{name} ends at {losses[-1]:.3f}" if len(losses) else f"{name} has none")
    ax.set_xticks(epochs)
    label_axes(ax, x="epoch", y="mean loss of the epoch")
    label_ends(ax)
    return finish(figure, alt=f"Loss of each of {len(one_device)} epochs: {', '.join(ends)}.")


def draw_lanes(
    lanes: Mapping[str, _Lane], *, xlabel: str = "seconds", limit: float | None = None
) -> Figure:
    """Draws what each worker does in the course of time: a lane for each worker."""
    figure, ax = panels(width=WIDE, height=0.7 * len(lanes) + 1.0)
    kinds: dict[str, Patch] = {}
    for row, (name, parts) in enumerate(lanes.items()):
        kinds |= _draw_lane(ax, row, name, parts)
    if limit is not None:
        ax.axvline(limit, color=REFERENCE, linewidth=1.5)
        place = {"transform": ax.get_xaxis_transform(), "ha": "right", "fontsize": 9}
        ax.text(limit, 1.02, "time limit", **place)
    ax.set_yticks(range(len(lanes)), list(lanes))
    ax.set_ylim(len(lanes) - 0.5, -0.5)
    label_axes(ax, x=xlabel, y="")
    if "sketch" in xlabel:
        ax.set_xticks([])
    add_legend(figure, handles=list(kinds.values()), loc="outside lower center", ncols=5)
    captions = (f"{name}: {'; then '.join(map(_part, parts))}." for name, parts in lanes.items())
    return finish(figure, alt=f"A lane for each worker, over {xlabel}. {' '.join(captions)}")


def _draw_lane(ax: Axes, row: int, name: str, parts: _Lane) -> dict[str, Patch]:
    """Draws the bars of one worker, and returns what the legend says of them."""
    from matplotlib.patches import Patch

    waits = {"facecolor": GROUND, "hatch": "////", "edgecolor": NOTE}
    looks: dict[str, dict[str, Any]] = {
        "waits": waits,
        "all-reduce": category(0).bar(),
        "starts again": {"facecolor": GROUND, "hatch": "..", "edgecolor": NOTE},
        "is dead": {"facecolor": PALE, "edgecolor": PALE},
    }
    own = worker(row).bar()
    kinds, begin = {}, 0.0
    for activity, long, *why in parts:
        look = looks.get(activity, own)
        ax.barh(row, long, left=begin, height=0.6, **look)
        box = {"facecolor": GROUND, "edgecolor": "none", "pad": 2}
        middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "bbox": box}
        for text in why:
            ax.text(begin + long / 2, row, str(text), **middle)
        label = activity if activity in looks else f"{name} {activity}"
        kinds[label] = Patch(label=label, **look)
        begin += long
    return kinds


def _part(part: tuple[str, float] | tuple[str, float, str]) -> str:
    activity, long, *why = part
    return f"{why[0] if why else activity} for {long:g}"


def _readers(batches: Sequence[Sequence[Sequence[int]]]) -> dict[int, list[tuple[int, int]]]:
    """Returns for each example that was read the workers that did, each with its batch."""
    readers: dict[int, list[tuple[int, int]]] = {}
    for index, reads in enumerate(batches):
        for batch, numbers in enumerate(reads, 1):
            for number in numbers:
                readers.setdefault(int(number), []).append((index, batch))
    return readers


def _in_words(
    title: str, readers: Mapping[int, list[tuple[int, int]]], examples: int, *, workers: int
) -> str:
    twice = sum(len(reads) > 1 for reads in readers.values())
    text = (
        f"{title}: of {examples} examples {examples - len(readers)} are trained by no worker and "
    )
    text += f"{twice} more than once. The first global batch: "
    firsts = {
        index: [n for n, reads in sorted(readers.items()) if (index, 1) in reads]
        for index in range(workers)
    }
    return (
        text + "; ".join(f"worker:{i} trains on {numbers}" for i, numbers in firsts.items()) + "."
    )


def _draw_legend(axes: Axes, *, workers: int, unread: bool) -> None:
    from matplotlib.patches import Patch

    colours = [(f"worker:{n}", worker(n).colour) for n in range(workers)]
    if unread:
        colours.append(("no worker", PALE))
    add_legend(
        axes,
        handles=[Patch(fill=False, edgecolor=c, linewidth=2, label=name) for name, c in colours],
        title="trained by (the number under a digit: its global batch)",
        title_fontsize=8,
        loc="lower center",
        ncols=len(colours),
        fontsize=8,
    )
