"""A Keras model: what it holds, where it was made, and how its variables are made.

What distlab asks of Keras here is private there.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.models.functional import Functional
from keras.src.random.seed_generator import global_seed_generator, make_default_seed

from distlab.training.keras_private import GLOBAL_SEED_GENERATOR
from distlab.training.keras_private.runs import one_replica

# The attribute of a global seed that names the strategy in whose scope it was made.
_MADE_FOR = "_distlab_strategy"

# The attribute of a global seed that was made before Keras would have.
_EARLY = "_distlab_early"

# The attribute of Keras's global state that counts the names it has given.
_NAMES = "object_name_uids"


def has_own(model: keras.Model, *methods: str) -> bool:
    """Whether the model's class, or the model, brings one of these methods itself."""
    return any(
        name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name)
        for name in methods
    )


def layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yields the model and every layer in it, also layers of layers."""
    yield from model._flatten_layers()


def as_tensors(own: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Returns a `get_metrics_result` that gives what is counted now.

    A metric may return its variable. Keras before 3.12 keeps that in its history, where it would
    have later values.
    """

    def get_metrics_result() -> dict[str, Any]:
        logs = own()
        if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
            return logs  # a step's own
        return {name: tf.nest.map_structure(_as_tensor, each) for name, each in logs.items()}

    return get_metrics_result


def _as_tensor(result: Any) -> Any:
    return result if isinstance(result, int | float) else tf.convert_to_tensor(result)


def replace_maker(function: str, make: Callable[[keras.Model], Any]) -> Callable[..., Any]:
    """Returns what replaces `make_train_function` and its like.

    They are replaced rather than their products, because `compile` throws the products away
    and `fit` asks for new ones.
    """

    def replace(own: types.MethodType) -> types.MethodType:
        def maker(self: keras.Model, force: bool = False) -> None:
            if getattr(self, function) is None or force:
                setattr(self, function, make(self))

        return types.MethodType(maker, own.__self__)

    return replace


def build(model: keras.Model, spec: Any, *, of_step: bool) -> None:
    """Makes the variables of a model and, unless its own step does (`of_step`), all others."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(symbols_of(spec))
    # As Keras does in a call, which a step that was traced for other inputs may not come to.
    (getattr(model, "_functional", None) or model)._assert_input_compatibility(x)
    parts = (model.optimizer, model._compile_loss, model._compile_metrics)
    waiting = [each for each in parts if of_step and each is not None and not each.built]
    for each in waiting:  # they are built for what the step gives them
        each.built = True
    try:
        with model.distribute_strategy.scope():
            # Where steps run eagerly, a metric or loss may ask for values, which specs have not.
            # Keras has made its variables by then, and goes on with the next if it is asked again.
            for _ in range(2 if model.run_eagerly else 0):
                with contextlib.suppress(AttributeError, NotImplementedError):
                    _build_symbolically(model, spec)
            _build_symbolically(model, spec)
    finally:
        for each in waiting:
            each.built = False


def _build_symbolically(model: keras.Model, spec: Any) -> None:
    """Makes variables as Keras does, which would call a model that is built, and take all as dense.

    A call costs a trace, and can fail where the step does not: if a layer assigns in a condition.
    """
    outputs = _known_outputs(model)
    sparse = any(isinstance(part, tf.SparseTensorSpec) for part in tf.nest.flatten(spec))
    if outputs is None and not sparse:
        model._symbolic_build(data_batch=spec)
        return
    x, y, weights = keras.utils.unpack_x_y_sample_weight(symbols_of(spec))
    if outputs is None:
        outputs = backend.compute_output_spec(model, x, training=False)
    for part, use in (
        (model._compile_metrics, model.compute_metrics),
        (model._compile_loss, model._compute_loss),
    ):
        if part is not None and not part.built:
            backend.compute_output_spec(use, x, y, outputs, weights)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _known_outputs(model: keras.Model) -> Any:
    """Returns a built model's outputs as symbols; None where it does not know them."""
    if not all(layer.built for layer in model._flatten_layers()):
        return None
    if type(model).call is keras.Sequential.call:
        return model.outputs[0] if model._functional else None
    return model.output if type(model).call is Functional.call else None


def is_distributed(model: keras.Model) -> bool:
    """Whether Keras knows of a strategy that the model was made under."""
    return model._distribute_strategy is not None


def symbols_of(spec: Any) -> Any:
    """Keras's symbols for tensors of these specs."""
    return keras.tree.map_structure(_symbolic, spec)


