"""Figures: accuracy and steps by the size of the batch.

draw_by_batch({"fixed rate": {8: accuracies, 16: others}}, y="test accuracy", y_unit="%")
draw_steps({"best rate": {8: steps, 16: others}}, lines_from=["best rate"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course.lesson_02_batch_scaling.published_batches import fit_bend
from distlab.course.palette import (
    ONE_DEVICE,
    REFERENCE,
    add_legend,
    category,
    finish,
    label_axes,
    label_ends,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Mapping[str, Mapping[int, Any]]


def draw_by_batch(values: Values, *, y: str, y_unit: str = "") -> Figure:
    """Draws a curve for each way to train: the mean over seeds, its standard error as a bar."""
    figure, axes = panels()
    _draw_curves(axes, values)
    label_axes(axes, x="global batch", y=y, y_unit=y_unit)
    label_ends(axes)
    captions = [f"{name}: {_listed(curve, y_unit)}" for name, curve in values.items()]
    return finish(
        figure,
        title="The curves part where the batch is large",
        alt=f"{y.capitalize()} against the global batch, as means over seeds. "
        f"{'; '.join(captions)}.",
    )


def draw_steps(steps: Values, *, lines_from: Sequence[str]) -> Figure:
    """Draws the steps to an accuracy against the batch, on two logarithmic axes.

    A batch size at which a seed never arrived has no point in the curve.
    """
    figure, axes = panels(height=3.4)
    _draw_curves(axes, steps)
    batches = sorted({batch for curve in steps.values() for batch in curve})
    words, lowest = [], np.inf
    for name in lines_from:
        first = float(np.mean(steps[name][batches[0]]))
        line = [first * batches[0] / batch for batch in batches]
        axes.plot(batches, line, color=REFERENCE, linewidth=1, dashes=(4, 3))
        words.append(f"from {first:.0f} at {batches[0]} to {line[-1]:.0f} at {batches[-1]}")
        lowest = min(lowest, line[-1])
    note = {"xytext": (6, 0), "textcoords": "offset points", "fontsize": 9, "va": "center"}
    axes.annotate("1 / batch", (batches[-1], lowest), **note)
    axes.set_yscale("log")
    axes.set_ylim(0.7 * lowest, None)
    ticks = [tick for tick in (5, 10, 20, 50, 100, 200, 500, 1000) if tick > 0.7 * lowest]
    axes.set_yticks(ticks, [f"{tick}" for tick in ticks])
    label_axes(axes, x="global batch", y="steps to 95 %")
    label_ends(axes)
    captions = [f"{name}: {_listed(curve, '')}" for name, curve in steps.items()]
    return finish(
        figure,
        title="Past some batch, twice as large no longer means half the steps",
        alt="Steps to 95 % validation accuracy against the global batch, on logarithmic axes, as "
        f"means over seeds. {'; '.join(captions)}. Lines fall as 1 / batch {', and '.join(words)}.",
    )


def draw_bends(runs_by_model: Mapping[str, Mapping[int, float]]) -> Figure:
    """Draws each model's training to the same quality, in units of its own bend and fewest."""
    figure, axes = panels(height=3.4)
    words = []
    for number, (model, runs) in enumerate(runs_by_model.items()):
        bend = fit_bend(runs)
        shares = [batch / bend.batch for batch in runs]
        times = [amount / bend.fewest for amount in runs.values()]
        look = category(number).line() | {"linestyle": "none"}
        look |= {"markerfacecolor": "none"} if number > 3 else {}  # there are four looks
        axes.plot(shares, times, label=model, **look)
        words.append(
            f"{model}, bend at {bend.batch:,.0f}: {min(times):.1f} to {max(times):.1f} times at "
            f"{min(shares):.2f} to {max(shares):.1f} of it"
        )
    line = np.geomspace(0.02, 4, 60)
    axes.plot(line, 1 + line, color=REFERENCE, linewidth=1)
    axes.annotate("1 + batch / bend", (3.2, 4.6), fontsize=9, ha="right")
    axes.set_xscale("log")
    axes.set_xticks([0.03, 0.1, 0.3, 1, 3], ["0.03", "0.1", "0.3", "1", "3"])
    label_axes(axes, x="batch, as a multiple of the model's bend", y="training, fewest = 1")
    add_legend(axes)
    return finish(
        figure,
        title="Six models, one curve: past the bend, batches repeat work",
        alt="Training to the target quality against the batch, each in units of the model's own "
        f"bend. {'; '.join(words)}. All lie near the curve 1 + batch / bend.",
    )


def _draw_curves(axes: Any, values: Values) -> None:
    """Draws the curves over a logarithmic axis of batches."""
    batches = sorted({batch for curve in values.values() for batch in curve})
    for number, (name, curve) in enumerate(values.items()):
        look = ONE_DEVICE if name == "one device" else category(number + 1)  # the first is as dark
        reached = {batch: np.asarray(seeds) for batch, seeds in curve.items() if _all_there(seeds)}
        means = [seeds.mean() for seeds in reached.values()]
        bars = [standard_error(seeds) for seeds in reached.values()]
        axes.errorbar(list(reached), means, yerr=bars, capsize=3, label=name, **look.line())
    axes.set_xscale("log")
    axes.set_xticks(batches, [str(batch) for batch in batches])


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
