"""Which worker reads which part of a data set.

`choose_sharding(dataset)` leaves a choice that was made, and takes DATA where none was. By itself
TensorFlow takes FILE where there are files: then the first global batch of two workers has the
first examples of two files, not the first of the data set, and one device has another.
"""

from __future__ import annotations

import tensorflow as tf


def choose_sharding(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the data set, with the auto-shard policy DATA unless its options name one.

    With DATA every worker reads all examples and keeps its part: any number of files will do,
    global batches are those of one device, and reading costs as much as on one. FILE lets each
    worker read its own files only; it needs at least as many files as workers, and changes
    which examples form a global batch. Ask for it by `dataset.with_options`.

    Args:
        dataset: Batches of the global size.
    """
    policies = tf.data.experimental.AutoShardPolicy
    if dataset.options().experimental_distribute.auto_shard_policy != policies.AUTO:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.DATA
    return dataset.with_options(options)
