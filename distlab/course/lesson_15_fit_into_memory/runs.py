"""Lesson 15: steps of the small transformer that keep less, and a training with recomputed dropout.

gradients = make_step(model, micro_batches=4)(*lines_of(LENGTHS))   # of the mean over all tokens
run_out(("plain", 8), ("plain", 32))                 # ["fits", "OOM when allocating tensor"]
train_with_dropout("recomputed", seeds=3)            # 78.1, the % of right test digits
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course.runs.limited_calls import call_together

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

LAYERS, WIDTH, LENGTH = 8, 64, 64
PRODUCTS = ("MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")

# How each way of saving cuts the step: micro-batches, and layers that are recomputed together.
WAYS = {"plain": (1, 0), "4 micro-batches": (4, 0), "recomputed": (1, 1), "both": (4, 1)}


def build(layers: int = LAYERS) -> keras.Model:
    """Returns the small transformer with so many layers, the same at every call."""
    import keras

    from distlab.course.tiny_transformer import build_transformer

    keras.utils.set_random_seed(1)
    return build_transformer(width=WIDTH, layers=layers, length=LENGTH)


def windows(batch: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns a batch of full rows of text: tokens, next tokens, and a weight of 1 for each."""
    import tensorflow as tf

    from distlab.course.tiny_transformer import text_windows

    x, y = next(iter(text_windows(LENGTH).batch(batch)))
    return x, y, tf.ones(y.shape)


def lines_of(*lengths: int, each: int = 4) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns lines of text that have so many tokens, four of each length, in this order."""
    import tensorflow as tf

    from distlab.course.tiny_transformer import text_lines

    x, y, weights = next(iter(text_lines(LENGTH).batch(100_000)))
    tokens = weights.numpy().sum(axis=1)
    rows = np.concatenate([np.flatnonzero(tokens == length)[:each] for length in lengths])
    return tuple(tf.gather(part, rows) for part in (x, y, weights))


def scores(model: keras.Model, tokens: tf.Tensor, group: int = 0) -> tf.Tensor:
    """Returns the model's logits; with a group, so many layers at a time are recomputed."""
    import tensorflow as tf

    _, embed, *blocks, norm, last = model.layers
    x = embed(tokens)
    for start in range(0, len(blocks), group or len(blocks)):
        part = blocks[start : start + (group or len(blocks))]

        def several(x: tf.Tensor, part: list[Any] = part) -> tf.Tensor:
            for block in part:
                x = block(x)
            return x

        x = (tf.recompute_grad(several) if group else several)(x)
    return last(norm(x))


def token_losses(model: keras.Model, x: tf.Tensor, y: tf.Tensor, group: int = 0) -> tf.Tensor:
    """Returns the loss of each token, `[rows, length]`."""
    import tensorflow as tf

    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores(model, x, group))


