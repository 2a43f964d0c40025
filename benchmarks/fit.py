"""How long a step of training takes: `fit` of a distributed model against its peers.

    python benchmarks/fit.py [--rounds 15] [--only "mlp, 2 replicas"]

All train the same model on the same data, made once, in one process. `fit` is timed over epochs
2 to 6 of one call; what a call costs besides is printed apart. The loops by hand do the same
arithmetic: examples counted over the replicas, one sum of gradients, the loss logged.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from side_by_side import compare

import distlab as dl

EPOCHS = 6
SUM = tf.distribute.ReduceOp.SUM


@dataclass(frozen=True)
class Task:
    """What is trained: a model, and data of its shape."""

    make: Callable[[], keras.Sequential]
    shape: tuple[int, ...]
    batch: int
    steps: int


def mlp() -> keras.Sequential:
    """The MLP of most tutorials."""
    layers = [keras.layers.Dense(units, activation="relu") for units in (256, 128)]
    return keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])


def cnn() -> keras.Sequential:
    """A small convolutional network."""
    conv = [keras.layers.Conv2D(filters, 3, activation="relu") for filters in (16, 32)]
    head = [keras.layers.MaxPooling2D(), keras.layers.Flatten(), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((28, 28, 1)), *conv, *head])


MLP = Task(mlp, shape=(784,), batch=128, steps=100)
CNN = Task(cnn, shape=(28, 28, 1), batch=64, steps=10)


class OwnStep(keras.Sequential):
    """A model with a `train_step` of its own, as Keras's guide writes it."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Trains on a batch."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracked.update_state(loss)
        return {"tracked": self.tracked.result()}


class EpochTimes(keras.callbacks.Callback):
    """When each epoch began, and when the last one ended."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the time."""
        self.times.append(time.perf_counter())

    def on_train_end(self, logs: Any = None) -> None:
        """Notes the time."""
        self.times.append(time.perf_counter())


