"""Figures: what each epoch sees, and what a step waits for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distlab.course.figures.shapes import framed_digit
from distlab.course.measure.step_split import StepSplit
from distlab.course.palette import (
    GROUND,
    NOTE,
    ONE_DEVICE,
    PALE,
    WIDE,
    add_legend,
    category,
    diagram,
    finish,
    label_axes,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Epoch = Sequence[tuple[int, Any]]
_STEP, _ROW, _GAP, _NAME = 1.12, 1.6, 0.35, 2.2


def draw_epochs(pipelines: Mapping[str, Sequence[_Epoch]], *, batch: int) -> Figure:
    """Draws the images of each epoch in a row, in the order in which they came.

    Each has its number below it. A space separates two batches.
    """
    first = next(iter(pipelines.values()))
    rows, columns = len(first), len(first[0])
    width = _NAME + columns * _STEP + columns // batch * _GAP
    figure, axes = diagram(x=(0, len(pipelines) * width), y=(rows * _ROW, -0.8))
    for panel, (name, epochs) in enumerate(pipelines.items()):
        left = panel * width + _NAME
        axes.text(left, -0.25, name, fontsize=10)
        for row, epoch in enumerate(epochs):
            style = {"ha": "right", "va": "center", "fontsize": 9}
            axes.text(left - 0.2, row * _ROW + 0.5, f"epoch {row + 1}", **style)
            for place, (number, image) in enumerate(epoch):
                corner = (left + place * _STEP + place // batch * _GAP, row * _ROW)
                framed_digit(axes, image, corner, str(number), frames=[category(1).colour])
    return finish(
        figure,
        title="A cache keeps whatever was random before it",
        alt=" ".join(_in_words(*panel, batch) for panel in pipelines.items()),
    )


def _in_words(name: str, epochs: Sequence[_Epoch], batch: int) -> str:
    orders = {tuple(number for number, _ in epoch) for epoch in epochs}
    mixes = {
        frozenset(number for number, _ in epoch[start : start + batch])
        for epoch in epochs
        for start in range(0, len(epoch), batch)
    }
    versions: dict[int, set[bytes]] = {}
    for epoch in epochs:
        for number, image in epoch:
            versions.setdefault(number, set()).add(bytes(image.tobytes()))
    most = max(len(seen) for seen in versions.values())
    return (
        f"{name}: {len(epochs)} epochs of {len(epochs[0])} images. Different orders: "
        f"{len(orders)}. Different batches: {len(mixes)}. Versions of one image: at most {most}."
    )


RECORDED = Path(__file__).with_suffix(".json")
_PARTS = {
    "the real step": ("real_ms", ONE_DEVICE),
    "the step on one batch that is there": ("compute_ms", category(0)),
    "the input alone": ("input_ms", category(1)),
}


def recorded_splits() -> dict[str, StepSplit]:
    """Returns what `python benchmarks/input_pipelines.py` measured, by the pipeline's name."""
    kept = json.loads(RECORDED.read_text(encoding="utf-8"))["pipelines"]
    return {name: StepSplit(**times) for name, times in kept.items()}


def draw_step_splits(splits: Mapping[str, StepSplit]) -> Figure:
    """Draws a row for each pipeline: marks for the real step, and for what its parts take alone."""
    figure, axes = panels(width=WIDE, height=0.42 * len(splits) + 1.1)
    rows = range(len(splits))
    times = {key: [getattr(split, key) for split in splits.values()] for key, _ in _PARTS.values()}
    ends = [max(row) for row in zip(*times.values(), strict=True)]
    axes.hlines(rows, [min(row) for row in zip(*times.values(), strict=True)], ends, PALE, lw=4)
    for label, (key, look) in _PARTS.items():
        axes.plot(times[key], rows, **look.line(size=8), linestyle="none", label=label)
    for row, (end, real) in enumerate(zip(ends, times["real_ms"], strict=True)):
        axes.text(end + 4, row, f"{real:.0f} ms a step", va="center", fontsize=9)
    axes.set(xlim=(0, 1.2 * max(ends)), ylim=(len(splits) - 0.5, -0.5))
    axes.set_yticks(rows, list(splits))
    label_axes(axes, x="time", y="", x_unit="ms")
    add_legend(figure, loc="outside lower center", ncols=3)
    captions = (
        f"{name}: {split.real_ms:.0f} ms, of which the computation takes {split.compute_ms:.0f} "
        f"ms; the input alone takes {split.input_ms:.0f} ms."
        for name, split in splits.items()
    )
    return finish(
        figure,
        title="A step that waits takes as long as its input" * (len(splits) > 1),
        alt=f"Times of a step. {' '.join(captions)}",
    )


def draw_overlap(*, read: float, compute: float, steps: int) -> Figure:
    """Draws the same steps twice: read and compute in turns, and with one batch read ahead."""
    figure, axes = panels(2, width=WIDE, height=3.2, sharex=True)
    ways = {
        "nothing is read ahead": _in_turns(read, compute, steps),
        "one batch is read ahead": _overlapped(read, compute, steps),
    }
    looks = {"input": category(1), "computation": category(0)}
    for ax, (title, (reads, computes)) in zip(axes, ways.items(), strict=True):
        for row, (name, starts, long) in enumerate(
            (("input", reads, read), ("computation", computes, compute))
        ):
            for number, start in enumerate(starts, 1):
                ax.barh(row, long, left=start, height=0.7, **looks[name].bar())
                style = {"ha": "center", "va": "center", "color": GROUND, "weight": "bold"}
                ax.text(start + long / 2, row, str(number), **style)
        ax.set_yticks([0, 1], list(looks))
        ax.set_ylim(1.5, -0.5)
        ax.set_xticks([])
        end = computes[-1] + compute
        ax.axvline(end, color=NOTE, linewidth=1, linestyle=":")
        ax.set_title(f"{title}: {end:g} units of time", fontsize=10, loc="left")
        label_axes(ax, x="", y="")
    label_axes(axes[-1], x="time (a sketch; numbers: the batch)", y="")
    captions = [
        f"If {title}, the last step ends after {c[-1] + compute:g}"
        for title, (_, c) in ways.items()
    ]
    return finish(
        figure,
        title="Reading ahead hides the shorter of the two parts",
        alt=f"Lanes of input and computation for {steps} steps. The input of a batch takes "
        f"{read:g} units of time, its computation {compute:g}. {'. '.join(captions)}.",
    )


def _in_turns(read: float, compute: float, steps: int) -> tuple[list[float], list[float]]:
    """When each read and each computation starts, if neither overlaps the other."""
    reads = [step * (read + compute) for step in range(steps)]
    return reads, [start + read for start in reads]


def _overlapped(read: float, compute: float, steps: int) -> tuple[list[float], list[float]]:
    """The same, if the next batch is read as soon as the one before was taken."""
    reads, computes = [0.0], [read]
    for _ in range(1, steps):
        reads.append(max(reads[-1] + read, computes[-1]))
        computes.append(max(computes[-1] + compute, reads[-1] + read))
    return reads, computes
