"""Two processes with little memory each, and a model that none of them can hold alone.

train_together(stage, megabytes=64)     # how the training ended on worker 0, and on worker 1
first_rows(megabytes=64)                # a variable of own rows, made in the strategy's scope
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.cluster.ports import reserved_ports
from distlab.course.lesson_16_shard_everything.sharded_training import Momentum, Stage, train
from distlab.course.runs.limited_calls import Outcome, call_together

WORKERS = 2
# Without a limit of memory the training takes seconds; one who waits for the other waits forever.
TIMEOUT_SECS = 90.0
_WIDTH, _DEPTH, _SCORES = 640, 14, 16
_MIB = 2**20


class DeepModel:
    """14 dense layers of 640 units between the digits and their scores: 5.8 million weights."""

    def __init__(self, *, replicas: int, layers: int = _DEPTH) -> None:
        import tensorflow as tf
        from sklearn.datasets import load_digits

        draw, widths = np.random.default_rng(0), (64, *[_WIDTH] * (layers + 1), _SCORES)
        self.first = [
            draw.normal(size=shape, scale=(2 / shape[0]) ** 0.5).astype("float32")
            for shape in itertools.pairwise(widths)
        ]
        self.layers: list[Any] = [lambda kernel, x: tf.nn.relu(x @ kernel)] * (layers + 1)
        self.layers += [lambda kernel, x: x @ kernel]  # 10 scores, and 6 that no digit has
        digits, self.examples = load_digits(), 64
        images = np.split(digits.data[: self.examples].astype("float32") / 16, replicas)
        labels = np.split(digits.target[: self.examples], replicas)
        pairs = zip(images, labels, strict=True)
        self.batches = [[(tf.constant(x), tf.constant(y)) for x, y in pairs]]

    def loss(self, scores: Any, labels: Any) -> Any:
        """Returns a replica's part of the mean over all examples."""
        import tensorflow as tf

        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        return tf.reduce_sum(losses) / self.examples


def train_together(
    stage: Stage, *, megabytes: int, timeout_secs: float = TIMEOUT_SECS
) -> list[Outcome]:
    """Trains with two workers, each a process whose tensors have so many MiB.

    Returns how it ended on each. A result has the `losses` of two steps, and in MiB what the
    worker `held` between them, by part, and its `peak`.
    """
    return _call_workers(_train, stage, megabytes=megabytes, timeout_secs=timeout_secs)


def first_rows(*, megabytes: int) -> list[Outcome]:
    """Makes a variable in the strategy's scope, with each worker's number as its first values."""
    return _call_workers(_first_rows, megabytes=megabytes, timeout_secs=TIMEOUT_SECS)


def _call_workers(
    job: Callable[..., Any], *args: Any, megabytes: int, timeout_secs: float
) -> list[Outcome]:
    with reserved_ports(WORKERS) as ports:
        workers = [f"localhost:{port}" for port in ports]
        return call_together(
            _as_worker,
            workers,
            job,
            *args,
            processes=WORKERS,
            megabytes=megabytes,
            timeout_secs=timeout_secs,
        )


def _as_worker(index: int, workers: list[str], job: Callable[..., Any], *args: Any) -> Any:
    task = {"type": "worker", "index": index}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    return job(tf.distribute.MultiWorkerMirroredStrategy(), *args)


def _train(strategy: Any, stage: Stage) -> dict[str, Any]:
    import tensorflow as tf

    run = train(strategy, DeepModel(replicas=WORKERS), stage, Momentum(0.01), steps=2)
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    held = {part: size / _MIB for part, size in run.held.items()}
    return {"losses": run.losses, "held": held, "peak": peak / _MIB}


def _first_rows(strategy: Any) -> Any:
    import tensorflow as tf

    own = tf.fill([2], float(strategy.cluster_resolver.task_id))
    with strategy.scope():
        rows = tf.Variable(
            own,
            synchronization=tf.VariableSynchronization.ON_READ,  # one value a replica, never summed
            aggregation=tf.VariableAggregation.NONE,
        )
    return strategy.experimental_local_results(rows)[0].numpy()
