"""How a cell of the support matrix is measured.

A cell compares a training with that of plain Keras on one device: the same model, data and global
batch. The models are as small as can be, for what is asked is only whether numbers agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import DistlabError

BATCH = 32
DEVICES = ["CPU:0", "CPU:1"]
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(73, 8)).astype("float32")  # 64 are two whole batches
Y = DRAW.integers(0, 4, 73)

EQUAL, WRONG_LOG, DIFFERS, NAMED = "equal", "weights right, log wrong", "differs", "named error"
# Where Keras or TensorFlow stops, in few words: a pattern of the error's text, and the words.
CAUSES = {
    "PerReplica": "PerReplica to Tensor",
    "must feed a value for placeholder": "placeholder without a value",
    "merge_call": "merge_call in a condition",
    "create_per_worker_dataset": "wants create_per_worker_dataset",
    "must have the same size and shape": "adds up shares of different shapes",
}

Run = tuple[dict[str, Any], list[Any]]
Cells = dict[str, dict[str, str]]


def cell(run: Callable[[], Any], judge: Callable[[Any], str]) -> str:
    """Returns what became of a training: what `judge` says of it, or how it ended."""
    try:
        return judge(run())
    except DistlabError:
        return NAMED
    except Exception as error:  # whatever a library stops with is a finding
        text = str(error)
        known = [cause for pattern, cause in CAUSES.items() if pattern in text]
        print(f"{type(error).__name__}: {text}", file=sys.stderr)
        return f"crashes: {known[0] if known else type(error).__name__}"


def against(reference: Run) -> Callable[[Run], str]:
    """Returns what compares a training with one device's: weights to 1e-6, logs to 1e-5."""

    def judge(run: Run) -> str:
        (logs, weights), (expected_logs, expected) = run, reference
        both = zip(weights, expected, strict=True)
        if not all(np.allclose(one, other, rtol=0, atol=1e-6) for one, other in both):
            return DIFFERS
        logged = all(
            np.allclose(values, expected_logs[name], rtol=1e-5, atol=1e-5)
            for name, values in logs.items()
        )
        return EQUAL if logged else WRONG_LOG

    return judge


def in_order(x: Any = X[:64], y: Any = Y[:64], batch: int = BATCH) -> tf.data.Dataset:
    """Returns the data in batches; workers share the examples of each."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch).with_options(options)


def fit(model: Any, data: tf.data.Dataset | None = None, **options: Any) -> Run:
    """Trains two epochs by the model's own `fit`, of Keras 3 or of tf_keras."""
    data = in_order() if data is None else data
    history = model.fit(data, epochs=2, verbose=0, shuffle=False, **options).history
    return history, [weight.numpy() for weight in model.weights]


def in_scope(build: Callable[[], Any], strategy: tf.distribute.Strategy) -> Any:
    """Returns the model as Keras's documentation says to make it."""
    with strategy.scope():
        return build()


def sequential(
    *layers: Callable[[], Any],
    library: Any = keras,
    optimizer: Callable[[], Any] | None = None,
    shape: tuple[int, ...] = (8,),
    **compiled: Any,
) -> Callable[[], Any]:
    """Returns a function that builds and compiles a small model."""
    layers = layers or (
        lambda: library.layers.Dense(6, activation="tanh"),
        lambda: library.layers.Dense(4),
    )

    def build() -> Any:
        library.utils.set_random_seed(3)
        model = library.Sequential([library.Input(shape), *(make() for make in layers)])
        model.compile(
            optimizer=optimizer() if optimizer else library.optimizers.SGD(0.1, momentum=0.9),
            loss=library.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,  # it is off under a strategy: alike for one device
            **compiled,
        )
        return model

    return build


def step_of(model: keras.Model) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a replica's step as a tutorial has it: its part of the loss, one update."""

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_sum(losses) / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def with_slots(build: Callable[[], Any], strategy: tf.distribute.Strategy) -> Any:
    """Returns the model, its optimizer's variables made before a step is traced."""
    with strategy.scope():
        model = build()
        model.optimizer.build(model.trainable_variables)
    return model


def own_loop(build: Callable[[], Any], strategy: tf.distribute.Strategy) -> Run:
    """Trains two epochs by a hand-written loop: one step a `tf.function`, the loss reduced."""
    model = with_slots(build, strategy)
    step = step_of(model)

    @tf.function  # type: ignore[untyped-decorator]
    def train(batch: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)

    data = strategy.experimental_distribute_dataset(in_order())
    losses = [np.mean([train(batch).numpy() for batch in data]) for _ in range(2)]
    return {"loss": losses}, [weight.numpy() for weight in model.weights]


def coordinated_loop(build: Callable[[], Any], strategy: tf.distribute.Strategy) -> Run:
    """Trains two epochs by a hand-written loop that schedules its steps on the workers."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    model = with_slots(build, strategy)
    step, steps = step_of(model), int(in_order().cardinality())

    @tf.function  # type: ignore[untyped-decorator]
    def train(iterator: Any) -> tf.Tensor:
        return strategy.run(step, args=next(iterator))

    def epoch(data: Any) -> float:
        losses = [coordinator.schedule(train, args=(data,)) for _ in range(steps)]
        coordinator.join()
        return float(np.mean([loss.fetch() for loss in losses]))

    data = iter(coordinator.create_per_worker_dataset(lambda: in_order().repeat()))
    return {"loss": [epoch(data), epoch(data)]}, [weight.numpy() for weight in model.weights]


def theirs() -> tf.distribute.Strategy:
    """Returns a MirroredStrategy with TensorFlow's own all-reduce."""
    return tf.distribute.MirroredStrategy(DEVICES)
