"""A check of lesson 05: each worker's files, or its lines if there are fewer files than workers."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Holds, Inputs, Observed, Plain, Then

_LINES, _EPOCHS = 4, 2


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    workers = int(draw.choice([2, 3]))
    return {
        "workers": workers,
        "many": 3 * workers,  # files: enough, and the same number for each worker
        "few": workers - 1,
        "seed": int(draw.integers(1, 1000)),
        "first": int(draw.integers(100, 500)),
    }


def _call(my_examples: Callable[..., Any], inputs: Inputs) -> Plain:
    with tempfile.TemporaryDirectory() as folder:
        return {
            case: _read_by_all(my_examples, inputs, _files(Path(folder), inputs, inputs[case]))
            for case in ("many", "few")
        }


def _files(folder: Path, inputs: Inputs, count: int) -> list[str]:
    files = [folder / f"{count}-{number}.txt" for number in range(count)]
    for number, file in enumerate(files):
        first = inputs["first"] + _LINES * number
        file.write_text("\n".join(str(line) for line in range(first, first + _LINES)))
    return [str(file) for file in files]


def _read_by_all(my_examples: Callable[..., Any], inputs: Inputs, files: list[str]) -> Plain:
    """Two epochs of each worker, and the first epoch of worker 0 once more, in a new pipeline."""
    import tensorflow as tf

    from distlab.course.lesson_05_input_pipelines.runs import CountedCalls

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
        read = [[int(number) for number in islice(data, most)] for _ in range(epochs)]
        return {"epochs": read, "loads": calls["load"], "decodes": calls["decode"]}

    workers = [of_worker(worker, _EPOCHS) for worker in range(inputs["workers"])]
    wanted = [inputs["first"] + number for number in range(_LINES * len(files))]
    return _noted(workers, of_worker(0, 1)["epochs"][0], wanted)


def _noted(workers: list[Plain], again: list[int], wanted: list[int]) -> Plain:
    """What the workers read in both epochs, and how much work they did in one."""
    epochs = list(zip(*(worker["epochs"] for worker in workers), strict=True))
    read = [sorted(number for part in epoch for number in part) for epoch in epochs]
    times, first = Counter(read[0]), epochs[0]
    return {
        "each once": all(epoch == wanted for epoch in read),
        "missed": sum(times[number] == 0 for number in wanted),
        "twice": sum(times[number] > 1 for number in wanted),
        "sizes": [len(part) for part in first],
        "loads": sum(worker["loads"] for worker in workers) // _EPOCHS,
        "decodes": sum(worker["decodes"] for worker in workers) // _EPOCHS,
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


def _few_shared(given: Inputs, out: Plain) -> bool:
    return bool(out["few"]["each once"] and all(out["few"]["sizes"]))


def _few_seen(given: Inputs, out: Plain) -> str:
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


def _shuffled(given: Inputs, out: Plain) -> bool:
    return bool(out["many"]["new order"] and out["many"]["repeats"])


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
    direction=(
        "Two questions decide: are there at least as many files as workers, and which is the "
        "earliest stage before which you can shard?"
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
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
                _few_shared,
                _few_seen,
            ),
            Holds(
                "no file is opened, and no example decoded, by a second worker",
                _work_shared,
                _work_seen,
            ),
            Holds(
                "each worker has a new order in each epoch, which `seed` decides",
                _shuffled,
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
            lambda given, out: out["many"]["each once"] and not _few_shared(given, out),
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
