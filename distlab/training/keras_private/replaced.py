"""All that distlab replaces in Keras and TensorFlow, once in a process and for good.

Outside of a step, which is where `current()` is None, each does what it did; a test holds that, and
so finds a version of Keras or TensorFlow that has moved a name. Names with a leading underscore,
and those that are imported from `keras.src` and `tensorflow.python`, are private there. All of them
are in Keras 3.10 to 3.15 and TensorFlow 2.19 to 2.21, unless a comment says otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import random as keras_random
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.losses import loss as keras_loss
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers.compile_utils import MetricsList
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.distribute import ps_values, values
from tensorflow.python.distribute.distribute_lib import ReplicaContext, ReplicaContextBase
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.framework import random_seed
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import custom_gradient as tf_custom_gradient
from tensorflow.python.ops import gen_array_ops
from tensorflow.python.ops import gen_stateless_random_ops_v2 as gen_draws
from tensorflow.python.ops.parallel_for import control_flow_ops

from distlab.training.keras_private import runs
from distlab.training.rule import contexts, draws, gradients, layers, losses, operations, rows
from distlab.training.rule.rows import current

_Function = type(tf.function(lambda: None))


def inlined(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of `tf.function`: one in a step becomes part of it, since replicas cannot meet inside."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if current() is None or type(self) is not _Function:
            return original(self, *args, **kwargs)
        function = self._python_function
        if (getattr(function, "__module__", None) or "").startswith("tensorflow."):
            return original(self, *args, **kwargs)
        if self._autograph and not tf.executing_eagerly():
            function = autograph_util.py_func_from_autograph(function)
            with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return call


Replacement = tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]]

# Owner, name, what replaces it. A callback can ask for the others, and for the data.
OF_RUNS: list[Replacement] = [
    (TFEpochIterator, "__init__", runs.note_iterator),
    (keras.callbacks.CallbackList, "on_train_begin", runs.note_callbacks),
]
OF_STEPS: list[Replacement] = [
    # Layers compute own rows.
    (keras.layers.Layer, "__call__", layers.call),
    (keras.layers.Layer, "add_loss", layers.add_loss),
    (keras.layers.Layer, "_get_own_losses", layers.own_losses),
    (keras.layers.BatchNormalization, "_moments", layers.moments),
    (gen_array_ops, "shape", rows.shape_of_promise),
    (_Function, "__call__", inlined),
    # They draw one device's random numbers.
    *((gen_draws, name, draws.counted(room)) for name, room in draws.COUNTED.items()),
    *(
        (keras_random, name, draws.by_whole_batch)
        for name in ("gamma", "binomial", "beta", "categorical", "shuffle")
    ),
    # What has an effect or a hidden state happens once.
    (FuncGraph, "_create_op_internal", operations.created),
    (random_seed, "get_seed", operations.seeds),
    # The way back of a layer's own.
    (tf_custom_gradient, "_graph_mode_decorator", layers.custom_gradient),
    # Losses and metrics take own rows where they add up.
    (keras.losses.Loss, "__call__", losses.loss),
    (
        keras_loss,
        "reduce_weighted_values",
        functools.partial(losses.reduced, apply_mask=keras_loss.apply_mask),
    ),
    (keras_loss, "scale_loss_for_distribution", losses.unscaled),
    (keras_loss, "unscale_loss_for_distribution", losses.unscaled),
    (MetricsList, "update_state", losses.metrics),
    (
        keras.metrics.MeanMetricWrapper,
        "update_state",
        functools.partial(losses.mean_metric, apply_mask=keras_loss.apply_mask),
    ),
    (keras.metrics.Mean, "update_state", losses.mean_of_parts),
    *(
        (tf.nn, f"{name}_cross_entropy_with_logits", losses.cross_entropy)
        for name in ("sparse_softmax", "softmax")
    ),
    (tf.nn, "compute_average_loss", losses.average_loss),
    (tf.nn, "scale_regularization_loss", losses.unscaled),
    # Gradients are the mean over replicas, and each updates its own copies.
    (tf.GradientTape, "gradient", gradients.gradient),
    (tf.GradientTape, "jacobian", gradients.refused("tape.jacobian")),
    (tf.GradientTape, "batch_jacobian", gradients.refused("tape.batch_jacobian")),
    (tf, "gradients", gradients.refused("tf.gradients")),
    (control_flow_ops, "_pfor_impl", rows.of_a_loop),
    (
        tf.autodiff.ForwardAccumulator,
        "_push_accumulator",
        gradients.refused("tf.autodiff.ForwardAccumulator"),
    ),
    (keras.optimizers.Optimizer, "apply", gradients.apply),
    (keras.optimizers.LossScaleOptimizer, "apply", gradients.apply),
    (keras.optimizers.LossScaleOptimizer, "_tf_apply", gradients.apply_here),
    (TFOptimizer, "_backend_update_step", gradients.update_own_copies),
    (
        TFOptimizer,
        "_apply_weight_decay",
        gradients.decay_own_copies(BaseOptimizer._apply_weight_decay),
    ),
    *(
        (TFOptimizer, name, gradients.as_on_one_device(getattr(BaseOptimizer, name)))
        for name in (
            "_backend_increment_gradient_accumulators",
            "_overwrite_model_variables_with_average_value",
        )
    ),
    # In a step there is one replica.
    (ReplicaContextBase, "all_reduce", contexts.all_reduce),
    (ReplicaContext, "all_gather", contexts.all_gather),
    (ReplicaContextBase, "merge_call", contexts.merge_call),
    (tf.distribute.Strategy, "reduce", contexts.reduce),
    (values, "_on_write_update_replica", gradients.assign_own_copy),
    (ps_values.AggregatingVariable, "_assign_func", gradients.assign_on_first),
]


def _number(kind: type) -> Callable[[Any], Any]:
    return lambda variable: kind(variable.numpy())


REPLACED = OF_RUNS + OF_STEPS


@functools.cache
def install() -> None:
    """Replaces all of them."""
    note_runs()
    tf.distribute.Strategy.num_replicas_in_sync = property(contexts.num_replicas)
    _replace(OF_STEPS)
    replica_id = contexts.replica_id(ReplicaContextBase.replica_id_in_sync_group.fget)
    ReplicaContextBase.replica_id_in_sync_group = property(replica_id)
    for name in gradients.SCATTERING:  # some of which only variables with one copy have
        original = getattr(values.DistributedVariable, name, None)
        setattr(values.DistributedVariable, name, gradients.on_own_copy(name, original))
    for kind in (int, float):  # which a variable on several replicas doesn't know
        setattr(values.DistributedVariable, f"__{kind.__name__}__", _number(kind))
    keras.layers.Layer._losses = property(
        layers.losses, lambda self, given: vars(self).__setitem__("_losses", given)
    )


@functools.cache
def note_runs() -> None:
    """Replaces what `Resume` needs, of any model."""
    _replace(OF_RUNS)


def _replace(table: list[Replacement]) -> None:
    for owner, name, make in table:
        original = getattr(owner, name)
        setattr(owner, name, functools.wraps(original)(make(original)))
