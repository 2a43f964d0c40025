"""The support matrix: what trains with what, found out by running it.

    python tools/support_matrix.py --write      # measures, and writes docs/support_matrix.md
    python tools/support_matrix.py --check      # and fails where what is written is not so any more

A cell compares a training with that of plain Keras on one device: the same model, data and global
batch. The models are small, for what is asked is only whether numbers agree. The words around the
tables are the page's own.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow"}
os.environ.pop("TF_USE_LEGACY_KERAS", None)

import keras
import numpy as np
import tensorflow as tf
from keras import layers, losses, ops, optimizers

import distlab as dl
from distlab.errors import DistlabError
from tests.support.parity import Run, unlike
from tools.measured_pages import (
    Cells,
    asked_to_write,
    changes,
    measure_rows,
    read_tables,
    report,
    table,
    write_page,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "support_matrix.md"
# Where Keras or TensorFlow stops, in few words: a pattern of the error's text, and the words.
CAUSES = {
    "PerReplica": "PerReplica to Tensor",
    "must feed a value for placeholder": "placeholder without a value",
    "specify an aggregation method": "a variable without aggregation",
    "merge_call": "merge_call in a condition",
    "create_per_worker_dataset": "wants create_per_worker_dataset",
    "must have the same size and shape": "adds up shares of different shapes",
}
BATCH = 32
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(73, 8)).astype("float32")
Y = DRAW.integers(0, 4, 73)
TWO_BATCHES = (X[:64], Y[:64])
TOKENS = DRAW.integers(0, 5, (64, 6))  # 0 is padding, of a different length in each
TOKENS[np.arange(6) >= DRAW.integers(1, 7, 64)[:, None]] = 0
OUTLIER = X[:64].copy()
OUTLIER[30] *= 1e4  # on the second replica, in the first batch
CPUS = ["CPU:0", "CPU:1"]

Build = Callable[[], Any]


def cell(run: Callable[[], Run], expected: Run) -> str:
    """Returns how a training ends: against one device's, weights to 1e-6 and logs to 1e-5."""
    try:
        found = run()
    except DistlabError:
        return "named error"
    except Exception as error:  # whatever a library stops with is a finding
        return crash(error)
    logs, weights = expected
    wrong = unlike(({name: logs[name] for name in found[0]}, weights), found)
    if not all(name.startswith("log ") for name in wrong):
        return "differs"
    return "weights right, log wrong" if wrong else "equal"


def crash(error: Exception) -> str:
    """Returns a cell for an error of TensorFlow or Keras, and prints how its text begins."""
    text = str(error)
    known = [cause for pattern, cause in CAUSES.items() if pattern in text]
    print(f"{type(error).__name__}: {text[:300]}", file=sys.stderr)
    return f"crashes: {known[0] if known else type(error).__name__}"


def in_order(x: Any, y: Any, batch: int = BATCH) -> tf.data.Dataset:
    """Returns the data in batches; workers share the examples of each."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch).with_options(options)


def fit(model: Any, data: tf.data.Dataset, **options: Any) -> Run:
    """Trains two epochs by the model's own `fit`, of Keras 3 or of tf_keras."""
    history = model.fit(data, epochs=2, verbose=0, shuffle=False, **options).history
    return history, [weight.numpy() for weight in model.weights]


def own_loop(build: Build, strategy: tf.distribute.Strategy) -> Run:
    """Trains two epochs by a loop as tutorials have it, on servers by scheduling its steps."""
    with strategy.scope():
        model = build()
        model.optimizer.build(model.trainable_variables)

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            loss = tf.reduce_sum(each) / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batches: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(replica_step, args=next(batches)), axis=None)

    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        data = coordinator.create_per_worker_dataset(lambda: in_order(*TWO_BATCHES).repeat())
        batches = iter(data)
        scheduled = [coordinator.schedule(step, args=(batches,)) for _ in range(4)]
        by_step = [loss.fetch() for loss in scheduled]
    else:
        batches = iter(strategy.experimental_distribute_dataset(in_order(*TWO_BATCHES).repeat()))
        by_step = [step(batches).numpy() for _ in range(4)]
    of_epochs = np.reshape(by_step, (2, 2)).mean(axis=1)
    return {"loss": of_epochs}, [weight.numpy() for weight in model.weights]


