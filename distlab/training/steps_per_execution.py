"""Chooses `steps_per_execution` for a model that was compiled without it.

Between executions Python runs: callbacks, the progress bar, an interrupt. For a small model that
costs more than the step. So from the second epoch on an execution takes as many steps as fit
into a fifth of a second, by what the first epoch took; results do not depend on the number.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

import keras

from distlab.errors import DatasetError
from distlab.training.keras_private import models
from distlab.training.workers.workers import Workers

# Long enough to hide what Python costs, short enough for progress and interrupts.
EXECUTION_SECS = 0.2
MOST_STEPS = 128

_LISTENING = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_batch_begin",
    "on_test_batch_end",
)


class ChosenSteps(keras.callbacks.Callback):  # type: ignore[misc]
    """Chooses `steps` before each epoch, unless the model was compiled with a number.

    It stays 1 where a callback listens to batches: one that has its own `on_train_batch_end` or
    the like. A callback that minds executions of several steps as little as Keras's progress
    bar says so by an attribute `listens_to_executions = True`; if it has `every_steps` too,
    executions end there.

    Several workers take the same number: what suits the callbacks of all, by the chief's clock.

    Args:
        callbacks: What `fit` was given.
        asked: What the model was compiled with.
        workers: Those that train together.

    Attributes:
        steps: How many steps `fit` takes in one execution. The model's own
            `steps_per_execution` stays, for what a callback does with the model.
    """

    def __init__(
        self, callbacks: list[keras.callbacks.Callback], *, asked: int, workers: Workers
    ) -> None:
        super().__init__()
        self.steps = asked
        self._iterator: Any = None
        self._workers = workers
        free = asked == 1 and not any(listens(callback) for callback in callbacks)
        marks = [getattr(callback, "every_steps", None) for callback in callbacks]
        mark = math.gcd(*(mark for mark in marks if isinstance(mark, int)))
        wishes = workers.exchange([free, mark])
        self._free = all(free for free, _ in wishes)
        self._mark = math.gcd(*(mark for _, mark in wishes))
        self._timed_from: float | None = None
        self._first_batch = self._last_batch = 0
        self._secs_per_step: float | None = None

    def begin(self, iterator: Any) -> None:
        """Takes the data that `fit` trains on from now on."""
        self._iterator = iterator

    def validate(self, iterator: Any) -> int:
        """Returns how many steps an execution takes over other data, within this `fit`."""
        return self._for(iterator, self.steps) if self._free else self.steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Chooses for this epoch."""
        self._timed_from = None
        if self._free and self._secs_per_step is not None:
            most = min(MOST_STEPS, int(EXECUTION_SECS / max(self._secs_per_step, 1e-9)))
            self.steps = self._for(self._iterator, most)

    def _for(self, iterator: Any, most: int) -> int:
        # With a number of steps Keras goes on in the same iterator: end where the epoch does.
        steps = choose(most, math.gcd(self._mark, iterator.steps_per_epoch or 0))
        iterator.steps_per_execution = steps
        return steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Times the first epoch, from the end of its first step: that one is traced."""
        if self._timed_from is None:  # `Resume` may begin in the middle of an epoch
            self._timed_from = perf_counter()
            self._first_batch = batch
        self._last_batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keeps what a step took in the first epoch, if it had more than one."""
        if not logs:  # only now is it known of data whose length is not
            raise no_batch()
        steps = self._last_batch - self._first_batch
        if self._secs_per_step is None and self._timed_from is not None and steps > 0:
            secs = (perf_counter() - self._timed_from) / steps
            self._secs_per_step = self._workers.from_chief(secs)


def no_batch() -> DatasetError:
    """Returns the error of a data set that has nothing to train on."""
    return DatasetError(
        asked="fit or evaluate a distributed model",
        found="a data set without a batch",
        do="look at its filters and take(), and at batch(..., drop_remainder=True)",
    )


def choose(most: int, multiple: int) -> int:
    """Returns the largest number of steps, at least 1, that is at most `most`."""
    candidates = range(1, max(most, 1) + 1)
    return max(n for n in candidates if not multiple or multiple % n == 0)


def listens(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback is to be called after every single batch."""
    if getattr(callback, "listens_to_executions", False):
        return False
    own, none = type(callback), keras.callbacks.Callback
    methods = [
        # Keras's LambdaCallback sets its methods on the instance.
        vars(callback).get(name, getattr(own, name))
        for name in _LISTENING
        if name in vars(callback) or getattr(own, name) is not getattr(none, name)
    ]
    if any(not getattr(method, "__module__", "").startswith("keras.") for method in methods):
        return True
    if isinstance(callback, keras.callbacks.ModelCheckpoint | keras.callbacks.BackupAndRestore):
        return bool(callback.save_freq != "epoch")
    if isinstance(callback, keras.callbacks.TensorBoard):
        return callback.update_freq != "epoch" or models.profiles(callback)
    return bool(methods) and not isinstance(
        callback, keras.callbacks.ProgbarLogger | keras.callbacks.History
    )
