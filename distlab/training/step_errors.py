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
from distlab.training.splitting import parts_explained

# What TensorFlow or distlab says inside a step: what it means, and what to do.
_REFUSALS: dict[str, dict[str, str]] = {
    "You must specify an aggregation method to update a": {
        "found": "something in the step that writes a variable of which all replicas share one "
        "copy under CentralStorageStrategy: an assignment to a trainable weight, a constraint, an "
        "optimizer with a schedule of its own (Nadam), a layer such as SpectralNormalization",
        "do": "leave it out, or take dl.make_strategy('mirrored')",
    },
    "`merge_call` called while defining a new graph": {
        "found": "a gather inside tf.cond, tf.while_loop or tf.map_fn, where replicas cannot wait "
        "for each other",
        "do": "call dl.all_gather outside of it",
        "pitfall": "An all-reduce in an if: a merge_call error, or a hang",
    },
    "tf.function only supports singleton tf.Variables created on the first call": {
        "found": "a layer that makes a variable in the step",
        "do": "create weights and other layers in __init__() or build(), not in call()",
    },
}


# How TensorFlow says that tensors have other sizes than an operation takes.
_SIZES = re.compile("ncompatible shapes|size-incompatible|must have the same|differ in their rows")


@contextlib.contextmanager
def explained(model: keras.Model, *, doing: str = "train or evaluate") -> Iterator[None]:
    """Inside the block, what a step cannot do is told as a `ModelError`."""
    asked = f"{doing} the model {model.name!r}"
    several = model.distribute_strategy.num_replicas_in_sync > 1
    try:
        with parts_explained(model.distribute_strategy.num_replicas_in_sync):
            yield
    except tf.errors.InvalidArgumentError as error:
        told = told_in(str(error.message))
        if told is None and _SIZES.search(str(error.message)) and several:
            raise ModelError(
                asked=asked,
                found=f"a layer that takes the rows of a whole batch, and not a replica's own: "
                f"{_line_that_says(_SIZES, error)}",
                do="take the number of examples from keras.ops.shape(x)[0], and not from a "
                "constant such as BATCH_SIZE; or give the layer an attribute whole_batch = True",
            ) from error
        if told is None:
            raise
        step, replica, loss, applied = told
        where = f" on replica {replica}" if replica >= 0 else ""
        weights = "the weights are those before it"
        if applied:
            weights = "the weights have its update already, as XLA drops checks inside a step"
        if describe(model.distribute_strategy).kind == "parameter_server":
            where, weights = " on a worker", "the weights may have later steps of other workers"
        raise ModelError(
            asked=asked,
            found=f"a loss of {loss}{where} in step {step + 1}, counted as "
            f"optimizer.iterations does; {weights}",
            do="look for a learning rate that is too large, a log or a division by 0, and NaN in "
            "the data; keras.callbacks.TerminateOnNaN() ends training there without an error",
        ) from error
    except (ValueError, RuntimeError) as error:
        if isinstance(error.__context__, DistlabError):  # Keras wraps what a layer raises
            raise error.__context__ from None
        for text, parts in _REFUSALS.items():
            if text in str(error):
                raise ModelError(asked=asked, **parts) from error
        raise


def _line_that_says(text: re.Pattern[str], error: Exception) -> str:
    plain = re.sub(r"\x1b\[\d*m|\{\{.*?\}\}|\[Op:.*", "", str(error))
    return next(line.strip() for line in plain.splitlines() if text.search(line))


@contextlib.contextmanager
def files_explained() -> Iterator[None]:
    """Inside the block, data of which workers cannot share the files are told as `DatasetError`."""
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
    """Names the input that the data do not fit, of a model whose inputs are known."""
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
    """Raises where a loss compares with targets, and the data have none."""
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
    """Inside the block, targets that a loss or metric cannot take are told with the outputs."""
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
