"""Models of the legacy tf_keras (Keras 2), whose own `fit` then takes the steps of one device.

model = distribute(build, strategy)         # build() returns a compiled tf_keras.Model
model.fit(train, epochs=3)

Each example has the same weight, also in a partial last batch, under masks and sample weights;
clipping and loss scaling see the gradient of the global batch; regularisers count once, and
losses are logged as one device logs them. On several workers data are read by example and in
one order, and all end together. A legacy model does not get the faster data and steps of
`distribute` (the rest of `fit` is tf_keras's), the check for a finite loss, the other errors about
data, `Resume`, or moving statistics weighted by shares. BatchNormalization and dropout are
tf_keras's, too: dropout draws differently on each replica.

tf_keras is an extra: this module is imported without it, and imports it for such a model only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from distlab.errors import ModelError
from distlab.strategy.describing import describe
from distlab.training.keras_private import legacy_losses
from distlab.training.model_requirements import refused_step
from distlab.training.reducing import after
from distlab.training.sharding import check_order, choose_sharding
from distlab.training.workers.ending import ended_together
from distlab.training.workers.exchanging import workers_of

_CUSTOM = ("train_step", "test_step", "compute_loss", "make_train_function", "make_test_function")


def is_legacy(model: Any) -> bool:
    """Whether something is a tf_keras model, told by its class, without importing tf_keras.

    Args:
        model: Anything.
    """
    classes = type(model).__mro__
    return any(c.__name__ == "Model" and c.__module__.startswith("tf_keras.") for c in classes)


def on_workers(model: Any) -> Callable[..., contextlib.AbstractContextManager[None]]:
    """Returns what `fit` and its like run in on several workers.

    They read their data by example and in one order, and end together.

    Args:
        model: A model that all workers have.
    """
    workers = workers_of(model.distribute_strategy)

    @contextlib.contextmanager
    def around(method: str, arguments: dict[str, Any]) -> Iterator[None]:
        with ended_together(workers, method):
            data = arguments.get("x")
            if isinstance(data, tf.data.Dataset):
                check_order(data, workers)
                arguments["x"] = choose_sharding(data)
            elif method == "fit" and arguments.get("shuffle", True):
                # As tf_keras shuffles arrays.
                check_order(tf.data.Dataset.range(2).shuffle(2), workers)
            yield

    return around


def train_step(model: Any, data: Any) -> dict[str, Any]:
    """Takes one replica's step, as one device would for the global batch.

    Args:
        model: A compiled model, built in its strategy's scope.
        data: This replica's share of the batch.
    """
    _check_compiled(model)
    optimizer = model.optimizer
    scales = hasattr(optimizer, "get_scaled_loss")
    with tf.GradientTape() as tape:
        loss, seen, examples = _forward(model, data, training=True)
        if scales:
            loss = optimizer.get_scaled_loss(loss)
    variables = model.trainable_variables
    pairs = zip(tape.gradient(loss, variables), variables, strict=True)
    gradients, variables = zip(*[pair for pair in pairs if pair[0] is not None], strict=True)
    # What no examples give may be no number, as a mean over them is none.
    there = tf.cast(examples > 0, tf.float32)
    gradients = tf.nest.map_structure(
        lambda part: (
            tf.math.multiply_no_nan(part, tf.cast(there, part.dtype))
            if part.dtype.is_floating
            else part
        ),
        list(gradients),
        expand_composites=True,
    )
    gradients = legacy_losses.all_reduce(after([loss], gradients))
    if scales:
        gradients = optimizer.get_unscaled_gradients(gradients)
    optimizer.apply_gradients(
        list(zip(gradients, variables, strict=True)), skip_gradients_aggregation=True
    )
    return dict(model.compute_metrics(*seen))


def test_step(model: Any, data: Any) -> dict[str, Any]:
    """Evaluates one replica's share of a batch.

    Args:
        model: A compiled model, built in its strategy's scope.
        data: The share.
    """
    _check_compiled(model)
    return dict(model.compute_metrics(*_forward(model, data, training=False)[1]))


def _forward(model: Any, data: Any, *, training: bool) -> tuple[Any, tuple[Any, ...], tf.Tensor]:
    """Returns the loss, what metrics are computed from, and the number of examples here."""
    import tf_keras

    x, y, sample_weight = tf_keras.utils.unpack_x_y_sample_weight(data)
    examples = tf.cast(tf.shape(tf.nest.flatten(x)[0])[0], tf.float32)
    share = examples / legacy_losses.all_reduce(examples)
    y_pred = model(x, training=training)
    legacy_losses.prepare(model.compiled_loss, y_pred)
    own = [
        legacy_losses.sum_of(tf.math.multiply_no_nan(part, tf.cast(share, part.dtype)))
        for part in model.losses
    ]
    loss = model.compiled_loss(y, y_pred, sample_weight, regularization_losses=own)
    return loss, (x, y, y_pred, sample_weight), examples


def check(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises where the model cannot take the steps of one device.

    Args:
        model: A `tf_keras.Model`.
        strategy: The strategy.

    Raises:
        ModelError: It is not compiled, was built elsewhere, has a step of its own, or an optimizer
            or a loss that cannot be honoured.
    """
    import tf_keras

    if model.optimizer is None or model.compiled_loss is None:
        raise ModelError(
            asked="distribute(build, strategy)",
            found="a model that was not compiled",
            do="let build() call model.compile(optimizer=..., loss=...) and return the model",
        )
    if model.distribute_strategy is not strategy:
        raise ModelError(
            asked="distribute(build, strategy)",
            found="a model that was made outside the strategy's scope: its variables are not on "
            "the replicas",
            do="create the model inside build(), which distribute calls in the scope",
            pitfall="A model made before the scope: an empty AssertionError",
        )
    if describe(strategy).kind == "parameter_server":
        raise ModelError(
            asked="distribute(build, strategy) with a tf_keras model and parameter servers",
            found="the fit of tf_keras, which cannot send its steps to workers",
            do="build the model with keras (Keras 3)",
        )
    own = [
        name for name in _CUSTOM if getattr(type(model), name) is not getattr(tf_keras.Model, name)
    ]
    if own:
        raise refused_step(model, own, "tf_keras", do="build the model with keras (Keras 3)")
    _check_compiled(model)


def _check_compiled(model: Any) -> None:
    """Raises for an optimizer or a loss that cannot be honoured: `compile` may bring another."""
    if ".legacy." in type(model.optimizer).__module__:
        found, do = "an optimizer of tf_keras.optimizers.legacy", "take one of tf_keras.optimizers"
    elif any(getattr(one, "reduction", "") == "none" for one in tf.nest.flatten(model.loss)):
        found, do = "a loss with reduction='none'", "leave reduction out, or give it 'sum'"
    else:
        return
    raise ModelError(
        asked=f"train the tf_keras model {model.name!r} under a strategy",
        found=f"{found}, which cannot be honoured there",
        do=do,
    )
