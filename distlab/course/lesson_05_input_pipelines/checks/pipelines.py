"""Checks of lesson 05: a pipeline to repair, and the time of a step from its parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Fault,
    Form,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)
from distlab.course.lesson_05_input_pipelines.runs import CountedCalls, stages

# --- repair_pipeline

_ORDER_EPOCHS = 3


def _order_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    batch = int(draw.choice([3, 4]))
    count = batch * int(draw.choice([5, 6]))
    numbers = np.sort(draw.choice(900, size=count, replace=False)).astype("int64")
    return {"numbers": numbers, "batch": batch, "seed": int(draw.integers(1, 1000))}


def _order_call(make_pipeline: Callable[..., Any], inputs: Inputs) -> Plain:
    """Reads three epochs, and tests whether a second pipeline with the same seed repeats them."""
    import tensorflow as tf

    calls, numbers = CountedCalls(), inputs["numbers"]

    def augment(number: Any) -> Any:
        """A new version of the example with every call."""
        version = tf.numpy_function(lambda: np.int64(calls.count("augment")), [], tf.int64)
        return tf.stack([number, tf.reshape(version, [])])

    def pipeline() -> Any:
        read = calls.counted("read", lambda number: number)
        return make_pipeline(numbers, read, augment, inputs["batch"], inputs["seed"])

    data = pipeline()
    if not isinstance(data, tf.data.Dataset):
        return {"data set": type(data).__name__}
    if getattr(data.element_spec, "shape", tf.TensorShape([])).rank != 2:
        return {"data set": "a data set whose elements are no batches"}

    def epoch(of: Any) -> list[Any]:
        return [batch.numpy() for batch in islice(of, 2 * len(numbers))]

    epochs = [epoch(data) for _ in range(_ORDER_EPOCHS)]
    reads, names = calls["read"], stages(data)
    batches = [[batch[:, 0].tolist() for batch in batches] for batches in epochs]
    orders = [[number for batch in each for number in batch] for each in batches]
    behind_shuffle = names[names.index("Shuffle") :] if "Shuffle" in names else []
    ends = [place for place, name in enumerate(names) if name.endswith("Batch")]
    return {
        "data set": "",
        "whole": all(sorted(order) == numbers.tolist() for order in orders)
        and {len(batch) for each in batches for batch in each} == {inputs["batch"]},
        "reads": reads,
        "versions": len({int(n) for each in epochs for batch in each for n in batch[:, 1]}),
        "one order": all(order == orders[0] for order in orders),
        "one mix": all(_mixes_of(each) == _mixes_of(batches[0]) for each in batches),
        "repeats": [batch[:, 0].tolist() for batch in epoch(pipeline())] == batches[0],
        "cache behind shuffle": "Cache" in behind_shuffle,
        "at once": any(name.startswith(("ParallelMap", "MapAndBatch")) for name in names),
        "prefetch": "Prefetch" in names,
        # It reads ahead everything before it.
        "prefetch last": "Prefetch" in names[max(ends, default=0) :],
    }


def _mixes_of(batches: list[list[int]]) -> list[list[int]]:
    """Which numbers came together, in whatever order."""
    return sorted(map(sorted, batches))


def _seen(given: Inputs, what: str) -> str:
    return f"in {_ORDER_EPOCHS} epochs of {len(given['numbers'])} examples, {what}"


def _versions_seen(given: Inputs, out: Plain) -> str:
    wanted = _ORDER_EPOCHS * len(given["numbers"])
    return _seen(given, f"the model saw {out['versions']} versions, and {wanted} are wanted")


def _reads_seen(given: Inputs, out: Plain) -> str:
    wanted = len(given["numbers"])
    return _seen(given, f"`read` was called {out['reads']} times, and {wanted} are wanted")


def _order_seen(given: Inputs, out: Plain) -> str:
    if out["one order"]:
        return "all epochs have the same order"
    if out["one mix"]:
        return "the batches come in a new order, but the same numbers always come together"
    return "a second pipeline with the same `seed` has a different order"


def _ahead_seen(given: Inputs, out: Plain) -> str:
    if out["prefetch last"]:
        return "`read` is called for one number after the other"
    return "nothing after `batch` keeps finished batches ready"


ORDER = Check(
    name="repair_pipeline",
    function="make_pipeline",
    title="A pipeline that is fast and shows new images in each epoch",
    question="For each stage: what does it do again in the second epoch, and what not?",
    direction="Follow one number through your pipeline in the second epoch. From which stage on "
    "does anything happen to it?",
    inputs=_order_inputs,
    call=_order_call,
    criteria=(
        Form(
            "a tf.data.Dataset of batches", lambda given, out: not out["data set"], key="data set"
        ),
        Gate(
            Holds(
                "each epoch has every number once, in batches of `batch`",
                lambda given, out: out["whole"],
                "an epoch misses numbers, repeats some, or has batches of a different size",
            )
        ),
        Holds(
            "each number is augmented again in every epoch",
            lambda given, out: out["versions"] == _ORDER_EPOCHS * len(given["numbers"]),
            _versions_seen,
        ),
        Holds(
            "each epoch has a new order and new batches, which `seed` decides",
            lambda given, out: not out["one order"] and not out["one mix"] and out["repeats"],
            _order_seen,
        ),
        # One misplaced stage costs one row; a cache of everything, as handed out, earns none.
        Then(
            Holds(
                "each number is read once in all",
                lambda given, out: out["reads"] == len(given["numbers"]),
                _reads_seen,
            ),
            Holds(
                "several calls of `read` at once, and finished batches kept ready",
                lambda given, out: out["at once"] and out["prefetch last"],
                _ahead_seen,
            ),
            after=any,
        ),
    ),
    hint="map(read) with parallel calls, cache, shuffle with the seed, map(augment), batch, and "
    "prefetch at the end.",
    revisit="The repaired pipeline",
    mistakes=(
        Observed("never_cached", lambda given, out: out["reads"] > len(given["numbers"])).feedback(
            "Your pipeline reads every example again in each epoch. So each epoch waits for the "
            "disk as long as the first one. Which stage keeps what was read?"
        ),
        Observed(
            "cache_after_shuffle",
            lambda given, out: out["one order"] and out["cache behind shuffle"],
        ).feedback(
            "Your cache comes after `shuffle` and keeps the order of the first epoch. So the model "
            "sees the same batches in each epoch. Which stages should run again in each epoch, and "
            "on which side of the cache are they?"
        ),
        Observed(
            "augmentation_cached", lambda given, out: out["versions"] == len(given["numbers"])
        ).feedback(
            "Your cache keeps augmented examples. So the model sees the same version of each "
            "example in every epoch, and the augmentation does nothing. What must not be before "
            "the cache?"
        ),
        Observed(
            "shuffle_after_batch", lambda given, out: out["one mix"] and not out["one order"]
        ).feedback(
            "You shuffle whole batches. So the same examples come together in each epoch, only at "
            "a different time. What must be shuffled so that batches get new examples?"
        ),
        Observed(
            "prefetch_first",
            lambda given, out: out["prefetch"] and not out["prefetch last"],
        ).feedback(
            "Your `prefetch` is before other stages and keeps ready only what comes before it. So "
            "the slow stages run no further ahead than the one batch that TensorFlow adds. Which "
            "stages should run ahead of the step?"
        ),
        Observed(
            "one_call_at_a_time", lambda given, out: out["whole"] and not out["at once"]
        ).feedback(
            "Your pipeline calls `read` for one number after the other. So the first epoch waits "
            "for the disk as many times as there are numbers. Which argument of `map` makes "
            "several calls at once?"
        ),
        Observed(
            "nothing_kept_ready", lambda given, out: out["whole"] and not out["prefetch"]
        ).feedback(
            "Your pipeline keeps no finished batches ready. So it cannot work ahead while a step "
            "computes. Which stage reads ahead, and what must come before it?"
        ),
    ),
)

# --- predict_step

_CASES = ("FILE", "DATA")


def _predict_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    workers, at_once = int(draw.choice([2, 4, 8])), int(draw.choice([2, 3]))
    share = int(draw.choice([5, 7, 11]))  # never a multiple of `at_once`
    read_ms = float(draw.choice([1.5, 2.0, 3.0]))
    fast = math.ceil(share / at_once) * read_ms
    slow = math.ceil(share * workers / at_once) * read_ms
    # Longer than the input of a share, and shorter than that of a whole batch.
    full_rounds = math.ceil(share / at_once) * at_once
    return {
        "even_batch": full_rounds * workers,
        "read_ms": read_ms,
        "compute_ms": round(float(draw.uniform(1.1 * fast, 0.9 * slow)), 2),
        "global_batch": share * workers,
        "workers": workers,
        "at_once": at_once,
    }


def _predict_call(step_ms: Callable[..., Any], inputs: Inputs) -> Plain:
    def times(batch: str, reads_ahead: bool) -> list[Any]:
        fixed = [inputs[name] for name in ("read_ms", "compute_ms", batch, "workers")]
        return [step_ms(*fixed, policy, inputs["at_once"], reads_ahead) for policy in _CASES]

    answers = {
        "in turns": times("even_batch", False),
        "ahead": times("even_batch", True),
        "partial": times("global_batch", False),
    }
    if any(time is None for of_policies in answers.values() for time in of_policies):
        return {"ms": None}
    return answers


def _predict_asked(batch: str, *, reads_ahead: bool) -> Callable[[Inputs], str]:
    """Shows the arguments of a row, which both policies have in common."""
    return lambda given: (
        f"step_ms({given['read_ms']:g}, {given['compute_ms']:g}, {given[batch]}, "
        f"{given['workers']}, policy, {given['at_once']}, {reads_ahead})"
    )


def _predict_row(key: str, label: str, batch: str, *, reads_ahead: bool) -> Close:
    asked = _predict_asked(batch, reads_ahead=reads_ahead)
    return Close(key, f"{label}: FILE, then DATA", atol=1e-6, points=1, asked=asked)


def _predict_reference(
    given: Inputs,
    *,
    ahead: Callable[..., float] = max,
    in_turns: Callable[..., float] = lambda a, b: a + b,
    shares: tuple[str, ...] = ("FILE",),
    rounds: Callable[[int, int], float] = lambda calls, at_once: math.ceil(calls / at_once),
) -> Plain:
    """The input of a worker's examples, in rounds of calls, joined with the computation."""

    def joined(join: Callable[..., float], batch: str) -> list[float]:
        times = []
        for policy in _CASES:
            calls = given[batch] // (given["workers"] if policy in shares else 1)
            read_ms = rounds(calls, given["at_once"]) * given["read_ms"]
            times.append(join(read_ms, given["compute_ms"]))
        return times

    return {
        "in turns": joined(in_turns, "even_batch"),
        "ahead": joined(ahead, "even_batch"),
        "partial": joined(in_turns, "global_batch"),
    }


