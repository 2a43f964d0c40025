"""Figures: what each epoch sees, and what a step waits for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distlab.course.measure.step_split import StepSplit
from distlab.course.palette import (
    GROUND,
    NOTE,
    ONE_DEVICE,
    add_legend,
    category,
    finish,
    label_axes,
)

_Epoch = Sequence[tuple[int, Any]]
_STEP, _GAP = 1.12, 0.35


def draw_epochs(pipelines: Mapping[str, Sequence[_Epoch]], *, batch: int) -> Any:
    """Draws the images of each epoch in a row, in the order in which they came.

    Each has its number below it. A space separates two batches.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    first = next(iter(pipelines.values()))
    rows, columns = len(first), len(first[0])
    width = columns * _STEP + (columns - 1) // batch * _GAP
    size = (len(pipelines) * (0.45 * width + 0.5), 0.58 * rows + 0.4)
    figure = plt.figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(pipelines), squeeze=False)[0]
    for axes, (name, epochs) in zip(panels, pipelines.items(), strict=True):
        axes.set_title(name, fontsize=10, loc="left")
        for row, epoch in enumerate(epochs):
            top = row * 1.5
            axes.text(-0.2, top + 0.5, f"epoch {row + 1}", ha="right", va="center", fontsize=8)
            for place, (number, image) in enumerate(epoch):
                left = place * _STEP + place // batch * _GAP
                where = (left, left + 1, top + 1, top)
                axes.imshow(image[..., 0], cmap="gray_r", vmin=0, vmax=1, extent=where)
                axes.add_patch(
                    Rectangle((left, top), 1, 1, fill=False, edgecolor=category(1).colour)
                )
                below = {"ha": "center", "va": "top", "fontsize": 7, "color": NOTE}
                axes.text(left + 0.5, top + 1.06, str(number), **below)
        axes.set_xlim(-2, width)
        axes.set_ylim(rows * 1.5, -0.1)
        axes.set_aspect("equal")
        axes.axis("off")
    return finish(figure, alt=" ".join(_in_words(*panel, batch) for panel in pipelines.items()))


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
_HEIGHT = 0.26


def recorded_splits() -> dict[str, StepSplit]:
    """Returns what `python benchmarks/input_pipelines.py` measured, by the pipeline's name."""
    kept = json.loads(RECORDED.read_text(encoding="utf-8"))["pipelines"]
    return {name: StepSplit(**times) for name, times in kept.items()}


def draw_step_splits(splits: Mapping[str, StepSplit]) -> Any:
    """Draws three bars for each pipeline: the real step, and what its parts take alone."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.6, 0.9 * len(splits) + 0.9), layout="constrained")
    longest = max(split.real_ms for split in splits.values())
    for place, (label, (key, look)) in enumerate(_PARTS.items()):
        times = [getattr(split, key) for split in splits.values()]
        rows = [row + (place - 1) * _HEIGHT for row in range(len(splits))]
        axes.barh(rows, times, _HEIGHT * 0.9, label=label, **look.bar())
        for row, ms in zip(rows, times, strict=True):
            axes.text(ms + longest / 100, row, f"{ms:.0f} ms", va="center", fontsize=8)
    axes.set_yticks(range(len(splits)), list(splits))
    axes.set_ylim(len(splits) - 0.5, -0.5)
    label_axes(axes, x="time", y="", x_unit="ms")
    add_legend(figure, loc="outside lower center", ncols=3)
    captions = (
        f"{name}: {split.real_ms:.0f} ms, of which the computation takes {split.compute_ms:.0f} "
        f"ms; the input alone takes {split.input_ms:.0f} ms."
        for name, split in splits.items()
    )
    return finish(figure, alt=f"Times of a step. {' '.join(captions)}")


def draw_overlap(*, read: float, compute: float, steps: int) -> Any:
    """Draws the same steps twice: read and compute in turns, and with one batch read ahead."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 1, figsize=(7.6, 3.3), sharex=True, layout="constrained")
    ways = {
        "nothing is read ahead": _in_turns(read, compute, steps),
        "one batch is read ahead": _overlapped(read, compute, steps),
    }
    looks = {"input": category(1), "computation": category(0)}
    for axes, (title, (reads, computes)) in zip(panels, ways.items(), strict=True):
        for row, (name, starts, long) in enumerate(
            (("input", reads, read), ("computation", computes, compute))
        ):
            look = {**looks[name].bar(), "edgecolor": GROUND}
            for number, start in enumerate(starts, 1):
                axes.barh(row, long, left=start, height=0.7, **look)
                axes.text(start + long / 2, row, str(number), **_IN_A_BAR)
        axes.set_yticks([0, 1], list(looks))
        axes.set_ylim(1.5, -0.5)
        axes.set_xticks([])
        end = computes[-1] + compute
        axes.axvline(end, color=NOTE, linewidth=1, linestyle=":")
        axes.set_title(f"{title}: {end:g} units of time", fontsize=10, loc="left")
        label_axes(axes, x="", y="")
    label_axes(panels[-1], x="time (a sketch; numbers: the batch)", y="")
    captions = [
        f"If {title}, the last step ends after {c[-1] + compute:g}"
        for title, (_, c) in ways.items()
    ]
    return finish(
        figure,
        alt=f"Lanes of input and computation for {steps} steps. The input of a batch takes "
        f"{read:g} units of time, its computation {compute:g}. {'. '.join(captions)}.",
    )


_IN_A_BAR: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "fontsize": 9,
    "bbox": {"facecolor": GROUND, "edgecolor": "none", "pad": 1},
}


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