def in_scope(build: Build, strategy: tf.distribute.Strategy) -> Any:
    """Returns the model as Keras's documentation says to make it."""
    with strategy.scope():
        return build()


def sequential(
    layers_of: Callable[[], list[Any]] | None = None,
    *,
    library: Any = keras,
    kind: Any = None,
    shape: tuple[int, ...] = (8,),
    optimizer: Callable[[], Any] | None = None,
    **compiled: Any,
) -> Build:
    """Returns a function that builds and compiles a small model."""

    def build() -> Any:
        library.utils.set_random_seed(3)
        dense = library.layers.Dense
        own = layers_of() if layers_of else [dense(6, activation="tanh"), dense(4)]
        model = (kind or library.Sequential)([library.Input(shape), *own])
        model.compile(
            optimizer() if optimizer else library.optimizers.SGD(0.1, momentum=0.9),
            **{
                "loss": library.losses.SparseCategoricalCrossentropy(from_logits=True),
                "metrics": None if kind else ["accuracy"],
                "jit_compile": False,  # it is off under a strategy: alike for one device
                **compiled,
            },
        )
        return model

    return build


# The first table: which strategy trains with what.

STRATEGIES: dict[str, Callable[[], tf.distribute.Strategy]] = {
    "default": lambda: dl.make_strategy("default"),
    "one_device": lambda: dl.make_strategy("one_device"),
    "mirrored, TensorFlow's all-reduce": lambda: tf.distribute.MirroredStrategy(CPUS),
    "mirrored, of `make_strategy`": lambda: dl.make_strategy("mirrored", devices=2),
    "central_storage": lambda: dl.make_strategy("central_storage", devices=2),
    "multi_worker, 2 processes": lambda: dl.make_strategy("multi_worker"),
    "parameter_server, 1 worker": lambda: dl.make_strategy("parameter_server"),
}


def strategy_row(name: str) -> dict[str, str]:
    """Measures a row: each way of training under one strategy."""
    import tf_keras

    strategy = STRATEGIES[name]()
    data, build, of_tf_keras = in_order(*TWO_BATCHES), sequential(), sequential(library=tf_keras)
    repeated = {"data": data.repeat(), "steps_per_epoch": 2}  # as parameter servers want it
    expected, by_tf_keras = fit(build(), data), fit(of_tf_keras(), data)
    loop = cell(lambda: own_loop(build, strategy), expected)
    ours = cell(lambda: fit(dl.distribute(build, strategy), data), expected)
    theirs = cell(lambda: fit(in_scope(of_tf_keras, strategy), **repeated), by_tf_keras)
    return {
        # It is measured last: where it crashes, several processes are not in step any more.
        "Keras 3 `fit`": cell(lambda: fit(in_scope(build, strategy), data), expected),
        "Keras 3 own loop": loop,
        "`distribute`": ours,
        "tf_keras `fit`": theirs,
    }


# The second table: which features of a model and its data work.


def parity(
    build: Build,
    x: Any = TWO_BATCHES[0],
    y: Any = TWO_BATCHES[1],
    *,
    batch: int = BATCH,
    mirrored: Any = STRATEGIES["mirrored, of `make_strategy`"],
    central: Any = STRATEGIES["central_storage"],
    predict: bool = False,
    **options: Any,
) -> Callable[[], dict[str, str]]:
    """Returns what measures a row: does each way agree with one device?"""

    def run(make: Callable[..., Any], strategy: Callable[[], Any] | None) -> Run:
        model = make(build, strategy()) if strategy else build()
        if predict:
            return {}, [model.predict(x, batch_size=batch, verbose=0)]
        return fit(model, in_order(x, y, batch), **options)

    def row() -> dict[str, str]:
        expected = run(build, None)
        return {
            "Keras 3 `fit`, mirrored": cell(lambda: run(in_scope, mirrored), expected),
            "`distribute`, mirrored": cell(lambda: run(dl.distribute, mirrored), expected),
            "`distribute`, central_storage": cell(lambda: run(dl.distribute, central), expected),
        }

    return row


