"""A check of lesson 05: an epoch that continues on a different number of workers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Inputs, Plain, Then

_STEPS = 7


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    workers, each = int(draw.choice([2, 3])), 2
    global_batch = workers * each * int(draw.choice([2, 3]))
    numbers = draw.choice(900, size=_STEPS * global_batch, replace=False).astype("int64")
    done = int(draw.choice([1, 2]))
    return {
        "numbers": numbers,
        "workers": workers,
        "each": each,
        "global_batch": global_batch,
        "done": done,
    }


def _call(rest_of_epoch: Callable[..., Any], inputs: Inputs) -> Plain:
    """What all workers read, and how often they called `decode`."""
    import tensorflow as tf

    from distlab.course.lesson_05_input_pipelines.runs import CountedCalls

    calls, replicas = CountedCalls(), inputs["workers"] * inputs["each"]

    def of_worker(worker: int) -> list[list[int]]:
        context = tf.distribute.InputContext(inputs["workers"], worker, replicas)
        decode = calls.counted("decode", lambda number: number)
        args = (inputs["numbers"], decode, inputs["global_batch"], inputs["done"])
        data = rest_of_epoch(context, *args)
        if not isinstance(data, tf.data.Dataset):
            raise TypeError(f"a tf.data.Dataset was asked for; yours is {type(data).__name__}")
        if getattr(data.element_spec, "shape", tf.TensorShape([])).rank != 1:
            raise TypeError("batches of numbers were asked for")
        batches = islice(data, len(inputs["numbers"]))  # a part may have no end
        return [[int(number) for number in batch] for batch in batches]

    return _noted(inputs, [of_worker(n) for n in range(inputs["workers"])], calls["decode"])


def _noted(given: Inputs, workers: list[list[list[int]]], decodes: int) -> Plain:
    """The numbers of each step, sorted: in a step each replica takes a batch of its worker."""
    each, steps = given["each"], []
    for start in range(0, max(map(len, workers)), each):
        taken = [batch for batches in workers for batch in batches[start : start + each]]
        steps.append(sorted(number for batch in taken for number in batch))
    return {"size": max(map(len, steps), default=0), "steps": steps, "decodes": decodes}


def _reference(
    given: Inputs,
    *,
    replicas_divide: bool = True,
    part: Callable[[Any, int, int], Any] = lambda numbers, workers, n: numbers[n::workers],
    skips_own: bool = False,
    decodes_by_each: bool = False,
) -> Plain:
    """Each worker takes its part of the numbers that are left, in batches."""
    workers, size = given["workers"], given["global_batch"]
    trained = given["done"] * size
    if replicas_divide:
        size //= workers * given["each"]
    numbers = given["numbers"].tolist()
    left = numbers if skips_own else numbers[trained:]
    parts = [part(left, workers, worker) for worker in range(workers)]
    if skips_own:
        parts = [own[trained:] for own in parts]
    batches = [[own[at : at + size] for at in range(0, len(own), size)] for own in parts]
    decodes = sum(map(len, parts)) * (workers if decodes_by_each else 1)
    return _noted(given, batches, decodes)


def _consecutive(numbers: Any, workers: int, worker: int) -> Any:
    long = len(numbers) // workers
    return numbers[worker * long : (worker + 1) * long]


REST = Check(
    name="rest_of_epoch",
    title="An epoch that continues on different workers",
    question="Which examples do all replicas together take in the first step?",
    direction=(
        "Three things decide: what is dropped, before or after the workers' parts; whether the "
        "parts are dealt out in turn or cut in pieces; and the size of one replica's batch."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Equal("size", "how many examples a step takes", points=1),
        Then(
            Equal("steps", "each step takes the examples of one device's next batch", points=2),
            Equal("decodes", "calls of `decode` on all workers", points=1),
        ),
    ),
    hint="`skip(steps_done * global_batch)` drops what was trained. `shard` then deals out the "
    "numbers in turn. Then map(decode), and batch by "
    "`context.get_per_replica_batch_size(global_batch)`.",
    revisit="Shard before the work",
    mistakes=(
        Fault("global_batch_per_replica", sees="size", replicas_divide=False).feedback(
            "Your batches have the size of the global batch, and each replica takes one of them. "
            "So a step takes as many times more examples as there are replicas. How many examples "
            "of a global batch belong to one replica?"
        ),
        Fault(
            "shard_by_replica",
            sees="steps",
            part=lambda numbers, workers, n: numbers[n :: 2 * workers],
        ).feedback(
            "You cut the numbers into as many parts as there are replicas, and each worker took "
            "one part. A worker feeds two replicas, so half of the numbers are read by no worker. "
            "How many parts are there, if your function is called once on each worker?"
        ),
        Fault("skipped_on_each_worker", sees="steps", skips_own=True).feedback(
            "Each worker drops as many numbers as all workers together have trained. So some "
            "numbers are never trained. How many of the trained numbers are in one worker's part?"
        ),
        Fault("consecutive_parts", sees="steps", part=_consecutive).feedback(
            "Each worker takes a consecutive piece of the numbers, as if it were a file of its "
            "own. So a step takes examples from several places, and not those of one device's "
            "batch. In which order would you deal out cards, so that the first ones go to all?"
        ),
        Fault(
            "decodes_everything",
            sees=("steps", "decodes"),
            decodes_by_each=True,
        ).feedback(
            "Your steps are right, but every worker decodes the numbers of all workers and drops "
            "most of them, as DATA does. So the slow stage is no faster with more workers. Where "
            "must the numbers be dealt out, so that a worker decodes only its own?"
        ),
    ),
)
