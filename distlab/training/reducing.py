"""Sums over the replicas, in a replica's function.

gradients = sum_over_replicas(after([loss], gradients))
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tensorflow as tf


def sum_over_replicas(parts: list[Any]) -> list[Any]:
    """Returns the sums of what each replica gives, in order.

    Args:
        parts: Tensors, or slices of sparse ones, of any types. TensorFlow puts all in one message
            to the other workers, and that holds one type only.
    """
    context = tf.distribute.get_replica_context()
    of_dtype: dict[tf.DType, list[int]] = defaultdict(list)
    for index, part in enumerate(parts):
        of_dtype[part.dtype].append(index)
    sums = list(parts)
    for indices in of_dtype.values():
        together = [parts[index] for index in indices]
        together = context.all_reduce(tf.distribute.ReduceOp.SUM, together)
        for index, total in zip(indices, together, strict=True):
            sums[index] = total
    return sums


def after(done: list[Any], gradients: list[Any]) -> list[Any]:
    """Returns the gradients, which no operation has before all of `done` is computed.

    An update must come after every read of the old value. Where a variable's gradient does not
    depend on its value (a factor of a loss), TensorFlow's graph optimizer loses that order: it
    takes the edge from the read to the update for one of two ways, and later removes the other
    (seen in TensorFlow 2.21; `dependency_optimization` is the pass). A loss depends on all that
    its model reads, so gradients that wait for it are safe.

    Args:
        done: Tensors, or operations.
        gradients: Tensors, or slices of sparse ones.
    """
    with tf.control_dependencies(done):
        return [tf.identity(gradient) for gradient in gradients]
