"""The table of cases: each is a model as its user writes it, and the data that it is trained on.

@case(data=(X, Y, WEIGHTS), validates=True)
def a_name():
    return network(keras.layers.Dense(4))

The decorated function is `build`, as one device and as `distribute` call it. Nothing in a case
knows how `distribute` works.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support.parity import BATCH, ROWS

ONE_LEFT = slice(0, 2 * BATCH + 1)  # the last batch has one example: two replicas have none

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(ROWS, 8)).astype("float32")
Y = DRAW.integers(0, 4, ROWS)
NUMBERS = X.sum(1, keepdims=True)
ONE_HOT = np.eye(4, dtype="float32")[Y]
WEIGHTS = np.linspace(0.5, 1.5, ROWS, dtype="float32")
TOKENS = DRAW.integers(1, 5, (ROWS, 6))  # 0 is padding, of a different length in each
TOKENS[np.arange(6) >= DRAW.integers(1, 7, ROWS)[:, None]] = 0

SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
CrossEntropy = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)

CASES: dict[str, Case] = {}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its data.

    Attributes:
        build: Returns the compiled model.
        data: Arrays, of which batches are made, or a function that returns what `fit` trains on.
        fit: Further arguments of `fit`.
        validates: Whether the data are also those of the validation.
        atol: How far a weight may be from one device's.
    """

    build: Callable[[], keras.Model]
    data: tuple[Any, ...] | Callable[[], Any]
    fit: dict[str, Any]
    validates: bool
    atol: float

    def seeded_build(self) -> keras.Model:
        """Builds the model with initial weights that are the same each time."""
        keras.utils.set_random_seed(3)
        return self.build()

    def arguments(self) -> dict[str, Any]:
        """Returns what `fit` is called with."""
        data = self.data() if callable(self.data) else batches(*self.data)
        validation = {"validation_data": data} if self.validates else {}
        return {"x": data, "epochs": 2, "verbose": 0, "shuffle": False, **validation, **self.fit}


def case(
    data: Any = (X, Y), *, validates: bool = False, atol: float = 1e-6, **fit: Any
) -> Callable[[Callable[[], keras.Model]], Callable[[], keras.Model]]:
    """Enters a function that builds a model into the table."""

    def enter(build: Callable[[], keras.Model]) -> Callable[[], keras.Model]:
        assert build.__name__ not in CASES, build.__name__
        CASES[build.__name__] = Case(build, data, fit, validates, atol)
        return build

    return enter


def batches(*parts: Any, batch: int = BATCH) -> tf.data.Dataset:
    """Returns the parts in batches; a single part makes batches without targets."""
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0]).batch(batch)


def network(*layers: Any, shape: tuple[int, ...] = (8,), **compiled: Any) -> keras.Model:
    """Returns a compiled stack of layers."""
    return compile_model(keras.Sequential([keras.Input(shape), *layers]), **compiled)


def compile_model(model: keras.Model, **compiled: Any) -> keras.Model:
    """Compiles a model, for classification if nothing else is asked for, and returns it."""
    model.compile(**{"optimizer": SGD(0.1), "loss": CrossEntropy(), **compiled})
    return model
