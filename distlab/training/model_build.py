"""How a model's variables are made before it trains: all of them, and nothing else is changed.

setattr(model, "_maybe_symbolic_build", build_without_drawing(on_data)(own))
build_all(model, spec)           # also what a step of the model's own makes when it runs
"""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.training.keras_private import models
from distlab.training.keras_private.runs import spec_of_replica
from distlab.training.rule import gradients

# Methods of which a trial makes what they make when they run.
_OWN = ("train_step", "compute_loss")


def build_without_drawing(on_data: Callable[[Any], None]) -> Callable[..., Any]:
    """Returns what replaces the method by which `fit` learns the shapes from a drawn batch.

    Drawing shifts the order of later epochs against one device's, and hands the batch to
    `strategy.reduce`. The replacement asks the data set's own description.
    """

    def symbolic_build(self: keras.Model, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None:
            on_data(iterator)
            data_batch = spec_of_replica(iterator)
        build_all(self, data_batch)

    return lambda own: types.MethodType(symbolic_build, own.__self__)


def build_all(model: keras.Model, spec: Any) -> None:
    """Makes every variable of a training that is not there yet."""
    own = models.has_own(model, "train_step", "test_step")
    kept = _python_kept if model.run_eagerly and model.built else contextlib.nullcontext
    try:
        with kept(model), gradients.leaving_out():
            models.build(model, spec, of_step=models.has_own(model, *_OWN))
    except Exception:
        # Without a strategy Keras builds in the first step, and so may need no specs, as an eager
        # step does anywhere. What a step of the model's own needs is made by a trial of it.
        # A Sequential that fails has taken the specs for its inputs already.
        is_eager = model.run_eagerly and not isinstance(model, keras.Sequential)
        is_made_later = own or is_eager
        if not is_made_later and (models.is_distributed(model) or not model.built):
            raise
    build_for_own_step(model, spec)


def build_for_own_step(model: keras.Model, spec: Any) -> None:
    """Makes what a step of the model's own makes when it runs, which replicas cannot.

    An eager step runs once and makes it then. A trial would be seen by its Python: its counters,
    its closures, what it draws.
    """
    if not models.has_own(model, *_OWN) or "_distlab_step_built" in vars(model):
        return
    if model.run_eagerly:
        return
    vars(model)["_distlab_step_built"] = True
    with model.distribute_strategy.scope():
        try:
            with gradients.building(), _attributes_kept(model):
                models.trace_symbolically(model.train_step, models.symbols_of(spec))
        except Exception:  # a step that needs values: it fails, or not, later
            if not models.has_own(model, "train_step"):
                models.build(model, spec, of_step=False)
            _build_optimizers(model)


def _build_optimizers(model: keras.Model) -> None:
    """Makes the slots of optimizers for all weights, where it isn't known for which."""
    for optimizer in models.optimizers_of(model) if model.built else ():
        if not optimizer.built:
            optimizer.build(model.trainable_variables)


@contextlib.contextmanager
def _python_kept(model: keras.Model) -> Iterator[None]:
    """Inside the block layers may be called without a trace in Python's state."""
    drawn = random.getstate(), np.random.get_state()
    try:
        with _attributes_kept(model):
            yield
    finally:
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])


@contextlib.contextmanager
def _attributes_kept(model: keras.Model) -> Iterator[None]:
    """Inside the block a step may count and collect what it likes: that is undone at its end."""

    def own(layer: keras.layers.Layer) -> dict[str, Any]:
        names = [name for name in vars(layer) if not name.startswith("_") and name != "built"]
        return {name: vars(layer)[name] for name in names}

    before = [(layer, own(layer)) for layer in models.layers(model)]
    lists = [
        (value, list(value))
        for _, values in before
        for value in values.values()
        if isinstance(value, list)
    ]
    try:
        yield
    finally:
        for layer, values in before:
            for name, value in own(layer).items():
                if name not in values and _is_of_trial(value):
                    del vars(layer)[name]
                elif values.get(name) is not value and _is_of_trial(value):
                    vars(layer)[name] = values[name]
        for value, items in lists:
            if any(map(_is_of_trial, value[len(items) :])):
                value[:] = items


def _is_of_trial(value: Any) -> bool:
    """Whether a value is plain or a symbol, and no variable or layer that a trial has made."""
    plain = (bool, int, float, str, type(None), keras.KerasTensor, tf.Tensor)
    return all(isinstance(part, plain) for part in tf.nest.flatten(value))
