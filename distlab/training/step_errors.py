"""What a step cannot do, found before it or explained after it, with what to do.

A loss that is not finite stops training: an assertion in the step comes before its update. XLA
drops assertions: what it compiles notes the loss in a variable, which is looked at after the step,
and so after its update.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DatasetError, DistlabError, ModelError
from distlab.strategy.description import describe
from distlab.training.keras_private import models

_UNEQUAL = "distlab: the parts of a batch have different first dimensions"
_ROWS = re.compile(rf"\[{_UNEQUAL}\] \[([\d ]+)\]")

_BEFORE = "distlab: the loss is not finite, before the update"
_AFTER = "distlab: the loss is not finite, after the update"
_LOSS = re.compile(rf"\[({_BEFORE}|{_AFTER})\] \[(-?\d+)\] \[(-?\d+)\] \[(.*?)\]")

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
        with _parts_explained(model.distribute_strategy.num_replicas_in_sync):
            yield
    except tf.errors.InvalidArgumentError as error:
        reported = _loss_in(str(error.message))
        if reported is None and _SIZES.search(str(error.message)) and several:
            raise ModelError(
                asked=asked,
                found=f"a layer that takes the rows of a whole batch, and not a replica's own: "
                f"{_line_that_says(_SIZES, error)}",
                do="take the number of examples from keras.ops.shape(x)[0], and not from a "
                "constant such as BATCH_SIZE; or give the layer an attribute whole_batch = True",
            ) from error
        if reported is None:
            raise
        step, replica, loss, applied = reported
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


def check_parts(batch: Any, replicas: int) -> None:
    """Raises if the known shapes of a batch show a part that does not have a row per example."""
    shapes = {
        _name_of(path): part.shape
        for path, part in keras.tree.flatten_with_path(batch)
        if isinstance(getattr(part, "shape", None), tf.TensorShape)
    }
    known = {name: shape for name, shape in shapes.items() if shape.rank is not None}
    if replicas == 1:
        return
    if single := [name for name, shape in known.items() if shape.rank == 0]:
        raise _indivisible(f"{single[0]} of shape (), which has no examples", replicas)
    if len({shape[0] for shape in known.values()} - {None}) > 1:
        raise _unequal([f"{shape[0]} ({name})" for name, shape in known.items()], replicas)


def _name_of(path: tuple[Any, ...]) -> str:
    """What a part of a batch is called, as in "inputs['age']"."""
    first, *keys = path or (0,)
    if not isinstance(first, int):
        first, keys = 0, list(path)
    name = ("inputs", "targets", "sample weights")[first] if first < 3 else f"part {first}"
    return name + "".join(f"[{key!r}]" for key in keys)


@contextlib.contextmanager
def _parts_explained(replicas: int) -> Iterator[None]:
    """Inside the block, parts of a batch that turn out to be unequal in a step are explained."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _ROWS.search(str(error.message))
        if found is None:
            raise
        raise _unequal(found[1].split(), replicas) from error


def _unequal(rows: list[str], replicas: int) -> DatasetError:
    return _indivisible(f"parts whose first dimensions are {', '.join(rows)}", replicas)


def _indivisible(found: str, replicas: int) -> DatasetError:
    return DatasetError(
        asked=f"divide a batch among {replicas} replicas",
        found=found,
        do="give each part of a batch one row for each example: call batch() on the data set, and "
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
        condition=tf.math.is_finite(loss), data=[_BEFORE, step, replica, loss], summarize=1
    )


def is_compiled_by_xla(model: keras.Model) -> bool:
    """Whether `jit_compile` lets XLA compile the steps of a model; on a TPU it always does.

    XLA cannot place variables of several logical devices; Keras leaves it off there too.
    """
    one_replica = model.distribute_strategy.num_replicas_in_sync == 1
    return bool(one_replica and model.jit_compile and not model.run_eagerly)


class NotedLoss:
    """The first loss of a step that is not finite, held for a look after the step."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        with strategy.scope():  # [the step's number from 1, or 0 for no such loss; the loss]
            self._held = tf.Variable([0.0, 0.0], dtype=tf.float64, trainable=False)

    def note(self, loss: tf.Tensor, *, step: tf.Tensor) -> tf.Tensor:
        """Notes the loss if it is not finite; returns what makes sure of it."""
        mark = tf.stack([tf.cast(step, tf.float64) + 1, tf.cast(loss, tf.float64)])
        keeps = tf.math.is_finite(loss) | (self._held[0] > 0)
        return self._held.assign(tf.where(keeps, self._held, mark))

    def look(self) -> None:
        """Fails if such a loss was noted, and forgets it. Call it where operations keep order."""
        number, loss = tf.unstack(tf.identity(self._held))
        with tf.control_dependencies([number]):
            forgotten = self._held.assign([0.0, 0.0])
        with tf.control_dependencies([forgotten]):
            report = [_AFTER, tf.cast(number, tf.int64) - 1, tf.constant(0), loss]
            tf.raw_ops.Assert(condition=tf.equal(number, 0), data=report, summarize=1)


def _loss_in(message: str) -> tuple[int, int, str, bool] | None:
    """Returns step, replica, loss, and whether its update was applied; None of another error."""
    found = _LOSS.search(message)
    if found is None:
        return None
    return int(found[2]), int(found[3]), found[4], found[1] == _AFTER
