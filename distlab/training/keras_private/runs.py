"""A running `fit`, `evaluate` or `predict`: the data that it reads, and where it is in them.

run = current_run(model, "fit")              # in a callback; None where no fit runs
place = Place(run.iterator)                  # counts what is read from now on
place.count_execution()                      # after each
place.move_to(saved, batch=40, read=False)   # in another process: there again

Keras hands callbacks neither its iterator over epochs nor each other. So its three methods note
that they run, and the iterator and the list of callbacks that they make note themselves there.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from distlab.errors import DatasetError, InvalidArgument

_NOW = threading.local()

# What `_initial_epoch` was before it was set here.
_EPOCH_BEFORE: WeakKeyDictionary[keras.Model, int | None] = WeakKeyDictionary()


@dataclass(kw_only=True, eq=False)
class Run:
    """A `fit`, `evaluate` or `predict` that runs.

    Attributes:
        initial_epoch: As it was given to `fit`.
        made: Keras's `TFEpochIterator`, once it is made; not by an `evaluate` inside `fit`.
        callbacks: All callbacks, in the order in which they are called, Keras's own included.
        lives: Gives None once the run is over that could not say so.
    """

    model: keras.Model
    method: str
    initial_epoch: int = 0
    made: Any = None
    callbacks: Any = None
    lives: Callable[[], Any] = lambda: True

    @property
    def iterator(self) -> Any:
        """The iterator over epochs."""
        return self.made or getattr(self.model, "_eval_epoch_iterator", None)


def _runs() -> list[Run]:
    """This thread's runs, the innermost last."""
    runs: list[Run] = [run for run in getattr(_NOW, "runs", []) if run.lives() is not None]
    _NOW.runs = runs
    return runs


def current_run(model: keras.Model, *methods: str) -> Run | None:
    """The innermost run of one of these methods, None where none runs."""
    found = (run for run in reversed(_runs()) if run.model is model and run.method in methods)
    return next(found, None)


def note_run(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of Keras's trainer: `fit`, `evaluate` and `predict` note that they run."""
    signature = inspect.signature(original)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        run = Run(model=self, method=original.__name__, initial_epoch=given.get("initial_epoch", 0))
        _runs().append(run)
        try:
            return original(self, *args, **kwargs)
        finally:
            _runs().remove(run)

    return method


def note_iterator(original: Callable[..., None]) -> Callable[..., None]:
    """Of Keras's iterator over epochs, `__init__`: the run that makes it knows it."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        runs = _runs()
        if not runs:
            _NOW.made = weakref.ref(self)  # for a run that `note_callbacks` notes
        elif runs[-1].made is None:
            runs[-1].made = self

    return init


def note_callbacks(original: Callable[..., None]) -> Callable[..., None]:
    """Of `CallbackList`: the `fit` whose callbacks begin knows them."""

    def on_train_begin(self: Any, logs: Any = None) -> None:
        runs = _runs()
        if not runs or runs[-1].model is not self._model:
            # In the first `model.fit(callbacks=[dl.Resume(...)])` of a process, Python looks `fit`
            # up before `Resume` replaces it. That run ends when its list of callbacks is gone.
            made, _NOW.made = getattr(_NOW, "made", lambda: None)(), lambda: None
            if made is None:  # a loop of the user's own
                return original(self, logs)
            run = Run(model=self._model, method="fit", made=made, lives=weakref.ref(self))
            runs.append(run)
        runs[-1].callbacks = self.callbacks
        return original(self, logs)

    return on_train_begin


def start_at_epoch(model: keras.Model, epoch: int) -> None:
    """Lets a `fit` that is about to begin its first epoch begin with this one."""
    _EPOCH_BEFORE.setdefault(model, model._initial_epoch)
    model._initial_epoch = epoch


def start_as_given(model: keras.Model) -> None:
    """Takes `start_at_epoch` back: the next `fit` begins where it is told to."""
    if model in _EPOCH_BEFORE:
        model._initial_epoch = _EPOCH_BEFORE.pop(model)


def validation(model: keras.Model) -> tuple[Any, int | None]:
    """What the running `fit` has validated on, or None, and its `validation_steps`."""
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
    """What an iterator over epochs reads, before it is spread over replicas."""
    dataset = iterator._distributed_dataset
    return getattr(dataset, "_original_dataset", dataset)


def iterate(iterator: Any, data: Any) -> None:
    """Lets an iterator over epochs take its batches from here."""
    iterator._distributed_dataset = data


def spec_of_replica(iterator: Any) -> Any:
    """What one replica gets of an iterator over epochs, as specs."""
    return one_replica(iterator._distributed_dataset.element_spec)


def one_replica(element_spec: Any) -> Any:
    """What one replica gets of a distributed data set, as specs."""
    return tf.nest.map_structure(
        lambda spec: getattr(spec, "_value_specs", [spec])[0], element_spec
    )


def end_data(model: keras.Model, *, taken: int) -> None:
    """Ends the running epoch as the step after the last batch would; in `fit` and `evaluate`.

    With one step after another, the step that finds no batch ends the epoch: Keras warns, and opens
    the data again for the next epoch. An execution of several steps that finds some has no such
    step. Data that know their length end by it, and so does an epoch of all of them.
    """
    run = current_run(model, "fit", "evaluate")
    if run is None:
        return
    iterator = run.iterator
    if batches_in(iterator) is not None:
        if iterator.steps_per_epoch:
            iterator._interrupted_warning()
        return
    iterator._steps_seen += taken + 1 - iterator.steps_per_execution
    iterator._epoch_iterator = iter(())
    with iterator.catch_stop_iteration():
        raise StopIteration


class Place:
    """Where a `fit` is in its data: which iterators it made, and how far it read each."""

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
        """What `move_to` needs, fit for JSON."""
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
                        do="give fit the data set it had, or Resume another folder",
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
