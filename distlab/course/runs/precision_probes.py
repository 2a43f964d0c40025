"""Lesson 07: looks into a training step in 16 bits, at gradients, copies and memory.

push("float32", lambda p: p, gap=20)           # how far the true class is pushed up
gradients_by_layer(model, x, y)                # {"layer 1": array, "layer 2": array, ...}
gradients_by_block(transformer, tokens, following)        # the same of a transformer's blocks
step_with_overflow(model, strategy, x, y, on_replica=1)
training_memory(model, x, y)                   # KiB of weights, gradients, ...
time_on_gpu("mixed_bfloat16")
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.process_state import kept_state

if TYPE_CHECKING:
    import keras

_TOO_BRIGHT = 1000  # times; the gradient of such an image overflows at Keras's initial scale


def push(precision: str, after: Callable[[Any], Any], gap: float) -> float:
    """Returns minus the gradient of the loss by the true class's score, for one example.

    A wrong class leads by `gap`, and `after` is what is done to the output of the softmax.
    """
    import keras
    import tensorflow as tf

    scores = tf.constant([[gap] + 9 * [0.0]], precision)  # class 0 leads, class 3 is true
    with tf.GradientTape() as tape:
        tape.watch(scores)
        probabilities = after(keras.ops.softmax(scores))
        loss = keras.losses.SparseCategoricalCrossentropy()(tf.constant([3]), probabilities)
    return -float(tape.gradient(loss, scores)[0, 3])


def gradients_by_layer(model: keras.Model, x: Any, y: Any) -> dict[str, Any]:
    """Returns the gradient of the loss by each hidden Dense layer's outputs, in float32."""
    import tensorflow as tf

    outputs, loss, tape = _forward(model, x, y)
    gradients = tape.gradient(loss, outputs)[:-1]
    return {f"layer {n}": tf.cast(g, tf.float32).numpy() for n, g in enumerate(gradients, 1)}


def gradients_by_block(model: keras.Model, tokens: Any, following: Any) -> dict[str, Any]:
    """Returns the gradient of the mean over tokens by each block's outputs, in float32."""
    import keras
    import tensorflow as tf

    from distlab.course.tiny_transformer import Block

    outputs, last = [], tokens
    with tf.GradientTape() as tape:
        for layer in model.layers[1:]:  # the first one is the input
            last = layer(last)
            if isinstance(layer, Block):
                tape.watch(last)
                outputs.append(last)
        losses = keras.losses.sparse_categorical_crossentropy(following, last, from_logits=True)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, outputs)
    return {f"block {number}": gradient.numpy() for number, gradient in enumerate(gradients, 1)}


@dataclass(frozen=True)
class Trained:
    """How a training run went."""

    losses: list[float]
    moved: list[float]


def train_scaled(model: keras.Model, x: Any, y: Any, *, scale: float = 1.0) -> Trained:
    """Takes 80 steps of Adam on one batch, with the loss multiplied by a scale."""
    import keras
    import tensorflow as tf

    weights, adam = model.trainable_variables, keras.optimizers.Adam(0.01)
    adam.build(weights)
    kernels = [layer.kernel for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    before = [kernel.numpy() for kernel in kernels]
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function  # type: ignore[untyped-decorator]
    def ten_steps() -> Any:
        loss = 0.0
        for _ in tf.range(10):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x))
                scaled = loss * scale
            adam.apply([g / scale for g in tape.gradient(scaled, weights)], weights)
        return loss

    losses = [float(ten_steps()) for _ in range(8)]
    moved = [np.abs(kernel - start).max() for kernel, start in zip(kernels, before, strict=True)]
    return Trained(losses, [float(most) for most in moved])


def build_small() -> keras.Model:
    """Returns a compiled linear model, which returns scores in float32."""
    import keras

    from distlab.seeding import set_seed

    set_seed(1)
    scores = keras.layers.Dense(10, kernel_initializer="zeros")
    as_float32 = keras.layers.Activation("linear", dtype="float32")
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), scores, as_float32]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return model


