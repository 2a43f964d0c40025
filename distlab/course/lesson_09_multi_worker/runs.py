"""Lesson 09: a model of digits, a script that hangs, and a loop whose workers note what they read.

examples_here(strategy, batch)                       # of a distributed batch, on this worker
cluster.run(as_in_a_cell, function, file)            # prints an error, and the process lives on
begin_again(cluster)                                 # new workers, each with a strategy
stacks_of_a_hang()                                   # where each worker of a script waits

run = run_and_note(train, build, images, labels, per_worker_batch=4, epochs=5)
draw_losses(history.history["loss"], run.losses)
draw_readers(images, {"your loop, first epoch": run.first_epoch})
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course.runs.cluster_calls import call_on_workers
from distlab.course.runs.script_runs import launch_here

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from distlab.cluster.local.cluster import LocalCluster

# What two workers do in the course of a step, for `draw_lanes`.
A_STEP = {
    "worker:0": [("computes", 2.0), ("waits", 1.0), ("all-reduce", 0.5), ("computes", 2.0)],
    "worker:1": [("computes", 3.0), ("all-reduce", 0.5), ("computes", 2.0)],
}

_MAKE_STRATEGY = """
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""

# The longest takes some seconds, and waiting for a core doesn't count.
_TIMEOUT_SECS = 20.0


_folders: list[Any] = []  # each is removed at the end of this process


def temporary_folder() -> Path:
    """Returns a new folder, which is removed when this process ends."""
    _folders.append(tempfile.TemporaryDirectory())
    return Path(_folders[-1].name)


def write_a_file(folder: Path) -> str:
    """Writes a file of 8 lines into a folder, and returns its path."""
    file = folder / "part-0.txt"
    file.write_text("\n".join(map(str, range(8))))
    return str(file)


def as_in_a_cell(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function, and prints what TensorFlow finds wrong with its files.

    As after a cell of a notebook, the process then lives on.
    """
    import tensorflow as tf

    try:
        return function(*args)
    except tf.errors.InvalidArgumentError as error:
        said = re.search("Could not apply.* DATA or OFF", error.message)
        print(said[0] if said else error.message)  # noqa: T201


def examples_here(strategy: tf.distribute.Strategy, batch: tuple[Any, Any]) -> int:
    """Returns how many examples of a distributed batch this worker has."""
    _, labels = batch
    return len(strategy.experimental_local_results(labels)[0])


def begin_again(cluster: LocalCluster) -> None:
    """Starts all workers again, and makes a `strategy` on each of them."""
    cluster.restart()
    cluster.execute(_MAKE_STRATEGY)


# --- a model of digits


def batches(size: int, examples: int = 325) -> tf.data.Dataset:
    """Returns the first digits in batches of one size; the last batch may be smaller."""
    import tensorflow as tf

    import distlab as dl

    (digits,) = dl.load_dataset("digits", splits=[f"train[:{examples}]"], batch_size=examples)
    images, labels = next(digits.as_numpy_iterator())
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(size)


def build() -> keras.Model:
    """Returns a compiled model of one layer, with the same weights each time."""
    import keras

    import distlab as dl

    dl.set_seed(1)  # for the comparison with a single device only
    layers = [keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss=loss, metrics=["accuracy"])
    return model


def each_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns the loss of each example."""
    import keras

    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def fit_on_one_device() -> tuple[dict[str, list[float]], list[Any]]:
    """Returns the logs and the weights of an epoch with Keras's own `fit`, in this process."""
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)  # a GPU as exact as CPUs
    model = build()
    logs = model.fit(batches(20), shuffle=False, verbose=0).history
    return logs, model.get_weights()


def max_difference(weights: Sequence[Any], others: Sequence[Any]) -> float:
    """Returns the largest difference of a weight between two models."""
    pairs = zip(weights, others, strict=True)
    return max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)


# --- a script that hangs

_HANG = """
import faulthandler, os, threading, time
from pathlib import Path

import distlab as dl

strategy = dl.make_strategy("multi_worker")


def end_of_epoch(path, loss):
    if strategy.cluster_resolver.task_id == 0:
        mean = strategy.reduce("MEAN", loss, axis=None)
        path.write_text(str(float(mean)))
    while not path.exists():
        time.sleep(0.1)


faulthandler.dump_traceback_later(4)  # after 4 seconds: where is this process?
threading.Timer(8, os._exit, [1]).start()  # after 8 seconds: give up
end_of_epoch(Path("mean.txt"), 1.0)
"""
_IN_SCRIPT = re.compile(r"^(worker:\d) \|\s+File .*hang\.py\", line (\d+) in (\w+)", re.MULTILINE)


def stacks_of_a_hang() -> list[str]:
    """Runs `end_of_epoch` in a script with `faulthandler`, and returns where each worker waits.

    That is the first line of each worker's stack that belongs to the script.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "hang.py").write_text(_HANG)
        hung = launch_here("--workers", "2", "hang.py", folder=Path(folder))
    waits: dict[str, str] = {}
    for task, number, function in _IN_SCRIPT.findall(hung.errors):
        code = _HANG.splitlines()[int(number) - 1].strip()
        waits.setdefault(task, f"{task} | hang.py, line {number} in {function}: {code}")
    return [waits[task] for task in sorted(waits)]


# --- which examples each worker reads


@dataclass(frozen=True)
class Run:
    """How a learner's loop went.

    Attributes:
        losses: By worker, what its loop returned: a loss for each epoch.
        first_epoch: For each worker, for each of its batches in the first epoch, the numbers of
            the examples in it.
        apart: The largest difference between a weight of one worker and of the other.
        weights: Those of the first worker.
    """

    losses: dict[str, list[float]]
    first_epoch: list[list[list[int]]]
    apart: float
    weights: list[Any]


def run_and_note(
    train: Callable[..., Any],
    build: Callable[[], Any],
    x: Any,
    y: Any,
    *,
    per_worker_batch: int,
    epochs: int,
) -> Run:
    """Runs a loop on two workers, and notes what each worker's model is given."""
    order = (train, build, x, y, per_worker_batch, epochs)
    workers = call_on_workers(_train, *order, timeout_secs=_TIMEOUT_SECS)
    first, second = (worker["weights"] for worker in workers)
    return Run(
        losses={f"worker:{index}": worker["losses"] for index, worker in enumerate(workers)},
        first_epoch=[worker["read"][: len(worker["read"]) // epochs] for worker in workers],
        apart=max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True)),
        weights=first,
    )


def _train(
    strategy: Any,
    train: Callable[..., Any],
    build: Callable[[], Any],
    x: Any,
    y: Any,
    per_worker_batch: int,
    epochs: int,
) -> dict[str, Any]:
    """On each worker."""
    import keras
    import tensorflow as tf

    read: list[list[int]] = []

    def note(batch: Any) -> Any:
        given = batch.reshape(len(batch), -1)[:, None]
        apart = np.abs(given - x.reshape(len(x), -1)).sum(axis=-1)
        read.append(apart.argmin(axis=-1).tolist())
        return batch

    class Note(keras.layers.Layer):  # type: ignore[misc]
        def call(self, batch: Any) -> Any:
            noted = tf.numpy_function(note, [batch], batch.dtype)
            noted.set_shape(batch.shape)
            return noted

    def noting() -> Any:
        model = build()
        watched = keras.Sequential([keras.Input(x.shape[1:]), Note(), *model.layers])
        watched.compile(model.optimizer, model.loss)
        return watched

    model, losses = train(strategy, noting, x, y, per_worker_batch, epochs)
    return {
        "losses": [float(loss) for loss in losses],
        "weights": model.get_weights(),
        "read": read,
    }