def trace_symbolically(function: Callable[..., Any], *args: Any) -> None:
    """Calls a function of Keras's symbols as Keras does to learn what it gives."""
    backend.compute_output_spec(function, *args)


def _symbolic(spec: Any) -> Any:
    sparse = isinstance(spec, tf.SparseTensorSpec)
    return None if spec is None else keras.KerasTensor(spec.shape, spec.dtype.name, sparse=sparse)


def build_for(model: keras.Model, batch: Any, strategy: tf.distribute.Strategy) -> None:
    """Makes the weights of a model that is not built."""
    if model.built:
        return
    spec = one_replica(tf.nest.map_structure(tf.type_spec_from_value, batch))
    x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
    with strategy.scope():
        inputs = keras.tree.map_structure(
            lambda part: keras.KerasTensor((None, *part.shape[1:]), part.dtype.name), x
        )
        backend.compute_output_spec(model, inputs, training=False)


@contextlib.contextmanager
def names_from_the_start() -> Iterator[None]:
    """Inside the block Keras numbers layers without a name as in a new process."""
    before = global_state.get_global_attribute(_NAMES)
    global_state.set_global_attribute(_NAMES, collections.defaultdict(int))
    try:
        yield
    finally:
        global_state.set_global_attribute(_NAMES, before)


def profiles(callback: keras.callbacks.TensorBoard) -> bool:
    """Whether a TensorBoard callback is to profile some of the batches."""
    return bool(callback._start_batch > 0)


def loss_trackers(model: keras.Model) -> list[keras.metrics.Metric]:
    """The means that Keras's own step keeps of the loss, and of each loss that it is made of."""
    compiled = model._compile_loss
    return [model._loss_tracker, *(() if compiled is None else compiled.metrics)]


def compiled_losses(model: keras.Model) -> list[Any]:
    """The losses that the model was compiled with, as far as they are known yet."""
    compiled = model._compile_loss
    return [] if compiled is None else [each.loss for each in compiled._flat_losses or []]


def own_variables(metric: keras.metrics.Metric) -> list[keras.Variable]:
    """The variables of a metric, without those of the metrics that it is made of."""
    variables: list[keras.Variable] = metric._variables
    return variables


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizer that the model was compiled with, and those it keeps beside it.

    A model inside this one may have been compiled, too. Keras ignores its optimizer, unless a
    `train_step` uses it.
    """
    kind = keras.optimizers.Optimizer
    optimizers = [model.optimizer, *(each for each in _held(model) if isinstance(each, kind))]
    return list({id(each): each for each in optimizers if each is not None}.values())


def metrics_of(model: keras.Model) -> Iterator[keras.metrics.Metric]:
    """Yields the model's metrics, its layers' and those that these are made of."""
    waiting = [*model.metrics, *(each for layer in layers(model) for each in layer._metrics)]
    seen: set[int] = set()
    while waiting:
        metric = waiting.pop()
        if id(metric) not in seen:
            seen.add(id(metric))
            yield metric
            waiting += [each for each in getattr(metric, "metrics", []) if each is not None]
            waiting += getattr(metric, "_metrics", [])


def _held(model: keras.Model) -> Iterator[Any]:
    """Yields what the model and its layers keep in attributes, lists and dictionaries."""

    def parts(value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, dict):
            value = list(value.values())
        if not isinstance(value, list | tuple):
            yield value
        elif depth:
            for part in value:
                yield from parts(part, depth - 1)

    for layer in layers(model):
        ignored = layer.optimizer if _is_ignored(model, layer) else None
        for value in list(vars(layer).values()):
            yield from (part for part in parts(value, 3) if part is not ignored)


def _is_ignored(model: keras.Model, inside: keras.layers.Layer) -> bool:
    """Whether no step of the model uses the optimizer that a model inside was compiled with."""
    if inside is model or not isinstance(inside, keras.Model) or not inside.compiled:
        return False
    if not has_own(model, "train_step"):
        return True
    # A step may use it, as in a GAN. It cannot train a teacher, frozen and compiled elsewhere.
    made = getattr(inside.optimizer, "_distribution_strategy", None)
    return not inside.trainable_weights and made is not model.distribute_strategy


def inner(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns the optimizer that makes the step: what a `LossScaleOptimizer` holds, or itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def made_outside(model: keras.Model, strategy: tf.distribute.Strategy) -> str | None:
    """Returns what of a model was not made inside `strategy.scope()`, None if all was."""
    if not strategy_matters(strategy):
        return None
    inside = model._distribute_strategy is strategy
    if not inside or not all(_is_of(strategy, each) for each in optimizers_of(model)):
        return ""
    for layer in layers(model) if strategy.num_replicas_in_sync > 1 else ():
        for weight in layer._trainable_variables:
            made = getattr(weight._value, "distribute_strategy", None)
            if weight._value is not None and weight.trainable and made is not strategy:
                return str(layer.name)
    return None


def _is_of(strategy: tf.distribute.Strategy, optimizer: keras.optimizers.Optimizer) -> bool:
    every = (optimizer, inner(optimizer))
    return all(each._distribution_strategy is strategy for each in every)


def strategy_matters(strategy: tf.distribute.Strategy) -> bool:
    """Whether variables must be made inside the scope: not under TensorFlow's default."""
    return type(strategy).__name__ != "_DefaultDistributionStrategy"


