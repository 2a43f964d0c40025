"""The steps that were sent to workers and have not come back yet.

    flight = Flight(model, coordinator)
    flight.send(steps, work)      # waits only where too many are on their way
    flight.logs()                 # the metrics as far as steps have come back
    flight.settle()               # all have; the metrics' variables hold what they saw

Between `settle` and the next `send` nothing changes the model: then it can be saved or evaluated.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DatasetError, ProcessError
from distlab.strategy.describing import describe
from distlab.training.parameter_server import remote, task_health
from distlab.training.parameter_server.remote import Work
from distlab.training.parameter_server.stepping import Steps, ended
from distlab.training.parameter_server.tallying import Tally

# Steps on their way, for each worker: it has the next one when it ends one, also while callbacks
# run. With more of them, more steps follow one that a callback would have stopped.
AHEAD = 4

# How often batches are sent again that workers had passed already.
_ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class _Sent:
    steps: Steps
    work: Work
    number: int
    remote: Any = None


class Flight:
    """The steps of one model that are on their way.

    Args:
        model: A compiled model.
        coordinator: The coordinator of the workers.

    Attributes:
        one_by_one: Whether each step has come back before `logs` returns.
    """

    def __init__(
        self, model: keras.Model, coordinator: tf.distribute.coordinator.ClusterCoordinator
    ) -> None:
        self.one_by_one = False
        self._model, self._coordinator = model, coordinator
        self._tally = Tally(model)
        self._health = task_health.TaskHealth(model.distribute_strategy)
        self._most = AHEAD * describe(model.distribute_strategy).workers
        self._sent: deque[_Sent] = deque()
        self._missed: list[_Sent] = []
        self._trained: int | None = None  # steps, those on their way included

    def send(self, steps: Steps, work: Work, *, trains: bool) -> None:
        """Sends work to the worker that is free first."""
        number = work.first
        if trains:
            if self._trained is None:
                self._trained = int(self._model.optimizer.iterations.numpy())
            number, self._trained = self._trained, self._trained + work.count
        with self._ended_on_error():
            self._send(_Sent(steps=steps, work=work, number=number))
            while len(self._sent) > self._most:
                self._collect()

    def logs(self) -> dict[str, Any]:
        """Returns the metrics, with what has come back until now."""
        if self.one_by_one:
            self.settle()
        return self._tally.logs()

    def settle(self) -> None:
        """Waits for all that was sent."""
        with self._ended_on_error():
            self._collect_all()
            for _ in range(_ROUNDS):
                if self._missed:
                    self._send_missed()
                    self._collect_all()
            if self._missed:
                raise DatasetError(
                    asked=f"read batch {self._missed[0].work.first} of a data set on the workers",
                    found=f"none of them has it, asked {_ROUNDS} times",
                    do="look whether files are the same on all machines",
                )
            self._trained = None
            self._tally.write()

    def forget(self) -> None:
        """Waits for all that was sent, and drops what it adds to the metrics."""
        self.settle()
        self._tally.forget()

    def _send(self, sent: _Sent) -> None:
        scheduled = sent.steps.schedule(self._coordinator, sent.work, number=sent.number)
        self._sent.append(_Sent(**{**vars(sent), "remote": scheduled}))

    def _send_missed(self) -> None:
        missed, self._missed = sorted(self._missed, key=lambda one: one.work.first), []
        for reading in {id(one.work.reading): one.work.reading for one in missed}.values():
            reading.begin_anew()
        for one in missed:
            self._send(one)

    def _collect_all(self) -> None:
        while self._sent:
            self._collect()

    def _collect(self) -> None:
        sent = self._sent.popleft()
        done, part = ended(self._result_of(sent.remote))
        self._health.result_came()
        self._tally.add(part)
        if done < sent.work.count:
            rest = sent.work.rest(done)
            self._missed.append(_Sent(steps=sent.steps, work=rest, number=sent.number + done))

    def _result_of(self, scheduled: Any) -> tf.Tensor:
        while not remote.is_ready(scheduled, timeout_secs=1.0):
            self._health.look()
        while True:
            try:
                return scheduled.get()
            except tf.errors.OpError:
                # It had ended, and its worker was lost before the result was here: it is run
                # again by another, unless this is an error for good, which `done` raises.
                if self._coordinator.done():
                    raise
                self._health.look()
                time.sleep(0.05)

    @contextlib.contextmanager
    def _ended_on_error(self) -> Iterator[None]:
        """On an error nothing is left on its way, and the first error is the one that is raised."""
        try:
            yield
        except Exception as error:
            self._sent.clear()
            self._missed.clear()
            self._tally.forget()
            self._trained = None
            if not isinstance(error, ProcessError):  # else it could be waited for in vain
                self._coordinator.join()
            raise
