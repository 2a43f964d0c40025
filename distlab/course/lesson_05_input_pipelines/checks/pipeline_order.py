"""A check of lesson 05: repair a pipeline that is slow and shows the same images in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Form, Gate, Holds, Inputs, Observed, Plain, Then

_EPOCHS = 3


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    batch = int(draw.choice([3, 4]))
    count = batch * int(draw.choice([5, 6]))
    numbers = np.sort(draw.choice(900, size=count, replace=False)).astype("int64")
    return {"numbers": numbers, "batch": batch, "seed": int(draw.integers(1, 1000))}


def _call(make_pipeline: Callable[..., Any], inputs: Inputs) -> Plain:
    """What three epochs show, and whether a second pipeline with the same seed repeats them."""
    import tensorflow as tf

    from distlab.course.lesson_05_input_pipelines.runs import CountedCalls, stages

    calls, numbers = CountedCalls(), inputs["numbers"]

    def augment(number: Any) -> Any:
        """A new version of the example with every call."""
        version = tf.numpy_function(lambda: np.int64(calls.count("augment")), [], tf.int64)
        return tf.stack([number, tf.reshape(version, [])])

    def made() -> Any:
        read = calls.counted("read", lambda number: number)
        return make_pipeline(numbers, read, augment, inputs["batch"], inputs["seed"])

    data = made()
    if not isinstance(data, tf.data.Dataset):
        return {"data set": type(data).__name__}
    if getattr(data.element_spec, "shape", tf.TensorShape([])).rank != 2:
        return {"data set": "a data set whose elements are no batches"}

    def epoch(of: Any) -> list[Any]:
        return [batch.numpy() for batch in islice(of, 2 * len(numbers))]

    epochs = [epoch(data) for _ in range(_EPOCHS)]
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
        "one mix": all(_mix(each) == _mix(batches[0]) for each in batches),
        "repeats": [batch[:, 0].tolist() for batch in epoch(made())] == batches[0],
        "cache behind shuffle": "Cache" in behind_shuffle,
        "at once": any(name.startswith(("ParallelMap", "MapAndBatch")) for name in names),
        "prefetch": "Prefetch" in names,
        "prefetch last": "Prefetch"
        in names[max(ends, default=0) :],  # it reads ahead everything before it
    }


def _mix(batches: list[list[int]]) -> list[list[int]]:
    """Which numbers came together, in whatever order."""
    return sorted(map(sorted, batches))


def _seen(given: Inputs, out: Plain) -> str:
    return (
        f"in {_EPOCHS} epochs of {len(given['numbers'])} examples, `read` was called "
        f"{out['reads']} times, and the model saw {out['versions']} versions"
    )


def _order_seen(given: Inputs, out: Plain) -> str:
    if out["one order"]:
        return "all epochs have the same order"
    if out["one mix"]:
        return "the batches come in a new order, but the same numbers always come together"
    return "a second pipeline with the same `seed` has a different order"


def _ahead_seen(given: Inputs, out: Plain) -> str:
    if out["prefetch last"]:
        return "`read` is called for one number after the other"
    return "nothing behind `batch` keeps finished batches ready"


ORDER = Check(
    name="repair_pipeline",
    function="make_pipeline",
    title="A pipeline that is fast and shows new images in each epoch",
    question="For each stage: what does it do again in the second epoch, and what not?",
    direction=(
        "Follow one number through your pipeline in the second epoch. From which stage on does "
        "anything happen to it?"
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
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
            "each number is read once in all, and augmented in every epoch",
            lambda given, out: out["reads"] == len(given["numbers"]) == out["versions"] / _EPOCHS,
            _seen,
            points=2,
        ),
        Then(
            Holds(
                "each epoch has a new order and new batches, which `seed` decides",
                lambda given, out: not out["one order"] and not out["one mix"] and out["repeats"],
                _order_seen,
            ),
            Holds(
                "several calls of `read` at once, and finished batches kept ready",
                lambda given, out: out["at once"] and out["prefetch last"],
                _ahead_seen,
            ),
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
    ),
)
