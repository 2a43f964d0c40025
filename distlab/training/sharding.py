"""Which worker reads which part of a data set.

`choose_sharding(dataset)` leaves a choice that was made, and takes DATA where none was. By itself
TensorFlow takes FILE where there are files: then the first global batch of two workers has the
first examples of two files, not the first of the data set, and one device has another.

What a worker keeps is counted off from all examples, so all workers must read them in one order:
`check_order` refuses data that cannot have one.
"""

from __future__ import annotations

import tensorflow as tf

from distlab.errors import DatasetError
from distlab.training import pipelines
from distlab.training.workers.workers import Workers

_POLICIES = tf.data.experimental.AutoShardPolicy


def choose_sharding(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the data set, with the auto-shard policy DATA unless its options name one.

    With DATA every worker reads all examples and keeps its part: any number of files will do,
    global batches are those of one device, and reading costs as much as on one. FILE lets each
    worker read its own files only; it needs at least as many files as workers, and changes
    which examples form a global batch. Data that claim a length (`assert_cardinality`) then give
    that many batches, though the worker with the most files may need more. Ask for it by
    `dataset.with_options`.
    """
    if _policy_of(dataset) != _POLICIES.AUTO:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _POLICIES.DATA
    return dataset.with_options(options)


def is_shared_by_example(dataset: tf.data.Dataset) -> bool:
    """Whether each worker is to read all examples and keep its part of each batch."""
    return _policy_of(dataset) in (_POLICIES.AUTO, _POLICIES.DATA)


def check_order(dataset: tf.data.Dataset, workers: Workers) -> None:
    """Raises if each worker would read the examples in a different order."""
    if workers.count == 1 or _policy_of(dataset) == _POLICIES.OFF:
        return
    unordered = pipelines.inspect(dataset).unordered
    if unordered:
        raise DatasetError(
            asked=f"read one data set on {workers.count} workers",
            found=f"{'; '.join(unordered)}: each worker would have an order of its own, and of "
            "all examples some would be read twice and others never",
            do="give shuffle a seed=, or call distlab.set_seed with one number on every worker; "
            "for arrays, set_seed too, or fit(..., shuffle=False)",
            pitfall="A shuffle that differs on each worker: examples read twice",
        )


def order_seeds(dataset: tf.data.Dataset | None) -> tuple[tuple[int, int], ...]:
    """Returns the seeds that must be the same on all workers: they give the examples' order."""
    if dataset is None or not is_shared_by_example(dataset):
        return ()
    return pipelines.inspect(dataset).order_seeds


def _policy_of(dataset: tf.data.Dataset) -> tf.data.experimental.AutoShardPolicy:
    return dataset.options().experimental_distribute.auto_shard_policy
