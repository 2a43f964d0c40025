"""Lesson 05: looks into an input pipeline by counting, so that no clock is needed.

calls = CountedCalls()
data = numbers.map(calls.counted("decode", decode)).batch(4)
list(data); calls["decode"]                    # 12: once for each example

pipeline_of_worker(data, workers=2, worker=0)  # what worker 0 of 2 would read
stages(data)                                   # ["Range", "Map", "Batch"]
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.errors import InvalidArgument

if TYPE_CHECKING:
    import tensorflow as tf


class CountedCalls:
    """Counts how often the functions of a pipeline are called, by their names."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()  # parallel calls come from several threads

    def __getitem__(self, name: str) -> int:
        """Returns how often a function was called so far, 0 if never."""
        with self._lock:
            return self._counts[name]

    def reset(self) -> None:
        """Starts all counts from 0."""
        with self._lock:
            self._counts.clear()

    def counted(self, name: str, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Returns a function for `map` that does the same, and is counted."""

        def counting(*element: Any) -> Any:
            import tensorflow as tf

            seen = tf.numpy_function(lambda: np.int64(self.count(name)), [], tf.int64)
            with tf.control_dependencies([seen]):
                same = tf.nest.map_structure(tf.identity, element)
            if function is not None:
                return function(*same)
            return same if len(same) > 1 else same[0]

        return counting

    def count(self, name: str) -> int:
        """Counts one call, and returns how many there are now."""
        with self._lock:
            self._counts[name] += 1
            return self._counts[name]


def pipeline_of_worker(data: tf.data.Dataset, *, workers: int, worker: int) -> tf.data.Dataset:
    """Returns what one worker of several reads when a strategy distributes a data set.

    It takes TensorFlow's own steps, in this process: it cuts the batches into one piece for each
    worker, and then shards by the policy in the options of `data`. So what several workers read can
    be shown without their processes. Each worker has one replica.
    """
    from tensorflow.python.data.experimental.ops import distribute
    from tensorflow.python.distribute import input_ops

    if not 0 <= worker < workers:
        raise InvalidArgument(
            asked=f"pipeline_of_worker(workers={workers}, worker={worker})",
            found="no such worker",
            do=f"number the workers from 0 to {workers - 1}",
        )
    size = distribute.compute_batch_size(data)
    if int(size) == -1:  # a `map` behind `batch` can hide it
        cut = distribute._LegacyRebatchDataset(data, workers)
    else:
        cut = data.rebatch(distribute.batch_sizes_for_worker(size, workers, 1, worker))
    own: tf.data.Dataset = input_ops.auto_shard_dataset(cut.prefetch(1), workers, worker, workers)
    return own


def stages(data: tf.data.Dataset) -> list[str]:
    """Returns the names of a pipeline's stages, from the source to the end."""
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef

    variant = tf.data.experimental.to_variant(data)
    graph = GraphDef.FromString(
        tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1).numpy()
    )
    names = [node.op.partition("Dataset") for node in graph.node]
    return [name for name, dataset, _ in names if dataset]
