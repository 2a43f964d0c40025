"""Compares a model under a strategy with the same model on one device, step by step.

check_parity(build, data, strategy=strategy)                     # distlab.distribute
check_parity(build, data, strategy=strategy, train="keras")      # Keras's own fit
check_parity(build, data, strategy=strategy, train=my_loop)      # my_loop(model, dataset)
"""

from __future__ import annotations

import contextlib
import html
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from distlab.errors import DatasetError, InvalidArgument, ModelError, did_you_mean
from distlab.strategy.description import describe
from distlab.training.parity_causes import Factor, find_cause, loss_factor
from distlab.training.parity_runs import (
    ASKED,
    NOISE_FACTOR,
    ROUNDINGS_A_STEP,
    Batches,
    Case,
    Comparison,
    Train,
    compare,
    digest_of,
    plain_names,
    read_batches,
)
from distlab.training.workers.workers import Workers, at_method, workers_of

_TRAINERS = {"distribute": "distlab.distribute", "keras": "Keras's own fit"}


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
        tolerance: What is allowed there.
        tolerance_why: How that was arrived at.
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
    tolerance_why: str
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

    def _lines(self) -> list[tuple[str, str]]:
        size = f"{self.max_abs_diff:.1e}, and {self.tolerance:.1e} is allowed"
        lines = [
            ("Largest difference", size),
            ("Likely cause", self.cause),
            ("To do", self.do),
            ("Switched off on both sides", ", ".join(self.switched_off)),
            *(("Note", note) for note in self.notes),
        ]
        return [(name, text) for name, text in lines if text]

    def __repr__(self) -> str:
        lines = [f"{name}: {text}" for name, text in self._lines()]
        return "\n".join([self._headline(), *lines])

    def _repr_html_(self) -> str:
        head = "<tr><th>step</th><th>largest difference</th><th>allowed</th><th>weight</th></tr>"
        bold = " style='font-weight:bold'"
        rows = "".join(
            f"<tr{bold if row.max_abs_diff > row.allowed else ''}><td>{row.step}</td>"
            f"<td>{row.max_abs_diff:.1e}</td><td>{row.allowed:.1e}</td>"
            f"<td>{html.escape(row.weight)}</td></tr>"
            for row in self.differences
        )
        lines = [*self._lines()[1:], ("Tolerance", self.tolerance_why)]
        text = "".join(f"<br><b>{name}:</b> {html.escape(line)}" for name, line in lines)
        return f"<p><b>{html.escape(self._headline())}</b>{text}</p><table>{head}{rows}</table>"


def check_parity(
    build: Callable[[], keras.Model],
    data: tf.data.Dataset,
    *,
    strategy: tf.distribute.Strategy,
    steps: int = 5,
    train: Train = "distribute",
    tolerance: float | None = None,
) -> Parity:
    """Compares a few training steps under a strategy with those of one device.

    One device is Keras's own `fit`, without a strategy, with an optimizer that is built before.
    Both sides start from the same weights, train on the same batches in the same order, without
    XLA and without TF32. With `distribute`, random layers draw the same numbers on both sides;
    otherwise those of Keras (dropout, noise, augmentation) are switched off. Every weight, on every
    replica, is compared after every step. Where they differ, experiments find the cause.

    `data` is read from its start: to see a partial last batch, give the end of an epoch, as
    `data.skip(n)`. Your model is not touched: `build` is called at least three times, and more
    often where a cause is looked for. Settings and seeds are put back, whatever happens.
    An error that Keras's `fit` or your loop raises under the strategy comes through as it is.

    Args:
        build: Takes nothing, returns a new compiled `keras.Model`, as for one device.
        data: Global batches.
        strategy: Any strategy but parameter servers. Of several workers each calls this at the
            same place, with the same data, and is told the same.
        steps: Batches to train on; fewer where the data end.
        train: Who takes the steps under the strategy: "distribute" (distlab's), "keras" (Keras's
            own `fit`), or a loop of your own: a function of a model, built and compiled in the
            scope, and a data set of one global batch, called for each step.
        tolerance: The largest difference that is allowed. None measures what rounding explains,
            for each weight: `Parity.tolerance_why` says how.

    Returns:
        What was found.

    Raises:
        InvalidArgument: An argument is invalid.
        ModelError: `build` makes no compiled model, or not the same twice, or `distribute`
            refuses it.
        DatasetError: The data set is empty.
    """
    _check_arguments(build, strategy, steps, train, tolerance)
    batches = read_batches(data, steps)
    _check_same_data(batches, workers_of(strategy))
    case = Case(build=build, strategy=strategy, train=train, batches=batches)
    replicas = strategy.num_replicas_in_sync
    with _restored_settings(), at_method("check_parity"):
        found = compare(case, tolerance=tolerance)
        own_loop = callable(train) and replicas > 1
        loss = loss_factor(case, found.one.start) if own_loop else None
        cause = None if found.first is None else find_cause(case, found, loss)
    step, index = found.first or (None, None)
    ratio, rows = found.ratio(), []
    for number, worst in enumerate(ratio.argmax(axis=1)):
        rows.append(
            StepDifference(
                step=number + 1,
                max_abs_diff=float(found.far[number, worst]),
                weight=found.names[worst],
                allowed=float(found.allowed[number, worst]),
            )
        )
    shown = rows[int(ratio.max(axis=1).argmax())]
    name = train if isinstance(train, str) else getattr(train, "__name__", "")
    return Parity(
        equal=cause is None,
        max_abs_diff=shown.max_abs_diff,
        tolerance=shown.allowed,
        tolerance_why=_explain(found, tolerance),
        steps=len(batches.elements),
        replicas=replicas,
        train=name if name.isidentifier() else "your loop",
        first_step=None if step is None else step + 1,
        first_layer=None if index is None else found.names[index],
        cause=None if cause is None else cause.why,
        do=None if cause is None else cause.do,
        switched_off=tuple(plain_names(found.one.off, found.other.off)),
        notes=tuple(_notes(found, batches, steps, loss if cause is None else None)),
        differences=tuple(rows),
    )


