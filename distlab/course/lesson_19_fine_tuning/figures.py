"""Figures: accuracy by the number of labels.

draw_label_curve(recorded_accuracies(), ("scratch", "frozen", "fine-tuned"))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distlab.course.palette import category, finish, label_axes, label_ends, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECORDED = Path(__file__).with_suffix(".json")


def recorded_accuracies() -> dict[str, dict[int, list[float]]]:
    """Returns what `python benchmarks/label_curve.py` measured."""
    kept = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {
        way: dict(zip(kept["labels"], by_labels, strict=True))
        for way, by_labels in kept["accuracies"].items()
    }


def draw_label_curve(
    accuracies: Mapping[str, Mapping[int, Sequence[float]]], ways: Sequence[str]
) -> Figure:
    """Draws a curve for each way: the mean of the seeds, and their standard deviation as a bar."""
    figure, axes = panels(height=3.4)
    captions = []
    for number, way in enumerate(ways):
        look = category(number)
        by_labels = {labels: np.asarray(seeds) for labels, seeds in accuracies[way].items()}
        means = [seeds.mean() for seeds in by_labels.values()]
        # A little to the side, so that the bars of different ways do not hide each other.
        places = np.array(list(by_labels)) * (1 + 0.05 * (number - (len(ways) - 1) / 2))
        deviations = [seeds.std() for seeds in by_labels.values()]
        axes.errorbar(places, means, deviations, capsize=3, label=way, **look.line())
        ends = ", ".join(
            f"{mean:.0%} with {labels}" for labels, mean in zip(by_labels, means, strict=True)
        )
        captions.append(f"{way}: {ends}")
    counts = list(accuracies[ways[0]])
    axes.set_xscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    label_axes(axes, x="labels a class", y="test accuracy")
    label_ends(axes)
    return finish(
        figure,
        title="Frozen layers fall behind as labels grow",
        alt="Test accuracy by the number of labels a class, with error bars. "
        + "; ".join(captions)
        + ".",
    )
