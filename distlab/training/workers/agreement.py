"""The agreement of workers on arguments, data, weights, and what each does next.

Unnoticed, one worker would wait for another forever, or each would train another model, or on its
part of what is not one data set. So all of them learn what differs.
"""

from __future__ import annotations

import itertools
import signal
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import DatasetError, InvalidArgument, ModelError
from distlab.training.keras_private import models
from distlab.training.keras_private.runs import is_in_fit
from distlab.training.workers.workers import Workers

# Arguments that each worker may choose for itself.
_FREE = ("callbacks", "verbose")

# Largest difference that counts as rounding, relative to a variable's largest value. Different
# processors round an update by 1e-7, and these add up over a training run.
_ROUNDING = 1e-3
_ROUNDING_OF_16_BITS = 3e-2


def check_data(workers: Workers, method: str, values: dict[str, Any]) -> None:
    """Raises on all workers where what one knows of its data is not what the chief does.

    The values are by a text with a place for them, as in "{} batches".
    """
    if unlike := _first_unlike(workers, values):
        raise _other_data(workers, method, unlike)


def check_arguments(
    workers: Workers, arguments: dict[str, Any], callbacks: list[keras.callbacks.Callback]
) -> None:
    """Raises where `fit` of one worker was given other arguments than the chief's."""
    plain = int | float | str | None
    given = {
        f"{name}={{}}": value if isinstance(value, plain) else type(value).__name__
        for name, value in arguments.items()
        if name not in _FREE
    }
    given["{} dl.Resume"] = sum(type(each).__name__ == "Resume" for each in callbacks)
    if unlike := _first_unlike(workers, given):
        raise InvalidArgument(
            asked=f"fit on {workers.count} workers",
            found=unlike,
            do="call fit with the same arguments on every worker; callbacks and verbose may "
            "differ, dl.Resume may not",
        )


def check_rows(workers: Workers, parts: list[np.ndarray]) -> None:
    """Raises where workers predict for rows that differ by more than rounding."""
    if differing := _first_difference(workers, [("", part) for part in parts]):
        unlike = f"a batch whose rows are others on {differing[1]} than on {workers.names[0]}"
        raise _other_data(workers, "predict", unlike)


def _first_unlike(workers: Workers, values: dict[str, Any]) -> str:
    """The first value that is not the chief's, in words; empty where there is none."""
    chief, *others = workers.exchange(values)
    for name, other in zip(workers.names[1:], others, strict=True):
        for text in chief | other:
            theirs, ours = other.get(text), chief.get(text)
            if theirs != ours:
                ends = f"{text.format(ours)} on {workers.names[0]}"
                return f"{text.format(theirs)} on {name}, and {ends}"
    return ""


def _other_data(workers: Workers, method: str, unlike: str) -> DatasetError:
    return DatasetError(
        asked=f"{method} on {workers.count} workers",
        found=unlike,
        do="give every worker the same data set, with batches of the global size, in the same "
        "order: each takes its part of every batch, so of other data some examples are read twice "
        "and others never. Call distlab.set_seed with one number on each before any array is "
        "shuffled or split; give shuffle, image_dataset_from_directory and its like one seed=",
        pitfall="A shuffle that differs on each worker: examples read twice",
    )


def check_weights(
    workers: Workers,
    model: keras.Model,
    *,
    method: str,
    optimizers: bool,
    numbers_only: bool = False,
) -> None:
    """Raises on all workers if one has different weights than the chief, or a different rate."""
    differing = _differing_weight(workers, model, optimizers=optimizers, numbers_only=numbers_only)
    if differing:
        raise ModelError(
            asked=f"{method} on {workers.count} workers",
            found=differing,
            do="load weights on every worker, from a disk that all of them share, and give "
            "callbacks that change weights or the learning rate to every worker; dl.Resume "
            "restores all workers by itself",
        )


def _differing_weight(
    workers: Workers, model: keras.Model, *, optimizers: bool, numbers_only: bool = False
) -> str:
    """Which variable differs, in words; empty if none does."""
    if workers.count == 1:
        return ""
    # Not compared: seeds and metrics, which `weights` leaves out, and integers that a layer counts
    # up, which are each replica's own.
    variables = [v for v in model.weights if tf.as_dtype(v.dtype).is_floating]
    if optimizers:
        variables += [v for each in models.optimizers_of(model) for v in each.variables]
    local = model.distribute_strategy.experimental_local_results
    arrays = [
        (v.path, local(v.value)[0].numpy())
        for v in variables
        if not (numbers_only and len(v.shape))
    ]
    differing = _first_difference(workers, arrays)
    if differing is None:
        return ""
    path, name = differing
    return f"{path} has different values on {name} and on {workers.names[0]}"


def _first_difference(
    workers: Workers, arrays: Iterable[tuple[str, np.ndarray]]
) -> tuple[str, str] | None:
    """The first named array that differs by more than rounding, and a worker; checksums first.

    Values are only sent if checksums differ: machines of different kinds round differently.
    """
    own = list(arrays)
    described = [
        [name, [str(array.dtype), array.shape, zlib.crc32(_bytes_of(array))]] for name, array in own
    ]
    for index, each in enumerate(itertools.zip_longest(*workers.exchange(described))):
        # Without the names: Keras counts layers of a kind over the whole process.
        known = [part and part[1] for part in each]
        odd = next((i for i, part in enumerate(known) if part != known[0]), None)
        if odd is None:
            continue
        array = own[index][1] if index < len(own) else None
        alike = all(part and known[0] and part[:2] == known[0][:2] for part in known)
        if alike and array is not None and tf.as_dtype(array.dtype).is_floating:
            odd = _far_from_chief(workers, array)
        if odd is not None:
            return (each[0] or each[odd])[0], workers.names[odd]
    return None


