"""Checks before the first step whether `distribute` can train a model.

    check_model(model, strategy)       # compiled, made where its variables belong, with methods
                                       # that are run, and an optimizer that works there?

Keras stops in the middle of a step, with a text that names neither the cause nor the cure.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import InvalidArgument, ModelError
from distlab.strategy.description import describe
from distlab.training.keras_private import models
from distlab.training.keras_private.models import inner

# What a model's class may override. The first are run on every replica; the others are replaced.
_STEPS = ("train_step", "test_step", "compute_loss")
_MAKERS = ("make_train_function", "make_test_function", "make_predict_function")


def check_arguments(function: str, build: Any, strategy: Any) -> None:
    """Raises where a function of ours got something else than a `build` and a strategy."""
    if not isinstance(strategy, tf.distribute.Strategy):
        raise InvalidArgument(
            asked=f"{function}(build, strategy={strategy!r})",
            found=f"a {type(strategy).__name__} where a strategy should be",
            do='make one: strategy = distlab.make_strategy("mirrored")',
        )
    if hasattr(build, "trainable_variables") or not callable(build):
        raise ModelError(
            asked=f"{function}({type(build).__name__}, strategy)",
            found="not a function that builds a model; a model that exists already was built "
            "outside the strategy's scope",
            do=f"write `def build(): ...; return model` and call {function}(build, ...)",
            pitfall="A model made before the scope: an empty AssertionError",
        )
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        name = getattr(build, "__name__", "build")
        raise ModelError(
            asked=f"{function}({name}, strategy)",
            found=f"{name}{inspect.signature(build)}, which is called without arguments: {error}",
            do=f"fill them in: {function}(lambda: {name}(...), strategy)",
        ) from None
    except ValueError:
        pass  # a builtin that doesn't tell its arguments


def check_model(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises where a model cannot be trained under a strategy."""
    check_compiled(model, asked="distribute(build, strategy)")
    check_scope(model, strategy)
    check_methods(model, strategy)
    check_layers(model, strategy)
    check_optimizer(model)


def check_compiled(model: Any, *, asked: str) -> None:
    """Raises where something is no compiled Keras model."""
    if isinstance(model, keras.Model) and model.compiled and model.optimizer is not None:
        return
    if any(kind.__module__.partition(".")[0] == "tf_keras" for kind in type(model).__mro__):
        raise ModelError(
            asked=asked,
            found="a tf_keras model",
            do="build it with Keras 3; or leave distlab out, and call its own fit in the "
            "strategy's scope, which distributes tf_keras models",
        )
    other = f"build() returned {type(model).__name__}, not a keras.Model"
    raise ModelError(
        asked=asked,
        found="a model that was not compiled" if isinstance(model, keras.Model) else other,
        do="let build() call model.compile(optimizer=..., loss=...) and return the model",
    )


def check_scope(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Raises where the model, or its optimizer, was made outside the strategy's scope."""
    outside = models.made_outside(model, strategy)
    if outside is None:
        return
    found = (
        f"the layer {outside!r}, which was made outside of build() and is to be trained: its "
        "weights are not on the replicas"
    )
    do = (
        "create it inside build(), or set its trainable = False if it should stay as it is; if a "
        "method of a layer creates it, such as enable_lora(), call that method `with "
        "model.distribute_strategy.scope():`, and compile again"
    )
    if outside == "":
        found = (
            "a model, or its optimizer, that was made outside the strategy's scope: its variables "
            "are not on the replicas"
        )
        do = (
            "create the layers and the optimizer inside build(), which distribute calls in the "
            "scope; for a later compile(), create the optimizer `with strategy.scope():`"
        )
    raise ModelError(
        asked="distribute(build, strategy)",
        found=found,
        do=do,
        pitfall="A model made before the scope: an empty AssertionError",
    )


def check_methods(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Raises where the model's class brings something that `distribute` would pass over."""
    own = [name for name in _MAKERS if models.has_own(model, name)]
    if own:
        raise ModelError(
            asked=f"distribute(build, strategy) with a {type(model).__name__}",
            found=f"a custom {' and '.join(own)}, in the place of which distribute puts its own",
            do="override train_step or test_step instead: they are run on every replica",
        )
    own = [name for name in _STEPS if models.has_own(model, name)]
    if own and describe(strategy).kind == "parameter_server":
        raise ModelError(
            asked=f"distribute(build, strategy) with a {type(model).__name__}",
            found=f"a custom {' and '.join(own)}, which distribute cannot run under parameter "
            "servers",
            do="take a strategy whose replicas step together, for example "
            'make_strategy("mirrored"), or write the loop by hand, as lesson 10 does',
        )


def check_layers(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Raises where a layer of Keras draws by Python's `random`, as a step is traced."""
    kind = getattr(keras.layers, "AugMix", ())
    drawing = [layer.name for layer in models.layers(model) if isinstance(layer, kind)]
    if drawing and strategy.num_replicas_in_sync > 1:
        raise ModelError(
            asked=f"distribute(build, strategy) with the layer {drawing[0]!r}",
            found="an AugMix, which draws its operations by Python's random when TensorFlow traces "
            "a step: each replica would augment in another way",
            do="augment the data: dataset.map(lambda x, y: (augment(x), y))",
        )


def check_optimizer(model: keras.Model) -> None:
    """Raises where an optimizer cannot update the one copy that CentralStorageStrategy keeps."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas == 1 or describe(model.distribute_strategy).kind != "central_storage":
        return
    for each in models.optimizers_of(model):
        optimizer = inner(each)
        steps = optimizer.gradient_accumulation_steps
        reasons = {
            f"gradient_accumulation_steps={steps}": steps,
            "use_ema=True": optimizer.use_ema,
            "a LossScaleOptimizer": optimizer is not each,
            "Muon": isinstance(optimizer, keras.optimizers.Muon),
        }
        if obstacles := [text for text, holds in reasons.items() if holds]:
            raise ModelError(
                asked=f"train with {type(optimizer).__name__} under CentralStorageStrategy",
                found=f"{' and '.join(obstacles)}, which cannot update the one copy of a variable "
                f"that {replicas} replicas share there",
                do="leave it out, or take dl.make_strategy('mirrored')",
            )


def check_metrics(model: keras.Model) -> None:
    """Raises where a metric's variables cannot hold what one device counts."""
    strategy = model.distribute_strategy
    kind = describe(strategy).kind
    on_servers = kind == "parameter_server"
    if kind == "central_storage" or (strategy.num_replicas_in_sync == 1 and not on_servers):
        return
    for metric in models.metrics_of(model):
        held = {name: each for name, each in vars(metric).items() if isinstance(each, tf.Variable)}
        if not on_servers:
            held |= {each.name: each.value for each in models.own_variables(metric)}
        copied = tf.distribute.DistributedValues
        if outside := [n for n, each in held.items() if not isinstance(each, copied)]:
            why = "the replicas do not have a copy each"
            raise ModelError(
                asked=f"train or evaluate the model {model.name!r} with {kind} replicas",
                found=f"the metric {metric.name!r} with variables ({', '.join(outside)}) of which "
                f"{'there is one, which workers would write at once' if on_servers else why}",
                do="make the variable with self.add_weight, and the metric inside build()",
            )
