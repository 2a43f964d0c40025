"""What does not fit, or fails inside a step, in words that say what to do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DatasetError, ModelError
from distlab.training.keras_private.states import UNSEEDED
from distlab.training.replica_step import NOT_FINITE

_VALUES = re.compile(re.escape(f"[{NOT_FINITE}]") + r" \[(-?\d+)\] \[(\d+)\] \[(.*?)\]")
_MADE_IN_STEP = "tf.function only supports singleton tf.Variables created on the first call"


@contextlib.contextmanager
def explained(model: keras.Model) -> Iterator[None]:
    """Inside the block, what a step cannot do is told as a `ModelError`.

    Args:
        model: The model that is trained.

    Raises:
        ModelError: A loss is not finite, or a layer makes a variable in a step.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        values = _VALUES.search(str(error.message))
        if values is None:
            raise
        step, replica, loss = values.groups()
        raise ModelError(
            asked=f"fit the model {model.name!r}",
            found=f"a loss of {loss} on replica {replica} in step {int(step) + 1}, counted as "
            "optimizer.iterations does; the weights are those before it",
            do="look for a learning rate that is too large, a log or a division by 0, and NaN in "
            "the data; keras.callbacks.TerminateOnNaN() ends training there without an error",
        ) from error
    except ValueError as error:
        if UNSEEDED in str(error):
            raise ModelError(
                asked=f"fit the model {model.name!r}",
                found="a layer that calls keras.random without a seed: replicas would draw from "
                "one state, which none of them may write",
                do="make a generator in the layer's __init__, self.generator = "
                "keras.random.SeedGenerator(seed), and give keras.random seed=self.generator",
            ) from error
        if _MADE_IN_STEP in str(error):
            raise ModelError(
                asked=f"fit the model {model.name!r}",
                found="a layer that makes a variable in the step",
                do="create weights and other layers in __init__() or build(), not in call()",
            ) from error
        raise


def check_inputs(model: keras.Model, spec: Any) -> None:
    """Names the input that the data do not fit, of a model whose inputs are known.

    Args:
        model: A model.
        spec: What one replica gets of a batch, as specs.

    Raises:
        DatasetError: A dimension differs.
    """
    x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
    inputs = keras.tree.flatten(getattr(model, "inputs", None) or [])
    parts = keras.tree.flatten(x)
    if len(inputs) != len(parts):
        return
    for expected, found in zip(inputs, parts, strict=True):
        shape = tf.TensorShape(expected.shape)
        # Keras itself adds or drops a last dimension of 1: ranks are left to it.
        if shape.rank == found.shape.rank and not found.shape.is_compatible_with(shape):
            raise DatasetError(
                asked=f"train or evaluate the model {model.name!r}",
                found=f"batches of shape {tuple(found.shape)} for its input {expected.name!r}, "
                f"which takes {expected.shape}",
                do="reshape the data in a map(), or change keras.Input in build()",
            )


@contextlib.contextmanager
def targets_explained(model: keras.Model, spec: Any) -> Iterator[None]:
    """Inside the block, targets that a loss or metric cannot take are told with the outputs.

    Args:
        model: A model.
        spec: What one replica gets of a batch, as specs.

    Raises:
        DatasetError: Keras's loss or metrics refuse the targets.
    """
    try:
        yield
    except ValueError as error:
        if not model.built:
            raise  # the model itself refuses its inputs: Keras's text names the layer
        _, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
        targets = ", ".join(str(tuple(part.shape)) for part in keras.tree.flatten(y))
        names = getattr(model, "output_names", None) or [model.layers[-1].name]
        shapes = keras.tree.flatten(getattr(model, "outputs", None) or [])
        outputs = ", ".join(
            f"{name!r} {part.shape}" for name, part in zip(names, shapes, strict=False)
        )
        raise DatasetError(
            asked=f"train or evaluate the model {model.name!r}",
            found=f"targets of shape {targets} for outputs {outputs}: {error}",
            do="change the targets in a map(), the last layer's units, or the loss",
        ) from error
