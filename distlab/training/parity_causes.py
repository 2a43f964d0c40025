"""Why a strategy left the steps of one device, found by experiments and not by guessing.

Each suspect is taken out of the model, or of the data, on both sides alike; where the difference
goes with it, that is the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import keras
import numpy as np
import tensorflow as tf

from distlab.training.keras_private import models
from distlab.training.keras_private.models import inner
from distlab.training.parity_runs import (
    MOSTLY_NOISE,
    Batches,
    Case,
    Change,
    Comparison,
    Start,
    compare,
    moves,
    plain_names,
    seeds_of,
    updates,
)

_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_NOT_REPEATED = 0.01  # of a weight's movement, with other random numbers: less is rounding
_OTHER_SEED = 8_675_321  # any number that nobody else is likely to take
_SAME_FACTOR = 0.02  # relative; what SGD(1.0) leaves of float32 after one step is far below


@dataclass(frozen=True)
class Cause:
    """Why the sides differ, and what to do."""

    why: str
    do: str


@dataclass(frozen=True, kw_only=True)
class _Suspect:
    cause: Cause
    change: Change | None = None
    batches: Batches | None = None


def find_cause(case: Case, found: Comparison, loss: Factor | None) -> Cause:
    """Why the sides differ; `loss` is the factor of the loss, where it was measured."""
    assert found.first is not None
    step, _ = found.first
    if known := _without_strategy(case, found, step):
        return known
    if unequal := _own_updates(found, step):
        return unequal
    replicas = case.strategy.num_replicas_in_sync
    if loss is not None and (wrong := _wrong_scale(loss, replicas)):
        return wrong
    stopped: list[str] = []
    for suspect in _suspects(case, found):
        experiment = replace(
            case,
            changes=(suspect.change,) if suspect.change else (),
            batches=(suspect.batches or case.batches).up_to(step + 1),
        )
        try:
            if compare(experiment, like=found).first is None:
                return suspect.cause
        except Exception as error:  # a user's loop may need what was taken out of the model
            stopped.append(type(error).__name__)
    loss = loss or loss_factor(case, found.one.start)
    but = f" ({', '.join(stopped)} in an experiment)" if stopped else ""
    return _wrong_scale(loss, replicas) or Cause(
        f"not found{but}: the difference stays without regularisers, without clipping and with the "
        "same examples on every replica, and is no common factor",
        "take layers, and parts of the optimizer, out of build() one by one; or compare the "
        "gradients of one batch by hand, replica by replica",
    )


def _without_strategy(case: Case, found: Comparison, step: int) -> Cause | None:
    """What lets one device alone come to lie elsewhere, too."""

    def differs_again(again: Case, share: float) -> bool:
        _, elsewhere = moves(again, found.one, found.path, share=share)
        return bool(elsewhere[~found.noise.rounding_only].any())

    drawn = replace(case, changes=(*case.changes, _reseed))
    if case.train != "distribute" and differs_again(drawn, _NOT_REPEATED):
        left = ", ".join(plain_names(found.one.left, found.other.left))
        drawer = f"layer {left} draws" if left else "something in the model draws"
        return Cause(
            f"{drawer} random numbers in each step, which could not be switched off: with other "
            "seeds one device takes other steps too, so nothing can be equal",
            "leave it out of the model that you check, or give it a rate that is 0 there",
        )
    if found.noise.everywhere:
        return Cause(
            "rounding alone moves most weights as far as training does, on one device too",
            "lower the learning rate, or compute in float64, before comparing",
        )
    reordered = case.batches.reordered()
    if reordered and differs_again(replace(case, batches=reordered), MOSTLY_NOISE):
        return Cause(
            "a step depends on the order of the examples inside a batch, on one device too, and a "
            "replica sees only its share",
            "let no layer and no loss look at the position of an example in its batch",
        )
    if step >= found.finite:
        return Cause(
            f"one device is not finite either: its weights hold nan or inf from step {step + 1} on",
            "lower the learning rate, or look at the data and the loss, before comparing",
        )
    return None


def _own_updates(found: Comparison, step: int) -> Cause | None:
    """Copies of a trainable weight that differ cannot come from one common gradient."""
    apart = (found.apart[step] > found.allowed[step]) & found.one.start.trained()
    if not apart.any():
        return None
    index = int(np.argmax(apart))
    return Cause(
        f"the replicas' own copies of {found.names[index]} are {found.apart[step, index]:.1e} "
        "apart: each replica applied a gradient of its own",
        "add the gradients over the replicas before the update: optimizer.apply inside "
        "strategy.run does it, and so does all_reduce in the replica context",
    )


def _suspects(case: Case, found: Comparison) -> Iterator[_Suspect]:
    one, other, replicas = found.one.model, found.other.model, case.strategy.num_replicas_in_sync

    def names_of(choose: Callable[[keras.layers.Layer], bool]) -> str:
        chosen = [[each.name for each in models.layers(m) if choose(each)] for m in (one, other)]
        return ", ".join(plain_names(*chosen))

    if norms := names_of(lambda layer: _is_batch_norm(layer) and not layer.synchronized):
        cause = Cause(
            f"BatchNormalization ({norms}) takes its mean and variance from each "
            "replica's share of the batch; synchronised, the difference is gone",
            "BatchNormalization(synchronized=True)",
        )
        yield _Suspect(cause=cause, change=synchronise_batch_norms)
    optimizer = inner(other.optimizer)
    clips = [(name, getattr(optimizer, name, None)) for name in _CLIPPING]
    if clip := ", ".join(f"{name}={value}" for name, value in clips if value is not None):
        cause = Cause(
            f"gradients are clipped ({clip}) on each replica, before they are added up; without "
            "clipping the difference is gone",
            "clip the sum: distlab.distribute does; in your own loop, all_reduce first",
        )
        yield _Suspect(cause=cause, change=_stop_clipping)
    if _regularised(one):
        cause = Cause(
            "the regularisers do not count once under the strategy; without them the difference is "
            "gone",
            "let each replica add its part of them to its loss: "
            "tf.nn.scale_regularization_loss(tf.add_n(model.losses))",
        )
        yield _Suspect(cause=cause, change=_zero_regularisers)
    if equal := case.batches.in_equal_shares(replicas):
        sizes = " and ".join(map(str, sorted(set(case.batches.sizes()))))
        cause = Cause(
            f"the {replicas} replicas get unequal shares (batches of {sizes} examples), and the "
            "mean of each counts the same; with equal shares the difference is gone",
            "weigh each example by the global batch: distlab.distribute does; or drop_remainder="
            "True",
        )
        yield _Suspect(cause=cause, batches=equal)
    if alike := case.batches.with_shares_alike(replicas):
        gone = "where every replica gets the same examples, the difference is gone"
        cause = Cause(
            f"something is computed from a replica's own share of the batch; {gone}",
            "look for means, counts and statistics over the batch in layers, losses and the loop",
        )
        if masks := names_of(_masks):
            cause = Cause(
                f"steps are masked ({masks}), in other numbers on each replica, and the "
                f"mean of each replica counts the same; {gone}",
                "divide by the number of steps that count in the global batch",
            )
        yield _Suspect(cause=cause, batches=alike)


def _is_batch_norm(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization)


def _masks(layer: keras.layers.Layer) -> bool:
    embeds = isinstance(layer, keras.layers.Embedding) and layer.mask_zero
    return bool(embeds or isinstance(layer, keras.layers.Masking))


def _regularised(model: keras.Model) -> bool:
    weights = any(weight.regularizer is not None for weight in model.trainable_weights)
    return weights or any(layer.activity_regularizer for layer in models.layers(model))


def synchronise_batch_norms(model: keras.Model) -> None:
    """Lets every BatchNormalization take the statistics of the global batch."""
    for layer in filter(_is_batch_norm, models.layers(model)):
        layer.synchronized = True


def _stop_clipping(model: keras.Model) -> None:
    for name in _CLIPPING:
        setattr(inner(model.optimizer), name, None)


def _zero_regularisers(model: keras.Model) -> None:
    """Regularisers of zero: a loop that adds them up still finds some."""
    nothing = keras.regularizers.L2(0.0)
    for weight in model.trainable_weights:
        if weight.regularizer is not None:
            weight.regularizer = nothing
    for layer in models.layers(model):
        if layer.activity_regularizer is not None:
            layer.activity_regularizer = nothing


def _use_plain_sgd(model: keras.Model) -> None:
    model.optimizer = keras.optimizers.SGD(1.0)


def _reseed(model: keras.Model) -> None:
    """Lets every layer, and every operation, that draws random numbers draw others."""
    for layer in models.layers(model):
        for generator in seeds_of(layer):
            generator.state.assign(generator.state + 12345)
    # Operations without a seed of their own follow this one, from the next trace on.
    tf.random.set_seed(_OTHER_SEED)


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One step under the strategy as a multiple of one device's, where all weights have the same.

    Plain SGD moves a weight by its gradient, so that a loss that is scaled wrongly shows as one
    factor on all weights; Adam divides it out again and hides it.
    """

    value: float
    fits: bool

    @classmethod
    def between(cls, case: Case, one: np.ndarray, other: np.ndarray) -> Factor:
        """The factor that fits best; all workers go by the chief's."""
        size, value, fits = float(one @ one), float("nan"), False
        if np.isfinite(size) and np.isfinite(other).all() and size:
            value = float(one @ other) / size
            limit = max(float(np.linalg.norm(other)), size**0.5 / 16)
            fits = float(np.linalg.norm(other - value * one)) <= _SAME_FACTOR * limit
        value, fits = case.workers.from_chief([value, fits])
        return cls(value=value, fits=fits)

    def is_about(self, value: float) -> bool:
        """Whether it is that multiple."""
        return self.fits and abs(self.value - value) <= _SAME_FACTOR * max(abs(value), 1.0 / 16)


