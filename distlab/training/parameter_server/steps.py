"""The model's own step on a worker, and the steps that are in flight.

    step = training_step(model, check_finite=True)
    in_flight = InFlightSteps(model, coordinator)
    in_flight.send(step, batch)       # waits only where too many are in flight
    in_flight.logs()                  # the metrics as far as steps have come back
    in_flight.settle()                # all have; the metrics' variables hold what they counted

Keras's metrics add to a variable by reading, adding and writing. Two workers that do so at once
lose what one of them counted. So a step returns what its batch adds, and the coordinator adds it:
a metric must add up over batches, as all of Keras's do.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.cluster.probe import unanswering
from distlab.errors import ModelError, ProcessError
from distlab.strategy.description import describe
from distlab.training.keras_private import strategies
from distlab.training.keras_private.models import Writes, metrics_of
from distlab.training.rule import gradients
from distlab.training.rule.losses import is_keras
from distlab.training.step_errors import assert_finite

# A worker is given this long to come back, if no other does its work meanwhile. A scheduler that
# starts it on another machine may need minutes.
WORKER_SECS = 300.0

# A parameter server does not come back with what it held. This only rules out a short break; one
# whose port is open lives, on a machine that has no time for it, and has as long as a worker.
SERVER_SECS = 30.0

_RESTART = (
    "start all tasks again; with dl.Resume(folder) among the callbacks, fit goes on from the "
    "newest checkpoint"
)
_BETWEEN_LOOKS_SECS = 2.0
_SERVER = re.compile(r"/job:ps/(?:replica:0/)?task:(\d+)")

# Steps in flight for each worker: it has the next one when it ends one, also while callbacks run.
# With more of them, more steps follow one that a callback would have stopped.
AHEAD = 4


def training_step(model: keras.Model, *, check_finite: bool) -> Callable[[Any], tf.Tensor]:
    """The step that learns, as a function to schedule; it returns what it adds to the metrics."""
    check = None
    if check_finite and not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):

        def check(losses: tf.Tensor) -> list[Any]:
            number = tf.convert_to_tensor(model.optimizer.iterations)
            return [assert_finite(losses[0], step=number, replica=tf.constant(0))]

    def learn(batch: Any) -> None:
        with gradients.watched(check):
            model.train_step(batch)

    return _on_worker(model, learn)


def test_step(model: keras.Model) -> Callable[[Any], tf.Tensor]:
    """The step that evaluates, in the same form."""
    return _on_worker(model, lambda batch: model.test_step(batch))


def _on_worker(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], tf.Tensor]:
    """The model's own step, in which what is counted is returned or added by one operation."""

    def on_worker(batch: Any) -> tf.Tensor:
        metrics = model.metrics_variables
        counted = {id(variable) for variable in metrics}
        others = {id(v): v for v in [*model.variables, *model.optimizer.variables]}
        others = {key: v for key, v in others.items() if key not in counted}
        before = {key: tf.identity(v.value) for key, v in others.items() if "int" in v.dtype}
        zeros = {id(v): tf.zeros(v.shape, v.dtype) for v in metrics}
        start = [(variable, zeros[id(variable)]) for variable in metrics]
        start += [(others[key], value) for key, value in before.items()]
        with Writes(state_mapping=start) as scope:
            step(batch)
        _check_adds_up(model, zeros, scope)
        for key, variable in others.items():
            new = scope.written(variable)
            if key in before:
                variable.value.assign_add(tf.cast(new, variable.dtype) - before[key])
            elif new is not None:  # a moving average: who comes last
                variable.value.assign(tf.cast(new, variable.dtype))
        # One tensor, because each costs a message; float64 holds every float32 and every count.
        parts = [scope.written(variable) for variable in metrics]
        return tf.concat([tf.reshape(tf.cast(part, tf.float64), [-1]) for part in parts], 0)

    def run(batch: Any) -> tf.Tensor:
        return model.distribute_strategy.run(on_worker, args=(batch,))

    function: Callable[[Any], tf.Tensor] = tf.function(run, autograph=False, reduce_retracing=True)
    return function


def _check_adds_up(model: keras.Model, start: dict[int, tf.Tensor], scope: Writes) -> None:
    """Raises where a metric of the user's does not only add to its variables."""
    for metric in metrics_of(model):
        if is_keras(metric):
            continue
        for variable in metric.variables:
            before = start.get(id(variable))
            if before is not None and not _adds(scope.written(variable), before):
                raise ModelError(
                    asked=f"count the metric {metric.name!r} on parameter servers",
                    found=f"its variable {variable.name!r}, to which it does more than add: so it "
                    "does not add up over batches that workers count apart",
                    do="let update_state only add (assign_add), and compute the rest in result(); "
                    "or leave the metric out of compile()",
                )


def _adds(written: tf.Tensor, start: tf.Tensor) -> bool:
    """Whether a value is `start`, plus what does not depend on it."""
    while written.op.type == "StopGradient":
        written = written.op.inputs[0]
    if written.ref() == start.ref():
        return True
    if written.op.type not in ("Add", "AddV2", "BiasAdd"):
        return False
    left, right = written.op.inputs
    return any(
        _adds(total, start) and not _depends(added, start)
        for total, added in ((left, right), (right, left))
    )


