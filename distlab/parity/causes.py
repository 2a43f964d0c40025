"""Why a strategy left the steps of one device, found by experiments and not by guessing.

Each suspect is taken out of the model, or of the data, on both sides alike; where the difference
goes with it, that is the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import keras

from distlab.parity import changes
from distlab.parity.batches import Batches
from distlab.parity.comparing import Comparison, compare
from distlab.parity.noise import MOSTLY_NOISE, moves
from distlab.parity.randomness import reseed
from distlab.parity.scaling import Factor, loss_factor, regulariser_factor
from distlab.parity.sides import Case
from distlab.parity.structure import plain_names

# Of a weight's movement, with other random numbers: less is rounding.
NOT_REPEATED = 0.01


@dataclass(frozen=True)
class Cause:
    """Why, and what helps.

    Attributes:
        why: The likely cause.
        do: What helps.
    """

    why: str
    do: str


@dataclass(frozen=True, kw_only=True)
class _Suspect:
    cause: Callable[[], Cause]
    change: Callable[[keras.Model], None] | None = None
    batches: Batches | None = None


def find_cause(case: Case, found: Comparison, loss: Factor | None) -> Cause:
    """Returns why the sides differ."""
    assert found.first is not None
    step, _ = found.first
    if case.train != "distribute" and _differs_again(case, found, NOT_REPEATED, reseed):
        return _random(found)
    if found.noise.everywhere:
        return Cause(
            "rounding alone moves most weights as far as training does, on one device too",
            "lower the learning rate, or compute in float64, before comparing",
        )
    reordered = case.batches.reordered()
    if reordered and _differs_again(replace(case, batches=reordered), found, MOSTLY_NOISE):
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
    replicas = case.strategy.num_replicas_in_sync
    own = _own_updates(found, step)
    if own is not None:
        return own
    if loss is not None and (wrong := scaled(loss, replicas)) is not None:
        return wrong
    short = replace(case, batches=case.batches.up_to(step + 1))
    stopped: list[str] = []

    def is_gone(*taken_out: _Suspect) -> bool:
        """Whether the sides agree without these."""
        batches = [one.batches for one in taken_out if one.batches is not None]
        trial = replace(
            short,
            changes=tuple(one.change for one in taken_out if one.change is not None),
            batches=(batches or [case.batches])[-1].up_to(step + 1),
        )
        try:
            return compare(trial, like=found).first is None
        except Exception as error:  # a user's loop may need what was taken out of the model
            stopped.append(f"{type(error).__name__} in an experiment")
            return False

    suspects = _suspects(case, found)
    for suspect in suspects:
        if is_gone(suspect):
            return suspect.cause()
    loss = loss_factor(case, found.one.start) if loss is None else loss
    if (factor := scaled(loss, replicas)) is not None:
        return factor
    if len(suspects) > 1 and is_gone(*suspects):
        return _several(suspects, is_gone)
    plain = _Suspect(
        cause=lambda: _optimizer(found, stopped),
        change=_leave_the_gradient,
    )
    return plain.cause() if is_gone(plain) else _not_found(stopped)


def _differs_again(
    case: Case, found: Comparison, share: float, *more: Callable[[keras.Model], None]
) -> bool:
    """Whether one device, trained once more, comes to lie elsewhere."""
    again = replace(case, changes=(*case.changes, *more))
    _, elsewhere = moves(again, found.one, found.path, share=share)
    return bool(elsewhere[~found.noise.rounding_only].any())


def _leave_the_gradient(model: keras.Model) -> None:
    """Takes all from a step but the gradient of the loss."""
    for change in (changes.stop_clipping, changes.zero_regularisers, changes.use_plain_sgd):
        change(model)


def _several(suspects: list[_Suspect], is_gone: Callable[..., bool]) -> Cause:
    """The causes that have to be taken out together; the least particular are dropped first."""
    needed = list(suspects)
    for suspect in reversed(suspects):
        others = [one for one in needed if one is not suspect]
        if others and is_gone(*others):
            needed = others
    found = [suspect.cause() for suspect in needed]
    if len(found) == 1:
        return found[0]
    return Cause(
        f"{len(found)} causes at once, and only without all of them the difference is gone. "
        + " ".join(f"({i}) {one.why.partition(';')[0]}." for i, one in enumerate(found, 1)),
        " ".join(f"({i}) {one.do}." for i, one in enumerate(found, 1)),
    )


def _suspects(case: Case, found: Comparison) -> list[_Suspect]:
    model = found.other.model
    replicas = case.strategy.num_replicas_in_sync
    suspects = []
    if local := _names(changes.local_batch_norms, found):
        suspects.append(
            _Suspect(cause=lambda: _batch_norm(local), change=changes.synchronise_batch_norms)
        )
    if clip := changes.clipping(model):
        suspects.append(_Suspect(cause=lambda: _clipping(clip), change=changes.stop_clipping))
    if changes.is_regularised(found.one.model):
        suspects.append(
            _Suspect(cause=lambda: _regulariser(case, found), change=changes.zero_regularisers)
        )
    if equal := case.batches.in_equal_shares(replicas):
        suspects.append(_Suspect(cause=lambda: _shares(case), batches=equal))
    if alike := case.batches.with_shares_alike(replicas):
        masking = _names(changes.masks, found)
        suspects.append(_Suspect(cause=lambda: _own_share(masking), batches=alike))
    return suspects


def _names(find: Callable[[keras.Model], list[str]], found: Comparison) -> str:
    return ", ".join(plain_names(find(found.one.model), find(found.other.model)))


def _random(found: Comparison) -> Cause:
    left = ", ".join(found.randomness.left)
    who = f"layer {left} draws" if left else "something in the model draws"
    return Cause(
        f"{who} random numbers in each step, which could not be switched off: with other seeds "
        "one device takes other steps too, so nothing can be equal",
        "leave it out of the model that you check, or give it a rate that is 0 there",
    )


def _own_updates(found: Comparison, step: int) -> Cause | None:
    """Copies of a trainable weight that differ cannot come from one common gradient."""
    for index, weight in enumerate(found.one.start.weights):
        far = found.apart[step, index]
        if weight.trainable and far > found.allowed[step, index]:
            return Cause(
                f"the replicas' own copies of {found.names[index]} are {far:.1e} apart: each "
                "replica applied a gradient of its own",
                "add the gradients over the replicas before the update: optimizer.apply inside "
                "strategy.run does it, and so does all_reduce in the replica context",
            )
    return None


def scaled(loss: Factor, replicas: int) -> Cause | None:
    """Returns what a factor on the loss comes from; None where it is 1, or none fits."""
    measured = "measured with plain SGD, without regularisers"
    if loss.is_about(1) or not loss.fits:
        return None
    if loss.is_about(0):
        return Cause(
            "the weights do not move under the strategy: no gradient reaches them",
            "apply the gradients to model.trainable_variables inside strategy.run",
        )
    if loss.is_about(1 / replicas):
        return Cause(
            f"every update is 1/{replicas} of one device's ({measured}): the loss is divided by "
            f"the {replicas} replicas twice",
            "divide once: inside a strategy's scope Keras's losses that are means already divide "
            "by the number of replicas",
        )
    if loss.is_about(replicas):
        return Cause(
            f"every update is {replicas} times one device's ({measured}): the loss is not divided "
            f"by the {replicas} replicas, whose gradients are added up",
            "divide the sum of a replica's example losses by the GLOBAL batch size",
        )
    return Cause(
        f"every update is {loss.value:.3g} times one device's ({measured})",
        "divide the sum of a replica's example losses by the GLOBAL batch size, and nothing else",
    )


def _batch_norm(names: str) -> Cause:
    return Cause(
        f"BatchNormalization ({names}) takes its mean and variance from each replica's share of "
        "the batch; synchronised, the difference is gone",
        "BatchNormalization(synchronized=True)",
    )


def _clipping(clip: str) -> Cause:
    return Cause(
        f"gradients are clipped ({clip}) on each replica, before they are added up; without "
        "clipping the difference is gone",
        "clip the sum: distlab.distribute does; in your own loop, all_reduce first",
    )


def _regulariser(case: Case, found: Comparison) -> Cause:
    replicas = case.strategy.num_replicas_in_sync
    factor = regulariser_factor(case, found.one.start)
    scale = "tf.nn.scale_regularization_loss(tf.add_n(model.losses))"
    if factor.is_about(0):
        return Cause(
            "the regularisers do not count under the strategy; without them the difference is gone",
            f"add them to each replica's loss: {scale}",
        )
    much = f"{factor.value:.2g} times" if factor.fits else "more or less than once"
    if factor.is_about(replicas):
        much = f"{replicas} times, once on each replica,"
    return Cause(
        f"the regularisers count {much} under the strategy; without them the difference is gone",
        f"let them count once: {scale}",
    )


def _shares(case: Case) -> Cause:
    sizes = sorted(set(case.batches.sizes()))
    replicas = case.strategy.num_replicas_in_sync
    return Cause(
        f"the {replicas} replicas get unequal shares (batches of {' and '.join(map(str, sizes))} "
        "examples), and the mean of each counts the same; with equal shares the difference is gone",
        "weigh each example by the global batch: distlab.distribute does; or drop_remainder=True",
    )


def _own_share(masking: str) -> Cause:
    gone = "where every replica gets the same examples, the difference is gone"
    if masking:
        return Cause(
            f"steps are masked ({masking}), in other numbers on each replica, and the mean of each "
            f"replica counts the same; {gone}",
            "divide by the number of steps that count in the global batch",
        )
    return Cause(
        f"something is computed from a replica's own share of the batch; {gone}",
        "look for means, counts and statistics over the batch in layers, losses and the loop",
    )


def _optimizer(found: Comparison, stopped: list[str]) -> Cause:
    model = found.one.model
    but = f" ({', '.join(stopped)})" if stopped else ""
    parts = [type(model.optimizer).__name__, changes.clipping(model)]
    parts += ["the regularisers"] if changes.is_regularised(model) else []
    return Cause(
        f"{' or '.join(filter(None, parts))}, or several of these{but}: with plain SGD, and no "
        "clipping and regularisers, the difference is gone",
        "take them out of build() one by one",
    )


def _not_found(stopped: list[str]) -> Cause:
    but = f" ({', '.join(stopped)})" if stopped else ""
    return Cause(
        f"not found{but}: the difference stays without regularisers and clipping, with plain SGD "
        "and with the same examples on every replica, and is no common factor",
        "compare the gradients of one batch by hand, replica by replica",
    )