def loss_factor(case: Case, start: Start) -> Factor:
    """The factor of the loss alone: no regulariser, clipping or own optimizer."""
    alike = case.batches.with_shares_alike(case.strategy.num_replicas_in_sync)
    bare = (synchronise_batch_norms, _stop_clipping, _use_plain_sgd, _zero_regularisers)
    first_batch = (alike or case.batches).up_to(1)
    try:
        one, other = updates(replace(case, batches=first_batch, changes=bare), start)
    except Exception:  # a user's loop may need what is taken out of the model here
        return Factor(value=float("nan"), fits=False)
    return Factor.between(case, one, other)


def _wrong_scale(loss: Factor, replicas: int) -> Cause | None:
    """What a factor on the loss comes from; None where it is 1, or none fits."""
    measured = "measured with plain SGD, without regularisers"
    times = f"{replicas} times" if loss.is_about(replicas) else f"{loss.value:.3g} times"
    why = f"every update is {times} one device's ({measured})"
    do = "divide the sum of a replica's example losses by the GLOBAL batch size, and nothing else"
    if loss.is_about(1) or not loss.fits:
        return None
    if loss.is_about(0):
        why = "the weights do not move under the strategy: no gradient reaches them"
        do = "apply the gradients to model.trainable_variables inside strategy.run"
    elif loss.is_about(1 / replicas):
        why = (
            f"every update is 1/{replicas} of one device's ({measured}): the loss is divided by "
            f"the {replicas} replicas twice"
        )
        do = (
            "divide once: inside a strategy's scope Keras's losses that are means already divide "
            "by the number of replicas"
        )
    elif loss.is_about(replicas):
        why += f": the loss is not divided by the {replicas} replicas, whose gradients are added up"
    return Cause(why, do)