def _bytes_of(array: np.ndarray) -> Any:
    if array.dtype == object:  # strings
        return b"\0".join(map(bytes, array.ravel()))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


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


def no_batch() -> DatasetError:
    """Returns the error of a data set that has nothing to train on."""
    return DatasetError(
        asked="fit or evaluate a distributed model",
        found="a data set without a batch",
        do="check its filters and take(), and batch(..., drop_remainder=True)",
    )


class Agreement(keras.callbacks.Callback):  # type: ignore[misc]
    """Lets all workers do the same next. It comes after the callbacks that `fit` was given.

    A callback may stop training on one worker only: by its own clock, or because the chief alone
    has it. The others would wait for that worker in the next step. So after each execution, and at
    the end of each epoch, all workers tell each other what they are about to do.

    Attributes:
        leaves: Whether any worker was asked to leave, as all know it.
        now: The chief's clock when all agreed last, in seconds.
        secs_per_step: What a step has taken in this epoch or the last, without an execution that
            may have been traced; None before it is known.
    """

    listens_to_executions = True

    def __init__(self, workers: Workers, *, on_epoch: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.leaves, self.now = False, 0.0
        self._on_epoch = on_epoch  # what is to be done when an epoch begins, once all agree
        self.secs_per_step: float | None = None
        self._first: tuple[int, float] | None = None  # batch and clock after an epoch's first
        self._workers = workers
        self._notice: PreemptionNotice | None = None
        self._is_compared = False

    def listen(self) -> None:
        """From here on SIGTERM is a request to leave, on which all agree."""
        self._notice = PreemptionNotice()
        self._notice.listen()

    def stop_listening(self) -> None:
        """Gives the signal back, and hands on one that came and was not heeded."""
        notice, self._notice = self._notice, None
        if notice is not None:
            notice.put_back()
            if notice.given and not self.leaves:
                signal.raise_signal(signal.SIGTERM)

    def agree(self) -> None:
        """Asks the others."""
        given = self._notice is not None and self._notice.given
        stops = bool(self.model.stop_training)
        states = self._workers.exchange([stops, given, monotonic()])
        all_stop, all_leave, clocks = zip(*states, strict=True)
        self.model.stop_training = any(all_stop)
        self.leaves, self.now = any(all_leave), clocks[0]

    def on_train_begin(self, logs: Any = None) -> None:
        """Nothing is compared yet."""
        self._is_compared = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Compares weights and optimizers, after `Resume` restored them; later only rates."""
        self._first = None
        numbers_only, self._is_compared = self._is_compared, True
        check_weights(
            self._workers, self.model, method="fit", optimizers=True, numbers_only=numbers_only
        )
        self._on_epoch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Agrees after each execution."""
        self.agree()
        if self._first is None:
            self._first = batch, self.now
        elif batch > self._first[0]:
            self.secs_per_step = (self.now - self._first[1]) / (batch - self._first[0])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Agrees after each epoch."""
        if not logs:  # only now is it known of data whose length is not
            raise no_batch()
        self.agree()

    def on_train_end(self, logs: Any = None) -> None:
        """Warns if a callback of one worker has changed the weights there."""
        differing = _differing_weight(self._workers, self.model, optimizers=False)
        if differing:
            warnings.warn(
                f"fit on {self._workers.count} workers: {differing}. The chief saves its own "
                "weights; evaluate, predict and fit will refuse this model. Give every worker the "
                "callbacks that change weights, such as EarlyStopping(restore_best_weights=True).",
                stacklevel=2,
            )


class PreemptionNotice:
    """SIGTERM, kept for the next good moment while `fit` runs.

    Before a machine is taken away, it gets SIGTERM and then some time: Kubernetes and Slurm give
    30 s. Only the main thread can listen: elsewhere, and where the signal is ignored, nothing
    changes. A second SIGTERM is obeyed at once, by the earlier handler.

    Attributes:
        given: Whether the signal came.
    """

    def __init__(self) -> None:
        self.given = False
        self._before: Any = None

    def listen(self) -> None:
        """Takes the signal from its present handler."""
        before = signal.getsignal(signal.SIGTERM)
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and before not in (None, signal.SIG_IGN):
            self._before = before
            signal.signal(signal.SIGTERM, self._heed)

    def put_back(self) -> None:
        """Gives the signal back to its earlier handler, if nobody has taken it since."""
        if self._before is not None and signal.getsignal(signal.SIGTERM) == self._heed:
            signal.signal(signal.SIGTERM, self._before)
        self._before = None

    def _heed(self, number: int, frame: Any) -> None:
        # An exception may have ended `fit`, with nobody to call `put_back`.
        if self.given or not is_in_fit(frame):
            self.put_back()
            signal.raise_signal(number)
        self.given = True