def make_step(model: keras.Model, micro_batches: int = 1, group: int = 0) -> Callable[..., Any]:
    """Returns a compiled step: the gradients of the mean loss over all tokens of its batch."""
    import tensorflow as tf

    weights = [weight.value for weight in model.trainable_variables]

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: tf.Tensor, y: tf.Tensor, counts: tf.Tensor) -> list[tf.Tensor]:
        size = len(x) // micro_batches

        def add(n: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            rows, targets, count = (part[n * size : (n + 1) * size] for part in (x, y, counts))
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(count * token_losses(model, rows, targets, group))
            gradients = tape.gradient(loss, weights)
            return n + 1, *(total + part for total, part in zip(sums, gradients, strict=True))

        sums = [tf.zeros_like(weight) for weight in weights]
        if micro_batches == 1:
            _, *sums = add(0, *sums)
        else:  # one after the other: TensorFlow would begin ten at a time
            _, *sums = tf.while_loop(
                lambda n, *_: n < micro_batches, add, [0, *sums], parallel_iterations=1
            )
        return [total / tf.reduce_sum(counts) for total in sums]

    compiled: Callable[..., Any] = step
    return compiled


def count_products(step: Any, *batch: tf.Tensor) -> int:
    """Returns how many matrix products a compiled step has."""
    graph = step.get_concrete_function(*batch).graph
    return sum(operation.type in PRODUCTS for operation in graph.get_operations())


def largest_difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Returns the largest difference of two gradients, in parts of the largest entry."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(one, other, strict=True)]
    largest = max(np.abs(b).max() for _, b in pairs)
    return float(max(np.abs(a - b).max() for a, b in pairs) / largest)


def run_out(*cases: tuple[str, int], megabytes: int = 64) -> list[str]:
    """Takes a step of each way and batch, each in a process with so little memory.

    They run side by side, because TensorFlow waits 10 seconds before it gives up.
    """
    ended = call_together(
        _one_step, cases, processes=len(cases), megabytes=megabytes, timeout_secs=120
    )
    return [str(each.result) if each.result else _told(each.error) for each in ended]


def keras_accumulates(reduction: str, rows: int = 16) -> float:
    """Returns how far four accumulated micro-batches of Keras are from its step on all lines.

    The difference of the weights, in parts of what the step changes most.
    """
    whole, parts = _small_keras(reduction, 1), _small_keras(reduction, 4)
    before = [weight.copy() for weight in whole.get_weights()]
    x, y, counts = (part[:rows].numpy() for part in lines_of(10, 20, 40, 60))
    whole.train_on_batch(x, y, sample_weight=counts)
    for n in range(0, rows, 4):
        parts.train_on_batch(x[n : n + 4], y[n : n + 4], sample_weight=counts[n : n + 4])
    steps = (np.subtract(*pair) for pair in zip(whole.get_weights(), before, strict=True))
    apart = (
        np.subtract(*pair) for pair in zip(parts.get_weights(), whole.get_weights(), strict=True)
    )
    return float(max(np.abs(a).max() for a in apart) / max(np.abs(a).max() for a in steps))


def _small_keras(reduction: str, steps: int) -> keras.Model:
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(128, 16), keras.layers.Dense(128)]
    model = keras.Sequential([keras.Input((LENGTH,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    accumulate = steps if steps > 1 else None  # Keras refuses 1
    model.compile(keras.optimizers.SGD(1.0, gradient_accumulation_steps=accumulate), loss)
    return model


def entries_of_another_mask(make: Callable[[], Callable[..., Any]], *, compiled: bool) -> int:
    """Returns how many of 4,096 gradients belong to a mask that the forward pass didn't have."""
    import tensorflow as tf

    drop, x = make(), tf.ones([64, 64])

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = drop(x)
        return out, tape.gradient(out, x)

    out, gradient = (tf.function(step) if compiled else step)(x)
    return int(tf.math.count_nonzero((out > 0) != (gradient > 0)))


def train_with_dropout(way: str, seeds: int = 3, epochs: int = 15) -> float:
    """Returns the % of test digits that a small network gets right, a mean over some seeds.

    It has four layers of 64 units with dropout of 0.5: `plain`, `recomputed` by one line for each
    layer, or `repaired`, where a seed is drawn outside of what is recomputed.
    """
    return 100 * sum(_trained(way, seed, epochs) for seed in range(seeds)) / seeds


def _trained(way: str, seed: int, epochs: int) -> float:
    import keras
    import tensorflow as tf

    (x, y), (test_x, test_y) = _digits()
    keras.utils.set_random_seed(seed)
    first, head = keras.layers.Dense(64, "relu"), keras.layers.Dense(10)
    layers = [keras.layers.Dense(64, "relu") for _ in range(4)]
    drops = [keras.layers.Dropout(0.5, seed=seed + n) for n in range(4)]

    def scores(x: tf.Tensor, training: bool) -> tf.Tensor:
        x = first(x)
        for dense, drop in zip(layers, drops, strict=True):
            key = tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)

            def part(x: tf.Tensor, dense: Any = dense, drop: Any = drop, key: Any = key) -> Any:
                if way == "repaired" and training:
                    return x + tf.nn.experimental.stateless_dropout(dense(x), 0.5, key)
                return x + drop(dense(x), training=training)

            x = (part if way == "plain" or not training else tf.recompute_grad(part))(x)
        return head(x)

    scores(x[:1], False)
    variables = [weight for layer in (first, *layers, head) for weight in layer.weights]
    values, adam = [variable.value for variable in variables], keras.optimizers.Adam(0.003)
    adam.build(variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores(x, True))
            loss = tf.reduce_mean(losses)
        adam.apply(tape.gradient(loss, values), variables)

    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(x))[:1408]
        for rows in np.split(order, 22):
            step(x[rows], y[rows])
    return float((scores(test_x, False).numpy().argmax(1) == test_y).mean())


def _digits() -> list[tuple[Any, Any]]:
    from distlab.datasets.loader import load_dataset

    splits = load_dataset("digits", splits=["train", "test"], batch_size=2000)
    pairs = [next(iter(split)) for split in splits]
    return [(x.numpy().reshape(-1, 64), y.numpy().astype("int32")) for x, y in pairs]


def _one_step(index: int, cases: Sequence[tuple[str, int]]) -> str:
    way, batch = cases[index]
    micro_batches, group = WAYS[way]
    make_step(build(), micro_batches, group)(*windows(batch))[0].numpy()
    return "fits"


def _told(error: str) -> str:
    """Returns what an error says without the tensor that happened to be too much."""
    _, found, _ = error.partition(says := "OOM when allocating tensor")
    return says if found else error
