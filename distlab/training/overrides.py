"""What `distribute` replaces on a model: one table for each kind of training, installed here.

model = install(model, TABLES[kind](model))

A table has the names of the model's methods. With each stands what makes the replacement out of
the model's own method. What a
step does on replicas is the work of `stepping.py`, by the rule of `rule/`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.training.executions import make_execution
from distlab.training.fitting import Fitting
from distlab.training.keras_private import models
from distlab.training.keras_private.models import as_tensors
from distlab.training.keras_private.replaced import install as install_rule
from distlab.training.model_requirements import check_metrics, check_optimizer, check_scope
from distlab.training.parameter_server.server_fit import ServerFitting
from distlab.training.predicting import make_predict_function
from distlab.training.step_errors import targets_explained
from distlab.training.stepping import ReplicaSteps
from distlab.training.variables import is_summed
from distlab.training.workers.files import writing_as_chief
from distlab.training.workers.workers import workers_of

# Takes the model's own bound method, and returns what stands in its place.
Replacement = Callable[[Any], Callable[..., Any]]
Table = dict[str, Replacement]


def install(model: Any, table: Table) -> Any:
    """Replaces methods of one model, and returns the model."""
    install_rule()
    for name, replacement in table.items():
        setattr(model, name, replacement(getattr(model, name)))
    # Products of the makers that were replaced: `fit` asks for new ones.
    model.train_function = model.test_function = model.predict_function = None
    return model


def of_one_process(model: keras.Model) -> Table:
    """Returns the table for replicas of this process."""
    fitting = Fitting(model)
    return _of_replicas(fitting, together=False) | {
        "evaluate": within(fitting.around),
        "predict": within(fitting.around),
    }


def of_workers(model: keras.Model) -> Table:
    """Returns the table for replicas that are spread over several workers."""
    fitting, workers = Fitting(model), workers_of(model.distribute_strategy)
    as_chief = functools.partial(writing_as_chief, workers=workers)
    return _of_replicas(fitting, together=True) | {
        "evaluate": within(fitting.around),
        "predict": within(fitting.around_predict),
        "save": as_chief,
        "save_weights": as_chief,
        "export": as_chief,
        "get_metrics_result": reading_together,
    }


def of_parameter_servers(model: keras.Model) -> Table:
    """Returns the table for steps that a coordinator sends to workers."""
    fitting = ServerFitting(model)
    return _of_any(fitting) | {
        "make_train_function": models.making("train_function", fitting.make_train_function),
        "make_test_function": models.making("test_function", fitting.make_test_function),
        "make_predict_function": models.making("predict_function", fitting.make_predict_function),
        "evaluate": within(fitting.around),
        "predict": within(fitting.around),
        "get_metrics_result": fitting.results,
        "reset_metrics": fitting.reset,
    }


def within(around: Callable[..., Any]) -> Replacement:
    """Returns what makes a method run in a context."""

    def replace(method: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(method)
        known = signature.parameters
        rest = next((name for name, one in known.items() if one.kind is one.VAR_KEYWORD), "")

        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            # A method of the user's may take `callbacks` and others by its **kwargs.
            arguments = bound.arguments | bound.arguments.pop(rest, {})
            with around(method.__name__, arguments):
                more = {name: value for name, value in arguments.items() if name not in known}
                bound.arguments.update(arguments | {rest: more})
                return method(*bound.args, **bound.kwargs)

        return wrapped

    return replace


def _of_any(fitting: Fitting) -> Table:
    build = models.building_without_drawing(fitting.on_data, targets_explained)
    return {
        "compile": models.compiling_in_scope,
        "fit": within(fitting.around_fit),
        "get_metrics_result": models.as_tensors,
        "_maybe_symbolic_build": build,
    }


def _of_replicas(fitting: Fitting, *, together: bool) -> Table:
    """The table's part for replicas; `together` where workers compare what each has read."""

    def train(model: keras.Model) -> Callable[[Any], dict[str, tf.Tensor]]:
        check_optimizer(model)  # here too: a later compile may have brought another
        check_scope(model, model.distribute_strategy)
        check_metrics(model)
        optimizers = models.optimizers_of(model)
        scales = any(isinstance(one, keras.optimizers.LossScaleOptimizer) for one in optimizers)
        # A loss scale skips steps whose loss is not finite.
        step = ReplicaSteps(model, "train_step", check_finite=fitting.check_finite and not scales)
        see = fitting.note_read if together else None
        return make_execution(model, step, steps=fitting.train_steps, see=see)

    def test(model: keras.Model) -> Callable[[Any], dict[str, tf.Tensor]]:
        check_metrics(model)
        see = fitting.note_tested if together else None
        step = ReplicaSteps(model, "test_step")
        return make_execution(model, step, steps=lambda: fitting.test_steps, see=see)

    def predict(model: keras.Model) -> Callable[[list[Any]], Any]:
        return make_predict_function(model, see=fitting.see_predicted if together else None)

    return _of_any(fitting) | {
        "make_train_function": models.making("train_function", train),
        "make_test_function": models.making("test_function", test),
        "make_predict_function": models.making("predict_function", predict),
    }


def reading_together(own: types.MethodType) -> Callable[[], Any]:
    """Returns a `get_metrics_result` that asks the other workers once, not for each variable."""
    model, logs_of = own.__self__, as_tensors(own)

    @functools.wraps(own)
    def get_metrics_result() -> Any:
        if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
            return logs_of()  # one replica's own
        with keras.StatelessScope(state_mapping=_summed(model)):
            return logs_of()

    return get_metrics_result


def _summed(model: keras.Model) -> list[tuple[keras.Variable, tf.Tensor]]:
    """The variables that count on each replica by itself, with the sum of all."""
    strategy = model.distribute_strategy
    of_dtype = defaultdict(list)  # a message holds numbers of one type
    for variable in model.metrics_variables:
        if is_summed(variable):
            of_dtype[variable.value.dtype].append(variable)
    sums = []
    for variables in of_dtype.values():
        here = [
            tf.add_n([tf.reshape(copy, [-1]) for copy in strategy.experimental_local_results(v)])
            for v in (variable.value for variable in variables)
        ]
        message = strategy.reduce(tf.distribute.ReduceOp.SUM, tf.concat(here, 0), axis=None)
        parts = tf.split(message, [variable.value.shape.num_elements() for variable in variables])
        sums += [
            (variable, tf.reshape(part, variable.value.shape))
            for variable, part in zip(variables, parts, strict=True)
        ]
    return sums
