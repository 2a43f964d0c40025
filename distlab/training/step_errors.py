"""Explains errors of a training step, and says what to do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DatasetError, DistlabError, ModelError
from distlab.strategy.describing import describe
from distlab.training.finite_losses import told_in
from distlab.training.keras_private import models
from distlab.training.keras_private.states import UNSEEDED, WRITTEN_TWICE
from distlab.training.splitting import parts_explained

# What TensorFlow or distlab says inside a step: what it means, and what to do.
_REFUSALS: dict[str, dict[str, str]] = {
    UNSEEDED: {
        "found": "a layer that calls keras.random without a seed: replicas would draw from one "
        "state, which none of them may write",
        "do": "make a generator in the layer's __init__, self.generator = "
        "keras.random.SeedGenerator(seed), and give keras.random seed=self.generator",
    },
    WRITTEN_TWICE: {
        "found": "a layer that is called twice and keeps statistics: under CentralStorageStrategy "
        "the second call would not see what the first wrote",
        "do": "give each call a layer of its own, or take dl.make_strategy('mirrored')",
    },
    "You must specify an aggregation method to update a": {
        "found": "something in the step that writes a variable of which all replicas share one "
        "copy under CentralStorageStrategy: an assignment to a trainable weight, a constraint, an "
        "optimizer with a schedule of its own (Nadam), a layer such as SpectralNormalization",
        "do": "leave it out, or take dl.make_strategy('mirrored')",
    },
    "`merge_call` called while defining a new graph": {
        "found": "a gradient or an update inside tf.cond, tf.while_loop or tf.map_fn, where "
        "replicas cannot wait for each other",
        "do": "take the gradient outside, and let the condition choose what is applied: "
        "tf.where(condition, gradient, 0)",
        "pitfall": "An all-reduce in an if: a merge_call error, or a hang",
    },
    "tf.function only supports singleton tf.Variables created on the first call": {
        "found": "a layer that makes a variable in the step",
        "do": "create weights and other layers in __init__() or build(), not in call()",
    },
}


@contextlib.contextmanager
def explained(model: keras.Model, *, doing: str = "train or evaluate") -> Iterator[None]:
    """Inside the block, what a step cannot do is told as a `ModelError`.

    Args:
        model: The model that is trained.
        doing: What was asked, to be followed by "the model".

    Raises:
        ModelError: A loss is not finite, or a layer does what no step under a strategy can.
        DatasetError: The parts of a batch cannot be divided among the replicas.
    """
    asked = f"{doing} the model {model.name!r}"
    try:
        with parts_explained(model.distribute_strategy.num_replicas_in_sync):
            yield
    except tf.errors.InvalidArgumentError as error:
        told = told_in(str(error.message))
        if told is None:
            raise
        step, replica, loss, applied = told
        where, weights = f"replica {replica}", "the weights are those before it"
        if applied:
            weights = "the weights have its update already, as XLA drops checks inside a step"
        if describe(model.distribute_strategy).kind == "parameter_server":
            where, weights = "a worker", "the weights may have later steps of other workers"
        raise ModelError(
            asked=asked,
            found=f"a loss of {loss} on {where} in step {step + 1}, counted as "
            f"optimizer.iterations does; {weights}",
            do="look for a learning rate that is too large, a log or a division by 0, and NaN in "
            "the data; keras.callbacks.TerminateOnNaN() ends training there without an error",
        ) from error
    except (ValueError, RuntimeError) as error:
        for text, parts in _REFUSALS.items():
            if text in str(error):
                raise ModelError(asked=asked, **parts) from error
        raise


@contextlib.contextmanager
def share_explained(model: keras.Model, examples: int, in_all: int) -> Iterator[None]:
    """Inside the block, a step that has taken a whole batch takes a share of it.

    Args:
        model: The model that is trained.
        examples: How many the share has.
        in_all: How many the batch has.

    Raises:
        ModelError: The step does not take so few examples.
    """
    try:
        yield
    except DistlabError:
        raise
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        raise ModelError(
            asked=f"train or evaluate the model {model.name!r} on several replicas",
            found=f"a step that takes a batch of {in_all} examples, and not a replica's share of "
            f"{examples}: {in_short(error)}",
            do="take the number of examples from keras.ops.shape(x)[0], and not from a constant "
            "such as BATCH_SIZE or keras.Input(batch_size=...)",
        ) from error


def in_short(error: Exception) -> str:
    """The line of an error that says what is wrong."""
    text = re.sub(r"\x1b\[\d*m|\{\{.*?\}\}|\[Op:.*", "", str(error))
    around = ("Exception encountered", "Arguments received")
    lines = [line.strip() for line in text.splitlines() if not line.startswith(around)]
    return next(filter(None, lines), type(error).__name__)


@contextlib.contextmanager
def files_explained() -> Iterator[None]:
    """Inside the block, data of which workers cannot share the files are told as `DatasetError`.

    Raises:
        DatasetError: There are fewer files than workers, or none.
    """
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
        few = re.search(
            r"the dataset only has (\d+) file.*? the required (\d+)", str(error.message)
        )
        if few is None and "unshardable source dataset" not in str(error.message):
            raise
        raise DatasetError(
            asked="share the files of a data set (the auto-shard policy FILE)",
            found="a data set that is read from no files"
            if few is None
            else f"{few[1]} files for {few[2]} workers",
            do="write at least one file for each worker, or leave the policy out: each then reads "
            "all examples and keeps its part of every batch (DATA)",
            pitfall="Fewer files than workers: a hang at the first batch",
        ) from error


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
    if isinstance(x, dict) and {tensor.name for tensor in inputs} <= set(x):
        parts = [x[tensor.name] for tensor in inputs]  # as Keras does: by name
    else:
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


def check_targets(model: keras.Model, spec: Any) -> None:
    """Raises where a loss compares with targets, and the data have none.

    Args:
        model: A compiled model.
        spec: What one replica gets of a batch, as specs.

    Raises:
        DatasetError: There are no targets.
    """
    _, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
    own = models.has_own(model, "train_step", "test_step", "compute_loss")
    if y is None and model.loss is not None and not own:
        raise DatasetError(
            asked=f"train or evaluate the model {model.name!r}",
            found="data without targets, and a model that was compiled with a loss",
            do="give pairs (x, y), or compile without a loss and let a layer call add_loss()",
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
        _, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
        told_by_loss = any(word in str(error) for word in ("target", "y_true", "label"))
        if not model.built or y is None or not told_by_loss:
            raise  # Keras's text names the layer, or the user's own code is to blame
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
