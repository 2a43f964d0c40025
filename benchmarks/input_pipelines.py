"""Times a step with the pipelines of lesson 05, from as found to repaired.

    python benchmarks/input_pipelines.py [--write]

An example waits for a disk that answers after some milliseconds, and waiting costs no processor.
So the times of the input hardly depend on the machine; those of the computation do. `--write`
keeps them in distlab/pictures/input_times.json, which the lesson draws.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.measure.step_split import split_step
from distlab.pictures.input_times import RECORDED

REPLICAS, BATCH, BATCHES, DISK_MS, AT_ONCE = 2, 32, 16, 4, 16


def main() -> None:
    """Measures the four pipelines in turn, and prints or keeps their times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"keep the times in {RECORDED.name}")
    write = parser.parse_args().write
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(REPLICAS))
    step, times = training_step(strategy), {}
    for name, data in pipelines().items():
        split = split_step(step, strategy.experimental_distribute_dataset(data), passes=5)
        times[name] = {key: round(ms, 1) for key, ms in asdict(split).items()}
        print(f"{name:<32} {split}")
    if write:
        about = {
            "command": "python benchmarks/input_pipelines.py --write",
            "machine": f"{os.cpu_count()} CPU cores, {REPLICAS} replicas on logical CPUs",
            "versions": f"TensorFlow {tf.__version__}, Keras {keras.__version__}",
            "disk": f"{DISK_MS} ms for an example, {BATCH} examples in a batch",
        }
        RECORDED.write_text(json.dumps({**about, "pipelines": times}, indent=2) + "\n")


def pipelines() -> dict[str, tf.data.Dataset]:
    """The pipelines, each with one repair more than the one before."""
    images = np.random.default_rng(0).random((BATCH * BATCHES, 64), "float32")
    labels = np.arange(BATCH * BATCHES) % 10

    def answer(number: Any) -> Any:
        time.sleep(DISK_MS / 1000)
        return number

    def read(number: Any) -> tuple[Any, Any]:
        number = tf.reshape(tf.numpy_function(answer, [number], tf.int64), [])
        return tf.gather(images, number), tf.gather(labels, number)

    numbers, options = tf.data.Dataset.range(BATCH * BATCHES), tf.data.Options()
    options.threading.private_threadpool_size = AT_ONCE
    ahead, at_once = tf.data.AUTOTUNE, {"num_parallel_calls": AT_ONCE}
    return {
        "as found": numbers.map(read).batch(BATCH),
        "+ prefetch": numbers.map(read).batch(BATCH).prefetch(ahead),
        f"+ {AT_ONCE} calls at once": numbers.map(read, **at_once)
        .batch(BATCH)
        .prefetch(ahead)
        .with_options(options),
        "+ cache, from epoch 2 on": numbers.map(read, **at_once)
        .cache()
        .batch(BATCH)
        .prefetch(ahead)
        .with_options(options),
    }


def training_step(strategy: Any) -> Any:
    """A step of SGD of a model that is large enough to take some milliseconds."""
    with strategy.scope():
        layers = [keras.layers.Dense(1024, "relu"), keras.layers.Dense(1024, "relu")]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of(y, model(x, training=True))) / BATCH
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    return tf.function(lambda batch: strategy.run(replica_step, args=batch))


if __name__ == "__main__":
    main()
