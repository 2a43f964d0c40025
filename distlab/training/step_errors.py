"""Errors for what a step cannot do, found before it or explained after it.

A loss that is not finite stops training: an assertion in the step comes before its update. XLA
drops assertions, so of what it compiles the logged loss is looked at, after the update.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import DatasetError, DistlabError, ModelError
from distlab.strategy.description import describe
from distlab.training.keras_private import models

_UNEQUAL = "distlab: the parts of a batch have different first dimensions"
_ROWS = re.compile(rf"\[{_UNEQUAL}\] \[([\d ]+)\]")

_NOT_FINITE = "distlab: the loss is not finite"
_LOSS = re.compile(rf"\[{_NOT_FINITE}\] \[(-?\d+)\] \[(-?\d+)\] \[(.*?)\]")

# What TensorFlow or distlab says inside a step: what it means, and what to do.
_ONE_COPY = {
    "found": "something in the step that writes a trainable weight, as SpectralNormalization does, "
    "where all replicas or workers share one copy of it",
    "do": "leave it out, or take dl.make_strategy('mirrored')",
}
_REFUSALS: dict[str, dict[str, str]] = {
    "You must specify an aggregation method to update a": _ONE_COPY,
    # What was written is a tensor, and not the weight.
    "Tensor' object has no attribute 'handle'": _ONE_COPY,
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
    """Inside the block, what a step cannot do raises a `ModelError` or a `DatasetError`."""
    asked, strategy = f"{doing} the model {model.name!r}", model.distribute_strategy
    replicas = strategy.num_replicas_in_sync
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        message = str(error.message)
        if rows := _ROWS.search(message):
            raise _unequal(rows[1].split(), replicas) from error
        if lost := _LOSS.search(message):
            step, replica, loss = int(lost[1]), int(lost[2]), lost[3]
            where = f" on replica {replica}" if replica >= 0 else ""
            weights = "the weights are those before it"
            if describe(strategy).kind == "parameter_server":
                where, weights = " on a worker", "the weights may have later steps of other workers"
            raise _not_finite(asked, f"a loss of {loss}{where} in", step + 1, weights) from error
        if replicas > 1 and _SIZES.search(message):
            raise ModelError(
                asked=asked,
                found=f"a layer that takes the rows of a whole batch, and not a replica's own: "
                f"{_line_that_says(_SIZES, error)}",
                do="take the number of examples from keras.ops.shape(x)[0], and not from a "
                "constant such as BATCH_SIZE; or set the layer's attribute whole_batch = True",
            ) from error
        raise
    except Exception as error:
        if own := _own_error(error):
            raise own from None
        for text, parts in _REFUSALS.items():
            if text in str(error):
                raise ModelError(asked=asked, **parts) from error
        raise


def _own_error(error: BaseException | None) -> DistlabError | None:
    """Returns the error of distlab's that Keras or AutoGraph has wrapped, or None."""
    while error is not None and not isinstance(error, DistlabError):
        error = error.__cause__ or error.__context__
    return error


def _not_finite(asked: str, loss: str, step: int, weights: str) -> ModelError:
    return ModelError(
        asked=asked,
        found=f"{loss} step {step}, counted as optimizer.iterations does; {weights}",
        do="look for a learning rate that is too large, a log or a division by 0, and NaN in "
        "the data; keras.callbacks.TerminateOnNaN() ends training there without an error",
    )


def check_logged_loss(model: keras.Model, logs: dict[str, tf.Tensor]) -> None:
    """Raises where the loss of an execution that XLA has compiled is not finite."""
    if "loss" in logs and not np.isfinite(loss := float(logs["loss"])):
        step = int(model.optimizer.iterations.numpy())
        weights = "the weights have its update already, as XLA drops checks inside a step"
        asked = f"train the model {model.name!r}"
        raise _not_finite(asked, f"a loss of {loss}, not later than", step, weights)


def _line_that_says(text: re.Pattern[str], error: Exception) -> str:
    plain = re.sub(r"\x1b\[\d*m|\{\{.*?\}\}|\[Op:.*", "", str(error))
    return next(line.strip() for line in plain.splitlines() if text.search(line))


def check_targets(model: keras.Model, spec: Any) -> None:
    """Raises where a loss compares with targets, and the data have none."""
    _, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
    own = models.has_own(model, "train_step", "test_step", "compute_loss")
    if y is None and model.loss is not None and not own:
        raise DatasetError(
            asked=f"train or evaluate the model {model.name!r}",
            found="data without targets, and a model that was compiled with a loss",
            do="pass pairs (x, y), or compile without a loss and let a layer call add_loss()",
        )


def check_parts(batch: Any, replicas: int) -> None:
    """Raises if the known shapes of a batch show a part that does not have a row per example."""
    shapes = [getattr(part, "shape", None) for part in tf.nest.flatten(batch)]
    known = [
        shape for shape in shapes if isinstance(shape, tf.TensorShape) and shape.rank is not None
    ]
    if replicas == 1:
        return
    if any(shape.rank == 0 for shape in known):
        raise _indivisible("a part of shape (), which has no examples", replicas)
    if len({shape[0] for shape in known} - {None}) > 1:
        raise _unequal([str(shape[0]) for shape in known], replicas)


def _unequal(rows: list[str], replicas: int) -> DatasetError:
    return _indivisible(f"parts whose first dimensions are {', '.join(rows)}", replicas)


def _indivisible(found: str, replicas: int) -> DatasetError:
    return DatasetError(
        asked=f"divide a batch among {replicas} replicas",
        found=found,
        do="call batch() on the data set, so that each part has one row for each example, and "
        "keep what all examples share in the model, as a constant or a non-trainable weight",
    )


def check_batch(batch: Any, replicas: int) -> None:
    """Raises, or lets the step fail, where parts of a batch do not have as many rows."""
    parts = [part for part in tf.nest.flatten(batch) if part is not None]
    if not any(isinstance(part, tf.distribute.DistributedValues) for part in parts):
        check_parts(parts, replicas)
        _assert_equal_rows(parts)
        return
    for of_replica in zip(*(getattr(part, "values", [part]) for part in parts), strict=False):
        _assert_equal_rows(list(of_replica))


def _assert_equal_rows(parts: list[Any]) -> None:
    dense = [part for part in parts if isinstance(part, tf.Tensor | tf.RaggedTensor)]
    if len(dense) < 2 or all(part.shape[0] is not None for part in dense):
        return
    rows = tf.stack([tf.cast(tf.shape(part)[0], tf.int64) for part in dense])
    same = tf.reduce_all(tf.equal(rows, rows[0]))
    tf.raw_ops.Assert(condition=same, data=[_UNEQUAL, rows], summarize=len(dense))


def assert_finite(loss: tf.Tensor, *, step: tf.Tensor, replica: tf.Tensor) -> tf.Operation | None:
    """Returns the operation that fails where the loss is not finite."""
    # The bare operation: tf.debugging.Assert costs a condition more.
    return tf.raw_ops.Assert(
        condition=tf.math.is_finite(loss), data=[_NOT_FINITE, step, replica, loss], summarize=1
    )


def is_compiled_by_xla(model: keras.Model) -> bool:
    """Whether `jit_compile` lets XLA compile the steps of a model; on a TPU it always does.

    XLA cannot place variables of several logical devices; Keras leaves it off there too.
    """
    one_replica = model.distribute_strategy.num_replicas_in_sync == 1
    return bool(one_replica and model.jit_compile and not model.run_eagerly)
