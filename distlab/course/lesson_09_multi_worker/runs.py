"""Lesson 09's report: trains the learner's loop on two workers and notes which examples each read.

run = run_and_note(train, build, images, labels, per_worker_batch=4, epochs=5)
draw_losses(history.history["loss"], run.losses)
draw_readers(images, {"your loop, first epoch": run.first_epoch})
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlab.course.runs.cluster_calls import call_on_workers

# The longest takes some seconds; a machine may be busy.
_TIMEOUT_SECS = 60.0


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
