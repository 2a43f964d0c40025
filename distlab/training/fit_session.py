"""A distributed model's `fit` around Keras's own: looks at the data, chooses, explains.

session = FitSession(model)
model.fit = _within(session.fit_context)(model.fit)    # as distribute.py does
model.fit(train, epochs=3)
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DatasetError
from distlab.training import pipelines
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
from distlab.training.replica_steps import parts_to_compare
from distlab.training.step_errors import check_parts, check_targets
from distlab.training.workers.agreement import (
    Agreement,
    check_arguments,
    check_data,
    check_rows,
    check_weights,
    no_batch,
)
from distlab.training.workers.files import callbacks_elsewhere
from distlab.training.workers.workers import fail_together, workers_of

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
    """

    def __init__(self, model: keras.Model) -> None:
        self.check_finite = True
        self._model = model
        # While `fit` runs: where its executions must end, as in "every 100 steps"; 0 for anywhere.
        # None where it takes as many steps in one as the model was compiled with.
        self._execution_ends: int | None = None
        self._agreement: Agreement | None = None
        self._iterator: Any = None  # Keras's over epochs, of the method that runs
        self._workers = workers_of(model.distribute_strategy)
        self._read: Counter[str] = Counter()  # executions, by method

    @contextlib.contextmanager
    def method_context(self, method: str, arguments: dict[str, Any]) -> Iterator[None]:
        """The context of `evaluate`, and part of those of `fit` and `predict`."""
        outer = self._iterator
        with fail_together(self._workers, method, at=self._at):
            # Keras distributes a data set before it asks for a step: `on_data` would be too late.
            for name in {"x", "validation_data"} & set(arguments):
                data = arguments[name] = without_none(arguments[name])
                if isinstance(data, tf.data.Dataset):
                    replicas = self._model.distribute_strategy.num_replicas_in_sync
                    check_parts(data.element_spec, replicas)
            self._read[method] = 0
            try:
                yield
            finally:
                self._iterator = outer

    def _at(self) -> str:
        return f", after step {self._model.optimizer.iterations.numpy()}"

    @contextlib.contextmanager
    def predict_context(self, method: str, arguments: dict[str, Any]) -> Iterator[None]:
        """The context of `predict`."""
        callbacks = callbacks_in(arguments)
        begins = keras.callbacks.LambdaCallback(on_predict_begin=self._read_whole_batches)
        callbacks.append(begins)
        try:
            with self.method_context(method, arguments):
                yield
        finally:
            callbacks.remove(begins)

    def _read_whole_batches(self, logs: Any = None) -> None:
        """Takes the place of TensorFlow's distribution, which gives each worker its part only."""
        iterator = runs.last_iterator()
        data = runs.undistributed(iterator)
        if data is None or not can_be_split(data.element_spec):
            raise DatasetError(
                asked=f"predict on {self._workers.count} workers",
                found="a data set that is distributed already"
                if data is None
                else "batches with sparse tensors or single numbers, which cannot be cut",
                do="pass predict arrays, or a tf.data.Dataset of dense batches of the global size",
            )
        check_order(data, self._workers)
        self._check_same(iterator, "predict")
        runs.iterate(iterator, data)

    @contextlib.contextmanager
    def fit_context(self, method: str, arguments: dict[str, Any]) -> Iterator[None]:
        """The context of `fit`."""
        callbacks = callbacks_in(arguments)
        with (
            self.method_context(method, arguments),
            callbacks_elsewhere(callbacks, self._workers),
            self._with_callbacks(arguments, callbacks),
        ):
            yield
            self._workers.exchange(None)  # all files are whole when `fit` returns

    @contextlib.contextmanager
    def _with_callbacks(
        self, arguments: dict[str, Any], callbacks: list[keras.callbacks.Callback]
    ) -> Iterator[None]:
        workers, model = self._workers, self._model
        finite = not any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks)
        free = model.steps_per_execution == 1 and not any(map(listens, callbacks))
        every = [getattr(callback, "every_steps", None) for callback in callbacks]
        ends = math.gcd(*(steps for steps in every if isinstance(steps, int)))
        check_arguments(workers, arguments, callbacks)
        choices = workers.exchange([finite, free, ends])
        all_finite, all_free, all_ends = zip(*choices, strict=True)
        self._check_finite(all(all_finite))
        outer = self._agreement, self._execution_ends  # of a `fit` that a callback of another calls
        self._agreement = agreement = Agreement(workers, on_epoch=self._choose_steps)
        self._execution_ends = math.gcd(*all_ends) if all(all_free) else None
        agreement.set_model(model)
        callbacks.append(agreement)
        try:
            yield
        finally:
            agreement.stop_listening()
            callbacks.remove(agreement)
            self._agreement, self._execution_ends = outer

    def _check_finite(self, wanted: bool) -> None:
        if wanted != self.check_finite:
            self.check_finite = wanted
            self._model.train_function = None  # it was traced with the other

    def on_data(self, iterator: Any) -> None:
        """Looks at the data of `fit` and `evaluate` before Keras builds the model for them."""
        self._iterator = iterator
        check_scope(self._model, self._model.distribute_strategy)
        self._check_same(iterator, "evaluate" if self._agreement is None else "fit")
        if runs.batches_in(iterator) == 0:
            raise no_batch()
        self._choose_iteration(iterator)
        check_targets(self._model, runs.spec_of_replica(iterator))
        if self._execution_ends is not None:
            steps = choose_steps(iterator, self._execution_ends, self._most_steps())
            iterator.steps_per_execution = steps
            runs.bound_last_execution(iterator)

    def _choose_steps(self) -> None:
        """Chooses for an epoch of `fit`, by how long a step took before."""
        if self._execution_ends is not None:
            steps = choose_steps(self._iterator, self._execution_ends, self._most_steps())
            self._iterator.steps_per_execution = steps

    def _most_steps(self) -> int:
        secs = None if self._agreement is None else self._agreement.secs_per_step
        return 1 if secs is None else min(MOST_STEPS, int(EXECUTION_SECS / max(secs, 1e-9)))

    def iterator(self) -> Any:
        """Keras's iterator over epochs of what runs; None where no `fit` or `evaluate` does."""
        return self._iterator

    def _check_same(self, iterator: Any, method: str) -> None:
        """Raises where workers have other data, or begin with other weights."""
        workers, data = self._workers, runs.undistributed(iterator)
        if method != "fit":  # which compares them when callbacks have restored what they restore
            check_weights(workers, self._model, method=method, optimizers=False)
        seeds = order_seeds(data) if workers.count > 1 else ()
        known = {
            "shuffles with the seeds {}": seeds,
            "{} batches": runs.batches_in(iterator),
            "{} steps": iterator.steps_per_epoch,
        }
        check_data(workers, method, known)

    def see(self, method: str, checksum: bytes, *, more: bool, is_over: bool) -> None:
        """Compares what workers have read: after executions 1, 2, 4, 8 ..., and at the end."""
        if self._is_compared(method) or is_over:
            read = {
                "data that {}": "go on" if more else "end",
                "a batch whose targets have the checksum {}": checksum.hex(),
            }
            check_data(self._workers, method, read)

    def see_predicted(self, batch: Any) -> None:
        """Compares the rows that workers predict for."""
        if self._is_compared("predict"):
            parts = [tf.convert_to_tensor(part).numpy() for part in parts_to_compare(batch)]
            check_rows(self._workers, parts)

    def _is_compared(self, method: str) -> bool:
        self._read[method] += 1
        return self._read[method].bit_count() == 1

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


def callbacks_in(arguments: dict[str, Any]) -> list[keras.callbacks.Callback]:
    """The list that a method's callbacks are in, which can be added to."""
    given = arguments.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        callbacks: list[keras.callbacks.Callback] = given.callbacks
        return callbacks
    callbacks = arguments["callbacks"] = keras.tree.flatten(given or [])
    return callbacks


def choose_steps(iterator: Any, ends: int, most: int) -> int:
    """How many steps an execution takes: at most an epoch's, and all divide what they must."""
    # With a number of steps Keras goes on in the same iterator: end where the epoch does.
    multiple = math.gcd(ends, iterator.steps_per_epoch or 0)
    most = min(most, multiple or runs.batches_in(iterator) or most)
    return max(steps for steps in range(1, max(most, 1) + 1) if multiple % steps == 0)


def listens(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback is to be called after every single batch.

    One that minds executions of several steps as little as Keras's progress bar says so by an
    attribute `listens_to_executions = True`; if it has `every_steps` too, executions end there.
    """
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
