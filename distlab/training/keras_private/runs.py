"""Keras's `fit` from inside: its iterator over epochs, its callbacks, its position in the data.

run = begun_run()                            # in a callback's on_train_begin, once `note` is called
place = DataPosition(run.iterator)                  # counts what is read from now on
place.count_execution()                      # after each
place.move_to(saved, batch=40, read=False)   # in another process: there again

Keras hands callbacks neither its iterator over epochs nor each other, so both note themselves.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from distlab.errors import DatasetError, InvalidArgument
from distlab.training.keras_private import KERAS
from distlab.training.keras_private.registry import replaces

_NOW = threading.local()

# What `_initial_epoch` was before it was set here.
_EPOCH_BEFORE: WeakKeyDictionary[keras.Model, int | None] = WeakKeyDictionary()


@dataclass(kw_only=True, eq=False)
class FitRun:
    """A `fit` that has begun.

    Attributes:
        iterator: Keras's `TFEpochIterator`.
        callbacks: All callbacks, in the order in which they are called, Keras's own included.
    """

    iterator: Any
    callbacks: list[keras.callbacks.Callback]


def begun_run() -> FitRun | None:
    """The `fit` whose callbacks are told that it begins; None where none is."""
    return getattr(_NOW, "run", None)


def last_iterator() -> Any:
    """The iterator over epochs that this thread made last, if Keras still reads it."""
    return getattr(_NOW, "iterator", lambda: None)()


def _now() -> threading.local:
    return _NOW


@replaces("keras.src.backend.tensorflow.trainer.TFEpochIterator.__init__", when=_now)
def note_iterator(
    now: Any, original: Callable[..., None], self: Any, *args: Any, **kwargs: Any
) -> None:
    """Notes Keras's iterator over epochs when it is made."""
    original(self, *args, **kwargs)
    now.iterator = weakref.ref(self)


@replaces("keras.callbacks.CallbackList.on_train_begin", when=_now)
def note_callbacks(now: Any, original: Callable[..., None], self: Any, logs: Any = None) -> None:
    """Lets callbacks know each other and the iterator, while training begins."""
    before, iterator = begun_run(), last_iterator()
    now.iterator = lambda: None  # a loop of the user's own that comes later has none
    if iterator is not None:
        now.run = FitRun(iterator=iterator, callbacks=self.callbacks)
    try:
        original(self, logs)
    finally:
        now.run = before


def is_in_fit(frame: FrameType | None) -> bool:
    """Whether a frame, such as the one that a signal came in, runs inside of Keras's `fit`."""
    code = inspect.unwrap(keras.Model.fit).__code__
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def start_at_epoch(model: keras.Model, epoch: int) -> None:
    """Lets a `fit` that is about to begin its first epoch begin with this one."""
    _EPOCH_BEFORE.setdefault(model, model._initial_epoch)
    model._initial_epoch = epoch


def start_as_given(model: keras.Model) -> None:
    """Takes `start_at_epoch` back: the next `fit` begins at its own `initial_epoch`."""
    if model in _EPOCH_BEFORE:
        model._initial_epoch = _EPOCH_BEFORE.pop(model)


def validation(model: keras.Model) -> tuple[Any, int | None]:
    """Returns the validation data of the running `fit`, or None, and its `validation_steps`."""
    iterator = getattr(model, "_eval_epoch_iterator", None)
    return (None, None) if iterator is None else (read_by(iterator), iterator.steps_per_epoch)


def log_metrics_without_batches(model: keras.Model) -> None:
    """Lets an epoch of which no batch is left have the logs that the metrics hold.

    `fit` takes the last step's logs to see which names there are, and would log nothing.
    """
    logs_of = type(model)._get_metrics_result_or_logs
    model.__dict__["_get_metrics_result_or_logs"] = lambda logs: logs_of(
        model, logs or model.get_metrics_result()
    )


def log_as_keras_does(model: keras.Model) -> None:
    """Takes `log_metrics_without_batches` back."""
    model.__dict__.pop("_get_metrics_result_or_logs", None)


def batches_in(iterator: Any) -> int | None:
    """How many batches the data of an iterator over epochs have; None if unknown."""
    return iterator.data_adapter.num_batches  # type: ignore[no-any-return]


def undistributed(iterator: Any) -> tf.data.Dataset | None:
    """The data set of an iterator over epochs; None if it came distributed already."""
    data = iterator.data_adapter.get_tf_dataset()
    return data if isinstance(data, tf.data.Dataset) else None


def read_by(iterator: Any) -> Any:
    """Returns the data of an iterator over epochs, before they are spread over replicas."""
    dataset = iterator._distributed_dataset
    return getattr(dataset, "_original_dataset", dataset)


def iterate(iterator: Any, data: Any) -> None:
    """Lets an iterator over epochs take its batches from here."""
    iterator._distributed_dataset = data


def spec_of_replica(iterator: Any) -> Any:
    """Returns one replica's part of what an iterator over epochs yields, as specs."""
    return one_replica(iterator._distributed_dataset.element_spec)


def one_replica(element_spec: Any) -> Any:
    """Returns one replica's part of a distributed data set's elements, as specs."""
    return tf.nest.map_structure(
        lambda spec: getattr(spec, "_value_specs", [spec])[0], element_spec
    )


