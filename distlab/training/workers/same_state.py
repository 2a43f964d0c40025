"""Checks that all workers hold the same weights and optimizers, and begin at the same epoch.

What one worker alone loads, restores or changes, the others do not have. Their gradients would be
those of different models, and nothing would ever bring the copies together again.

Values are compared by a checksum of each variable. Only if checksums differ are values sent:
machines of different kinds round differently, and that is no mistake.
"""

from __future__ import annotations

import itertools
import math
import warnings
import zlib
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import ModelError
from distlab.training.keras_private import held
from distlab.training.keras_private.callbacks import restored_epoch
from distlab.training.workers.exchanging import Workers

# Largest difference that counts as rounding, relative to a variable's largest value. Different
# processors round an update by 1e-7, and these add up over a training run.
_ROUNDING = 1e-3
_ROUNDING_OF_16_BITS = 3e-2
_ROUNDING_OF_RATES = 1e-5

_DO = (
    "load weights on every worker, from a disk that all of them share, and give callbacks that "
    "change weights to every worker; dl.Resume restores all workers by itself"
)

# The name of an array, and the array.
Named = tuple[str, np.ndarray]


class SameState(keras.callbacks.Callback):  # type: ignore[misc]
    """Compares the workers where `fit` begins and ends. It comes after the user's callbacks."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers
        self._is_compared = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Compares what callbacks have restored: without the same epochs, workers wait for ever."""
        self._is_compared = False
        epochs = self._workers.exchange(restored_epoch(self.model))
        for name, epoch in zip(self._workers.names, epochs, strict=True):
            if epoch != epochs[0]:
                chief = self._workers.names[0]
                raise ModelError(
                    asked=f"fit on {self._workers.count} workers",
                    found=f"training that begins at epoch {epoch or 0} on {name} and at epoch "
                    f"{epochs[0] or 0} on {chief}",
                    do="restore a backup on every worker, from a disk that all of them share, or "
                    "give fit the callback dl.Resume instead",
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Compares weights and optimizers before the first step, after `Resume` restored them."""
        if not self._is_compared:
            self._is_compared = True
            check_weights(self._workers, self.model, method="fit", optimizers=True)

    def on_train_end(self, logs: Any = None) -> None:
        """Warns if a callback of one worker has changed the weights there."""
        differs = _differing_weight(self._workers, self.model, optimizers=False)
        if differs:
            warnings.warn(
                f"fit on {self._workers.count} workers: {differs}. The chief saves its own "
                "weights; evaluate, predict and fit will refuse this model. Give every worker the "
                "callbacks that change weights, such as EarlyStopping(restore_best_weights=True).",
                stacklevel=2,
            )


def check_weights(workers: Workers, model: keras.Model, *, method: str, optimizers: bool) -> None:
    """Raises on all workers if one has different weights than the chief."""
    differs = _differing_weight(workers, model, optimizers=optimizers)
    if differs:
        raise ModelError(asked=f"{method} on {workers.count} workers", found=differs, do=_DO)


def learning_rates(model: keras.Model) -> list[float]:
    """Returns the present learning rate of each optimizer."""
    return [
        float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        for optimizer in held.optimizers_of(model)
    ]


def check_learning_rates(workers: Workers, rates: list[list[float]]) -> None:
    """Raises if workers have different learning rates."""
    for name, others in zip(workers.names, rates, strict=True):
        for one, other in zip(rates[0], others, strict=True):
            if not math.isclose(one, other, rel_tol=_ROUNDING_OF_RATES):
                raise ModelError(
                    asked=f"fit on {workers.count} workers",
                    found=f"a learning rate of {other:g} on {name} and of {one:g} on "
                    f"{workers.names[0]}",
                    do="give every worker the callbacks that change the learning rate, such as "
                    "ReduceLROnPlateau",
                )


def first_difference(workers: Workers, arrays: Iterable[Named]) -> tuple[str, str] | None:
    """Returns the first array that differs by more than rounding, and a worker, by their names."""
    here = list(arrays)
    described = [
        [name, str(array.dtype), array.shape, zlib.crc32(_bytes_of(array))] for name, array in here
    ]
    for index, each in enumerate(itertools.zip_longest(*workers.exchange(described))):
        chief = each[0]
        odd = next((i for i, one in enumerate(each) if _identity(one) != _identity(chief)), None)
        if odd is None:
            continue
        array = here[index][1] if index < len(here) else None
        alike = all(one and chief and one[1:3] == chief[1:3] for one in each)
        if alike and array is not None and tf.as_dtype(array.dtype).is_floating:
            odd = _far_from_chief(workers, array)
        if odd is not None:
            return (chief or each[odd])[0], workers.names[odd]
    return None


def _differing_weight(workers: Workers, model: keras.Model, *, optimizers: bool) -> str:
    """Says which variable differs; empty if none does."""
    if workers.count == 1:
        return ""
    # Not compared: seeds and metrics, which `weights` leaves out, and integers that a layer counts
    # up, which are each replica's own.
    variables = [v for v in model.weights if tf.as_dtype(v.dtype).is_floating]
    if optimizers:
        variables += [v for one in held.optimizers_of(model) for v in one.variables]
    found = first_difference(workers, [(v.path, _value_of(model, v)) for v in variables])
    if found is None:
        return ""
    path, name = found
    return f"{path} has different values on {name} and on {workers.names[0]}"


def _value_of(model: keras.Model, variable: keras.Variable) -> np.ndarray:
    copies = model.distribute_strategy.experimental_local_results(variable.value)
    value: np.ndarray = copies[0].numpy()
    return value


def _bytes_of(array: np.ndarray) -> Any:
    if array.dtype == object:  # strings
        return b"\0".join(map(bytes, array.ravel()))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _identity(described: list[Any] | None) -> list[Any] | None:
    """All but the name: Keras counts layers of a kind over the whole process."""
    return described and described[1:]


def _far_from_chief(workers: Workers, array: np.ndarray) -> int | None:
    """The first worker whose values differ by more than rounding."""
    chief, *others = (
        np.frombuffer(part, array.dtype).astype(np.float64)
        for part in workers.gather(array.tobytes())
    )
    tolerance = _ROUNDING_OF_16_BITS if array.dtype.itemsize <= 2 else _ROUNDING
    limit = tolerance * np.nanmax(np.abs(chief), initial=0.0)
    for index, other in enumerate(others, start=1):
        # Values that are no numbers on all workers are no difference.
        if np.nanmax(np.abs(chief - other), initial=0.0) > limit:
            return index
    return None
