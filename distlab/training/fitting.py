"""What a distributed model's `fit` does around Keras's own: look at the data, choose, explain.

fitting = Fitting(model)            # from here on `model.fit` is Keras's, with this around it
model.fit(train, epochs=3)
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import keras

from distlab.errors import DatasetError, InvalidArgument
from distlab.strategy.describing import describe
from distlab.training import pipelines
from distlab.training.checks import check_scope
from distlab.training.explaining import check_inputs, check_targets
from distlab.training.keras_private import losses, models
from distlab.training.pacing import ChosenSteps, no_batch
from distlab.training.sharding import choose_sharding
from distlab.training.splitting import can_be_split, splits


class Fitting:
    """Keras's `fit` of one distributed model, and what is known while it runs.

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
        keras_fit = model.fit

        @functools.wraps(keras_fit)
        def fit(*args: Any, **kwargs: Any) -> keras.callbacks.History:
            bound = inspect.signature(keras_fit).bind(*args, **kwargs)
            with self._around(bound.arguments):
                return keras_fit(*bound.args, **bound.kwargs)

        model.fit = fit

    @contextlib.contextmanager
    def _around(self, arguments: dict[str, Any]) -> Iterator[None]:
        given = arguments.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):
            callbacks = given.callbacks
        else:
            callbacks = arguments["callbacks"] = keras.tree.flatten(given or [])
        self._check_finite(
            not any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks)
        )
        outer = self._pace, self.test_steps  # of a `fit` that a callback of another calls
        self._pace = pace = ChosenSteps(callbacks, asked=self._model.steps_per_execution)
        pace.set_model(self._model)
        callbacks.append(pace)
        try:
            yield
        finally:
            callbacks.remove(pace)
            self._pace, self.test_steps = outer

    def _check_finite(self, wanted: bool) -> None:
        if wanted != self.check_finite:
            self.check_finite = wanted
            self._model.train_function = None  # it was traced with the other

    def on_data(self, iterator: Any) -> None:
        """Looks at the data of `fit` and `evaluate` before Keras builds the model for them.

        Args:
            iterator: Keras's iterator over epochs.

        Raises:
            DatasetError: There is no batch, there are too few, or they do not fit the model.
            InvalidArgument: `steps_per_execution` is more than an epoch has.
            ModelError: A loss is not one number.
        """
        losses.check(self._model)
        check_scope(self._model, self._model.distribute_strategy)
        batches = models.batches_in(iterator)
        if batches == 0:
            raise no_batch()
        self._choose_iteration(iterator)
        spec = models.spec_of_replica(iterator)
        check_inputs(self._model, spec)
        check_targets(self._model, spec)
        if self._pace is None:
            self.test_steps = self._model.steps_per_execution
        elif self._pace.begin(iterator):
            _check_length(iterator, batches, self._pace.steps)
        else:
            self.test_steps = self._pace.validate(iterator)

    def train_steps(self) -> int:
        """Returns how many steps `fit` takes in one execution, now."""
        return self._model.steps_per_execution if self._pace is None else self._pace.steps

    def _choose_iteration(self, iterator: Any) -> None:
        data, strategy = models.undistributed(iterator), self._model.distribute_strategy
        if data is None:
            return
        if splits(strategy) and can_be_split(data.element_spec):
            ready = pipelines.name_of(data) == "Prefetch"
            models.iterate(iterator, data if ready else data.prefetch(2))
        elif describe(strategy).workers > 1:
            data = strategy.experimental_distribute_dataset(choose_sharding(data))
            models.iterate(iterator, data)


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