def _explain(found: Comparison, tolerance: float | None) -> str:
    if tolerance is not None:
        return "the one that was given"
    rounding = found.one.rounding()
    coarse = f", {ROUNDINGS_A_STEP} x {rounding:.1e} of its movement (the layers' precision)"
    return (
        f"rounding only, since replicas add up in another order: for each weight "
        f"{ROUNDINGS_A_STEP} x 1.2e-07 of its size (float32, sizes below 1 count as 1) a step"
        f"{coarse if rounding > 1e-6 else ''}, and {NOISE_FACTOR} times what another last digit of "
        f"the first weights changes on one device (here up to "
        f"{found.noise.table.max(initial=0):.1e})"
    )


def _notes(found: Comparison, batches: Batches, steps: int, loss: Factor | None) -> Iterator[str]:
    taken = len(batches.elements)
    if taken < steps:
        yield f"the data end after {taken} of {steps} steps"
    if not batches.rereads_alike:
        yield (
            "the data set gives other batches when it is read again (a shuffle or random map?); "
            "here both sides had the same, but two trainings compare only on data made anew "
            "with a seed"
        )
    not_compared = found.noise.rounding_only & (found.tolerance is None)
    if only := [name for name, left in zip(found.names, not_compared, strict=True) if left]:
        yield (
            f"not compared: {', '.join(only)}; the gradient is zero but for rounding, on one "
            "device too"
        )
    if found.finite < taken and found.first is None:
        yield f"weights are not finite from step {found.finite + 1} on, on one device too"
    trains, moved = found.one.start.trained(), found.noise.moved
    hidden = (found.allowed >= 0.5 * moved)[-1] & ~not_compared & trains & (moved[-1] > 0)
    if hidden.any() and found.first is None and found.finite == taken:
        yield (
            f"rounding could hide half of the movement of {hidden.sum()} of {trains.sum()} "
            "weights: check with float32, SGD or a larger learning rate too"
        )
    if loss is not None and loss.fits and not loss.is_about(1):
        yield (
            f"the gradients are {loss.value:.3g} times one device's, which this optimizer divides "
            "out again: the loss is scaled wrongly, and plain SGD would show it"
        )


def _check_same_data(batches: Batches, workers: Workers) -> None:
    """Raises where a worker reads other batches than the chief."""
    chief, *others = workers.exchange(digest_of(batches.elements))
    for name, other in zip(workers.names[1:], others, strict=True):
        if other != chief:
            raise DatasetError(
                asked=f"check_parity on {workers.count} workers",
                found=f"other batches on {name} than on {workers.names[0]}",
                do="give all workers the same global batches, in the same order: shuffle with a "
                "seed, and let distribute share them out",
            )


def _check_arguments(build: Any, strategy: Any, steps: Any, train: Any, tolerance: Any) -> None:
    if isinstance(build, keras.Model) or not callable(build):
        raise ModelError(
            asked=f"check_parity({type(build).__name__}, data, strategy=strategy)",
            found="not a function that builds a model; it must be built for each side",
            do="write `def build(): ...; return model` and give check_parity(build, ...)",
        )
    if not isinstance(strategy, tf.distribute.Strategy):
        raise InvalidArgument(
            asked=f"check_parity(build, data, strategy={strategy!r})",
            found=f"a {type(strategy).__name__} where a strategy should be",
            do='make one: strategy=distlab.make_strategy("mirrored")',
        )
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
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InvalidArgument(
            asked=f"check_parity(..., steps={steps!r})",
            found="no whole number of steps from 1 on",
            do="leave steps out, or give for example steps=5",
        )
    if train not in _TRAINERS and not callable(train):
        raise InvalidArgument(
            asked=f"check_parity(..., train={train!r})",
            found="nobody of that name trains",
            do=did_you_mean(str(train), tuple(_TRAINERS))
            + ", or give your own function of a model and a data set",
        )
    if tolerance is not None and not tolerance >= 0:
        raise InvalidArgument(
            asked=f"check_parity(..., tolerance={tolerance!r})",
            found="no size of a difference",
            do="leave it out, or give for example tolerance=1e-6",
        )


@contextlib.contextmanager
def _restored_settings() -> Iterator[None]:
    """TF32 is off inside; it, Keras's policy and all seeds come back."""
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    policy = keras.config.dtype_policy()
    python, numpy = random.getstate(), np.random.get_state()
    tensorflow = context.global_seed()  # there is no public way to ask
    log = tf.get_logger()
    level = log.level
    log.setLevel("ERROR")  # new models are traced again, of which TensorFlow would warn
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        log.setLevel(level)
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        keras.config.set_dtype_policy(policy)
        random.setstate(python)
        np.random.set_state(numpy)
        tf.random.set_seed(tensorflow)