class Bench:
    """One model on one number of replicas, trained in all ways."""

    def __init__(self, task: Task) -> None:
        self.task, self.steps = task, task.steps
        draw = np.random.default_rng(0)
        x = draw.normal(size=(task.steps * task.batch, *task.shape)).astype("float32")
        y = draw.integers(0, 10, task.steps * task.batch)
        self.data = tf.data.Dataset.from_tensor_slices((x, y)).batch(task.batch).cache().prefetch(2)
        for _ in self.data:  # fills the cache
            pass
        self.call_costs: dict[str, float] = {}

    def build(self, steps_per_execution: int = 1) -> keras.Model:
        """Compiles the model, as for one device."""
        model = self.task.make()
        model.compile(
            optimizer=keras.optimizers.SGD(0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
        )
        return model

    def build_own_step(self) -> keras.Model:
        """Compiles the model with a `train_step` of its own."""
        model = OwnStep(self.task.make().layers)
        model.tracked = keras.metrics.Mean(name="tracked")
        model.compile(
            optimizer=keras.optimizers.SGD(0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        return model

    def fit(self, name: str, model: keras.Model) -> Callable[[], float]:
        """Times `fit` of a model."""

        def run() -> float:
            clock, start = EpochTimes(), time.perf_counter()
            model.fit(self.data, epochs=EPOCHS, verbose=0, callbacks=[clock], shuffle=False)
            whole = time.perf_counter() - start
            per_step = (clock.times[-1] - clock.times[1]) / (EPOCHS - 1) / self.steps
            self.call_costs[name] = (whole - (clock.times[-1] - clock.times[0])) * 1000
            return per_step * 1000

        return run

    def keras_fit(self, strategy: tf.distribute.Strategy, steps: int = 1) -> keras.Model:
        """Returns a model for Keras's own `fit`."""
        with strategy.scope():
            return self.build(steps)

    def loop(self, strategy: tf.distribute.Strategy, *, tuned: bool) -> Callable[[], float]:
        """Times a loop by hand.

        The usual one calls a compiled step for each batch and reads its loss. The tuned one has
        one iterator for all epochs, and runs an epoch in one call.
        """
        with strategy.scope():
            model = self.build()
            logged = keras.metrics.Mean()
            model.optimizer.build(model.trainable_variables)
        data = strategy.experimental_distribute_dataset(self.data)
        endless = strategy.experimental_distribute_dataset(self.data.repeat())
        each = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

        def step(batch: Any) -> tf.Tensor:
            x, y = batch
            context = tf.distribute.get_replica_context()
            examples = context.all_reduce(SUM, tf.cast(tf.shape(x)[0], tf.float32))
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(each(y, model(x, training=True))) / examples
            gradients = tape.gradient(loss, model.trainable_variables)
            pairs = zip(gradients, model.trainable_variables, strict=True)
            model.optimizer.apply_gradients(pairs)
            logged.update_state(loss)
            return loss

        @tf.function(autograph=False)
        def one_step(batch: Any) -> tf.Tensor:
            return strategy.reduce(SUM, strategy.run(step, args=(batch,)), axis=None)

        @tf.function
        def one_epoch(iterator: Any) -> tf.Tensor:
            for _ in tf.range(self.steps):
                strategy.run(step, args=(next(iterator),))
            return logged.result()

        def run() -> float:
            times = []
            iterator = iter(endless) if tuned else None
            for _ in range(EPOCHS):
                times.append(time.perf_counter())
                if tuned:
                    float(one_epoch(iterator))
                else:
                    for batch in data:
                        float(one_step(batch))
            return (time.perf_counter() - times[1]) / (EPOCHS - 1) / self.steps * 1000

        return run


@functools.cache
def plain_mirrored(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    """TensorFlow's own strategy, one for all cases: two of them mix up their all-reduces."""
    return tf.distribute.MirroredStrategy(devices)


def two_replicas(bench: Bench) -> dict[str, Callable[[], float]]:
    """All ways under two replicas. The first is what people have."""
    strategy = dl.make_strategy("mirrored")  # the fastest correct all-reduce for these devices
    plain = plain_mirrored(strategy.extended.worker_devices)
    ways = {"Keras fit, plain MirroredStrategy": bench.keras_fit(plain)}
    for steps in (1, 25):
        ways[f"Keras fit, {steps} steps an execution"] = bench.keras_fit(strategy, steps)
    ways["distribute"] = dl.distribute(bench.build, strategy)
    with strategy.scope():
        ways["Keras fit, own train_step"] = bench.build_own_step()
    ways["distribute, own train_step"] = dl.distribute(bench.build_own_step, strategy)
    return {
        **{name: bench.fit(name, model) for name, model in ways.items()},
        "usual tutorial loop": bench.loop(strategy, tuned=False),
        "hand-tuned loop, an epoch in one call": bench.loop(strategy, tuned=True),
    }


def one_device(bench: Bench) -> dict[str, Callable[[], float]]:
    """All ways on one device."""
    default = tf.distribute.get_strategy()
    ways = {f"Keras fit, {s} steps an execution": bench.keras_fit(default, s) for s in (1, 25)}
    ways["distribute"] = dl.distribute(bench.build, default)
    return {
        **{name: bench.fit(name, model) for name, model in ways.items()},
        "usual tutorial loop": bench.loop(default, tuned=False),
        "hand-tuned loop, an epoch in one call": bench.loop(default, tuned=True),
    }


CASES = {
    "mlp, 2 replicas": (MLP, two_replicas),
    "mlp, one device": (MLP, one_device),
    "cnn, 2 replicas": (CNN, two_replicas),
    "cnn, one device": (CNN, one_device),
}


def main() -> None:
    """Prints a table for each case."""
    parser = argparse.ArgumentParser(description="Time a step of fit against its peers.")
    parser.add_argument("--rounds", type=int, default=15, help="pairs to compare (default 15)")
    parser.add_argument("--only", choices=list(CASES), help="one case alone")
    options = parser.parse_args()
    dl.split_devices(2)
    for case in [options.only] if options.only else CASES:
        task, ways = CASES[case]
        keras.utils.set_random_seed(0)
        bench = Bench(task)
        print(f"\n{case}, {options.rounds} rounds of {EPOCHS - 1} epochs of {task.steps} steps")
        compare(ways(bench), rounds=options.rounds, unit="ms/step")
        costs = ", ".join(f"{name} {cost:.0f}" for name, cost in bench.call_costs.items())
        print(f"ms that the last call of fit took outside its epochs: {costs}")


if __name__ == "__main__":
    main()
