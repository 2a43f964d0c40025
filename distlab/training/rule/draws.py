"""Random numbers for own rows: those that one device draws for them.

TensorFlow draws by a counter (Philox): of the numbers of one draw, the nth four (two of 64 bits)
depend on the key and on the counter + n alone, whatever the shape. So the rows that begin at
element e of the whole batch's draw are a draw that begins e elements later, to the last bit, and
cost what own rows cost. A layer that draws in another way gets the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from distlab.training.keras_private import models
from distlab.training.keras_private.functions import constant_shape
from distlab.training.rule.current import current, replaces
from distlab.training.rule.mixing import CallSite
from distlab.training.rule.rows import Rows
from distlab.training.rule.step import Step

_OPERATIONS = "tensorflow.python.ops.gen_stateless_random_ops_v2"

# The operations, and how far the counter goes on for one number of a group; 0: by one for the
# whole group. A truncated normal may be drawn again and again, so it has room.
COUNTED = {
    "stateless_random_uniform_v2": 0,
    "stateless_random_normal_v2": 0,
    "stateless_random_uniform_int_v2": 0,
    "stateless_random_uniform_full_int_v2": 0,
    "stateless_truncated_normal_v2": 64,
}

# Philox by name, and what TensorFlow chooses by itself: Philox on CPUs and GPUs.
_PHILOX = (1, 3)

# Operations that pass a size on.
_PASSING = ("Identity", "Cast", "Pack", "ConcatV2", "Reshape")


@replaces(*(f"{_OPERATIONS}.{name}" for name in COUNTED))
def draw_own_rows(
    step: Step,
    original: Callable[..., tf.Tensor],
    shape: Any,
    key: Any,
    counter: Any,
    alg: Any,
    *args: Any,
    **kwargs: Any,
) -> tf.Tensor:
    """Draws as TensorFlow does by a counter, from where a replica's own rows begin."""
    if step.rows is None or not _has_rows(shape):
        return original(shape, key, counter, alg, *args, **kwargs)
    if tf.get_static_value(alg) not in _PHILOX:
        step.give_whole_batch(step.layer)
        return original(shape, key, counter, alg, *args, **kwargs)
    start = None if step.site is None else CallSite.now().start
    drawn = _of_own_rows(step.rows, original, shape, key, counter, alg, *args, **kwargs)
    if start is not None:  # what is computed to begin there looks at no other rows
        step.site.note_call(start, drawn)
    return drawn


def _of_own_rows(
    rows: Rows,
    original: Callable[..., tf.Tensor],
    shape: Any,
    key: Any,
    counter: Any,
    alg: Any,
    *args: Any,
    **kwargs: Any,
) -> tf.Tensor:
    kind = kwargs.get("dtype", getattr(kwargs.get("minval"), "dtype", tf.float32))
    group = 2 if tf.as_dtype(kind).size == 8 else 4
    begin = _begin(shape, rows)
    per_group = COUNTED[original.__name__] * group or 1
    row = constant_shape(shape)[1:]
    if row.is_fully_defined() and math.prod(row) % group == 0:
        later = _later(counter, begin * (math.prod(row) // group * per_group))
        return original(shape, key, later, alg, *args, **kwargs)
    sizes = tf.cast(shape, tf.int64)
    row = tf.reduce_prod(sizes[1:])
    left = begin * row % group
    later = _later(counter, begin * row // group * per_group)
    drawn = original(tf.stack([sizes[0] * row + left]), key, later, alg, *args, **kwargs)
    return tf.reshape(drawn[left:], shape)


@replaces(
    *(
        f"keras.src.backend.tensorflow.random.{name}"
        for name in ("gamma", "binomial", "beta", "categorical", "shuffle")
    )
)
def draw_by_whole_batch(
    step: Step, original: Callable[..., tf.Tensor], *args: Any, **kwargs: Any
) -> tf.Tensor:
    """Gives the whole batch to the layer that draws, for the draw cannot begin at own rows."""
    if step.rows is not None:
        step.give_whole_batch(step.layer)
    return original(*args, **kwargs)


@replaces("keras.src.random.seed_generator.global_seed_generator")
def global_generator(step: Step, original: Callable[[], Any]) -> Any:
    """The generator of draws without a seed, which Keras makes when it is first used."""
    generator = original()
    models.note_use(generator)
    return generator


def _begin(shape: Any, rows: Rows) -> tf.Tensor:
    """The first row of the whole batch's draw that is this replica's; examples may be flattened."""
    length = tf.cast(rows.length, tf.int64)
    first = tf.cast(shape, tf.int64)[0]
    times = first // length
    fits = tf.equal(times * length, first)
    return tf.where(fits, times * tf.cast(rows.start, tf.int64), 0)


def _later(counter: tf.Tensor, groups: tf.Tensor) -> tf.Tensor:
    """A later counter. Its lower half begins at 0, so nothing is carried."""
    return counter + tf.stack([tf.cast(groups, tf.uint64), tf.zeros((), tf.uint64)])


def _has_rows(shape: Any) -> bool:
    """Whether a draw's first axis is that of own rows: known only when the step runs."""
    step, shape = current(), tf.convert_to_tensor(shape)
    sizes = constant_shape(shape)
    if step is None or step.rows is None or sizes.rank == 0:
        return False
    if sizes.rank is not None and sizes[0] is not None:
        return False
    op = shape.op
    while op.type in _PASSING and op.inputs:
        op = op.inputs[0].op
    if op.type != "StridedSlice" or op.inputs[0].op.type != "Shape":
        return True
    begin = tf.get_static_value(op.inputs[1])  # not the size of another axis, such as a length
    return begin is None or int(begin[0]) == 0
