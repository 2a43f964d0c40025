"""The metrics of all workers, added up in one go.

model.get_metrics_result = reading_together(model.get_metrics_result)
model.get_metrics_result()            # Keras's, over all workers; each calls it

Keras reads one variable of one metric after the other, and each takes a message to all workers.
"""

from __future__ import annotations

import functools
import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.training.keras_private.models import as_tensors
from distlab.training.variables import is_summed


def reading_together(own: types.MethodType) -> Callable[[], Any]:
    """Returns a `get_metrics_result` that asks the other workers once."""
    model, logs_of = own.__self__, as_tensors(own)

    @functools.wraps(own)
    def get_metrics_result() -> Any:
        if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
            return logs_of()  # one replica's own
        with keras.StatelessScope(state_mapping=_summed(model)):
            return logs_of()

    return get_metrics_result


def _summed(model: keras.Model) -> list[tuple[keras.Variable, tf.Tensor]]:
    """The variables that count on each replica by itself, with the sum of all."""
    strategy = model.distribute_strategy
    of_dtype = defaultdict(list)  # a message holds numbers of one type
    for variable in model.metrics_variables:
        if is_summed(variable):
            of_dtype[variable.value.dtype].append(variable)
    sums = []
    for variables in of_dtype.values():
        here = [
            tf.add_n([tf.reshape(copy, [-1]) for copy in strategy.experimental_local_results(v)])
            for v in (variable.value for variable in variables)
        ]
        message = strategy.reduce(tf.distribute.ReduceOp.SUM, tf.concat(here, 0), axis=None)
        parts = tf.split(message, [variable.value.shape.num_elements() for variable in variables])
        sums += [
            (variable, tf.reshape(part, variable.value.shape))
            for variable, part in zip(variables, parts, strict=True)
        ]
    return sums
