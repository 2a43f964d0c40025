"""Compares a model under a strategy with the same model on one device, step by step.

check_parity(build, data, strategy=strategy)                     # distlab.distribute
check_parity(build, data, strategy=strategy, train="keras")      # Keras's own fit
check_parity(build, data, strategy=strategy, train=my_loop)      # my_loop(model, dataset)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import InvalidArgument, did_you_mean
from distlab.process_state import kept_state
from distlab.strategy.description import describe
from distlab.training.keras_private import models
from distlab.training.keras_private.models import inner
from distlab.training.model_requirements import check_arguments
from distlab.training.parity_runs import (
    ASKED,
    Batches,
    Case,
    Change,
    Comparison,
    Start,
    Train,
    compare,
    difference,
    digest_of,
    on_one_device,
    read_batches,
    under_strategy,
    wide,
)
from distlab.training.workers.agreement import check_data
from distlab.training.workers.workers import at_method, workers_of

_TRAINERS = {"distribute": "distlab.distribute", "keras": "Keras's own fit"}
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_SAME_FACTOR = 0.02  # relative; what SGD(1.0) leaves of float32 after one step is far below


@dataclass(frozen=True, kw_only=True)
class StepDifference:
    """The largest difference in a step, against what is allowed for its weight."""

    step: int
    max_abs_diff: float
    weight: str
    allowed: float


@dataclass(frozen=True, kw_only=True)
class Parity:
    """Whether a strategy took the steps of one device.

    Attributes:
        equal: Whether every weight, on every replica, stayed within rounding after every step.
        max_abs_diff: The difference that is largest against what is allowed for its weight.
        tolerance: What is allowed there. Unless it was given, that is rounding alone, since
            replicas add up in another order: a few units of the last digit a step, and a few times
            what another last digit of the first weights changes on one device.
        steps: Steps taken.
        replicas: Of the strategy.
        train: Who took the steps under the strategy.
        first_step: The first step, from 1, that differs; None where all are equal.
        first_layer: The first weight that differs there, as "layer/weight".
        cause: Why, as far as experiments show.
        do: What helps.
        switched_off: Layers whose randomness was switched off on both sides.
        notes: What else a reader should know.
        differences: The largest difference of each step.
    """

    equal: bool
    max_abs_diff: float
    tolerance: float
    steps: int
    replicas: int
    train: str
    first_step: int | None = None
    first_layer: str | None = None
    cause: str | None = None
    do: str | None = None
    switched_off: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    differences: tuple[StepDifference, ...] = ()

    def _headline(self) -> str:
        replicas = f"{self.replicas} replica" + ("s" if self.replicas > 1 else "")
        steps = f"{self.steps} steps" if self.steps > 1 else "step"
        train = _TRAINERS.get(self.train, self.train)
        if self.equal:
            return f"Equal: {replicas} ({train}) took the {steps} of one device."
        return (
            f"NOT equal: {replicas} ({train}) left the steps of one device at step "
            f"{self.first_step} of {self.steps}, first in {self.first_layer}."
        )

    def __repr__(self) -> str:
        size = f"{self.max_abs_diff:.1e}, and {self.tolerance:.1e} is allowed"
        lines = [
            ("Largest difference", size),
            ("Likely cause", self.cause),
            ("To do", self.do),
            ("Switched off on both sides", ", ".join(self.switched_off)),
            *(("Note", note) for note in self.notes),
        ]
        return "\n".join([self._headline(), *(f"{name}: {text}" for name, text in lines if text)])


def check_parity(
    build: Callable[[], keras.Model],
    data: tf.data.Dataset,
    *,
    strategy: tf.distribute.Strategy,
    steps: int = 5,
    train: Train = "distribute",
    tolerance: float | None = None,
) -> Parity:
    """Checks whether a strategy takes the training steps of one device, and finds out why if not.

    Both sides start from the same weights and train on the same batches in the same order, without
    XLA and without TF32, and every weight on every replica is compared after every step. One device
    means Keras's own `fit` without a strategy, with an optimizer that is built before. Where the
    two differ, experiments look for the cause.

    With `distribute`, random layers draw the same numbers on both sides; otherwise those of Keras
    (dropout, noise, augmentation) are switched off. `tf.random` draws other numbers than in plain
    Keras, so there one device means `distribute` on one replica.

    Your model isn't touched: `build` is called at least three times, and more often where a cause
    is looked for. Settings and seeds are put back, whatever happens. An error that Keras's `fit` or
    your loop raises under the strategy comes through as it is.

    Args:
        build: Takes nothing, returns a new compiled `keras.Model`, as for one device.
        data: Global batches, read from the start. To see a partial last batch, give the end of an
            epoch, as `data.skip(n)`.
        strategy: Any strategy but parameter servers. Of several workers, each calls this at the
            same place with the same data, and gets the same report.
        steps: Batches to train on; fewer if the data end.
        train: Who takes the steps under the strategy: "distribute" (distlab's), "keras" (Keras's
            own `fit`), or a loop of your own: a function of a model, built and compiled in the
            scope, and a data set of one global batch, called for each step.
        tolerance: The largest difference that is allowed. None measures what rounding explains,
            for each weight.

    Returns:
        A `Parity`: whether all steps are `equal`, and if not the first step and layer that differ,
        the likely `cause`, and what to `do`.

    Raises:
        InvalidArgument: An argument is invalid.
        ModelError: `build` makes no compiled model, or not the same twice, or `distribute`
            refuses it.
        DatasetError: The data set is empty.

    Example:
        >>> import keras
        >>> def build():
        ...     norm, flat = keras.layers.BatchNormalization(), keras.layers.Flatten()
        ...     model = keras.Sequential([norm, flat, keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        ...     return model
        >>> strategy = dl.make_strategy("mirrored", devices=dl.split_devices(2))
        >>> train, _ = dl.load_dataset("digits", batch_size=64)
        >>> report = dl.check_parity(build, train, strategy=strategy, steps=1, train="keras")
        >>> report.equal, report.do
        (False, 'BatchNormalization(synchronized=True)')
    """
    _check_arguments(build, strategy, train)
    batches = read_batches(data, steps)
    checksum = {"batches with the checksum {}": digest_of(batches.elements)}
    check_data(workers_of(strategy), "check_parity", checksum)
    case = Case(build=build, strategy=strategy, train=train, batches=batches)
    replicas = strategy.num_replicas_in_sync
    with _restored_settings(), at_method("check_parity"):
        comparison = compare(case, tolerance=tolerance)
        start = comparison.single.start
        factor = loss_factor(case, start) if callable(train) and replicas > 1 else None
        cause = None if comparison.first is None else find_cause(case, comparison, factor)
    step, index = comparison.first or (None, None)
    names, ratio = start.names(), comparison.ratio()
    rows = [
        StepDifference(
            step=number + 1,
            max_abs_diff=float(comparison.far[number, worst]),
            weight=names[worst],
            allowed=float(comparison.allowed[number, worst]),
        )
        for number, worst in enumerate(ratio.argmax(axis=1))
    ]
    shown = rows[int(ratio.max(axis=1).argmax())]
    name = train if isinstance(train, str) else getattr(train, "__name__", "")
    return Parity(
        equal=cause is None,
        max_abs_diff=shown.max_abs_diff,
        tolerance=shown.allowed,
        steps=len(batches.elements),
        replicas=replicas,
        train=name if name.isidentifier() else "your loop",
        first_step=None if step is None else step + 1,
        first_layer=None if index is None else names[index],
        cause=None if cause is None else cause.why,
        do=None if cause is None else cause.do,
        switched_off=comparison.single.off,
        notes=tuple(_notes(comparison, batches, steps, factor, replicas)),
        differences=tuple(rows),
    )


def _notes(
    comparison: Comparison, batches: Batches, steps: int, factor: float | None, replicas: int
) -> Iterator[str]:
    taken = len(batches.elements)
    if taken < steps:
        yield f"the data end after {taken} of {steps} steps"
    if comparison.draws:
        yield (
            "the model draws by tf.random, whose numbers are not plain Keras's: one device is here "
            "distlab.distribute on one replica"
        )
    if comparison.first is not None:
        return
    if replicas == 1:
        yield (
            "one replica shares nothing, so this shows little: dl.split_devices(2), as the first "
            "thing in a script, makes two of one CPU"
        )
    if comparison.finite < taken:
        yield f"weights are not finite from step {comparison.finite + 1} on, on one device too"
        return
    start = comparison.single.start
    moves = start.trained() & (comparison.moved[-1] > 0)
    hidden = moves & (comparison.allowed[-1] >= 0.5 * comparison.moved[-1])
    if hidden.any():
        names = [name for name, is_hidden in zip(start.names(), hidden, strict=True) if is_hidden]
        yield (
            f"rounding could hide half of the movement of {hidden.sum()} of {moves.sum()} weights "
            f"({', '.join(names[:3])}{' ...' if len(names) > 3 else ''}): check with float32, SGD "
            "or a larger learning rate too"
        )
    if factor is not None and not _is_about(factor, 1):
        yield (
            f"the gradients are {factor:.3g} times one device's, which this optimizer divides "
            "out again: the loss is scaled wrongly, and plain SGD would show it"
        )


@dataclass(frozen=True)
class Cause:
    """Why the sides differ, and what to do."""

    why: str
    do: str


@dataclass(frozen=True, kw_only=True)
class _Suspect:
    """A suspected cause, and what to remove on both sides to see whether the difference goes."""

    cause: Cause
    change: Change | None = None
    batches: Batches | None = None


def find_cause(case: Case, comparison: Comparison, factor: float | None) -> Cause:
    """Why the sides differ, by experiments; `factor` is the loss's, if it was measured."""
    assert comparison.first is not None
    step, _ = comparison.first
    known = _draws(case, comparison) or _own_updates(comparison, step) or _wrong_scale(factor)
    if known is not None:
        return known
    stopped: list[str] = []
    for suspect in _suspects(case, comparison):
        experiment = replace(
            case,
            changes=(suspect.change,) if suspect.change else (),
            batches=(suspect.batches or case.batches).up_to(step + 1),
        )
        try:
            if compare(experiment, like=comparison).first is None:
                return suspect.cause
        except Exception as error:  # a user's loop may need what was taken out of the model
            stopped.append(type(error).__name__)
    if factor is None:
        factor = loss_factor(case, comparison.single.start)
    but = f" ({', '.join(stopped)} in an experiment)" if stopped else ""
    return _wrong_scale(factor) or Cause(
        f"not found{but}: the difference stays without regularisers, without clipping and with the "
        "same examples on every replica, and is no common factor",
        "take layers, and parts of the optimizer, out of build() one by one; or compare the "
        "gradients of one batch by hand, replica by replica",
    )


def _draws(case: Case, comparison: Comparison) -> Cause | None:
    """Random numbers that could not be switched off: no two sides draw the same."""
    layers = comparison.single.left
    if case.train == "distribute" or not layers:
        return None
    return Cause(
        f"layer {', '.join(layers)} draws random numbers in each step, which could not be switched "
        "off, so nothing can be equal",
        "leave it out of the model that you check, or give it a rate that is 0 there",
    )


def _own_updates(comparison: Comparison, step: int) -> Cause | None:
    """Copies of a trainable weight that differ cannot come from one common gradient."""
    start = comparison.single.start
    copies_of_all = comparison.distributed.steps[step]
    rows = (start.names(), start.trained(), copies_of_all, comparison.allowed[step])
    for name, trains, copies, allowed in zip(*rows, strict=True):
        apart = max(difference(copy, copies[0]) for copy in copies)
        if trains and apart > allowed:
            return Cause(
                f"the replicas' own copies of {name} are {apart:.1e} apart: each replica applied a "
                "gradient of its own",
                "add the gradients over the replicas before the update: optimizer.apply inside "
                "strategy.run does it, and so does all_reduce in the replica context",
            )
    return None


def _suspects(case: Case, comparison: Comparison) -> Iterator[_Suspect]:
    model, replicas = comparison.single.model, case.strategy.num_replicas_in_sync
    norms = [each for each in models.layers(model) if _is_batch_norm(each)]
    if names := ", ".join(norm.name for norm in norms if not norm.synchronized):
        cause = Cause(
            f"BatchNormalization ({names}) takes its mean and variance from each "
            "replica's share of the batch; synchronised, the difference is gone",
            "BatchNormalization(synchronized=True)",
        )
        yield _Suspect(cause=cause, change=synchronise_batch_norms)
    clips = [(name, getattr(inner(model.optimizer), name, None)) for name in _CLIPPING]
    if clip := ", ".join(f"{name}={value}" for name, value in clips if value is not None):
        cause = Cause(
            f"gradients are clipped ({clip}) on each replica, before they are added up; without "
            "clipping the difference is gone",
            "clip the sum: distlab.distribute does; in your own loop, all_reduce first",
        )
        yield _Suspect(cause=cause, change=_stop_clipping)
    if _regularised(model):
        cause = Cause(
            "the regularisers do not count once under the strategy; without them the difference is "
            "gone",
            "let each replica add its part of them to its loss: "
            "tf.nn.scale_regularization_loss(tf.add_n(model.losses))",
        )
        yield _Suspect(cause=cause, change=_zero_regularisers)
    if alike := case.batches.with_shares_alike(replicas):
        sizes = case.batches.sizes()
        unequal = f" of {' or '.join(map(str, sorted(set(sizes))))} examples"
        cause = Cause(
            f"something is computed from a replica's own share of a batch"
            f"{unequal if any(size % replicas for size in sizes) else ''}: a mean, a count; where "
            "every replica gets the same examples, the difference is gone",
            "weigh each example by the global batch, as distlab.distribute does; look for means, "
            "counts, masks and statistics over the batch in layers, losses and the loop",
        )
        yield _Suspect(cause=cause, batches=alike)


def _is_batch_norm(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization)


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


def loss_factor(case: Case, start: Start) -> float | None:
    """One step under the strategy as a multiple of one device's; None where no number fits.

    Plain SGD, without regularisers and clipping, moves a weight by its gradient, so that a loss
    that is scaled wrongly shows as one factor on all weights; Adam divides it out again.
    """
    alike = case.batches.with_shares_alike(case.strategy.num_replicas_in_sync)
    bare = (synchronise_batch_norms, _stop_clipping, _use_plain_sgd, _zero_regularisers)
    bare_case = replace(case, batches=(alike or case.batches).up_to(1), changes=bare)
    moves = []
    try:
        for run in (on_one_device(bare_case, start), under_strategy(bare_case, start)):
            rows = zip(run.path[0], start.row, start.trained(), strict=True)
            moves.append(
                np.concatenate([(wide(a) - wide(b)).ravel() for a, b, trains in rows if trains])
            )
    except Exception:  # a user's loop may need what is taken out of the model here
        return None
    single, distributed = moves
    size = float(single @ single)
    factor = None
    if size and np.isfinite(size) and np.isfinite(distributed).all():
        value = float(single @ distributed) / size
        limit = max(float(np.linalg.norm(distributed)), size**0.5 / 16)
        if float(np.linalg.norm(distributed - value * single)) <= _SAME_FACTOR * limit:
            factor = value
    return case.workers.from_chief(factor)  # type: ignore[no-any-return]


def _is_about(factor: float | None, value: float) -> bool:
    within = _SAME_FACTOR * max(abs(value), 1.0 / 16)
    return factor is not None and abs(factor - value) <= within


def _wrong_scale(factor: float | None) -> Cause | None:
    """Returns the cause of a factor on the loss; None where it is 1, or none fits."""
    if factor is None or _is_about(factor, 1):
        return None
    whole = round(1 / factor) if 0 < factor < 0.9 else 0
    times = f"1/{whole} of" if whole and _is_about(factor, 1 / whole) else f"{factor:.3g} times"
    return Cause(
        f"every update is {times} one device's (measured with plain SGD, without regularisers)",
        "divide the sum of a replica's example losses by the GLOBAL batch size, once: inside a "
        "strategy's scope Keras's losses that are means already divide by the number of replicas",
    )


def _check_arguments(build: Any, strategy: Any, train: Any) -> None:
    check_arguments("check_parity", build, strategy)
    if describe(strategy).kind == "parameter_server":
        raise InvalidArgument(
            asked="check_parity with a strategy of kind 'parameter_server'",
            found="workers that each take steps on batches of their own",
            do='check with "mirrored" and as many replicas: distlab.make_strategy("mirrored")',
        )
    if tf.distribute.has_strategy():
        raise InvalidArgument(
            asked=ASKED,
            found="a call inside strategy.scope(), where one device cannot be had",
            do="call it outside: it enters the scope itself",
        )
    if train not in _TRAINERS and not callable(train):
        raise InvalidArgument(
            asked=f"check_parity(..., train={train!r})",
            found=f"train={train!r}",
            do=did_you_mean(str(train), tuple(_TRAINERS))
            + ", or pass your own function of a model and a data set",
        )


@contextlib.contextmanager
def _restored_settings() -> Iterator[None]:
    """TF32 is off inside; it and all that a process has only once come back."""
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    log = tf.get_logger()
    level = log.level
    log.setLevel("ERROR")  # new models are traced again, of which TensorFlow would warn
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        with kept_state():
            yield
    finally:
        log.setLevel(level)
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
