"""Random numbers that belong to an example, wherever the example is computed.

    with same_draws(first=8, examples=8, in_all=16):
        model.train_step(share)           # draws what one device draws for examples 8 to 15

Replicas draw numbers of their own, so two trainings that draw cannot be compared. Inside the
block, a draw of as many rows as there are examples is cut out of the draw for the global batch.
Each call has numbers of its own, the same in every step.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.training.keras_private.batch import Batch
from distlab.training.keras_private.drawing import INITIALIZE, RANDOM, VARIABLE

_NOW = threading.local()
_blocks = 0  # how many `replaced_draws` blocks are open
_drawn: list[str] = []  # what was drawn in the outermost of them

# What draws a tensor of a shape that is its first argument.
_OF_SHAPE = ("normal", "uniform", "truncated_normal", "randint", "gamma", "binomial", "beta")
_STATELESS = {
    "normal": tf.random.stateless_normal,
    "uniform": tf.random.stateless_uniform,
    "truncated_normal": tf.random.stateless_truncated_normal,
}


@contextlib.contextmanager
def same_draws(*, first: Any, examples: Any, in_all: Any) -> Iterator[None]:
    """Inside the block, this thread draws its rows of what is drawn for the global batch.

    Args:
        first: Number of this share's first example.
        examples: How many it has.
        in_all: How many the global batch has.
    """
    before = dict(vars(_NOW))
    _NOW.rows = (first, examples, in_all)
    _NOW.calls = itertools.count(1)
    try:
        yield
    finally:
        vars(_NOW).clear()
        vars(_NOW).update(before)


def draw_by_example(model: keras.Model) -> None:
    """Lets a model on one device draw what replicas draw in `replaced_draws`.

    Args:
        model: A compiled model that was not trained.
    """
    for name in ("train_step", "test_step"):
        model.__dict__[name] = _drawing(getattr(model, name))


def _drawing(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def drawing(data: Any) -> Any:
        first = next(part for part in tf.nest.flatten(data) if part is not None)
        rows = first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0]
        with same_draws(first=0, examples=rows, in_all=rows):
            return step(data)

    return drawing


@contextlib.contextmanager
def same_draws_on(batch: Batch) -> Iterator[None]:
    """As `same_draws`, in a replica's function; nothing outside of `replaced_draws`.

    Args:
        batch: What this replica has.
    """
    context = tf.distribute.get_replica_context()
    if not _blocks:
        yield
        return
    own = tf.one_hot(context.replica_id_in_sync_group, context.num_replicas_in_sync)
    before = tf.cumsum(batch.over_all(own * batch.examples), exclusive=True)
    first = tf.minimum(before[context.replica_id_in_sync_group], batch.in_all - 1)
    rows = tf.maximum(batch.examples, 1)  # a replica without an example works on one
    with same_draws(first=first, examples=rows, in_all=batch.in_all):
        yield


@contextlib.contextmanager
def replaced_draws() -> Iterator[list[str]]:
    """Inside the block `same_draws` works, for Keras's and TensorFlow's functions.

    Yields:
        What was drawn in `same_draws`; filled as it is.
    """
    global _blocks
    if not _blocks:
        _drawn.clear()
    with contextlib.ExitStack() as stack:
        _blocks += 1
        stack.callback(_leave)

        def replace(module: Any, name: str, make: Callable[[Any], Any]) -> None:
            original = getattr(module, name)
            stack.callback(setattr, module, name, original)
            setattr(module, name, functools.wraps(original)(make(original)))

        for name in _OF_SHAPE:
            replace(RANDOM, name, _of_keras)
        replace(VARIABLE, INITIALIZE, _initializing)
        replace(RANDOM, "dropout", _dropout)
        replace(RANDOM, "categorical", _categorical)
        for name, stateless in _STATELESS.items():
            replace(tf.random, name, functools.partial(_of_tensorflow, stateless))
        yield _drawn


def _next_call() -> int:
    number: int = next(_NOW.calls)
    _drawn.append(str(number))
    return number


def _leave() -> None:
    global _blocks
    _blocks -= 1


def _initializing(original: Any) -> Any:
    def initialize(self: Any, initializer: Any) -> None:
        """First values of a variable are drawn as ever."""
        rows = vars(_NOW).pop("rows", None)
        try:
            original(self, initializer)
        finally:
            if rows is not None:
                _NOW.rows = rows

    return initialize


def _of_keras(original: Any) -> Any:
    def draw(shape: Any, *args: Any, seed: Any = None, **kwargs: Any) -> Any:
        if not hasattr(_NOW, "rows"):
            return original(shape, *args, seed=seed, **kwargs)
        number = _next_call()
        return _rows(shape, lambda full: original(full, *args, seed=number, **kwargs))

    return draw


def _of_tensorflow(stateless: Any, original: Any) -> Any:
    def draw(shape: Any, *args: Any, seed: Any = None, name: Any = None, **kwargs: Any) -> Any:
        if not hasattr(_NOW, "rows"):
            return original(shape, *args, seed=seed, name=name, **kwargs)
        number = _next_call()
        uniform = stateless is tf.random.stateless_uniform
        names = ("minval", "maxval", "dtype") if uniform else ("mean", "stddev", "dtype")
        options = dict(zip(names, args, strict=False)) | kwargs
        return _rows(shape, lambda full: stateless(full, seed=[number, 1], **options))

    return draw


def _dropout(original: Any) -> Any:
    def dropout(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
        if not hasattr(_NOW, "rows") or rate == 0:
            return original(inputs, rate, noise_shape=noise_shape, seed=seed)
        sizes = tf.shape(inputs)
        shape = [sizes[i] if n is None else n for i, n in enumerate(noise_shape or inputs.shape)]
        number = _next_call()
        drawn = _rows(shape, lambda full: tf.random.stateless_uniform(full, [number, 2]))
        return tf.where(drawn >= rate, inputs / (1 - rate), tf.zeros_like(inputs))

    return dropout


def _categorical(original: Any) -> Any:
    def categorical(logits: Any, num_samples: int, dtype: str = "int32", seed: Any = None) -> Any:
        if not hasattr(_NOW, "rows"):
            return original(logits, num_samples, dtype=dtype, seed=seed)
        number = _next_call()
        shape = [tf.shape(logits)[0], num_samples, tf.shape(logits)[1]]
        drawn = _rows(shape, lambda full: tf.random.stateless_uniform(full, [number, 3], 1e-6))
        found = tf.argmax(logits[:, None, :] - tf.math.log(-tf.math.log(drawn)), axis=-1)
        return tf.cast(found, dtype)

    return categorical


def _rows(shape: Any, draw: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """What this share has of a draw for the global batch, or a draw of another size."""
    static = tf.TensorShape(shape) if not tf.is_tensor(shape) and _is_static(shape) else None
    sizes = [] if static is not None and not static.rank else tf.cast(tf.stack(shape), tf.int32)
    if isinstance(sizes, list):
        return draw(tf.constant([], tf.int32))
    first, examples, in_all = (tf.cast(number, tf.int32) for number in _NOW.rows)
    by_example = tf.equal(sizes[0], examples)
    full = tf.concat([[tf.where(by_example, in_all, sizes[0])], sizes[1:]], 0)
    begin = tf.where(by_example, first, 0)
    drawn = draw(full)[begin : begin + sizes[0]]
    if static is not None:
        drawn = tf.ensure_shape(drawn, static)
    return drawn


def _is_static(shape: Any) -> bool:
    return all(size is None or isinstance(size, int) for size in shape)
