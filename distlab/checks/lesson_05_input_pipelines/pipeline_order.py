"""A check of lesson 05: repair a pipeline that is slow and shows the same images in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np

from distlab.checks import Check, Cost, Form, Gate, Holds, Inputs, Observed, Plain, Then

_EPOCHS = 3


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    batch = int(draw.choice([3, 4]))
    count = batch * int(draw.choice([5, 6]))
    numbers = np.sort(draw.choice(900, size=count, replace=False)).astype("int64")
    return {"numbers": numbers, "batch": batch, "seed": int(draw.integers(1, 1000))}


def _call(make_pipeline: Callable[..., Any], inputs: Inputs) -> Plain:
    """Three epochs, and the first epoch of a second pipeline with the same seed."""
    import tensorflow as tf

    from distlab.coursework.input_probes import CountedCalls, stages

    calls = CountedCalls()

    def augment(number: Any) -> Any:
        """A new version of the example with every call."""
        version = tf.numpy_function(lambda: np.int64(calls.count("augment")), [], tf.int64)
        return tf.stack([number, tf.reshape(version, [])])

    def made() -> Any:
        read = calls.counted("read", lambda number: number)
        args = (inputs["numbers"], read, augment, inputs["batch"], inputs["seed"])
        return make_pipeline(*args)

    data = made()
    if not isinstance(data, tf.data.Dataset):
        return {"data set": type(data).__name__}
    if getattr(data.element_spec, "shape", tf.TensorShape([])).rank != 2:
        return {"data set": "a data set whose elements are no batches"}
    most, epochs, reads = 2 * len(inputs["numbers"]), [], []
    for _ in range(_EPOCHS):
        epochs.append([batch.numpy().tolist() for batch in islice(data, most)])
        reads.append(calls["read"])
    again = [batch.numpy().tolist() for batch in islice(made(), most)]
    return {
        "data set": "",
        "epochs": epochs,
        "again": again,
        "reads": reads[-1],
        "stages": stages(data),
    }


def _batches(epoch: Plain) -> list[list[int]]:
    return [[number for number, _ in batch] for batch in epoch]


def _orders(out: Plain) -> list[list[int]]:
    return [[number for batch in _batches(epoch) for number in batch] for epoch in out["epochs"]]


def _mixes(out: Plain) -> list[list[list[int]]]:
    """For each epoch, which numbers came together."""
    return [sorted(sorted(batch) for batch in _batches(epoch)) for epoch in out["epochs"]]


def _versions(out: Plain) -> int:
    """How many versions the model saw of all examples together."""
    return len({version for epoch in out["epochs"] for batch in epoch for _, version in batch})


def _frozen(parts: list[Any]) -> bool:
    return all(part == parts[0] for part in parts[1:])


def _whole(given: Inputs, out: Plain) -> bool:
    sizes = {len(batch) for epoch in out["epochs"] for batch in epoch}
    right = [sorted(order) == given["numbers"].tolist() for order in _orders(out)]
    return sizes == {given["batch"]} and all(right)


def _reads_ahead(out: Plain) -> bool:
    """Whether a prefetch is behind the last batch: it reads ahead everything before it."""
    batches = [place for place, name in enumerate(out["stages"]) if name.endswith("Batch")]
    return "Prefetch" in out["stages"][max(batches) :]


def _cached_behind_shuffle(out: Plain) -> bool:
    names = out["stages"]
    return "Shuffle" in names and "Cache" in names[names.index("Shuffle") :]


def _at_once(out: Plain) -> bool:
    return any(name.startswith(("ParallelMap", "MapAndBatch")) for name in out["stages"])


def _seen(given: Inputs, out: Plain) -> str:
    count = len(given["numbers"])
    return (
        f"in {_EPOCHS} epochs of {count} examples, `read` was called {out['reads']} times, and the "
        f"model saw {_versions(out)} versions"
    )


def _order_seen(given: Inputs, out: Plain) -> str:
    if _frozen(_orders(out)):
        return "all epochs have the same order"
    if _frozen(_mixes(out)):
        return "the batches come in a new order, but the same numbers always come together"
    return "a second pipeline with the same `seed` has a different order"


def _ahead_seen(given: Inputs, out: Plain) -> str:
    return (
        "`read` is called for one number after the other"
        if _reads_ahead(out)
        else "nothing behind `batch` keeps finished batches ready"
    )


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
                _whole,
                "an epoch misses numbers, repeats some, or has batches of a different size",
            )
        ),
        Holds(
            "each number is read once in all, and augmented in every epoch",
            lambda given, out: (
                out["reads"] == len(given["numbers"])
                and _versions(out) == _EPOCHS * len(given["numbers"])
            ),
            _seen,
            points=2,
        ),
        Then(
            Holds(
                "each epoch has a new order and new batches, which `seed` decides",
                lambda given, out: (
                    not _frozen(_orders(out))
                    and not _frozen(_mixes(out))
                    and _batches(out["again"]) == _batches(out["epochs"][0])
                ),
                _order_seen,
            ),
            Holds(
                "several calls of `read` at once, and finished batches kept ready",
                lambda given, out: _at_once(out) and _reads_ahead(out),
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
            "never_shuffled",
            lambda given, out: _frozen([given["numbers"].tolist(), *_orders(out)]),
        ).feedback(
            "Your epochs all have the order in which the numbers were given. So each batch always "
            "has the same examples. Which stage draws a new order in each epoch?"
        ),
        Observed(
            "cache_after_shuffle",
            lambda given, out: _frozen(_orders(out)) and _cached_behind_shuffle(out),
        ).feedback(
            "Your cache comes after `shuffle` and keeps the order of the first epoch. So the model "
            "sees the same batches in each epoch. Which stages should run again in each epoch, and "
            "on which side of the cache are they?"
        ),
        Observed("one_order", lambda given, out: _frozen(_orders(out))).feedback(
            "You shuffle once, and all epochs have this order, although no cache keeps it. So each "
            "batch always has the same examples. Which argument of `shuffle` decides whether it "
            "draws a new order in each epoch?"
        ),
        Observed(
            "augmentation_cached", lambda given, out: _versions(out) == len(given["numbers"])
        ).feedback(
            "Your cache keeps augmented examples. So the model sees the same version of each "
            "example in every epoch, and the augmentation does nothing. What must not be before "
            "the cache?"
        ),
        Observed("shuffle_after_batch", lambda given, out: _frozen(_mixes(out))).feedback(
            "You shuffle whole batches. So the same examples come together in each epoch, only at "
            "a different time. What must be shuffled so that batches get new examples?"
        ),
        Observed(
            "no_seed", lambda given, out: _batches(out["again"]) != _batches(out["epochs"][0])
        ).feedback(
            "You shuffle without `seed`. So you cannot repeat a run, and two workers would have "
            "different orders. Which argument of `shuffle` decides the order?"
        ),
        Observed(
            "prefetch_first",
            lambda given, out: "Prefetch" in out["stages"] and not _reads_ahead(out),
        ).feedback(
            "Your `prefetch` is before other stages and keeps ready only what comes before it. So "
            "the slow stages run no further ahead than the one batch that TensorFlow adds. Which "
            "stages should run ahead of the step?"
        ),
        Observed("no_prefetch", lambda given, out: not _reads_ahead(out)).feedback(
            "Nothing in your pipeline keeps finished batches ready, except for the one that "
            "TensorFlow reads ahead by itself. So one slow batch makes a step wait. Which stage "
            "keeps several?"
        ),
        Observed("one_at_a_time", lambda given, out: not _at_once(out)).feedback(
            "Your pipeline calls `read` for one number after the other. So in the first epoch each "
            "batch waits for the disk as often as it has examples. Which argument of `map` lets "
            "several calls wait at the same time?"
        ),
    ),
)