def _depends(tensor: tf.Tensor, start: tf.Tensor) -> bool:
    waiting, seen = [tensor], set()
    while waiting:
        each = waiting.pop()
        if each.ref() == start.ref():
            return True
        if each.ref() not in seen:
            seen.add(each.ref())
            waiting += each.op.inputs
    return False


class InFlightSteps:
    """The steps of one model that workers have not answered yet, and what steps have counted.

    Between `settle` and the next `send` nothing changes the model: then it can be saved.

    Attributes:
        one_by_one: Whether each step has come back before `logs` returns.
    """

    def __init__(
        self, model: keras.Model, coordinator: tf.distribute.coordinator.ClusterCoordinator
    ) -> None:
        self.one_by_one = False
        self._model, self._coordinator = model, coordinator
        self._health = TaskHealth(model.distribute_strategy)
        self._most = AHEAD * describe(model.distribute_strategy).workers
        self._sent: deque[Any] = deque()
        self._written: np.ndarray | None = None  # what the metrics' variables hold, if known
        self._added: np.ndarray | None = None  # what steps have counted since

    def send(self, step: Callable[[Any], tf.Tensor], batch: Any) -> None:
        """Sends a batch to the worker that is free first."""
        with self._cleared_on_error():
            self._sent.append(self._coordinator.schedule(step, args=(batch,)))
            while len(self._sent) > self._most:
                self._collect()

    def settle(self) -> None:
        """Waits for all that was sent, and adds what it counted to the metrics' variables."""
        with self._cleared_on_error():
            while self._sent:
                self._collect()
        if self._added is None:
            return
        for variable, part in self._split(self._added):
            variable.value.assign_add(tf.cast(part, variable.dtype))
        if self._written is not None:
            self._written = self._written + self._added
        self._added = None

    def forget(self) -> None:
        """Waits for all that was sent; the metrics' variables will be written by others."""
        self.settle()
        self._written = None

    def logs(self) -> dict[str, Any]:
        """The metrics, with what has come back until now."""
        if self.one_by_one:
            self.settle()
        if self._written is None:
            values = [np.ravel(variable.numpy()) for variable in self._model.metrics_variables]
            self._written = np.concatenate(values)
        total = self._written if self._added is None else self._written + self._added
        mapping = [(v, tf.cast(part, v.dtype)) for v, part in self._split(total)]
        with keras.StatelessScope(state_mapping=mapping):
            return dict(type(self._model).get_metrics_result(self._model))

    def _collect(self) -> None:
        part = self._result_of(self._sent.popleft()).numpy()
        self._health.note_result()
        self._added = part if self._added is None else self._added + part

    def _result_of(self, scheduled: Any) -> tf.Tensor:
        while not strategies.wait_for(scheduled, 1.0):
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
    def _cleared_on_error(self) -> Iterator[None]:
        """On an error nothing is left in flight, and the first error is the one that is raised."""
        try:
            yield
        except Exception as error:
            self._sent.clear()
            self._written = self._added = None
            if not isinstance(error, ProcessError):  # else it could be waited for in vain
                self._coordinator.join()
            raise

    def _split(self, vector: np.ndarray) -> list[tuple[keras.Variable, np.ndarray]]:
        variables = self._model.metrics_variables
        ends = np.cumsum([int(np.prod(variable.shape)) for variable in variables])
        parts = zip(variables, np.split(vector, ends[:-1]), strict=True)
        return [(variable, part.reshape(variable.shape)) for variable, part in parts]


@contextlib.contextmanager
def lost_server_explained(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Inside the block, the loss of a parameter server raises a `ProcessError`."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        lost = _SERVER.search(str(error))
        if lost is None:
            raise
        name = f"ps:{lost[1]}"
        raise _server_lost(name, _addresses_of(strategy)[name]) from error


class TaskHealth:
    """Looks after the tasks of a strategy while the coordinator waits for a result."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._addresses = _addresses_of(strategy)
        self._silent_since: dict[str, float] = {}
        self._looked = 0.0

    def note_result(self) -> None:
        """Notes that some worker works: who is silent is not missed."""
        self._silent_since.clear()

    def look(self) -> None:
        """Asks every task whether it is there, at most every other second."""
        now = time.monotonic()
        if now - self._looked < _BETWEEN_LOOKS_SECS:
            return
        silent = unanswering(self._addresses)
        self._looked = time.monotonic()
        self._silent_since = {name: self._silent_since.get(name, now) for name in silent}
        for name, since in self._silent_since.items():
            is_server, lives = name.startswith("ps"), silent[name].state == "mute"
            if now - since < (SERVER_SECS if is_server and not lives else WORKER_SECS):
                continue
            if is_server:
                raise _server_lost(name, self._addresses[name])
            raise ProcessError(
                asked="train on parameter servers",
                found=f"{name} at {self._addresses[name]} has not answered for "
                f"{now - since:.0f} s ({silent[name]}), and no worker does its steps",
                do=_RESTART,
            )


def _addresses_of(strategy: tf.distribute.Strategy) -> dict[str, str]:
    """The "host:port" of each worker and parameter server, by name as in "worker:1"."""
    jobs = strategies.servers_of(strategy)
    return {
        f"{job}:{index}": address
        for job in ("worker", "ps")
        for index, address in enumerate(jobs[job])
    }


def _server_lost(name: str, address: str) -> ProcessError:
    return ProcessError(
        asked="train on parameter servers",
        found=f"the parameter server {name} at {address} was lost, and with it the variables "
        "that it held",
        do=_RESTART,
    )
