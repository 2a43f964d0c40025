"""Figures: accuracy and steps by the size of the batch.

draw_by_batch({"fixed rate": {8: accuracies, 16: others}}, y="test accuracy", y_unit="%")
draw_steps({"best rate": {8: steps, 16: others}}, lines_from=["best rate"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course.palette import ONE_DEVICE, REFERENCE, add_legend, category, finish, label_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Mapping[str, Mapping[int, Any]]


def draw_by_batch(values: Values, *, y: str, y_unit: str = "") -> Figure:
    """Draws a curve for each way to train: the mean over seeds, its standard error as a bar."""
    figure, axes = _begin(values, y=y, y_unit=y_unit)
    captions = [f"{name}: {_listed(curve, y_unit)}" for name, curve in values.items()]
    add_legend(axes)
    return finish(
        figure,
        alt=f"{y.capitalize()} against the global batch, as means over seeds. "
        f"{'; '.join(captions)}.",
    )


def draw_steps(steps: Values, *, lines_from: Sequence[str]) -> Figure:
    """Draws the steps to an accuracy against the batch, on two logarithmic axes.

    A batch size at which a seed never arrived has no point in the curve.
    """
    figure, axes = _begin(steps, y="steps to 95 %")
    batches = sorted({batch for curve in steps.values() for batch in curve})
    words, lowest = [], np.inf
    for number, name in enumerate(lines_from):
        first = float(np.mean(steps[name][batches[0]]))
        line = [first * batches[0] / batch for batch in batches]
        label = "1 / batch" if number == 0 else None
        axes.plot(batches, line, color=REFERENCE, linewidth=1, dashes=(4, 3), label=label)
        words.append(f"from {first:.0f} at {batches[0]} to {line[-1]:.0f} at {batches[-1]}")
        lowest = min(lowest, line[-1])
    axes.set_yscale("log")
    axes.set_ylim(0.7 * lowest, None)
    ticks = [tick for tick in (5, 10, 20, 50, 100, 200, 500, 1000) if tick > 0.7 * lowest]
    axes.set_yticks(ticks, [f"{tick}" for tick in ticks], minor=False)
    axes.minorticks_off()
    add_legend(axes)
    captions = [f"{name}: {_listed(curve, '')}" for name, curve in steps.items()]
    return finish(
        figure,
        alt="Steps to 95 % validation accuracy against the global batch, on logarithmic axes, as "
        f"means over seeds. {'; '.join(captions)}. Lines fall as 1 / batch {', and '.join(words)}.",
    )


def _begin(values: Values, *, y: str, y_unit: str = "") -> tuple[Figure, Any]:
    """Returns a figure with the curves, and a logarithmic axis of batches."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.6, 3.6), layout="constrained")
    batches = sorted({batch for curve in values.values() for batch in curve})
    for number, (name, curve) in enumerate(values.items()):
        look = ONE_DEVICE if name == "one device" else category(number + 1)  # the first is as dark
        reached = {batch: np.asarray(seeds) for batch, seeds in curve.items() if _all_there(seeds)}
        means = [seeds.mean() for seeds in reached.values()]
        bars = [standard_error(seeds) for seeds in reached.values()]
        axes.errorbar(list(reached), means, yerr=bars, capsize=3, label=name, **look.line())
    axes.set_xscale("log")
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    label_axes(axes, x="global batch", y=y, y_unit=y_unit)
    return figure, axes


def standard_error(seeds: Any) -> float:
    """Returns the standard error of the mean over seeds; 0 for a single one."""
    count = len(seeds)
    return float(np.std(seeds, ddof=1) / np.sqrt(count)) if count > 1 else 0.0


def _all_there(seeds: Any) -> bool:
    return bool(np.isfinite(np.asarray(seeds, dtype="float64")).all())


def _listed(curve: Mapping[int, Any], unit: str) -> str:
    space = f" {unit}" if unit else ""
    return ", ".join(
        f"{np.mean(seeds):.0f}{space} at {batch}"
        if _all_there(seeds)
        else f"not all seeds arrive at {batch}"
        for batch, seeds in curve.items()
    )