class AddsLoss(layers.Layer):
    """Adds the mean of its inputs' squares to the loss."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        self.add_loss(0.1 * ops.mean(x**2))
        return x


class Positions(layers.Layer):
    """Adds to each token a vector of its place, which is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.places = layers.Embedding(6, 6)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.places(ops.arange(6))


class OwnStep(keras.Sequential):
    """Trains by a step of its own, and keeps the loss as Keras's guide does."""

    def __init__(self, own: list[Any]) -> None:
        super().__init__(own)
        self.seen, self.second = keras.metrics.Mean(name="seen"), optimizers.RMSprop(1e-2)

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=data[1], y_pred=self(data[0], training=True))
        weights = self.trainable_weights
        return self.update(loss, list(zip(tape.gradient(loss, weights), weights, strict=True)))

    def update(self, loss: tf.Tensor, gradients: list[Any]) -> dict[str, Any]:
        self.optimizer.apply_gradients(gradients)
        self.seen.update_state(loss)
        return {"seen": self.seen.result()}


class TwoOptimizers(OwnStep):
    """Has one optimizer for each layer."""

    def update(self, loss: tf.Tensor, gradients: list[Any]) -> dict[str, Any]:
        self.optimizer.apply_gradients(gradients[:2])
        self.second.apply_gradients(gradients[2:])
        return {"last": loss}


