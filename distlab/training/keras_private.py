"""Everything of Keras that is not public and that distlab touches, in one place.

Each function is held by a test, so that an upgrade which moves one of these things goes red
there and not in a user's training.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import ModelError


def built_in_scope_of(model: keras.Model, strategy: tf.distribute.Strategy) -> bool:
    """Whether the model, and its optimizer, were made inside `strategy.scope()`.

    Args:
        model: A compiled model.
        strategy: The strategy that shall train it.
    """
    if not strategy_matters(strategy):
        return True
    inside = model._distribute_strategy is strategy
    optimizers = (model.optimizer, getattr(model.optimizer, "inner_optimizer", None))
    return inside and all(
        optimizer._distribution_strategy is strategy
        for optimizer in optimizers
        if optimizer is not None
    )


def strategy_matters(strategy: tf.distribute.Strategy) -> bool:
    """Whether variables must be made inside the scope: not under TensorFlow's default.

    Args:
        strategy: Any strategy.
    """
    return type(strategy).__name__ != "_DefaultDistributionStrategy"


def overrides(model: keras.Model, method: str) -> bool:
    """Whether the model's class brings its own `train_step`, `compute_loss` and the like.

    Args:
        model: A Keras model.
        method: The method's name.
    """
    return getattr(type(model), method) is not getattr(keras.Model, method)


def reduces_by_sum(model: keras.Model) -> bool:
    """Whether the compiled losses are sums over examples (True) or means (False).

    Args:
        model: A model whose loss has been called, which is when Keras resolves it.

    Raises:
        ModelError: The losses mix both, or reduce in another way; the share of a replica in
            the global batch is then not known.
    """
    losses = [function for _, function, _, _ in model._compile_loss._flat_losses]
    found = {str(getattr(loss, "reduction", None)) for loss in losses}
    if found == {"sum"}:
        return True
    if found <= {"sum_over_batch_size", "mean"}:
        return False
    raise ModelError(
        asked="distribute(build, strategy)",
        found=f"losses with the reduction {', '.join(sorted(map(repr, found)))}",
        do="give all losses reduction='sum_over_batch_size' (Keras's default), or all 'sum'",
    )


def compiled_loss(model: keras.Model, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
    """Returns the compiled loss of this replica's examples, without Keras's scaling.

    Keras divides a mean, and never a sum, by the number of replicas wherever it is computed in
    a scope. That is undone here, since the share of each replica is not always 1/N.

    Args:
        model: A compiled model.
        y: Targets of this replica.
        y_pred: Predictions of this replica.
        sample_weight: Weights of this replica's examples, or None.

    Returns:
        A scalar.
    """
    loss = model._compile_loss(y, y_pred, sample_weight)
    if reduces_by_sum(model):
        return loss
    return loss * tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, loss.dtype)


def track_loss(model: keras.Model, loss: tf.Tensor, examples: tf.Tensor) -> None:
    """Adds a loss to the metric that `fit` reports as "loss".

    Args:
        model: A compiled model.
        loss: Mean loss of this replica's examples.
        examples: How many examples these are: their weight.
    """
    model._loss_tracker.update_state(loss, sample_weight=tf.cast(examples, tf.float32))


@contextlib.contextmanager
def gradients_already_reduced(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Inside the block the optimizer takes gradients that are the same on all replicas.

    Keras sums gradients over replicas as the last thing before the update, so clipping, loss
    scales and checks for infinities see one replica's only. Here that sum is the identity.

    Args:
        optimizer: The optimizer, or a `LossScaleOptimizer` around one.
    """
    patched = [optimizer, getattr(optimizer, "inner_optimizer", None)]
    patched = [one for one in patched if one is not None]
    for one in patched:
        one.__dict__["_all_reduce_sum_gradients"] = list
    try:
        yield
    finally:
        for one in patched:
            del one.__dict__["_all_reduce_sum_gradients"]


def replace_function_makers(model: keras.Model, makers: dict[str, Callable[..., Any]]) -> None:
    """Lets `make_train_function` and its like on this one model build ours.

    They are replaced rather than their products, because `compile` throws the products away
    and `fit` asks for new ones.

    Args:
        model: A compiled model.
        makers: For "train" and "test", what takes the model and returns the function that
            `fit` and `evaluate` call with an iterator.
    """
    for mode, make in makers.items():
        attribute = f"{mode}_function"

        def maker(
            self: keras.Model,
            force: bool = False,
            *,
            attribute: str = attribute,
            make: Callable[..., Any] = make,
        ) -> None:
            if getattr(self, attribute) is None or force:
                setattr(self, attribute, make(self))

        setattr(model, f"make_{attribute}", types.MethodType(maker, model))
        setattr(model, attribute, None)


def build_without_drawing(model: keras.Model) -> None:
    """Lets `fit` learn the shapes from the data set's own description.

    Keras draws a batch to learn them, which shifts the order of later epochs against one
    device's, and hands the batch to `strategy.reduce`.

    Args:
        model: A compiled model.
    """

    def symbolic_build(self: keras.Model, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None:
            spec = iterator._distributed_dataset.element_spec
            data_batch = tf.nest.map_structure(_one_replica, spec)
        with self.distribute_strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    model._maybe_symbolic_build = types.MethodType(symbolic_build, model)


def _one_replica(spec: Any) -> Any:
    parts = getattr(spec, "_value_specs", None)  # a PerReplicaSpec holds one for each replica
    return parts[0] if parts else spec
