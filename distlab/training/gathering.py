"""The examples of all replicas, in a replica's function, for what looks at a batch as a whole.

def contrastive(labels, features):
    labels, features = dl.all_gather(labels), dl.all_gather(features)
    ...                                          # every replica compares all pairs
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from distlab.training.keras_private.batch import current

# What TensorFlow's collective takes.
_TAKEN = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


def all_gather(tensor: Any) -> tf.Tensor:
    """Returns the rows of all replicas, in replica order, and lets gradients flow back to each.

    Call it where a step runs: in a loss, a layer or a `train_step` of a model from `distribute`,
    or in the function that you give to `strategy.run`. Elsewhere, as on one device, there is
    only the tensor itself. A replica without an example adds no row.

    Every replica then computes the same loss from all rows. `distribute` counts that once. In a
    loop of your own, divide the loss by the number of replicas before you add up gradients.

    Args:
        tensor: Shape [examples of this replica, ...]; the other dimensions must agree.

    Returns:
        Shape [examples of the global batch, ...].
    """
    return gathered(tf.convert_to_tensor(tensor))


def gathered(tensor: Any) -> Any:
    """As `all_gather`, of a tensor or None.

    Args:
        tensor: This replica's rows.
    """
    context, batch = tf.distribute.get_replica_context(), current()
    if batch is not None:
        tensor = None if tensor is None else batch.gathered(tensor)
    if tensor is None or context is None or context.num_replicas_in_sync == 1:
        return tensor
    if batch is not None:
        tensor = batch.rows_that_count(tensor)
    kind = tensor.dtype
    if kind in _TAKEN:
        return context.all_gather(tensor, axis=0)
    sent = tf.cast(tensor, tf.float32 if kind.is_floating else tf.int64)
    return tf.cast(context.all_gather(sent, axis=0), kind)
