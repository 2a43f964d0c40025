"""A check of lesson 02: what a sweep over learning rates and seeds says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import Check, Close, Cost, Fault, Form, Inputs, Plain, Then
from distlab.coursework.batch_sweeps import TRAINING, Runs

_BATCHES, _STEPS, _RATES, _SEEDS, _EPOCHS = (16, 32, 64), 128, 4, 5, 1


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    sweeps = []
    for batch in _BATCHES:
        epochs = _STEPS * batch // TRAINING
        # By epoch and rate; what is best on the validation digits is not best on the others.
        means = np.stack([draw.permutation(_RATES) for _ in range(epochs)])
        each = [0.8 + 0.03 * means, 0.8 + 0.03 * np.roll(means, 1, axis=1)]
        noise = draw.normal(size=(2, epochs, _RATES, _SEEDS)) * 0.004
        sweeps.append([mean[..., None] + part for mean, part in zip(each, noise, strict=True)])
    return {"sweeps": sweeps, "rates": sorted(draw.choice(99, _RATES, replace=False) / 100 + 0.01)}


def _runs(given: Inputs) -> list[Runs]:
    """All runs have equally many steps, so not equally many epochs."""
    rates = tuple(map(float, given["rates"]))
    return [
        Runs(
            batch=batch,
            rates=rates,
            steps=np.arange(TRAINING // batch, _STEPS + 1, TRAINING // batch),
            validation=np.array(validation),
            test=np.array(test),
        )
        for batch, (validation, test) in zip(_BATCHES, given["sweeps"], strict=True)
    ]


def _call(conclude: Callable[..., Any], inputs: Inputs) -> Plain:
    return [conclude(runs, _EPOCHS) for runs in _runs(inputs)]


def _is_three(given: Inputs, out: Plain) -> bool:
    return isinstance(out, dict)


def _read(given: Inputs, outputs: Plain) -> Plain:
    for found in outputs:
        if not isinstance(found, (tuple, list)) or len(found) != 3:
            return found
    rates, accuracies, errors = zip(*outputs, strict=True)
    return {"rates": list(rates), "accuracies": list(accuracies), "errors": list(errors)}


def _reference(
    given: Inputs,
    *,
    look_at: Callable[[Runs], int] = lambda runs: _EPOCHS * TRAINING // runs.batch,
    picked_on: str = "validation",
    picked_by: Callable[..., Any] = np.mean,
    seeds: int = _SEEDS,
    of_seeds: Callable[..., Any] = np.mean,
    told_of: str = "test",
    error_of: Callable[[Any], float] = lambda seeds: float(
        np.std(seeds, ddof=1) / np.sqrt(len(seeds))
    ),
) -> Plain:
    rates, accuracies, errors = [], [], []
    for runs in _runs(given):
        look = int(np.flatnonzero(runs.steps == look_at(runs))[0])
        by_rate = picked_by(getattr(runs, picked_on)[look, :, :seeds], axis=-1)
        best = int(np.argmax(by_rate))
        found = getattr(runs, told_of)[look, best, :seeds]
        rates.append(runs.rates[best])
        accuracies.append(float(of_seeds(found)))
        errors.append(error_of(found) if seeds > 1 else 0.0)
    return {"rates": rates, "accuracies": accuracies, "errors": errors}


CONCLUDE = Check(
    name="conclude",
    title="What a sweep says, and how sure it is",
    question="Which numbers may decide the rate, and which must not be seen before it is chosen?",
    direction=(
        "Go in this order: the look after these epochs, the rate by the validation digits, then "
        "the test digits of that rate, over all seeds."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form("three numbers: the rate, the accuracy, its standard error", _is_three),
        Close("rates", "the rate, chosen on the validation digits", atol=1e-9, points=1),
        Close("accuracies", "the mean accuracy on the test digits", atol=1e-6, points=1),
        Then(Close("errors", "the standard error of that mean", atol=1e-6, points=1)),
    ),
    hint="best = runs.accuracy_after(epochs, on='validation').mean(axis=1).argmax(). Then "
    "seeds = runs.accuracy_after(epochs)[best]: return runs.rates[best], seeds.mean() and "
    "seeds.std(ddof=1) / len(seeds) ** 0.5.",
    revisit='"How sure is an accuracy?" in lesson 02',
    mistakes=(
        Fault(
            "equal_epochs_as_equal_steps",
            sees="accuracies",
            look_at=lambda runs: int(runs.steps[-1]),
        )
        .or_with(look_at=lambda runs: _EPOCHS * TRAINING // _BATCHES[0])
        .feedback(
            "You looked at all batch sizes after equally many steps. A batch of 64 has then seen "
            "four times as many digits as a batch of 16, so the comparison is of different "
            "trainings. After how many steps has each batch size seen every digit `epochs` times?"
        ),
        Fault("picked_on_test", picked_on="test").feedback(
            "You chose the rate by the test digits. Its accuracy there is then too good, because "
            "you kept the luckiest of several. Which digits are there for choosing?"
        ),
        Fault("one_seed", sees="accuracies", seeds=1).feedback(
            "You used one seed. Two seeds of the same training can differ by more than two "
            "batch sizes do. What do the five seeds tell you together?"
        ),
        Fault("best_seed", sees="accuracies", of_seeds=np.max)
        .or_with(of_seeds=np.max, picked_by=np.max)
        .feedback(
            "You reported the best seed. The best of five is always above what the next training "
            "will reach. Which number says what to expect?"
        ),
        Fault("validation_told", sees="accuracies", told_of="validation").feedback(
            "You reported the accuracy on the digits that chose the rate. The chosen rate was "
            "lucky there. Which digits have had no influence so far?"
        ),
        Fault("spread_for_error", error_of=lambda seeds: float(np.std(seeds, ddof=1)))
        .or_with(error_of=lambda seeds: float(np.std(seeds)))
        .feedback(
            "You returned the spread of single seeds. A mean of five seeds is surer than one seed. "
            "By what do you divide the spread?"
        ),
        Fault(
            "one_seed_too_many",
            error_of=lambda seeds: float(np.std(seeds) / np.sqrt(len(seeds))),
        ).feedback(
            "You divided the squared distances by the number of seeds. Their mean was computed "
            "from the same seeds, so that is a little too small. What does `ddof` do in `std`?"
        ),
    ),
)
