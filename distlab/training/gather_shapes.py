"""Which steps have a collective of TensorFlow's whose shape changes from batch to batch.

Replicas that TensorFlow brings together by collectives, in several processes or on several GPUs,
gather the slices of sparse gradients, such as an embedding's, and the rows of `dl.all_gather`. A
collective has a number, which it gets when a `tf.function` is called, and TensorFlow wants one
shape for each number. In a loop of several steps a smaller last batch is then an error, "Shape
mismatch in the collective instance".
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce

_GATHER = "CollectiveGatherV2"


def gathers(strategy: tf.distribute.Strategy, step: Any, *args: Any) -> bool:
    """Whether a step gathers rows by a collective."""
    if not isinstance(getattr(strategy.extended, "_cross_device_ops", None), CollectiveAllReduce):
        return False
    graph = step.get_concrete_function(*args).graph.as_graph_def()
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    return any(node.op == _GATHER for nodes in bodies for node in nodes)
