"""Checks of lesson 02: a plan, a warm-up, the gradient noise scale, a comparison of batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Form,
    Inputs,
    Observed,
    Plain,
    Raises,
    Then,
)
from distlab.course.checks.rubric import RubricRow, WrittenReport
from distlab.course.lesson_02_batch_scaling.runs import TRAINING, Runs
from distlab.course.runs.replicas import MOST_REPLICAS, give_each, mirrored, take_each

# --- plan_job

_PLAN_PARTS = ("global_batch", "learning_rate", "steps")


def _plan_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    per_replica, replicas = int(draw.choice([24, 40, 52])), int(draw.choice([2, 4, 6]))
    accumulate = int(draw.choice([3, 5]))
    batch = per_replica * replicas * accumulate
    # About half a batch is left at the end of each epoch: to forget it changes the steps.
    examples = batch * int(draw.integers(5, 20)) + round(batch * draw.uniform(0.4, 0.6))
    return {
        "examples": examples,
        "epochs": int(draw.integers(4, 8)),
        "per_replica": per_replica,
        "replicas": replicas,
        "accumulate": accumulate,
        "found_rate": round(float(draw.uniform(0.01, 0.1)), 4),
        "found_batch": int(draw.choice([14, 22, 34])),
    }


def _plan_call(plan_job: Callable[..., Any], inputs: Inputs) -> Plain:
    return {name: plan_job(optimizer=name, **inputs) for name in ("sgd", "adam")}


def _plan_read(given: Inputs, outputs: Plain) -> Plain:
    for plan in outputs.values():
        if not isinstance(plan, dict) or not set(_PLAN_PARTS) <= plan.keys():
            return {"a different form": plan}
    sgd, adam = outputs["sgd"], outputs["adam"]
    return {
        "global_batch": sgd["global_batch"],
        "rate": sgd["learning_rate"],
        "adam rate": adam["learning_rate"],
        "steps": sgd["steps"],
    }


def _plan_reference(
    given: Inputs,
    *,
    counted: tuple[str, ...] = ("per_replica", "replicas", "accumulate"),
    ratio_of: Callable[[Inputs, int], float] = lambda given, batch: batch / given["found_batch"],
    adam: Callable[[float], float] = math.sqrt,
    steps_by: str = "",
) -> Plain:
    """The plan for a batch that is the product of what is `counted`."""
    batch = math.prod(given[name] for name in counted)
    ratio = ratio_of(given, batch)
    return {
        "global_batch": batch,
        "rate": given["found_rate"] * ratio,
        "adam rate": given["found_rate"] * adam(ratio),
        "steps": given["epochs"] * math.ceil(given["examples"] / given.get(steps_by, batch)),
    }


PLAN = Check(
    name="plan_job",
    title="Batch, rate and steps of a job on several replicas",
    question="How many examples decide one update of the weights?",
    direction="Find the number of examples in one update first. Then express the learning rate and "
    "the steps with that number only.",
    cost=Cost.PURE,
    inputs=_plan_inputs,
    call=_plan_call,
    read=_plan_read,
    reference=_plan_reference,
    criteria=(
        Form(
            "a dictionary with global_batch, learning_rate, steps",
            lambda given, out: "a different form" not in out,
            key="a different form",
        ),
        Equal("global_batch", "the examples in one update", points=1),
        Close("rate", "the learning rate of SGD", atol=1e-6, points=1),
        Close("adam rate", "the learning rate of Adam", atol=1e-6, points=0.5),
        Equal("steps", "the updates in all epochs", points=1),
    ),
    hint="batch = per_replica * replicas * accumulate. k = batch / found_batch: times k for SGD, "
    "times math.sqrt(k) for Adam. Each epoch has math.ceil(examples / batch) steps.",
    revisit='"A rule for the learning rate" in lesson 02',
    mistakes=(
        Fault("batch_per_replica", counted=("per_replica",))
        .or_with(counted=("per_replica", "accumulate"))
        .feedback(
            "You planned for the examples of one replica. All replicas add their gradients into "
            "the same update, so rate and steps are those of a smaller job. How many examples "
            "reach one update?"
        ),
        Fault("accumulation_forgotten", counted=("per_replica", "replicas")).feedback(
            "You counted one micro-batch of each replica. The weights wait until `accumulate` of "
            "them are added up, so an update has more examples than you planned for. When does the "
            "optimizer move the weights?"
        ),
        Fault("steps_of_one_device", sees=("steps", "global_batch"), steps_by="per_replica")
        .or_with(steps_by="found_batch")
        .feedback(
            "You returned the steps that one device would take with its own batch. A schedule that "
            "is planned for so many steps never comes to its end. How many examples does one step "
            "use now?"
        ),
        Fault("scaled_by_replicas", ratio_of=lambda given, batch: given["replicas"]).feedback(
            "You scaled the rate by the number of replicas. That is right only if the rate was "
            "found for the batch of one replica. For how many examples was `found_rate` found?"
        ),
        Fault("linear_for_adam", adam=float).feedback(
            "You multiplied Adam's rate by the growth of the batch. Adam divides each gradient by "
            "its usual size, which shrinks with the noise, so this rate is too high. Which rule "
            "did the lesson give for Adam?"
        ),
    ),
)


# --- rate_at

_EPOCHS_AFTER = 2  # epochs after the warm-up


def _warm_up_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    first = round(float(draw.uniform(0.02, 0.1)), 3)
    return {
        "steps_per_epoch": int(draw.integers(4, 9)),
        "warmup_epochs": int(draw.integers(2, 5)),
        "first_rate": first,
        "full_rate": round(first * float(draw.uniform(4, 16)), 3),
    }


def _warm_up_call(rate_at: Callable[..., Any], inputs: Inputs) -> Plain:
    def rates(given: Inputs) -> list[Any]:
        return [
            rate_at(epoch, batch, **given)
            for epoch in range(given["warmup_epochs"] + _EPOCHS_AFTER)
            for batch in range(given["steps_per_epoch"])
        ]

    return {"rates": rates(inputs), "without": rates({**inputs, "warmup_epochs": 0})}


def _warm_up_reference(
    given: Inputs,
    *,
    counted: Callable[[int, int, int], float] = lambda epoch, batch, per: epoch * per + batch,
    longer_by: int = 0,
    stops: bool = True,
) -> Plain:
    """The rate of each step for a climb with these properties."""
    per, first, full = given["steps_per_epoch"], given["first_rate"], given["full_rate"]
    steps = given["warmup_epochs"] * per + longer_by

    def rate(epoch: int, batch: int) -> float:
        part = counted(epoch, batch, per) / steps
        return float(first + (full - first) * (min(1.0, part) if stops else part))

    epochs = range(given["warmup_epochs"] + _EPOCHS_AFTER)
    return {
        "rates": [rate(epoch, batch) for epoch in epochs for batch in range(per)],
        "without": [full] * (_EPOCHS_AFTER * per),
    }


WARM_UP = Check(
    name="rate_at",
    title="The learning rate of each step of a warm-up",
    question="How many steps has the optimizer taken when this batch begins?",
    direction="Turn epoch and batch into one count of steps that never falls. Then say at which "
    "count the climb begins and at which it is over.",
    cost=Cost.PURE,
    inputs=_warm_up_inputs,
    call=_warm_up_call,
    reference=_warm_up_reference,
    criteria=(
        Close("rates", "the rate of each step, in all epochs", atol=1e-6, points=2),
        Then(Close("without", "the full rate if there is no warm-up", atol=1e-6, points=0.5)),
    ),
    hint="step = epoch * steps_per_epoch + batch; steps = warmup_epochs * steps_per_epoch. From "
    "step `steps` on return full_rate, before it first_rate + (full_rate - first_rate) * step / "
    "steps.",
    revisit='"Warm-up" in lesson 02',
    mistakes=(
        Fault("restarts_each_epoch", sees="rates", counted=lambda epoch, batch, per: batch)
        .or_with(counted=lambda epoch, batch, per: batch + 1)
        .feedback(
            "Your rate falls back at the beginning of each epoch, so the climb never gets to its "
            "end. Keras counts `batch` from 0 in every epoch. Which two arguments together say how "
            "far training is?"
        ),
        Fault(
            "off_by_one",
            sees="rates",
            counted=lambda epoch, batch, per: epoch * per + batch + 1,
        )
        .or_with(longer_by=-1)
        .or_with(longer_by=1)
        .feedback(
            "Your climb is one step too early, too late, too short or too long. In a short warm-up "
            "that changes every rate. Which rate has step 0, and what is the number of the first "
            "step after the climb?"
        ),
        Fault(
            "one_stair_an_epoch", sees="rates", counted=lambda epoch, batch, per: epoch * per
        ).feedback(
            "Your rate changes only between epochs. Each epoch then begins with a jump, which a "
            "gradual warm-up should avoid. What else do you know about the step, besides its "
            "epoch?"
        ),
        Fault("climbs_on", sees="rates", stops=False).feedback(
            "Your rate climbs on after the warm-up, past the full rate. Such a rate diverges "
            "sooner or later. What should be returned when the climb is over?"
        ),
    ),
)


# --- noise_parts

_NOISE_STEPS = 3


def _noise_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    common = draw.normal(size=(_NOISE_STEPS, 1, 3))
    own = draw.normal(size=(_NOISE_STEPS, MOST_REPLICAS, 3))
    return {
        "gradients": (common + own).astype("float32"),
        "per_replica": int(draw.integers(5, 30)),
    }


def _noise_call(noise_parts: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)
    steps = []
    for gradients in inputs["gradients"]:
        given = give_each(strategy, [tf.constant(each) for each in gradients])
        answer = strategy.run(noise_parts, args=(given, inputs["per_replica"]))
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            return {"a different form": None if answer is None else type(answer).__name__}
        parts = [take_each(strategy, part) for part in answer]
        steps.append([[float(np.sum(copy)) for copy in copies] for copies in parts])
    return {"parts": steps}


def _noise_read(given: Inputs, outputs: Plain) -> Plain:
    if "parts" not in outputs:
        return outputs
    parts = np.asarray(outputs["parts"], dtype="float64")  # [steps, 2, replicas]
    alike = np.allclose(parts, parts[..., :1], rtol=1e-4, atol=1e-5)
    return {"noise": parts[:, 0, 0], "signal": parts[:, 1, 0], "same": alike}


def _noise_reference(
    given: Inputs,
    *,
    norm_as_signal: str = "",
    summed: bool = False,
) -> Plain:
    """Noise and signal, the same on every replica."""
    gradients = np.asarray(given["gradients"], dtype="float64")
    together = gradients.sum(axis=1) if summed else gradients.mean(axis=1)
    small = (gradients**2).sum(axis=-1).mean(axis=1)
    big = (together**2).sum(axis=-1)
    few = given["per_replica"]
    many = few * MOST_REPLICAS
    noise = (small - big) / (1 / few - 1 / many)
    signal = (many * big - few * small) / (many - few)
    signals = {"": signal, "big": big, "small": small}
    return {"noise": noise, "signal": signals[norm_as_signal], "same": True}


NOISE = Check(
    name="noise_parts",
    title="Noise and signal of a gradient, on four replicas",
    question="Which of the two norms is larger, and what does it contain that the other has less "
    "of?",
    direction="Each replica needs two squared norms: of the replicas' gradients, on average, and "
    "of their mean. One all-reduce gives each. Then put the two batch sizes in their places.",
    inputs=_noise_inputs,
    call=_noise_call,
    read=_noise_read,
    reference=_noise_reference,
    criteria=(
        Form("two numbers", lambda given, out: "noise" in out, key="a different form"),
        Close("noise", "the noise: the variance of one example's gradient", atol=1e-3, points=1.5),
        Close("signal", "the signal: the squared norm without noise", atol=1e-3, points=1.5),
    ),
    hint='small = context.all_reduce("MEAN", tf.reduce_sum(gradient**2)). The global gradient is '
    'context.all_reduce("MEAN", gradient), and big is its squared norm. b = per_replica, B = b * '
    "replicas: noise = (small - big) / (1 / b - 1 / B), signal = (B * big - b * small) / (B - b).",
    revisit='"Extra: How noisy is a gradient?" in lesson 02',
    mistakes=(
        Observed("own_norm", lambda given, out: not out["same"]).feedback(
            "You used each replica's own gradient without the others, so the replicas return "
            "different numbers. Which call gives every replica the mean of all?"
        ),
        Fault("biased_norms", norm_as_signal="big")
        .or_with(norm_as_signal="small")
        .feedback(
            "You took a norm as it is for the signal. Noise makes every norm longer, so the signal "
            "is too large and the noise scale too small. How much noise is left in the global "
            "gradient?"
        ),
        Fault("sum_for_mean", summed=True).feedback(
            "You added up the replicas' gradients. Each is a mean over its own share, so their sum "
            "is four times too long. What makes them the gradient of the global batch?"
        ),
        Raises("reduce_on_a_replica", "cross-replica context|Mixing different tf.dist").feedback(
            "You called `strategy.reduce` on a replica, and it works only outside `strategy.run`. "
            "Which object, that every replica can ask for, has an `all_reduce`?"
        ),
    ),
)


# --- compare_batches

_PAIRS, _STEPS, _RATES, _SEEDS, _EPOCHS = ((16, 32), (16, 64)), 128, 4, 5, 1


def _compare_inputs(seed: int) -> Inputs:
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


def _runs_of(given: Inputs, batch: int) -> Runs:
    """All runs have equally many steps, so not equally many epochs."""
    validation, test = given["sweeps"][str(batch)]
    return Runs(
        batch=batch,
        rates=tuple(map(float, given["rates"])),
        steps=np.arange(TRAINING // batch, _STEPS + 1, TRAINING // batch),
        validation=np.array(validation),
        test=np.array(test),
    )


def _compare_call(compare_batches: Callable[..., Any], inputs: Inputs) -> Plain:
    return [
        compare_batches(_runs_of(inputs, small), _runs_of(inputs, large), _EPOCHS)
        for small, large in _PAIRS
    ]


def _compare_read(given: Inputs, outputs: Plain) -> Plain:
    for answer in outputs:
        if not isinstance(answer, (tuple, list)) or len(answer) != 3 or np.size(answer[0]) != 2:
            return answer
    rates, differences, errors = zip(*outputs, strict=True)
    pairs = [list(pair) for pair in rates]
    return {"rates": pairs, "differences": list(differences), "errors": list(errors)}


def _standard_error(values: Any) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _compare_reference(
    given: Inputs,
    *,
    look_at: Callable[[Runs], int] = lambda runs: _EPOCHS * TRAINING // runs.batch,
    picked_on: str = "validation",
    difference: Callable[[Any, Any], float] = lambda small, large: (large - small).mean(),
    error: Callable[[Any, Any], float] = lambda small, large: _standard_error(large - small),
) -> Plain:
    """The comparison of each pair, by the accuracies of all seeds with the best rates."""
    outcome: dict[str, list[Any]] = {"rates": [], "differences": [], "errors": []}
    for pair in _PAIRS:
        rates, accuracies = [], []
        for runs in (_runs_of(given, batch) for batch in pair):
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
    direction="Go in this order: for each batch the look after these epochs and its rate by the "
    "validation digits. Then one difference for each seed on the test digits, and only then a mean "
    "and an error.",
    cost=Cost.PURE,
    inputs=_compare_inputs,
    call=_compare_call,
    read=_compare_read,
    reference=_compare_reference,
    criteria=(
        Form(
            "three values: the two rates, the difference, its standard error",
            lambda given, out: isinstance(out, dict),
        ),
        Close("rates", "both rates, chosen on the validation digits", atol=1e-9, points=1),
        Close("differences", "the mean difference on the test digits", atol=1e-6, points=1),
        Then(Close("errors", "the standard error of that difference", atol=1e-6, points=1)),
    ),
    hint="For each of the two, best = runs.accuracy_after(epochs, "
    "on='validation').mean(axis=1).argmax() and seeds = runs.accuracy_after(epochs)[best]. With "
    "apart = seeds_large - seeds_small, return the rates, apart.mean() and apart.std(ddof=1) / "
    "len(apart) ** 0.5.",
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
            error=lambda small, large: math.hypot(_standard_error(small), _standard_error(large)),
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


CHECKS = (PLAN, WARM_UP, NOISE, COMPARE)
