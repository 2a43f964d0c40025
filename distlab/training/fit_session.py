"""What a distributed model's `fit` does around Keras's own: look at the data, choose, explain.

session = FitSession(model)
model.fit = _within(session.around_fit)(model.fit)     # as distribute.py does
model.fit(train, epochs=3)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DatasetError, InvalidArgument
from distlab.training import pipelines
from distlab.training.executions import WholeBatches
from distlab.training.keras_private import models, runs
from distlab.training.model_requirements import check_scope
from distlab.training.pipelines import (
    can_be_split,
    check_order,
    choose_sharding,
    is_shared_by_example,
    order_seeds,
    splits,
    without_none,
)
from distlab.training.step_errors import (
    check_inputs,
    check_parts,
    check_targets,
    files_explained,
)
from distlab.training.workers.agreement import (
    Agreement,
    ReadLog,
    check_arguments,
    check_lengths,
    check_weights,
)
from distlab.training.workers.files import callbacks_elsewhere
from distlab.training.workers.workers import Workers, fail_together, workers_of

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


class FitSession:
    """Keras's `fit` of one distributed model, and what is known while it runs.

    Several workers agree on all that each would choose for itself.

    Attributes:
        check_finite: Whether training stops at a loss that is not finite. Not where Keras's
            `TerminateOnNaN` is there to end it.
        test_steps: How many steps `evaluate` takes in one execution.
    """

    def __init__(self, model: keras.Model) -> None:
        self.check_finite = True
        self.test_steps = model.steps_per_execution
        self._model = model
        self._pace: ChosenSteps | None = None
        self._agreement: Agreement | None = None
        self._predicting: WholeBatches | None = None
        self._workers = workers_of(model.distribute_strategy)
        self._tested = ReadLog()

    @contextlib.contextmanager
    def around(self, method: str, arguments: dict[str, Any]) -> Iterator[None]:
        """What `evaluate` runs in, and all that the others run in, too."""
        with fail_together(self._workers, method, at=self._at), files_explained():
            # Keras distributes a data set before it asks for a step: `on_data` would be too late.
            for name in {"x", "validation_data"} & set(arguments):
                data = arguments[name] = without_none(arguments[name])
                if isinstance(data, tf.data.Dataset):
                    replicas = self._model.distribute_strategy.num_replicas_in_sync
                    check_parts(data.element_spec, replicas)
            self._tested = tested = ReadLog()
            yield
            if method == "evaluate":
                tested.compare(self._workers, "evaluate")

    def _at(self) -> str:
        return f", after step {self._model.optimizer.iterations.numpy()}"

    @contextlib.contextmanager
    def around_predict(self, method: str, arguments: dict[str, Any]) -> Iterator[None]:
        """What `predict` runs in."""
        callbacks = callbacks_in(arguments)
        whole_batches = WholeBatches(self._workers)
        whole_batches.set_model(self._model)
        callbacks.append(whole_batches)
        self._predicting = whole_batches
        with self.around(method, arguments):
            try:
                yield
            finally:
                self._predicting = None
                callbacks.remove(whole_batches)

    @contextlib.contextmanager
    def around_fit(self, method: str, arguments: dict[str, Any]) -> Iterator[None]:
        """What `fit` runs in."""
        callbacks = callbacks_in(arguments)
        with (
            self.around(method, arguments),
            callbacks_elsewhere(callbacks, self._workers),
            self._with_callbacks(arguments, callbacks),
        ):
            yield
            self._workers.exchange(None)  # all files are whole when `fit` returns

    @contextlib.contextmanager
    def _with_callbacks(
        self, arguments: dict[str, Any], callbacks: list[keras.callbacks.Callback]
    ) -> Iterator[None]:
        workers = self._workers
        check_arguments(workers, arguments, callbacks)
        finite = not any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks)
        self._check_finite(all(workers.exchange(finite)))
        # Those of a `fit` that a callback of another calls.
        outer = self._pace, self._agreement, self.test_steps
        self._agreement = agreement = Agreement(workers)
        self._pace = pace = ChosenSteps(
            callbacks, asked=self._model.steps_per_execution, workers=workers
        )
        added: list[keras.callbacks.Callback] = [pace, agreement]
        for callback in added:
            callback.set_model(self._model)
        callbacks += added
        try:
            yield
        finally:
            agreement.stop_listening()
            callbacks[:] = [callback for callback in callbacks if callback not in added]
            self._pace, self._agreement, self.test_steps = outer

    def _check_finite(self, wanted: bool) -> None:
        if wanted != self.check_finite:
            self.check_finite = wanted
            self._model.train_function = None  # it was traced with the other

    def on_data(self, iterator: Any) -> None:
        """Looks at the data of `fit` and `evaluate` before Keras builds the model for them."""
        check_scope(self._model, self._model.distribute_strategy)
        batches = runs.batches_in(iterator)
        if self._pace is None:
            check_weights(self._workers, self._model, method="evaluate", optimizers=False)
        data = runs.undistributed(iterator)
        seeds = order_seeds(data) if self._workers.count > 1 else ()
        check_lengths(self._workers, batches, steps=iterator.steps_per_epoch, seeds=seeds)
        if batches == 0:
            raise no_batch()
        self._choose_iteration(iterator)
        spec = runs.spec_of_replica(iterator)
        check_inputs(self._model, spec)
        check_targets(self._model, spec)
        if self._pace is None:
            self.test_steps = self._model.steps_per_execution
        elif (run := runs.current_run(self._model, "fit")) and run.made is iterator:
            self._pace.begin(iterator)
            _check_length(iterator, batches, self._pace.steps)
        else:
            self.test_steps = self._pace.validate(iterator)

    def note_read(self, mark: bytes, *, more: bool) -> None:
        """Notes what `fit` has read, for workers to compare."""
        if self._agreement is not None:
            self._agreement.read.note(mark, more=more)

    def note_tested(self, mark: bytes, *, more: bool) -> None:
        """Notes what `evaluate` has read, for workers to compare."""
        self._tested.note(mark, more=more)

    def see_predicted(self, batch: Any) -> None:
        """Compares what `predict` has read."""
        if self._predicting is not None:
            self._predicting.see(batch)

    def train_steps(self) -> int:
        """Returns how many steps `fit` takes in one execution, now."""
        return self._model.steps_per_execution if self._pace is None else self._pace.steps

    def _choose_iteration(self, iterator: Any) -> None:
        data, strategy = runs.undistributed(iterator), self._model.distribute_strategy
        if data is None:
            return
        check_order(data, self._workers)
        by_example = self._workers.count == 1 or is_shared_by_example(data)
        if by_example and splits(strategy) and can_be_split(data.element_spec):
            ready = pipelines.name_of(data) == "Prefetch"
            runs.iterate(iterator, data if ready else data.prefetch(2))
        elif self._workers.count > 1:
            data = strategy.experimental_distribute_dataset(choose_sharding(data))
            runs.iterate(iterator, data)


def _check_length(iterator: Any, batches: int | None, steps_per_execution: int) -> None:
    steps = iterator.num_batches
    if batches and steps > batches:
        raise DatasetError(
            asked=f"fit(..., steps_per_epoch={steps})",
            found=f"a data set of {batches} batches, which runs out early",
            do="leave steps_per_epoch out, or give it data.repeat()",
        )
    if steps and steps_per_execution > steps:
        raise InvalidArgument(
            asked=f"fit with steps_per_execution={steps_per_execution}",
            found=f"epochs of {steps} steps",
            do=f"compile with at most {steps}, or leave it out: it is chosen then",
        )


def callbacks_in(arguments: dict[str, Any]) -> list[keras.callbacks.Callback]:
    """The list that a method's callbacks are in, which can be added to."""
    given = arguments.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        callbacks: list[keras.callbacks.Callback] = given.callbacks
        return callbacks
    callbacks = arguments["callbacks"] = keras.tree.flatten(given or [])
    return callbacks


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
