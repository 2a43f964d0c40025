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
from tensorflow.python.framework.tensor_util import constant_value_as_shape

from distlab.training.rule.mixing import Mark
from distlab.training.rule.rows import Rows, current

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


def counted(room: int) -> Callable[[Callable[..., tf.Tensor]], Callable[..., tf.Tensor]]:
    """Of TensorFlow's draws by a counter: begins where own rows begin."""

    def replace(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def draw(shape: Any, key: Any, counter: Any, alg: Any, *args: Any, **kwargs: Any) -> Any:
            step = current()
            if step is None or step.rows is None or not _has_rows(shape):
                return original(shape, key, counter, alg, *args, **kwargs)
            if tf.get_static_value(alg) not in _PHILOX:
                _show_whole_batch()
                return original(shape, key, counter, alg, *args, **kwargs)
            start = None if step.mark is None else Mark.now().start
            drawn = of_own_rows(step.rows, shape, key, counter, alg, *args, **kwargs)
            if start is not None:  # what is computed to begin there looks at no other rows
                step.mark.note_call(start, drawn)
            return drawn

        def of_own_rows(
            rows: Rows, shape: Any, key: Any, counter: Any, alg: Any, *args: Any, **kwargs: Any
        ) -> Any:
            kind = kwargs.get("dtype", getattr(kwargs.get("minval"), "dtype", tf.float32))
            group = 2 if tf.as_dtype(kind).size == 8 else 4
            begin = _begin(shape, rows)
            per_group = room * group or 1
            row = constant_value_as_shape(shape)[1:]
            if row.is_fully_defined() and math.prod(row) % group == 0:
                later = _later(counter, begin * (math.prod(row) // group * per_group))
                return original(shape, key, later, alg, *args, **kwargs)
            sizes = tf.cast(shape, tf.int64)
            row = tf.reduce_prod(sizes[1:])
            left = begin * row % group
            later = _later(counter, begin * row // group * per_group)
            drawn = original(tf.stack([sizes[0] * row + left]), key, later, alg, *args, **kwargs)
            return tf.reshape(drawn[left:], shape)

        return draw

    return replace


def by_whole_batch(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Of draws that cannot begin at own rows: the layer that draws gets the whole batch."""

    def draw(*args: Any, **kwargs: Any) -> tf.Tensor:
        _show_whole_batch()
        return original(*args, **kwargs)

    return draw


def _show_whole_batch() -> None:
    """Lets the step be traced again, if a layer draws for own rows what it can't."""
    step = current()
    if step is not None and step.rows is not None:
        step.give_whole_batch(step.layer)


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
    sizes = constant_value_as_shape(shape)
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
