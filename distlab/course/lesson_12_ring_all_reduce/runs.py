"""Lesson 12: what a route puts on its links, and what TensorFlow's own all-reduce sums and sends.

counted(route, 64).steps                                     # on a simulated network of 64 ranks
all_reduced(strategy, vectors)                               # the sum on each replica
cluster.run(megabytes_sent, 8)                               # by each worker, in a step
cluster.run(all_reduces_in_a_step, bytes_per_pack)           # in the graph of a compiled step
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course.lesson_12_ring_all_reduce.simulated_network import Network

if TYPE_CHECKING:
    import tensorflow as tf

Route = Callable[[Network, Sequence[Any]], list[Any]]


# --- on a simulated network


def counted(route: Route, ranks: int) -> Network:
    """Returns the network over which a route has reduced vectors of one number for each rank."""
    network = Network(ranks)
    route(network, [np.ones(ranks, np.float32)] * ranks)
    return network


def busiest(route: Route, ranks: int) -> float:
    """Returns the most that one link carries in one direction, in sizes of the vector."""
    return counted(route, ranks).busiest_link_bytes / (4 * ranks)


# --- TensorFlow's own


def all_reduced(strategy: tf.distribute.Strategy, vectors: Sequence[Any]) -> list[Any]:
    """Returns what each replica has after an all-reduce of one vector from each."""
    import tensorflow as tf

    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(vectors[context.replica_id_in_sync_group])
    )

    step = tf.function(lambda values: strategy.run(_summed, args=(values,)))
    return [total.numpy() for total in strategy.experimental_local_results(step(values))]


def megabytes_sent(examples: int) -> float:
    """Returns what this worker sends in a step that reduces the gradient of a million weights."""
    import tensorflow as tf

    from distlab.course.lesson_12_ring_all_reduce.tcp_bytes import tcp_bytes_sent

    strategy = _strategy_of_this_worker()
    inputs, weights = tf.ones([examples, 1000]), tf.ones([1000, 1000])

    def a_gradient() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = tf.reduce_mean((inputs @ weights) ** 2)
        return _summed(tape.gradient(loss, weights))

    def one_number() -> Any:
        return _summed(tf.ones([1]))

    step = tf.function(lambda on_replica: strategy.run(on_replica))
    for on_replica in (a_gradient, one_number):  # the first ones also connect the workers
        step(on_replica)
    before = tcp_bytes_sent()
    for _ in range(10):
        step(a_gradient)
    step(one_number)  # it ends when all workers have begun it, so all bytes of the ten have arrived
    return (tcp_bytes_sent() - before) / 10 / 1e6


def all_reduces_in_a_step(bytes_per_pack: int) -> int:
    """Returns how many all-reduces a compiled step has for six gradients of 4,000 bytes."""
    import tensorflow as tf

    strategy = _strategy_of_this_worker()
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)

    def on_replica() -> Any:
        gradients = [tf.ones([1000]) for _ in range(6)]
        return tf.distribute.get_replica_context().all_reduce("SUM", gradients, options)

    graph = tf.function(lambda: strategy.run(on_replica)).get_concrete_function().graph
    return sum("CollectiveReduce" in operation.type for operation in graph.get_operations())


def _summed(own: Any) -> Any:
    import tensorflow as tf

    here = tf.identity(own)  # on this replica's device, where a gradient would be
    return tf.distribute.get_replica_context().all_reduce("SUM", here)


def _strategy_of_this_worker() -> Any:
    return vars(sys.modules["__main__"])["strategy"]
