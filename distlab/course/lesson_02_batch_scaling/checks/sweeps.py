"""A check and a report of lesson 02: what a larger batch costs, from runs that share seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Form, Inputs, Plain, Then
from distlab.course.checks.rubric import RubricRow, WrittenReport
from distlab.course.lesson_02_batch_scaling.runs import TRAINING, Runs

_PAIRS, _STEPS, _RATES, _SEEDS, _EPOCHS = ((16, 32), (16, 64)), 128, 4, 5, 1


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # A lucky seed is lucky with every batch, and the first one never is.
    of_seed = np.linspace(-0.006, 0.006, _SEEDS) + draw.normal(size=_SEEDS) * 0.001
    sweeps = {}
    for batch in (16, 32, 64):
        epochs = _STEPS * batch // TRAINING
        # By epoch and rate; what is best on the validation digits is not best on the others.
        means = np.stack([draw.permutation(_RATES) for _ in range(epochs)])
        each = [0.8 + 0.03 * means, 0.8 + 0.03 * np.roll(means, 1, axis=1)]
        noise = draw.normal(size=(2, epochs, _RATES, _SEEDS)) * 0.002 + of_seed
        sweeps[str(batch)] = [
            mean[..., None] + part for mean, part in zip(each, noise, strict=True)
        ]
    return {"sweeps": sweeps, "rates": sorted(draw.choice(99, _RATES, replace=False) / 100 + 0.01)}


def _runs(given: Inputs, batch: int) -> Runs:
    """All runs have equally many steps, so not equally many epochs."""
    validation, test = given["sweeps"][str(batch)]
    return Runs(
        batch=batch,
        rates=tuple(map(float, given["rates"])),
        steps=np.arange(TRAINING // batch, _STEPS + 1, TRAINING // batch),
        validation=np.array(validation),
        test=np.array(test),
    )


def _call(compare_batches: Callable[..., Any], inputs: Inputs) -> Plain:
    return [
        compare_batches(_runs(inputs, small), _runs(inputs, large), _EPOCHS)
        for small, large in _PAIRS
    ]


def _read(given: Inputs, outputs: Plain) -> Plain:
    for answer in outputs:
        if not isinstance(answer, (tuple, list)) or len(answer) != 3 or np.size(answer[0]) != 2:
            return answer
    rates, differences, errors = zip(*outputs, strict=True)
    pairs = [list(pair) for pair in rates]
    return {"rates": pairs, "differences": list(differences), "errors": list(errors)}


def _error(values: Any) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _reference(
    given: Inputs,
    *,
    look_at: Callable[[Runs], int] = lambda runs: _EPOCHS * TRAINING // runs.batch,
    picked_on: str = "validation",
    difference: Callable[[Any, Any], float] = lambda small, large: (large - small).mean(),
    error: Callable[[Any, Any], float] = lambda small, large: _error(large - small),
) -> Plain:
    """The comparison of each pair, by the accuracies of all seeds with the best rates."""
    outcome: dict[str, list[Any]] = {"rates": [], "differences": [], "errors": []}
    for pair in _PAIRS:
        rates, accuracies = [], []
        for runs in (_runs(given, batch) for batch in pair):
            look = int(np.flatnonzero(runs.steps == look_at(runs))[0])
            best = int(getattr(runs, picked_on)[look].mean(axis=-1).argmax())
            rates.append(runs.rates[best])
            accuracies.append(runs.test[look, best])
        outcome["rates"].append(rates)
        outcome["differences"].append(float(difference(*accuracies)))
        outcome["errors"].append(float(error(*accuracies)))
    return outcome


COMPARE = Check(
    name="compare_batches",
    title="What a larger batch costs, and how sure that is",
    question="Which numbers may decide a rate, and what do two runs of the same seed share?",
    direction=(
        "Go in this order: for each batch the look after these epochs and its rate by the "
        "validation digits. Then one difference for each seed on the test digits, and only then "
        "a mean and an error."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form(
            "three values: the two rates, the difference, its standard error",
            lambda given, out: isinstance(out, dict),
        ),
        Close("rates", "both rates, chosen on the validation digits", atol=1e-9, points=1),
        Close("differences", "the mean difference on the test digits", atol=1e-6, points=1),
        Then(Close("errors", "the standard error of that difference", atol=1e-6, points=1)),
    ),
    hint="For each of the two, best = runs.accuracy_after(epochs, on='validation').mean(axis=1)"
    ".argmax() and seeds = runs.accuracy_after(epochs)[best]. With apart = seeds_large - "
    "seeds_small, return the rates, apart.mean() and apart.std(ddof=1) / len(apart) ** 0.5.",
    revisit='"How sure is an accuracy?" in lesson 02',
    mistakes=(
        Fault(
            "equal_epochs_as_equal_steps",
            sees="differences",
            look_at=lambda runs: int(runs.steps[-1]),
        )
        .or_with(look_at=lambda runs: _EPOCHS * TRAINING // 16)
        .feedback(
            "You looked at both batch sizes after equally many steps. A batch of 64 has then seen "
            "four times as many digits as a batch of 16, so the comparison is of different "
            "trainings. After how many steps has each batch size seen every digit `epochs` times?"
        ),
        Fault("picked_on_test", picked_on="test").feedback(
            "You chose the rates by the test digits. The accuracy there is then too good, because "
            "you kept the luckiest of several. Which digits are there for choosing?"
        ),
        Fault(
            "best_seed",
            sees="differences",
            difference=lambda small, large: large.max() - small.max(),
        )
        .or_with(difference=lambda small, large: (large - small).max())
        .feedback(
            "You reported the best of five seeds. The next training will usually do worse. Which "
            "number says what to expect?"
        ),
        Fault(
            "unpaired_error",
            error=lambda small, large: math.hypot(_error(small), _error(large)),
        ).feedback(
            "You combined the errors of the two means as if their seeds were different. A seed "
            "that is lucky with one batch is often lucky with the other, and that cancels in a "
            "difference. How much do the five differences themselves scatter?"
        ),
        Fault("spread_for_error", error=lambda small, large: np.std(large - small, ddof=1))
        .or_with(error=lambda small, large: np.std(large - small))
        .feedback(
            "You returned the spread of single differences. A mean of five is surer than one. By "
            "what do you divide the spread?"
        ),
    ),
)

REPORTS = (
    WrittenReport(
        name="where_the_rule_ends",
        title="Where a rule for Adam ends",
        rubric=(
            RubricRow(
                "which_rule",
                2,
                "names the batch size up to which each rule keeps the accuracy (1); compares the "
                "losses with the error bars and with the one point of 360 digits (1)",
            ),
            RubricRow(
                "steps_or_epochs",
                1,
                "says that equal epochs are 64 times fewer steps at a batch of 512, and that equal "
                "steps would compare different amounts of data",
            ),
            RubricRow(
                "sixteen_replicas",
                2,
                "advises a global batch below the bend, or more epochs (1); says what the other "
                "replicas could do instead, or that they save no steps (1)",
            ),
            RubricRow(
                "edge_of_the_grid",
                1,
                "names the batch whose best rate is at the edge of the grid, and says what that "
                "does to the differences",
            ),
        ),
    ),
)