def end_data(iterator: Any, *, taken: int) -> None:
    """Ends an epoch of `fit` or `evaluate` as the step after the last batch would.

    With one step after another, the step that finds no batch ends the epoch: Keras warns, and opens
    the data again for the next epoch. An execution of several steps that finds some has no such
    step. Data that know their length end by it, and so does an epoch of all of them.
    """
    if batches_in(iterator) is not None:
        if iterator.steps_per_epoch:
            iterator._interrupted_warning()
        return
    iterator._steps_seen += taken + 1 - iterator.steps_per_execution
    iterator._epoch_iterator = iter(())
    with iterator.catch_stop_iteration():
        raise StopIteration


def bound_last_execution(iterator: Any) -> None:
    """Lets the last execution of an epoch end at its last batch, for the progress bar.

    Keras adds an execution's steps also where fewer batches are left, and shows "15/13". Before
    3.11 it tells callbacks an execution's first batch.
    """
    if KERAS < (3, 11) or "_enumerate_iterator" in vars(iterator):
        return  # in `fit` Keras validates every epoch by one and the same iterator
    enumerate_all = iterator._enumerate_iterator

    def enumerate_bounded() -> Iterator[tuple[int, int, Any]]:
        for begin, end, data in enumerate_all():
            length = iterator.steps_per_epoch or batches_in(iterator)
            yield begin, min(end, length - 1) if length else end, data

    iterator._enumerate_iterator = enumerate_bounded


class DataPosition:
    """The position of a `fit` in its data: the iterators that it made, and how far it read each."""

    def __init__(self, iterator: Any) -> None:
        self.read: list[int] = []  # batches, by iterator over the data
        self._slack = 0  # by how many the last count of an iterator may be too large
        self._iterator = iterator
        self._open = iterator._get_iterator
        self._length = batches_in(iterator)  # of one iterator over the data
        self._ready: Any = None  # the next iterator to be handed out, where one waits
        iterator._get_iterator = lambda: self

    @property
    def batches(self) -> int | None:
        """Batches in an epoch, None where the data set does not know."""
        return self._iterator.steps_per_epoch or self._length

    @property
    def continues(self) -> bool:
        """Whether the next epoch reads on where this one ends (`steps_per_epoch`)."""
        iterator = self._iterator
        return iterator.steps_per_epoch is not None and iterator._current_iterator is not None

    def __iter__(self) -> Any:
        """Hands Keras an iterator over the data, and counts it."""
        if self._ready is not None:
            ready, self._ready = self._ready, None
            return ready
        self.read.append(0)
        return iter(self._open())

    def count_execution(self) -> None:
        """Notes that one execution has read its batches; the last may have found fewer."""
        steps = int(self._iterator.steps_per_execution)
        self.read[-1] += steps
        if self._length is None:
            self._slack = max(self._slack, steps - 1)
        else:
            self.read[-1] = min(self.read[-1], self._length)

    def really_done(self, batch: int) -> int:
        """How many steps of the epoch were taken, where the last was not a full one."""
        known = self._length if self._iterator.steps_per_epoch is None else None
        return batch if known is None else min(batch, known)

    def state(self) -> dict[str, Any]:
        """The state that `move_to` needs, fit for JSON."""
        return {
            "read": list(self.read),
            "slack": self._slack,
            "continues": self.continues,
            "steps_seen": self._iterator._steps_seen,
        }

    def move_to(self, state: dict[str, Any], *, batch: int, read: bool) -> None:
        """Goes to where another `fit` was, without training and without calling callbacks."""
        iterator = self._iterator
        self.read, self._slack = list(state["read"]), state["slack"]
        current = None
        for index, count in enumerate(self.read):
            needed = index == len(self.read) - 1 and (batch > 0 or state["continues"])
            current = self._opened(count if needed or read else 0)
        if state["continues"]:
            iterator._current_iterator, iterator._steps_seen = current, state["steps_seen"] - batch
        elif batch:
            self._ready = current
        if batch:
            self._begin_epoch_at(batch)

    def _opened(self, count: int) -> Any:
        """Makes an iterator and reads `count` batches of it."""
        iterator = iter(self._open())
        for index in range(count):
            if next(iterator, None) is None:
                if count - index > self._slack:
                    raise DatasetError(
                        asked=f"resume after batch {count} of an epoch",
                        found=f"a data set that ends after {index} batches",
                        do="pass fit the data set it had, or Resume another folder",
                    )
                break
        return iterator

    def _begin_epoch_at(self, batch: int) -> None:
        """Lets the next epoch, and only that, begin with a batch that is not its first.

        There `fit` raises `InvalidArgument` where no execution begins with that batch.
        """
        iterator = self._iterator
        epoch = iterator._enumerate_iterator

        def rest_of_epoch() -> Iterator[Any]:
            del iterator._enumerate_iterator
            steps = iterator.steps_per_execution
            whole = self._length is not None and batch >= self._length
            if batch % steps and not whole:
                raise InvalidArgument(
                    asked=f"resume after batch {batch} with {steps} steps per execution",
                    found="a place inside an execution",
                    do="compile the model with the steps_per_execution it had",
                )
            executions = epoch()
            for _ in range(-(-batch // steps)):
                next(executions, None)
            yield from executions

        iterator._enumerate_iterator = rest_of_epoch
