"""Lesson 05: a slow disk and a step, and looks into a pipeline by counting, without a clock.

calls = CountedCalls()
data = numbers.map(calls.counted("decode", decode)).batch(4)
list(data); calls["decode"]                    # 12: once for each example

pipeline_of_worker(data, workers=2, worker=0)  # what worker 0 of 2 would read
stages(data)                                   # ["Range", "Map", "Batch"]
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.errors import InvalidArgument

if TYPE_CHECKING:
    import tensorflow as tf

_Epoch = list[tuple[int, Any]]
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed with the process


def slow_disk(images: Any, labels: Any, *, seconds: float = 0.002) -> Callable[[Any], Any]:
    """Returns a function for `map` that looks up one example, after a disk has answered.

    The disk sleeps in Python and, like a wait for network storage, uses no processor.
    """
    import tensorflow as tf

    def answer(number: Any) -> Any:
        time.sleep(seconds)
        return number

    def read(number: Any) -> Any:
        number = tf.reshape(tf.numpy_function(answer, [number], tf.int64), [])
        return tf.gather(images, number), tf.gather(labels, number)

    return read


def make_step(strategy: tf.distribute.Strategy, *, batch: int) -> Callable[[Any], Any]:
    """Returns the training step of lesson 03 for full batches, with a small model of its own."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        layers = [keras.layers.Flatten(), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of(y, model(x, training=True))) / batch
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    step: Callable[[Any], Any] = tf.function(lambda data: strategy.run(replica_step, args=data))
    return step


def calls_that_meet(calls: int, *, threads: int) -> int:
    """Returns how many parallel calls of a `map` met, all being in flight at the same moment."""
    import tensorflow as tf

    # Where there are enough threads nothing waits in vain, so a busy machine may take its time.
    barrier = threading.Barrier(calls, timeout=2 if threads < calls else 60)

    def meet(_: Any) -> Any:
        try:
            barrier.wait()
        except threading.BrokenBarrierError:
            return np.int64(0)
        return np.int64(1)

    data = tf.data.Dataset.range(calls).map(
        lambda number: tf.numpy_function(meet, [number], tf.int64), num_parallel_calls=calls
    )
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    return int(sum(data.with_options(options)))


def epochs_of(data: tf.data.Dataset, epochs: int = 3) -> list[_Epoch]:
    """Returns the examples of each epoch, as pairs of a number and an image, in their order."""
    examples = data.unbatch()
    return [[(int(number), image.numpy()) for number, image in examples] for _ in range(epochs)]


def orders(epochs: Iterable[_Epoch]) -> int:
    """Returns how many different orders some epochs have."""
    return len({tuple(number for number, _ in epoch) for epoch in epochs})


def versions_of_0(epochs: Iterable[_Epoch]) -> int:
    """Returns how many different images example 0 has in some epochs."""
    return len({image.tobytes() for epoch in epochs for number, image in epoch if number == 0})


def write_numbers(*, files: int, lines: int) -> list[str]:
    """Writes the numbers from 0 on into text files, `lines` to each, and returns their names."""
    _FOLDERS.append(tempfile.TemporaryDirectory())
    names = [str(Path(_FOLDERS[-1].name, f"part-{number}.txt")) for number in range(files)]
    for number, name in enumerate(names):
        own = range(lines * number, lines * (number + 1))
        Path(name).write_text("\n".join(map(str, own)))
    return names


def to_number(text: Any) -> Any:
    """Returns the whole number that a line of a text file holds."""
    import tensorflow as tf

    return tf.strings.to_number(text, tf.int32)


def sharded(
    policy: str, data: tf.data.Dataset, *, workers: int
) -> Sequence[Sequence[Sequence[int]]]:
    """Returns the batches that each of several workers takes under an auto-shard policy."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    data = data.with_options(options)
    parts = (pipeline_of_worker(data, workers=workers, worker=n) for n in range(workers))
    return [[batch.numpy().tolist() for batch in part] for part in parts]


def contexts(*, workers: int) -> list[tf.distribute.InputContext]:
    """Returns what several workers of one replica each give to a function that makes their data."""
    import tensorflow as tf

    return [
        tf.distribute.InputContext(
            num_input_pipelines=workers, input_pipeline_id=worker, num_replicas_in_sync=workers
        )
        for worker in range(workers)
    ]


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
