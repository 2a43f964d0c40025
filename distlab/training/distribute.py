"""One line between a Keras model and any strategy.

def build():
    model = keras.Sequential([keras.Input((8, 8, 1)), ...])
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    return model

model = distribute(build, strategy)
model.fit(train, epochs=3, validation_data=test)
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Literal

import keras
import tensorflow as tf

from distlab.errors import InvalidArgument, did_you_mean
from distlab.strategy.description import describe
from distlab.strategy.mirrored import separate_collectives
from distlab.training import model_build
from distlab.training.fit_session import FitSession
from distlab.training.keras_private import models
from distlab.training.model_requirements import (
    check_arguments,
    check_metrics,
    check_model,
    check_optimizer,
    check_scope,
)
from distlab.training.parameter_server import server_fit
from distlab.training.replica_steps import ReplicaSteps, make_execution, make_predict_function
from distlab.training.rule import replaced
from distlab.training.rule.step import BATCH_NORM
from distlab.training.variables import is_summed
from distlab.training.workers.files import write_as_chief
from distlab.training.workers.workers import Workers, fail_together, workers_of

# Takes the model's own bound method, and returns its replacement.
Replacement = Callable[[Any], Callable[..., Any]]
Table = dict[str, Replacement]


def distribute(
    build: Callable[[], keras.Model],
    strategy: tf.distribute.Strategy,
    *,
    batch_norm: Literal["global", "replica"] = "global",
) -> keras.Model:
    """Builds your Keras model under a strategy, so that `fit` takes the steps of one device.

    Up to rounding, weights and logs are those of plain Keras on one device with the same global
    batch, seeds and order, whatever the loss, metrics, `train_step`, dropout or batch
    normalization. So write the model as for one device. Batch sizes, of a data set or of `fit`, are
    GLOBAL, and the last batch may be partial. distlab replaces what `fit`, `evaluate` and `predict`
    run for a batch and, with several workers, how files are written.

    Layers compute a replica's own rows, while all else sees the whole batch. A layer of your own
    that looks at other rows gets all of them if that shows while TensorFlow traces it; if not, say
    so with an attribute `whole_batch = True`. With several parameter-server workers, a step may
    start from weights that are a few steps old. docs/distribute.md, in distlab's repository, lists
    what differs and what's refused.

    Args:
        build: Takes nothing, returns a new compiled `keras.Model`; runs in the strategy's scope.
        strategy: Any that `make_strategy` makes.
        batch_norm: Whose rows BatchNormalization normalizes by in training: "global", the whole
            batch's as on one device, or "replica", each replica's own, which is faster.

    Returns:
        The model that `build` made.

    Raises:
        InvalidArgument: `strategy` isn't a strategy, or `batch_norm` isn't a choice.
        ModelError: `build` makes no new compiled model, or the strategy can't train it. `fit`
            raises it for what replicas can't do, and for a loss that isn't finite, with the step.
        DeviceError: Workers beside parameter servers have several GPUs each.
        ProcessError: Another worker or a parameter server was lost; `fit` and the like raise it
            too.

    Example:
        >>> import keras
        >>> def build():
        ...     layers = [keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
        ...     model = keras.Sequential(layers)
        ...     model.compile("adam", "sparse_categorical_crossentropy")
        ...     return model
        >>> strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4))
        >>> model = dl.distribute(build, strategy)
        >>> train, _ = dl.load_dataset("digits", batch_size=64)
        >>> history = model.fit(train, epochs=1, verbose=0)
        >>> int(model.optimizer.iterations)  # 1,437 images in global batches of 64
        23
    """
    check_arguments("distribute", build, strategy)
    if batch_norm not in ("global", "replica"):
        raise InvalidArgument(
            asked=f"distribute(build, strategy, batch_norm={batch_norm!r})",
            found=f"batch_norm={batch_norm!r}",
            do=did_you_mean(str(batch_norm), ("global", "replica")),
        )
    on_servers, workers = describe(strategy).kind == "parameter_server", workers_of(strategy)
    if on_servers:
        server_fit.check_strategy(strategy)
    separate_collectives(strategy)
    with fail_together(workers, "build"), strategy.scope(), models.kept_graph():
        model = build()
    check_model(model, strategy)
    vars(model)[BATCH_NORM] = batch_norm
    if on_servers:
        server_fit.check_model(model)
    replaced.install()
    for name, replacement in (_of_servers if on_servers else _of_replicas)(model).items():
        setattr(model, name, replacement(getattr(model, name)))
    # Products of the makers that were replaced: `fit` asks for new ones.
    model.train_function = model.test_function = model.predict_function = None
    return model


def _of_any(session: FitSession) -> Table:
    """Returns the replacements on every model: each method, and what makes the new one of it."""
    return {
        "compile": models.compile_in_scope,
        "fit": _within(session.fit_context),
        "evaluate": _within(session.method_context),
        "predict": _within(session.method_context),
        "get_metrics_result": models.as_tensors,
        "_maybe_symbolic_build": model_build.build_without_drawing(session.on_data),
    }


def _of_servers(model: keras.Model) -> Table:
    """Returns the replacements where a coordinator sends steps to workers."""
    session = server_fit.ServerFitSession(model)
    return _of_any(session) | {
        "make_train_function": models.replace_maker("train_function", session.make_train_function),
        "make_test_function": models.replace_maker("test_function", session.make_test_function),
        "make_predict_function": models.replace_maker(
            "predict_function", session.make_predict_function
        ),
        "get_metrics_result": session.results,
        "reset_metrics": session.reset,
    }


def _of_replicas(model: keras.Model) -> Table:
    """Returns the replacements for replicas, in this process or spread over several workers."""
    session, workers = FitSession(model), workers_of(model.distribute_strategy)
    together = workers.count > 1  # then workers compare what each has read

    def train(model: keras.Model) -> Callable[[Any], dict[str, tf.Tensor]]:
        check_optimizer(model)  # here too: a later compile may have brought another
        check_scope(model, model.distribute_strategy)
        check_metrics(model)
        optimizers = models.optimizers_of(model)
        scales = any(isinstance(each, keras.optimizers.LossScaleOptimizer) for each in optimizers)
        # A loss scale skips steps whose loss is not finite.
        step = ReplicaSteps(model, "train_step", check_finite=session.check_finite and not scales)
        see = functools.partial(session.see, "fit") if together else None
        return make_execution(model, step, running=session.iterator, see=see)

    def test(model: keras.Model) -> Callable[[Any], dict[str, tf.Tensor]]:
        check_metrics(model)
        see = functools.partial(session.see, "evaluate") if together else None
        step = ReplicaSteps(model, "test_step")
        return make_execution(model, step, running=session.iterator, see=see)

    def predict(model: keras.Model) -> Callable[[list[Any]], Any]:
        return make_predict_function(model, see=session.see_predicted if together else None)

    table = _of_any(session) | {
        "make_train_function": models.replace_maker("train_function", train),
        "make_test_function": models.replace_maker("test_function", test),
        "make_predict_function": models.replace_maker("predict_function", predict),
    }
    return table | _of_workers(session, workers) if together else table


def _of_workers(session: FitSession, workers: Workers) -> Table:
    as_chief = functools.partial(write_as_chief, workers=workers)
    return {
        "predict": _within(session.predict_context),
        "save": as_chief,
        "save_weights": as_chief,
        "export": as_chief,
        "get_metrics_result": _read_together,
    }


def _within(context: Callable[..., Any]) -> Replacement:
    """Returns what makes a method run in a context."""

    def replace(method: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(method)
        known = signature.parameters
        rest = next((name for name, each in known.items() if each.kind is each.VAR_KEYWORD), "")

        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            # A method of the user's may take `callbacks` and others by its **kwargs.
            arguments = bound.arguments | bound.arguments.pop(rest, {})
            with context(method.__name__, arguments):
                more = {name: value for name, value in arguments.items() if name not in known}
                bound.arguments.update(arguments | {rest: more})
                return method(*bound.args, **bound.kwargs)

        return wrapped

    return replace


def _read_together(own: types.MethodType) -> Callable[[], Any]:
    """Returns a `get_metrics_result` that asks the other workers once, not for each variable."""
    model, logs_of = own.__self__, models.as_tensors(own)

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
    variables = [variable for variable in model.metrics_variables if is_summed(variable)]
    if not variables:
        return []
    own = [
        tf.add_n([tf.reshape(copy, [-1]) for copy in strategy.experimental_local_results(v.value)])
        for v in variables
    ]
    # One message: float64 holds every float32 and every count.
    message = tf.concat([tf.cast(part, tf.float64) for part in own], 0)
    total = strategy.reduce(tf.distribute.ReduceOp.SUM, message, axis=None)
    parts = tf.split(total, [part.shape[0] for part in own])
    return [
        (variable, tf.reshape(tf.cast(part, variable.value.dtype), variable.value.shape))
        for variable, part in zip(variables, parts, strict=True)
    ]