@contextlib.contextmanager
def kept_graph() -> Iterator[None]:
    """Inside the block Keras's `clear_session` leaves the strategy's scope in place.

    It resets TensorFlow's default graph, which holds the scopes that are entered.
    """
    reset = tf.compat.v1.reset_default_graph
    tf.compat.v1.reset_default_graph = lambda: None
    try:
        yield
    finally:
        tf.compat.v1.reset_default_graph = reset


def compile_in_scope(keras_compile: types.MethodType) -> Callable[..., None]:
    """Returns a `compile` that makes optimizer and metrics where the model's variables are."""
    model: Any = keras_compile.__self__

    @functools.wraps(keras_compile)
    def compile_(*args: Any, **kwargs: Any) -> None:
        strategy = model.distribute_strategy
        with strategy.scope():
            for value in (*args, *kwargs.values()):
                if isinstance(value, keras.optimizers.Optimizer) and not value.built:
                    _remake(value, strategy)
            keras_compile(*args, **kwargs)

    return compile_


def _remake(optimizer: keras.optimizers.Optimizer, strategy: tf.distribute.Strategy) -> None:
    """Makes an optimizer that was created elsewhere, and has no slots yet, a strategy's own."""
    if not strategy_matters(strategy) or _is_of(strategy, optimizer):
        return
    try:
        again = type(optimizer).from_config(optimizer.get_config())
    except Exception:  # a class of the user's that has no config: told by `check_scope`
        return
    # The same object stays, since its owner may hold it.
    optimizer.__dict__.clear()
    optimizer.__dict__.update(again.__dict__)


@contextlib.contextmanager
def without_strategy(model: keras.Model) -> Iterator[None]:
    """Inside the block the model takes itself for one that no strategy distributes."""
    strategy, model._distribute_strategy = model._distribute_strategy, None
    try:
        yield
    finally:
        model._distribute_strategy = strategy


def global_seed(strategy: tf.distribute.Strategy) -> keras.random.SeedGenerator:
    """The generator of keras.random without a seed, with a state that each replica has a copy of.

    Keras makes it when it is first used, by a number that it draws from Python's generator. Here it
    must exist before, so that number is only drawn for good when `note_use` is called.
    """
    is_early = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR) is None
    drawn = random.getstate()
    seed = global_seed_generator()
    if is_early:
        random.setstate(drawn)
    elif strategy.num_replicas_in_sync == 1 or getattr(seed, _MADE_FOR, None) is strategy:
        return seed
    with strategy.scope():
        made = keras.random.SeedGenerator(0)
    made.state.assign(seed.state.numpy())
    setattr(made, _MADE_FOR, strategy)
    setattr(made, _EARLY, is_early)
    use_seed(made)
    return made


def note_use(seed: keras.random.SeedGenerator) -> None:
    """Draws from Python's generator what Keras does where a global generator is first used."""
    if getattr(seed, _EARLY, False):
        setattr(seed, _EARLY, False)
        make_default_seed()


def use_seed(seed: keras.random.SeedGenerator) -> None:
    """Lets this thread draw by a seed: Keras has one for each thread."""
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, seed)


class Writes(keras.StatelessScope):  # type: ignore[misc]
    """Keeps what Keras assigns to variables; what isn't kept is read from the variable."""

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns the value assigned last, or TensorFlow's variable."""
        kept = super().get_current_value(variable)
        return variable._value if kept is None else kept

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        """Keeps what is assigned; no gradient goes through a state, as through no variable's."""
        variable, value = update
        super().add_update((variable, value if variable.trainable else tf.stop_gradient(value)))

    def written(self, variable: keras.Variable) -> Any:
        """Returns the value assigned last; None if there is none."""
        return super().get_current_value(variable)
