"""What one replica does in one step, so that N replicas take the step of one device.

Each replica computes its part of the loss of the global batch: its share is counted, not
assumed, so a partial batch, or a replica without examples, is exact. Gradients are summed over
the replicas, and only then does the optimizer see them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container
from typing import Any

import keras
import tensorflow as tf

from distlab.strategy.describing import describe
from distlab.training.finite_losses import NotedLoss, assert_finite
from distlab.training.keras_private import losses, models, moments, optimizers, states
from distlab.training.keras_private.batch import Batch, working_on
from distlab.training.keras_private.hooks import using
from distlab.training.keras_private.loss_parts import part_of
from distlab.training.keras_private.share_hooks import CountingByShare
from distlab.training.reducing import after, sum_over_replicas
from distlab.training.splitting import at_least_one, share_of
from distlab.training.trial.draws import same_draws_on
from distlab.training.trial.findings import Findings
from distlab.training.workers.exchanging import workers_of

# What a replica saw: "y", "y_pred", the "masks" of these, "sample_weight", "x" (those of them that
# there are and metrics want); its part of the "loss" and of the losses of single "outputs"; its
# "examples", and how many "in_all" the batch has; what its layers have "written".
Seen = dict[str, Any]

# The gradients of the global batch, by position of the trainable variable (those that have one).
Gradients = dict[str, Any]


def pads(model: keras.Model) -> bool:
    """Whether a replica without an example gets one that does not count, in place of none.

    Not where layers of an unknown kind look at the examples of all replicas together.

    Args:
        model: A model.
    """
    return not any(
        getattr(layer, "synchronized", False) and not moments.are_known(layer)
        for layer in models.layers(model)
    )


def train_step(
    model: keras.Model,
    *,
    check_finite: bool,
    noted: NotedLoss | None = None,
    found: Findings | None = None,
) -> Callable[..., tuple[Seen, Gradients]]:
    """Returns the function that learns from one replica's part of a batch.

    It returns what was seen, and the gradients of the global batch, the same on all replicas.
    `apply` takes the step with them. Random layers draw by the number of the step: what the
    optimizer has counted, unless a third argument says it.

    Args:
        model: A prepared model.
        check_finite: Whether to stop before the update where the loss is not a number.
        noted: Where XLA compiles the step, takes such a loss; then nothing stops before the update.
        found: What a trial of the step has found; filled before the step is first traced.
    """
    reduce = reducer(model, check_finite=check_finite, noted=noted)

    def step(
        data: Any, in_all: tf.Tensor | None, number: tf.Tensor | None = None
    ) -> tuple[Seen, Gradients]:
        batches = optimizers.batches_seen(model.optimizer) if number is None else number
        with tf.GradientTape() as tape:
            seen, batch = _forward(model, data, in_all, step=batches, training=True, found=found)
            scaled = model.optimizer.scale_loss(seen["loss"])
        gradients = tape.gradient(scaled, model.trainable_variables)
        there = {str(i): one for i, one in enumerate(gradients) if one is not None}
        if not pads(model) or in_all is None:
            there = without_examples_none(there, batch)
        alike = found.alike[0] if found is not None and found.alike else ()
        return seen, reduce(seen["loss"], there, step=batches, alike=alike)

    return step


def without_examples_none(there: Gradients, batch: Batch) -> Gradients:
    """Returns the gradients, zeros on a replica without an example: there they may be NaN.

    Args:
        there: This replica's gradients.
        batch: What it has of the batch.
    """
    context = tf.distribute.get_replica_context()
    if not there or context.num_replicas_in_sync == 1:
        return there
    values = {key: getattr(one, "values", one) for key, one in there.items()}
    values = tf.cond(
        batch.examples > 0, lambda: values, lambda: tf.nest.map_structure(tf.zeros_like, values)
    )
    return {key: _with_values(one, values[key]) for key, one in there.items()}


def reducer(
    model: keras.Model, *, check_finite: bool, noted: NotedLoss | None = None
) -> Callable[..., Gradients]:
    """Returns the function that makes the gradients of the global batch of each replica's.

    It takes this replica's part of the loss, its gradients and, as `step`, the step's number;
    as `alike` the keys of sparse gradients of which every replica has the same slices, or some.

    Args:
        model: A prepared model.
        check_finite: Whether to stop before the update where the loss is not a number.
        noted: See `train_step`.
    """
    several_workers = workers_of(model.distribute_strategy).count > 1

    def reduce(
        loss: tf.Tensor, there: Gradients, *, step: tf.Tensor, alike: Container[str] = ()
    ) -> Gradients:
        if noted is not None:
            there = _after(noted.note(loss, step=step), there)
        elif check_finite and not several_workers:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            there = _after(assert_finite(loss, step=step, replica=replica), there)
        else:
            there = _after(loss, there)
        if there:
            # Where one worker stopped the others would wait for it: all look at all losses.
            told = [_at_own_place(loss)] if check_finite and several_workers else []
            indices = {index for index, key in enumerate(there) if key in alike}
            summed = sum_over_replicas([*there.values(), *told], alike=indices)
            there = dict(zip(there, summed, strict=False))
            for all_losses in summed[len(there) :]:
                worst = tf.argmin(tf.cast(tf.math.is_finite(all_losses), tf.int32))
                check = assert_finite(all_losses[worst], step=step, replica=worst)
                there = _after(check, there)
        return there

    return reduce


def apply(model: keras.Model, gradients: Gradients) -> None:
    """Takes the optimizer's step, in a replica's function, inside `hooks.installed`.

    Args:
        model: A compiled model.
        gradients: What `train_step` returned.
    """
    variables = model.trainable_variables
    if not variables:
        warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        return
    pairs = [(gradients.get(str(index)), one) for index, one in enumerate(variables)]
    model.optimizer.apply_gradients(pairs)


def test_step(model: keras.Model, found: Findings | None = None) -> Callable[..., Seen]:
    """Returns the function that evaluates one replica's part of a batch.

    Args:
        model: A prepared model.
        found: See `train_step`.
    """

    def step(data: Any, in_all: tf.Tensor | None, number: tf.Tensor | None = None) -> Seen:
        number = tf.cast(models.examples_logged(model), tf.int64) if number is None else number
        return _forward(model, data, in_all, step=number, training=False, found=found)[0]

    return step


def update_metrics(model: keras.Model, seen: Seen, *, replicas: int) -> None:
    """Adds what was seen to the model's metrics.

    Args:
        model: A compiled model.
        seen: What a step returned on this replica, or on all of them together.
        replicas: Over how many replicas this is called for one batch.
    """
    # Parts add up to the batch's loss, which counts once an example.
    models.track_loss(model, seen["loss"] * replicas, seen["in_all"] / replicas)
    outputs = [part * replicas for part in seen["outputs"]]
    losses.log_outputs(model, outputs, tf.constant(1 / replicas))
    y_pred = tf.nest.flatten(seen["y_pred"])
    for index, mask in seen["masks"].items():
        y_pred[int(index)] = models.with_mask(y_pred[int(index)], mask)
    y_pred = tf.nest.pack_sequence_as(seen["y_pred"], y_pred)
    batch = Batch(seen["examples"], seen["in_all"])
    with working_on(batch), using(CountingByShare(batch)):
        model.compute_metrics(seen.get("x"), seen.get("y"), y_pred, seen.get("sample_weight"))


def join(parts: list[Seen]) -> Seen:
    """Returns what all replicas saw together.

    Args:
        parts: What each replica saw, in replica order.
    """

    def joined(name: str) -> Any:
        each = [part[name] for part in parts]
        if name in ("loss", "outputs", "examples"):
            return tf.nest.map_structure(lambda *values: tf.add_n(values), *each)
        if name in ("in_all", "written"):
            return each[0]
        return tf.nest.map_structure(
            lambda *arrays: None if arrays[0] is None else tf.concat(arrays, 0), *each
        )

    return {name: joined(name) for name in parts[0]}


def _forward(
    model: keras.Model, data: Any, in_all: Any, *, step: tf.Tensor, training: bool, found: Any
) -> tuple[Seen, Batch]:
    alone = model.distribute_strategy.num_replicas_in_sync == 1
    batch = count(keras.utils.unpack_x_y_sample_weight(data)[0], in_all)
    if in_all is None and pads(model) and not alone:
        data = at_least_one(data)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    central = describe(model.distribute_strategy).kind == "central_storage"
    known = {"means": found.means, "same_weights": found.same_weights} if found else {}
    with (
        states.step_of(model, step=step) as written,
        part_of(batch) as outputs,
        using(CountingByShare(batch, **known, one_copy=central)),
        same_draws_on(batch),
    ):
        y_pred = models.predict(model, x, training=training)
        loss = losses.compiled(model, y, y_pred, sample_weight, added=found.added if found else ())
    masks = {str(i): models.mask_of(part) for i, part in enumerate(tf.nest.flatten(y_pred))}
    arrays = {
        "y": y,
        "y_pred": y_pred,
        "masks": {index: mask for index, mask in masks.items() if mask is not None},
        "sample_weight": sample_weight,
        "x": x if models.overrides(model, "compute_metrics") else None,
    }
    seen = {name: array for name, array in arrays.items() if array is not None}
    if pads(model) and not alone:
        seen = tf.nest.map_structure(batch.rows_that_count, seen)
    seen |= {
        "loss": loss,
        "outputs": outputs,
        "examples": batch.examples,
        "in_all": batch.in_all,
        "written": states.agree(model, written, batch.share),
    }
    return seen, batch


def _with_values(gradient: Any, values: tf.Tensor) -> Any:
    """The values, in the rows of a gradient that is sparse."""
    if not isinstance(gradient, tf.IndexedSlices):
        return values
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def _at_own_place(loss: tf.Tensor) -> tf.Tensor:
    """Zeros but for this replica's loss, so that the sum has all; 0 times NaN would be NaN."""
    context = tf.distribute.get_replica_context()
    places = tf.range(context.num_replicas_in_sync)
    return tf.where(places == context.replica_id_in_sync_group, loss, tf.zeros_like(loss))


def _after(done: Any, gradients: Gradients) -> Gradients:
    """The gradients, once that is done: no replica updates before."""
    return dict(zip(gradients, after([done], list(gradients.values())), strict=True))


def count(x: Any, in_all: tf.Tensor | None, *, as_mean: bool = False) -> Batch:
    """Returns how many examples this replica has, of how many.

    Args:
        x: This replica's inputs.
        in_all: How many examples the global batch has, None where they have to be counted.
        as_mean: See `Batch`.
    """
    context = tf.distribute.get_replica_context()
    if in_all is not None:
        index, replicas = context.replica_id_in_sync_group, context.num_replicas_in_sync
        first, end = share_of(index, replicas, in_all)
        examples = tf.cast(end - first, tf.float32)
        return Batch(examples, tf.cast(in_all, tf.float32), as_mean)
    given = next(part for part in tf.nest.flatten(x) if part is not None)
    examples = tf.cast(tf.shape(given)[0], tf.float32)
    return Batch(examples, context.all_reduce(tf.distribute.ReduceOp.SUM, examples), as_mean)
