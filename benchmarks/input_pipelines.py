"""Times a step with the pipelines of lesson 05: as found, with each repair alone, and with all.

    python benchmarks/input_pipelines.py [--write]

An example waits for a disk that answers after some milliseconds, and waiting costs no processor.
So the times of the input hardly depend on the machine; those of the computation do. `--write`
keeps them in distlab/course/lesson_05_input_pipelines/figures.json, which the lesson draws.
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
from distlab.course.lesson_05_input_pipelines.figures import RECORDED
from distlab.course.measure.step_split import StepSplit, split_step

REPLICAS, BATCH, BATCHES, DISK_MS, AT_ONCE = 2, 32, 16, 4, 16
ROUNDS = 10  # on a machine with other work the rounds differ


def main() -> None:
    """Measures the pipelines in rounds, and prints or keeps the shortest times of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"keep the times in {RECORDED.name}")
    write = parser.parse_args().write
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(REPLICAS))
    step = training_step(strategy)
    data = {
        name: strategy.experimental_distribute_dataset(data) for name, data in pipelines().items()
    }
    rounds = [
        {name: asdict(split_step(step, batches, passes=2)) for name, batches in data.items()}
        for _ in range(ROUNDS)
    ]
    times = {
        name: {part: round(min(each[name][part] for each in rounds), 1) for part in rounds[0][name]}
        for name in data
    }
    for name, split in times.items():
        print(f"{name:<32} {StepSplit(**split)}")
    if write:
        about = {
            "command": "python benchmarks/input_pipelines.py --write",
            "machine": f"{os.cpu_count()} CPU cores, {REPLICAS} replicas on logical CPUs",
            "versions": f"TensorFlow {tf.__version__}, Keras {keras.__version__}",
            "disk": f"{DISK_MS} ms for an example, {BATCH} examples in a batch",
        }
        RECORDED.write_text(json.dumps({**about, "pipelines": times}, indent=2) + "\n")


def pipelines() -> dict[str, tf.data.Dataset]:
    """The pipeline as found, with each repair alone, and with all of them."""
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
    ahead = tf.data.AUTOTUNE
    one, many = numbers.map(read), numbers.map(read, num_parallel_calls=AT_ONCE)
    return {
        "as found": one.batch(BATCH),
        "prefetch alone": one.batch(BATCH).prefetch(ahead),
        f"{AT_ONCE} calls at once alone": many.batch(BATCH).with_options(options),
        "cache alone, from epoch 2 on": one.cache().batch(BATCH),
        "all three, from epoch 2 on": many.cache()
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
