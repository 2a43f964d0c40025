"""Checks of lesson 05: each worker's files, and an epoch that continues on different workers."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from distlab.course.checks import Check, Equal, Fault, Holds, Inputs, Observed, Plain, Then
from distlab.course.lesson_05_input_pipelines.runs import CountedCalls

# --- shard_files

_LINES, _SHARD_EPOCHS = 12, 2  # 12 lines come out sorted once in 500 million times


def _shard_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    workers = int(draw.choice([2, 3]))
    return {
        "workers": workers,
        # Files: enough, or just enough, and the same number for each worker.
        "many": (1, 3)[seed % 2] * workers,
        "few": workers - 1,
        "seed": int(draw.integers(1, 1000)),
        "first": int(draw.integers(100, 500)),
    }


def _shard_call(my_examples: Callable[..., Any], inputs: Inputs) -> Plain:
    with tempfile.TemporaryDirectory() as folder:
        return {
            case: _read_by_all(
                my_examples, inputs, _write_files(Path(folder), inputs, inputs[case])
            )
            for case in ("many", "few")
        }


def _write_files(folder: Path, inputs: Inputs, count: int) -> list[str]:
    files = [folder / f"{count}-{number}.txt" for number in range(count)]
    for number, file in enumerate(files):
        first = inputs["first"] + _LINES * number
        file.write_text("\n".join(str(line) for line in range(first, first + _LINES)))
    return [str(file) for file in files]


def _read_by_all(my_examples: Callable[..., Any], inputs: Inputs, files: list[str]) -> Plain:
    """Two epochs of each worker, and the first epoch of worker 0 again, in a new pipeline."""
    import tensorflow as tf

    def number_of(line: Any) -> Any:
        return tf.strings.to_number(line, tf.int64)

    def of_worker(worker: int, epochs: int) -> Plain:
        calls = CountedCalls()

        def load(file: Any) -> Any:
            name = tf.data.Dataset.from_tensors(file).map(calls.counted("load"))
            return name.flat_map(tf.data.TextLineDataset)

        context = tf.distribute.InputContext(inputs["workers"], worker, inputs["workers"])
        decode = calls.counted("decode", number_of)
        data = my_examples(context, files, load, decode, inputs["seed"])
        if not isinstance(data, tf.data.Dataset):
            raise TypeError(f"a tf.data.Dataset was asked for; yours is {type(data).__name__}")
        if data.element_spec != tf.TensorSpec([], tf.int64):
            raise TypeError("decoded examples were asked for, one at a time")
        most = 2 * _LINES * len(files) + 1
        work: dict[str, list[Any]] = {"epochs": [], "loads": [], "decodes": []}
        for _ in range(epochs):
            calls.reset()
            work["epochs"].append([int(number) for number in islice(data, most)])
            work["loads"].append(calls["load"])
            work["decodes"].append(calls["decode"])
        return work

    workers = [of_worker(worker, _SHARD_EPOCHS) for worker in range(inputs["workers"])]
    wanted = [inputs["first"] + number for number in range(_LINES * len(files))]
    return _shard_outcome(workers, of_worker(0, 1)["epochs"][0], wanted)


def _shard_outcome(workers: list[Plain], again: list[int], wanted: list[int]) -> Plain:
    """Summarises the examples that workers read in two epochs, and their work in one.

    It is the work of the epoch with the most, because a cache saves work in later ones.
    """

    def most(work: str) -> int:
        return max(map(sum, zip(*(worker[work] for worker in workers), strict=True)))

    epochs = list(zip(*(worker["epochs"] for worker in workers), strict=True))
    read = [sorted(number for part in epoch for number in part) for epoch in epochs]
    times, first = Counter(read[0]), epochs[0]
    return {
        "each once": all(epoch == wanted for epoch in read),
        "missed": sum(times[number] == 0 for number in wanted),
        "twice": sum(times[number] > 1 for number in wanted),
        "sizes": [len(part) for part in first],
        "loads": most("loads"),
        "decodes": most("decodes"),
        "all on each": all(sorted(part) == wanted for part in first),
        "one part": all(sorted(part) == sorted(first[0]) for part in first),
        "new order": all(a != b and a != sorted(a) for a, b in zip(*epochs, strict=True)),
        "repeats": again == first[0],
    }


def _missed(case: str) -> Callable[[Inputs, Plain], str]:
    return lambda given, out: (
        f"{given[case]} files, {given['workers']} workers, first epoch: of "
        f"{_LINES * given[case]} examples {out[case]['missed']} were read by no worker, "
        f"{out[case]['twice']} more than once"
    )


def _few_files_shared(given: Inputs, out: Plain) -> bool:
    return bool(out["few"]["each once"] and all(out["few"]["sizes"]))


def _few_files_seen(given: Inputs, out: Plain) -> str:
    if not out["few"]["each once"]:
        return _missed("few")(given, out)
    sizes = out["few"]["sizes"]
    return f"{given['few']} files: the workers read {sizes} examples, some of them none"


def _work_shared(given: Inputs, out: Plain) -> bool:
    decodes = all(out[case]["decodes"] == _LINES * given[case] for case in ("many", "few"))
    return decodes and bool(out["many"]["loads"] == given["many"])


def _work_seen(given: Inputs, out: Plain) -> str:
    return (
        f"{given['many']} files with {_LINES * given['many']} examples: in one epoch the "
        f"{given['workers']} workers together opened {out['many']['loads']} files and "
        f"decoded {out['many']['decodes']} times"
    )


def _overlap(given: Inputs, out: Plain) -> bool:
    """As many as there are, but not each once, and not the same part for all workers."""
    many = out["many"]
    complete = sum(many["sizes"]) == _LINES * given["many"]
    return complete and not many["one part"] and not many["each once"]


def _more_than_needed(work: str, needed: int, out: Plain) -> bool:
    """Whether workers with the right parts did more of some work than that."""
    return bool(out["many"]["each once"] and out["many"][work] > needed)


SHARD = Check(
    name="shard_files",
    function="my_examples",
    title="Each worker's files, or its lines",
    question="Which stage decides what this worker reads, and what does each worker do before it?",
    direction="Two questions decide: are there at least as many files as workers, and which is the "
    "earliest stage before which you can shard?",
    inputs=_shard_inputs,
    call=_shard_call,
    criteria=(
        Holds(
            "with enough files, each example is read by one worker, once an epoch",
            lambda given, out: out["many"]["each once"],
            _missed("many"),
            points=2,
        ),
        Then(
            Holds(
                "with fewer files than workers, the same holds, and no worker goes without",
                _few_files_shared,
                _few_files_seen,
            ),
            Holds(
                "no file is opened, and no example decoded, by a second worker",
                _work_shared,
                _work_seen,
            ),
            Holds(
                "each worker has a new order in each epoch, which `seed` decides",
                lambda given, out: out["many"]["new order"] and out["many"]["repeats"],
                "a worker has the same order in both epochs, or with the same `seed` a new one",
            ),
        ),
    ),
    hint="If there are enough files, `shard` the list of files and `flat_map(load)` it; otherwise "
    "`flat_map(load)` first and `shard` the lines. Then shuffle with the seed, then map(decode).",
    revisit="Shard before the work",
    mistakes=(
        Observed("both_read_all", lambda given, out: out["many"]["all on each"]).feedback(
            "Every worker reads every example. So each example counts once for each worker, and "
            "more workers are no faster than one. Which two values of `context` say how many "
            "workers there are, and which one this is?"
        ),
        Observed("unseeded_shuffle_then_shard", _overlap).feedback(
            "Your workers shard different orders: each shuffled for itself first. So some examples "
            "are read twice and some by no worker. What must be the same on all workers if you "
            "shuffle before you shard?"
        ),
        Observed(
            "fewer_files_than_workers",
            lambda given, out: out["many"]["each once"] and not _few_files_shared(given, out),
        ).feedback(
            "You deal out files even if there are fewer files than workers. So some workers get no "
            "example: in a real run they take empty batches until the others have finished. What "
            "else can be dealt out if there are too few files?"
        ),
        Observed(
            "decodes_everything",
            lambda given, out: _more_than_needed("decodes", _LINES * given["many"], out),
        ).feedback(
            "Every worker decodes all examples and then drops those of the other workers. So the "
            "slow stage takes as long as on one worker. Where must `shard` be, so that a worker "
            "decodes only its own?"
        ),
        Observed(
            "opens_every_file",
            lambda given, out: _more_than_needed("loads", given["many"], out),
        ).feedback(
            "Every worker opens every file and keeps a part of its lines. So the disk is read once "
            "for each worker. What can you deal out instead if there are enough files?"
        ),
    ),
)

# --- rest_of_epoch

_REST_STEPS = 7


def _rest_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    workers, each = int(draw.choice([2, 3])), 2
    global_batch = workers * each * int(draw.choice([2, 3]))
    numbers = draw.choice(900, size=_REST_STEPS * global_batch, replace=False).astype("int64")
    done = int(draw.choice([1, 2]))
    return {
        "numbers": numbers,
        "workers": workers,
        "each": each,
        "global_batch": global_batch,
        "done": done,
    }


def _rest_call(rest_of_epoch: Callable[..., Any], inputs: Inputs) -> Plain:
    """Returns the numbers that all workers read, and how often they called `decode`."""
    import tensorflow as tf

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

    return _rest_outcome(inputs, [of_worker(n) for n in range(inputs["workers"])], calls["decode"])


def _rest_outcome(given: Inputs, workers: list[list[list[int]]], decodes: int) -> Plain:
    """The numbers of each step, sorted: in a step each replica takes a batch of its worker."""
    each, steps = given["each"], []
    for start in range(0, max(map(len, workers)), each):
        taken = [batch for batches in workers for batch in batches[start : start + each]]
        steps.append(sorted(number for batch in taken for number in batch))
    return {"size": max(map(len, steps), default=0), "steps": steps, "decodes": decodes}


def _rest_reference(
    given: Inputs,
    *,
    replicas_divide: bool = True,
    consecutive: bool = False,
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
    parts = [left[worker::workers] for worker in range(workers)]
    if consecutive:
        parts = [piece.tolist() for piece in np.array_split(left, workers)]
    if skips_own:
        parts = [own[trained:] for own in parts]
    batches = [[own[at : at + size] for at in range(0, len(own), size)] for own in parts]
    decodes = sum(map(len, parts)) * (workers if decodes_by_each else 1)
    return _rest_outcome(given, batches, decodes)


REST = Check(
    name="rest_of_epoch",
    title="An epoch that continues on different workers",
    question="Which examples do all replicas together take in the first step?",
    direction="Three things decide: what is dropped, before or after the workers' parts; whether "
    "the parts are dealt out in turn or cut in pieces; and the size of one replica's batch.",
    inputs=_rest_inputs,
    call=_rest_call,
    reference=_rest_reference,
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
        Fault("skipped_on_each_worker", sees="steps", skips_own=True).feedback(
            "Each worker drops as many numbers as all workers together have trained. So some "
            "numbers are never trained. How many of the trained numbers are in one worker's part?"
        ),
        Fault("consecutive_parts", sees="steps", consecutive=True).feedback(
            "Each worker takes a consecutive piece of the numbers, as if it were a file of its "
            "own. So a step takes examples from several places, and not those of one device's "
            "batch. In which order would you deal out cards, so that the first ones go to all?"
        ),
        Fault("decodes_everything", sees=("steps", "decodes"), decodes_by_each=True).feedback(
            "Your steps are right, but every worker decodes the numbers of all workers and drops "
            "most of them, as DATA does. So the slow stage is no faster with more workers. Where "
            "must the numbers be dealt out, so that a worker decodes only its own?"
        ),
    ),
)
