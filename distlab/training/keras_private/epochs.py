"""The iterator over epochs that Keras's `fit` makes for itself.

It holds the distributed data set, how many batches an epoch has, and where in it `fit` is.

running = running_fit(model)                 # in a callback
place = Place(running.iterator)              # counts what is read from now on
place.count_execution()                      # after each
place.move_to(saved, batch=40, read=False)   # in another process: there again
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import keras

from distlab.errors import DatasetError, InvalidArgument
from distlab.training.keras_private import models

# What `_initial_epoch` was before it was set here.
_EPOCH_BEFORE: WeakKeyDictionary[keras.Model, int | None] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class RunningFit:
    """What a running `fit` keeps in its own variables.

    Attributes:
        iterator: Keras's `TFEpochIterator`.
        callbacks: All callbacks, in the order in which they are called, Keras's own included.
        initial_epoch: As it was given to `fit`.
    """

    iterator: Any
    callbacks: list[keras.callbacks.Callback]
    initial_epoch: int


def running_fit(model: keras.Model) -> RunningFit | None:
    """Returns what the model's running `fit` keeps, or None where no `fit` runs.

    Keras hands callbacks neither the iterator nor each other, so it is read from the variables of
    `fit`, further up the stack. This holds for any model, also one that `distribute` never saw.
    """
    kept = _variables_of(model, "fit")
    if kept is None:
        return None
    return RunningFit(
        iterator=kept["epoch_iterator"],
        callbacks=kept["callbacks"].callbacks,
        initial_epoch=kept["initial_epoch"],
    )


def running_iterator(model: keras.Model, *methods: str) -> Any:
    """Returns the `TFEpochIterator` of the innermost of these methods that runs, None outside."""
    kept = _variables_of(model, *methods)
    return None if kept is None else kept["epoch_iterator"]


def _variables_of(model: keras.Model, *methods: str) -> dict[str, Any] | None:
    frame = inspect.currentframe()
    while frame is not None:
        kept = frame.f_locals if frame.f_code.co_name in methods else {}
        if kept.get("self") is model and "epoch_iterator" in kept:
            return kept
        frame = frame.f_back
    return None


def start_at_epoch(model: keras.Model, epoch: int) -> None:
    """Lets a `fit` that is about to begin its first epoch begin with this one."""
    _EPOCH_BEFORE.setdefault(model, model._initial_epoch)
    model._initial_epoch = epoch


def start_as_told(model: keras.Model) -> None:
    """Takes `start_at_epoch` back: the next `fit` begins where it is told to."""
    if model in _EPOCH_BEFORE:
        model._initial_epoch = _EPOCH_BEFORE.pop(model)


def validation(model: keras.Model) -> tuple[Any, int | None]:
    """Returns what the running `fit` has validated on, or None, and its `validation_steps`."""
    iterator = getattr(model, "_eval_epoch_iterator", None)
    return (
        (None, None) if iterator is None else (_undistributed(iterator), iterator.steps_per_epoch)
    )


def build(model: keras.Model, iterator: Any) -> None:
    """Makes every variable of the model, its optimizer and its metrics that is not there yet.

    Keras does it in the first step where no strategy is set, and that is too late.
    """
    spec = models.spec_of_replica(iterator)
    try:
        models.build(model, spec)
    except RuntimeError:
        if not models.has_own(model, "train_step"):
            raise
    models.build_for_own_step(model, spec)


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


def _undistributed(iterator: Any) -> Any:
    dataset = iterator._distributed_dataset
    return getattr(dataset, "_original_dataset", dataset)


class Place:
    """Where a `fit` is in its data: which iterators it made, and how far it read each."""

    def __init__(self, iterator: Any) -> None:
        self.read: list[int] = []  # batches, by iterator over the data
        self._slack = 0  # by how many the last count of an iterator may be too large
        self._iterator = iterator
        self._open = iterator._get_iterator
        self._ready: Any = None  # the next iterator to be handed out, where one waits
        iterator._get_iterator = lambda: self

    @property
    def dataset(self) -> Any:
        """What `fit` reads, before it is spread over replicas."""
        return _undistributed(self._iterator)

    @property
    def batches(self) -> int | None:
        """Batches in an epoch, None where the data set does not know."""
        return self._iterator.steps_per_epoch or self._length

    @property
    def continues(self) -> bool:
        """Whether the next epoch reads on where this one ends (`steps_per_epoch`)."""
        it = self._iterator
        return it.steps_per_epoch is not None and it._current_iterator is not None

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
        """Returns how many steps of the epoch were taken, where the last was not a full one."""
        known = self._length if self._iterator.steps_per_epoch is None else None
        return batch if known is None else min(batch, known)

    def state(self) -> dict[str, Any]:
        """Returns what `move_to` needs, fit for JSON."""
        return {
            "read": list(self.read),
            "slack": self._slack,
            "continues": self.continues,
            "steps_seen": self._iterator._steps_seen,
        }

    def move_to(self, state: dict[str, Any], *, batch: int, read: bool) -> None:
        """Goes to where another `fit` was, without training and without calling callbacks."""
        it = self._iterator
        self.read, self._slack = list(state["read"]), state["slack"]
        current = None
        for index, count in enumerate(self.read):
            needed = index == len(self.read) - 1 and (batch > 0 or state["continues"])
            current = self._made(count if needed or read else 0)
        if state["continues"]:
            it._current_iterator, it._steps_seen = current, state["steps_seen"] - batch
        elif batch:
            self._ready = current
        if batch:
            self._begin_epoch_at(batch)

    @property
    def _length(self) -> int | None:
        """Batches that one iterator gives."""
        length: int | None = self._iterator.data_adapter.num_batches
        return length

    def _made(self, count: int) -> Any:
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
        it = self._iterator
        epoch = it._enumerate_iterator

        def rest_of_epoch() -> Iterator[Any]:
            del it._enumerate_iterator
            steps = it.steps_per_execution
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

        it._enumerate_iterator = rest_of_epoch


def end_data(model: keras.Model, *, taken: int) -> None:
    """Ends the running epoch as the step after the last batch would; in `fit` and `evaluate`.

    With one step after another, the step that finds no batch ends the epoch: Keras warns, and opens
    the data again for the next epoch. An execution of several steps that finds some has no such
    step. Data that know their length end by it, and so does an epoch of all of them.
    """
    iterator = running_iterator(model, "fit", "evaluate")
    if iterator is None:
        return
    if models.batches_in(iterator) is not None:
        if iterator.steps_per_epoch:
            iterator._interrupted_warning()
        return
    iterator._steps_seen += taken + 1 - iterator.steps_per_execution
    iterator._epoch_iterator = iter(())
    with iterator.catch_stop_iteration():
        raise StopIteration