def step_with_overflow(
    model: keras.Model, strategy: Any, x: Any, y: Any, *, on_replica: int
) -> dict[str, Any]:
    """Takes one step of `model.fit` in which one example, on one replica, is far too bright."""
    import tensorflow as tf

    images = np.array(x[:16])
    images[15 if on_replica else 0] *= _TOO_BRIGHT
    data = tf.data.Dataset.from_tensor_slices((images, y[:16])).batch(16)
    model.fit(data, verbose=0, shuffle=False)
    copies = strategy.experimental_local_results(model.trainable_variables[0].value)
    return {
        "copies finite": [bool(np.isfinite(copy.numpy()).all()) for copy in copies],
        "scale": int(model.optimizer.dynamic_scale.numpy()),
    }


def training_memory(model: keras.Model, x: Any, y: Any) -> dict[str, float]:
    """Returns how many KiB each part of a training step with Adam takes, counted by its tensors."""
    import keras
    import tensorflow as tf

    weights, adam = model.trainable_variables, keras.optimizers.Adam()
    adam.build(weights)
    outputs, loss, tape = _forward(model, x, y)
    computed = tf.as_dtype(model.layers[1].compute_dtype)
    copies = [tf.cast(weight, computed) for weight in weights] if computed.size < 4 else []
    parts = {
        "weights": weights,
        "gradients": tape.gradient(loss, weights),
        "Adam": adam.variables,
        "16-bit copies": copies,
        "activations": outputs,
    }
    return {name: _kibibytes(part) for name, part in parts.items()}


def _forward(model: keras.Model, x: Any, y: Any) -> tuple[list[Any], Any, Any]:
    """Returns the outputs of all Dense layers, the loss, and the tape that recorded them."""
    import keras
    import tensorflow as tf

    outputs, last = [], x
    with tf.GradientTape(persistent=True) as tape:
        for layer in model.layers:
            last = layer(last)
            if isinstance(layer, keras.layers.Dense):
                tape.watch(last)
                outputs.append(last)
        losses = keras.losses.sparse_categorical_crossentropy(y, last, from_logits=True)
        loss = tf.reduce_mean(losses)
    return outputs, loss, tape


def _kibibytes(tensors: Any) -> float:
    import tensorflow as tf

    return float(sum(int(tf.size(t)) * tf.as_dtype(t.dtype).size for t in tensors) / 1024)


@kept_state()
def time_on_gpu(policy: str, *, width: int = 2048, batch: int = 4096, steps: int = 20) -> str:
    """Trains eight wide layers on the first GPU, and returns the time and memory of a step.

    TF32 is on while it measures, as it is by default: that is the float32 which you would
    otherwise train in. `split_devices` turns it off where devices share a GPU.
    """
    import time

    import keras
    import tensorflow as tf

    from distlab.precision import mixed_precision

    if not tf.config.list_physical_devices("GPU"):
        return f"{policy}: no GPU here, so nothing to measure"
    with mixed_precision(policy):
        layers = [keras.layers.Dense(width, "relu") for _ in range(8)]
        model = keras.Sequential([keras.Input((1,)), *layers, keras.layers.Dense(1)])
        model.compile("adam", "mse")
    # One number for each example: to copy wide ones to the GPU can take longer than the layers.
    data = tf.data.Dataset.from_tensors((tf.ones((batch, 1)),) * 2).repeat(steps)
    with _tf32():
        model.fit(data, verbose=0)
        tf.config.experimental.reset_memory_stats("GPU:0")
        start = time.perf_counter()
        model.fit(data, verbose=0)
        milliseconds = (time.perf_counter() - start) / steps * 1000
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20
    return f"{policy}: {milliseconds:.1f} ms a step, at most {peak:.0f} MiB"


@contextlib.contextmanager
def _tf32() -> Iterator[None]:
    """Lets matrix products of float32 take TF32, and puts the setting back."""
    import tensorflow as tf

    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
