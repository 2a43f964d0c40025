"""The two sides of the comparison: one device, which is plain Keras, and the strategy.

one = one_device(case, note)
under_strategy(case, one.start, note)

`note` is called after each step with the copies of each weight.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import ModelError
from distlab.parity.batches import Batches
from distlab.parity.randomness import Randomness, drawing, switch_off
from distlab.parity.structure import (
    ASKED,
    Start,
    build_symbolically,
    check_same,
    copies,
    layers_of,
)
from distlab.strategy.describing import describe, short_name
from distlab.training.distributing import distribute
from distlab.training.keras_private import models
from distlab.training.model_requirements import check_compiled
from distlab.training.workers.exchanging import workers_of

Train = Literal["distribute", "keras"] | Callable[[keras.Model, tf.data.Dataset], Any]
Copies = tuple[np.ndarray, ...]
Note = Callable[[list[Copies]], None]

_SEED = 1

# What a mantissa of each type rounds to, relative to the number.
_ROUNDING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is compared.

    Attributes:
        build: Makes the user's compiled model.
        strategy: The strategy.
        train: Who takes the steps under the strategy.
        batches: What both sides train on.
        changes: What is done to each model before it trains, for experiments.
    """

    build: Callable[[], keras.Model]
    strategy: tf.distribute.Strategy
    train: Train
    batches: Batches
    changes: tuple[Callable[[keras.Model], None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side, after its steps.

    Attributes:
        model: The model that trained.
        start: Its weights before the first step.
        randomness: What was switched off in it.
    """

    model: keras.Model
    start: Start
    randomness: Randomness

    def rounding(self) -> float:
        """Returns what the coarsest type that the model computes in rounds to."""
        kinds = {layer.compute_dtype for layer in layers_of(self.model)}
        return max(_ROUNDING.get(kind, 0.0) for kind in kinds)


def rounding_of(dtype: str) -> float:
    """Returns what a type rounds to, relative to the number; 0 for whole numbers."""
    return _ROUNDING.get(dtype, 0.0)


def one_device(case: Case, note: Note, *, start: Start | None = None) -> Side:
    """Trains with Keras's own `fit`, without a strategy."""
    with _same_kind_of_device(case.strategy):
        side = _build(case, start)
        _build_optimizer(side.model)
        _fit(side.model, case.batches, note)
    return side


def under_strategy(case: Case, start: Start, note: Note) -> Side:
    """Trains under the strategy, from the weights of the other side."""
    sides: list[Side] = []

    def build() -> keras.Model:
        sides.append(_build(case, start))
        return sides[0].model

    if case.train == "distribute":
        _fit(distribute(build, case.strategy), case.batches, note)
        return sides[0]
    with case.strategy.scope():
        model = build()
    if case.train == "keras":
        _fit(model, case.batches, note)
        return sides[0]
    assert not isinstance(case.train, str)
    with case.strategy.scope():
        _build_optimizer(model)
    for step in range(len(case.batches.elements)):
        case.train(model, case.batches.single(step))
        note([copies(weight) for weight in model.weights])
    return sides[0]


def _build(case: Case, start: Start | None) -> Side:
    model = case.build()
    check_compiled(model, asked=ASKED)
    if models.has_own(model, "train_step"):  # it makes what it needs; there may be no call
        models.build_for_own_step(model, case.batches.spec)
    if not model.built:
        build_symbolically(model, case.batches.spec)
    own = Start.of(model)
    if start is not None:
        check_same(start, own)
    start = start or _of_chief(case, own)
    if start is not None:
        for variables, values in ((own.weights, start.values), (own.seeds, start.drawn)):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        own = replace(own, values=start.values, drawn=start.drawn)
    # What layers draw by when they were given no seed.
    keras.utils.set_random_seed(_SEED)
    randomness = drawing(model) if case.train == "distribute" else switch_off(model)
    for change in case.changes:
        change(model)
    # Alike on both sides: Keras compiles by XLA on one device only, and several steps in one
    # execution would hide the weights in between.
    model.jit_compile = False
    model.steps_per_execution = 1
    return Side(model=model, start=own, randomness=randomness)


def _of_chief(case: Case, own: Start) -> Start | None:
    """What the chief's build() drew, for all workers to start from; None without others."""
    workers = workers_of(case.strategy)
    if workers.count == 1:
        return None
    values = (*own.values, *own.drawn)
    told = workers.gather(b"".join(value.tobytes() for value in values))[0]
    ends = itertools.accumulate(value.nbytes for value in values)
    parts = [
        np.frombuffer(told[end - value.nbytes : end], value.dtype).reshape(value.shape)
        for value, end in zip(values, ends, strict=True)
    ]
    count = len(own.values)
    return replace(own, values=tuple(parts[:count]), drawn=tuple(parts[count:]))


def _build_optimizer(model: keras.Model) -> None:
    """Makes the optimizer's variables before the step is traced.

    A trace would lose what an optimizer assigns as it is built, as ScheduleFreeAdamW does.
    """
    if model.optimizer is not None:
        model.optimizer.build(model.trainable_variables)


class _Recorder(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, note: Note) -> None:
        super().__init__()
        self.note, self.steps = note, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self.note([copies(weight) for weight in self.model.weights])


def _fit(model: keras.Model, batches: Batches, note: Note) -> None:
    recorder = _Recorder(note)
    model.fit(batches.dataset(), verbose=0, shuffle=False, callbacks=[recorder])
    if recorder.steps != len(batches.elements):
        raise ModelError(
            asked=ASKED,
            found=f"fit reported {recorder.steps} steps for {len(batches.elements)} batches",
            do="compile without steps_per_execution",
        )


@contextlib.contextmanager
def _same_kind_of_device(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Beside a strategy on CPUs one device is a CPU too, also where there is a GPU."""
    cpus = describe(strategy).kind != "default" and all(
        short_name(device).startswith("CPU") for device in strategy.extended.worker_devices
    )
    if cpus and tf.config.list_logical_devices("GPU"):
        with tf.device("CPU:0"):
            yield
    else:
        yield
