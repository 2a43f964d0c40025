"""A strategy of TensorFlow's and its variables: how many replicas, which workers, whose copy."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce
from tensorflow.python.eager import context


def replicas_of(strategy: tf.distribute.Strategy) -> int:
    """The number of replicas, also in a step, where `num_replicas_in_sync` is 1."""
    return int(strategy.extended._num_replicas_in_sync)


def workers_in(strategy: tf.distribute.Strategy) -> int:
    """The number of workers of a MultiWorkerMirroredStrategy."""
    return int(strategy.extended._num_workers)


def cluster_of(strategy: tf.distribute.Strategy) -> tuple[dict[str, list[str]], int]:
    """The addresses of a MultiWorkerMirroredStrategy's tasks, by job, and this one's number."""
    extended = strategy.extended
    return extended._cluster_spec.as_dict(), extended._id_in_cluster


def servers_of(strategy: tf.distribute.Strategy) -> dict[str, list[str]]:
    """The addresses of a ParameterServerStrategy's tasks, by job."""
    jobs: dict[str, list[str]] = strategy._cluster_resolver.cluster_spec().as_dict()
    return jobs


def runtime() -> Any:
    """TensorFlow's runtime in this process, by which it exchanges more than tensors with others."""
    return context.context()


def partitioner_of(strategy: tf.distribute.Strategy) -> Any:
    """Returns the function that divides variables among parameter servers; None where none does."""
    return getattr(strategy.extended, "_variable_partitioner", None)


def reduces_by_collectives(strategy: tf.distribute.Strategy) -> bool:
    """Whether replicas exchange tensors by TensorFlow's collective operations."""
    all_reduce = getattr(strategy.extended, "_cross_device_ops", None)
    return isinstance(all_reduce, CollectiveAllReduce)


def is_spread(spec: Any) -> bool:
    """Whether an element of a data set comes in a part for each replica."""
    return hasattr(spec, "_value_specs")


def variable_in(variable: Any) -> Any:
    """TensorFlow's variable in one of Keras's, or the variable itself."""
    return getattr(variable, "_value", variable)


def copy_here(variable: Any) -> Any:
    """This replica's copy of one of TensorFlow's variables, or the one that all replicas share."""
    return getattr(variable, "_get_on_device_or_primary", lambda: variable)()


def shared_copy(variable: Any) -> Any:
    """TensorFlow's variable in one of which all replicas share the copy."""
    return variable._v


def set_aggregation(variable: Any, aggregation: tf.VariableAggregation) -> None:
    """Sets how a variable's copies are made one; does nothing where there are no copies."""
    if isinstance(variable, tf.distribute.DistributedValues):
        variable._aggregation = aggregation


def wait_for(scheduled: Any, seconds: float) -> bool:
    """Whether a result that a coordinator waits for is there within some seconds."""
    return bool(scheduled._status_available_event.wait(seconds))


def has_unknown_length(iterator: Any) -> bool:
    """Whether the data set of an iterator doesn't know how many batches it has."""
    return bool(iterator._dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY)