def two_outputs() -> keras.Model:
    """Returns a model of two outputs, whose losses are logged one by one."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,))
    heads = [layers.Dense(4, name="class"), layers.Dense(1, name="size")]
    model = keras.Model(inputs, {head.name: head(inputs) for head in heads})
    model.compile(optimizers.SGD(0.1), {"class": ENTROPY, "size": "mse"}, jit_compile=False)
    return model


Dense, Norm = layers.Dense, layers.BatchNormalization
SGD, Adam = functools.partial(optimizers.SGD, 0.1), functools.partial(optimizers.Adam, 1e-2)
EMA = functools.partial(SGD, use_ema=True, ema_momentum=0.5)
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD with momentum": lambda: SGD(momentum=0.9),
    "Adam": Adam,
    "AdamW": lambda: optimizers.AdamW(1e-2, weight_decay=0.1),
    "`clipnorm`": lambda: SGD(clipnorm=0.1),
    "`global_clipnorm`": lambda: SGD(global_clipnorm=0.1),
    "gradient accumulation": lambda: SGD(gradient_accumulation_steps=2),
    "EMA of weights": EMA,
    "EMA that overwrites weights": lambda: EMA(ema_overwrite_frequency=2),
}
ENTROPY = losses.SparseCategoricalCrossentropy(from_logits=True)
IGNORES = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1)
MODEL, SEVERAL = sequential(), sequential(steps_per_execution=2)
FEATURES = {name: parity(sequential(optimizer=make)) for name, make in OPTIMIZERS.items()} | {
    "`LossScaleOptimizer`, overflow on one replica": parity(
        sequential(
            lambda: [Dense(4)],
            optimizer=lambda: optimizers.LossScaleOptimizer(SGD(), initial_scale=2.0**122),
        ),
        OUTLIER,
    ),
    "`steps_per_execution` > 1, TensorFlow's all-reduce": parity(
        SEVERAL,
        mirrored=STRATEGIES["mirrored, TensorFlow's all-reduce"],
        central=lambda: tf.distribute.experimental.CentralStorageStrategy(CPUS),
    ),
    "`steps_per_execution` > 1, of `make_strategy`": parity(SEVERAL),
    "partial last batch": parity(MODEL, X, Y),
    "first batch that the replicas cannot share equally": parity(MODEL, X[:66], Y[:66], batch=33),
    "class weights": parity(MODEL, class_weight={0: 1.0, 1: 2.0, 2: 0.5, 3: 3.0}),
    "masked loss": parity(
        sequential(lambda: [layers.Embedding(5, 6, mask_zero=True), Dense(5)], shape=(6,)),
        TOKENS,
        TOKENS,
    ),
    "loss that ignores a class": parity(sequential(loss=IGNORES)),
    "loss that returns one number": parity(
        sequential(loss=lambda y, scores: 0.1 * ops.mean((scores - ops.cast(y, "float32")) ** 2)),
        y=Y[:64, None],
    ),
    "loss that calls a Keras loss": parity(
        sequential(loss=lambda y, scores: ENTROPY(y, scores) + 0.01 * ops.mean(scores**2))
    ),
    "loss that adds up over the batch": parity(
        sequential(
            loss=lambda y, scores: 0.01 * ops.sum((ops.one_hot(y, 4) - scores) ** 2),
            optimizer=SGD,
        )
    ),
    "embedding of positions under Adam": parity(
        sequential(
            lambda: [layers.Embedding(5, 6), Positions(), layers.Flatten(), Dense(4)],
            shape=(6,),
            optimizer=Adam,
        ),
        TOKENS,
    ),
    "own `train_step`": parity(sequential(kind=OwnStep, optimizer=Adam)),
    "own `train_step`, `clipnorm`, partial last batch": parity(
        sequential(kind=OwnStep, optimizer=lambda: Adam(clipnorm=0.1)), X, Y
    ),
    "own `train_step` with two optimizers": parity(sequential(kind=TwoOptimizers, optimizer=Adam)),
    "two outputs": parity(two_outputs, y={"class": Y[:64], "size": X[:64, :1]}),
    "regularisers": parity(
        sequential(lambda: [Dense(4, kernel_regularizer=keras.regularizers.L2(0.1))])
    ),
    "`add_loss` of a layer": parity(sequential(lambda: [Dense(4), AddsLoss()])),
    "`BatchNormalization(synchronized=True)`": parity(
        sequential(lambda: [Dense(6, use_bias=False), Norm(synchronized=True), Dense(4)])
    ),
    "plain `BatchNormalization`": parity(sequential(lambda: [Dense(6), Norm(), Dense(4)])),
    "dropout": parity(sequential(lambda: [Dense(6), layers.Dropout(0.5, seed=1), Dense(4)])),
    "order of `predict`": parity(MODEL, X, predict=True),
    "`predict` of one image by a convolution": parity(
        sequential(
            lambda: [layers.Reshape((4, 2, 1)), layers.Conv2D(4, 2), layers.Flatten(), Dense(4)]
        ),
        X[:1],
        predict=True,
    ),
}


# Measuring, and the page.


def measure_here(name: str) -> dict[str, str]:
    dl.split_devices(2, kind="cpu")
    return FEATURES[name]() if name in FEATURES else strategy_row(name)


def in_task(name: str) -> dict[str, str]:
    """Measures a row in a task of a cluster, which imports this module there."""
    row: dict[str, str] = importlib.import_module("tools.support_matrix").strategy_row(name)
    return row


def measure() -> list[Cells]:
    """Returns both tables, by row and column."""
    *on_one_machine, workers, servers = STRATEGIES
    strategies = measure_rows(measure_here, on_one_machine)
    with dl.LocalCluster(workers=2) as cluster:
        strategies[workers] = cluster.run(in_task, workers)[0]
    with dl.LocalCluster(workers=1, parameter_servers=1) as cluster:
        (strategies[servers],) = cluster.run(in_task, servers, tasks="chief")
    return [strategies, measure_rows(measure_here, FEATURES)]


def main() -> int:
    """Measures, and writes or compares; returns the exit code."""
    writes, (strategies, features) = asked_to_write(__doc__), measure()
    if not writes:
        stored = read_tables(PAGE.read_text(encoding="utf-8"))
        pairs = zip(stored, (strategies, features), strict=True)
        return report([line for pair in pairs for line in changes(*pair)])
    version = importlib.metadata.version
    packages = {"TensorFlow": "tensorflow", "Keras": "keras", "tf_keras": "tf_keras"}
    named = ", ".join(f"{name} {version(package)}" for name, package in packages.items())
    begin = "Measured with "
    measured = f"{begin}{named} and Python {platform.python_version()}."
    tables = [table("strategy", strategies, bold=True), table("feature", features, bold=True)]
    write_page(PAGE, tables, {begin: measured})
    return 0


if __name__ == "__main__":
    sys.exit(main())