PREDICT = Check(
    name="predict_step",
    function="step_ms",
    title="The time of a step, from its parts",
    question="How many examples does one worker read for a step, and what happens meanwhile?",
    direction="Compute the time of the input alone first. Then ask how it is joined with the time "
    "of the computation.",
    cost=Cost.PURE,
    inputs=_predict_inputs,
    call=_predict_call,
    reference=_predict_reference,
    criteria=(
        Form("a number of milliseconds", lambda given, out: "ms" not in out, key="ms"),
        _predict_row("in turns", "nothing is read ahead", "even_batch", reads_ahead=False),
        _predict_row("ahead", "batches are read ahead", "even_batch", reads_ahead=True),
        _predict_row(
            "partial", "the last round has fewer calls", "global_batch", reads_ahead=False
        ),
    ),
    hint="Examples: global_batch / workers under FILE, global_batch under DATA. Rounds: examples / "
    "at_once, rounded up. Input: rounds times read_ms. Then the larger of input and computation, "
    "or their sum.",
    revisit="Does the step wait for its input?",
    mistakes=(
        Fault("data_shares_work", shares=_CASES).feedback(
            "Under DATA your worker reads only its share of a batch. So your prediction is too "
            "short if reading is slow. What does a worker do with the examples that it drops?"
        ),
        Fault("file_reads_all", shares=()).feedback(
            "Your worker reads the whole global batch under both policies. So your prediction is "
            "too long under FILE. Which examples are in the files that one worker opens, and how "
            "many of them does it need for a step?"
        ),
        Fault("policies_swapped", shares=("DATA",)).feedback(
            "You gave a worker its share of the batch under DATA and the whole batch under FILE. "
            "So the times of the two policies are swapped. Under which of them does a worker read "
            "examples that it drops?"
        ),
        Fault("part_of_a_round", rounds=lambda calls, at_once: calls / at_once).feedback(
            "You divided the calls and kept the fraction. The last round may have fewer calls, but "
            "it takes as long as any other. How many whole rounds does the batch need?"
        ),
        Fault("always_ahead", in_turns=max).feedback(
            "You took the larger of the two times even if nothing is read ahead. Who works on the "
            "next batch while the step computes?"
        ),
        Fault("never_ahead", ahead=lambda read, compute: read + compute).feedback(
            "You added the two times even if batches are read ahead. Then the input of the next "
            "step and the computation of this one run at the same time. How long do two things "
            "take that run side by side?"
        ),
        Fault(
            "prefetch_hides_input", sees=("in turns", "ahead"), ahead=lambda read, compute: compute
        ).feedback(
            "You left out the input if batches are read ahead. That is right only while the input "
            "is the shorter part. How long does a step take if reading a batch takes longer than "
            "computing it?"
        ),
    ),
)
