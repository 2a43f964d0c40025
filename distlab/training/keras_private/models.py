"""A Keras model: where it was made, what its class overrides, what `fit` asks of it."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.models.functional import Functional

from distlab.errors import DatasetError
from distlab.training.rule import gradients


def overrides(model: keras.Model, method: str) -> bool:
    """Whether the model's class brings its own `train_step`, `compute_loss` and the like."""
    return getattr(type(model), method) is not getattr(keras.Model, method)


def has_own(model: keras.Model, *methods: str) -> bool:
    """Whether the model's class, or the model, brings one of these methods itself."""
    return any(name in vars(model) or overrides(model, name) for name in methods)


def layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yields the model and every layer in it, also layers of layers."""
    yield from model._flatten_layers()


def predict(model: keras.Model, x: Any, *, training: bool) -> Any:
    """Calls the model as Keras's own steps do."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def with_mask(tensor: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Returns the tensor, carrying a mask for the losses and metrics that get it."""
    tensor._keras_mask = mask
    return tensor


def as_tensors(own: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Returns a `get_metrics_result` that gives what is counted now.

    A metric may return its variable. Keras before 3.12 keeps that in its history, where it would
    have later values.
    """

    def get_metrics_result() -> dict[str, Any]:
        found = own()
        if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
            return found  # a step's own
        return {name: tf.nest.map_structure(_as_tensor, one) for name, one in found.items()}

    return get_metrics_result


def _as_tensor(result: Any) -> Any:
    return result if isinstance(result, int | float) else tf.convert_to_tensor(result)


def making(function: str, make: Callable[[keras.Model], Any]) -> Callable[..., Any]:
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


def building_without_drawing(
    on_data: Callable[[Any], None],
    explain: Callable[[keras.Model, Any], contextlib.AbstractContextManager[None]],
) -> Callable[..., Any]:
    """Returns what replaces the method by which `fit` learns the shapes from a drawn batch.

    Drawing shifts the order of later epochs against one device's, and hands the batch to
    `strategy.reduce`. The replacement asks the data set's own description.
    """

    def symbolic_build(self: keras.Model, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None:
            on_data(iterator)
            data_batch = spec_of_replica(iterator)
        own = has_own(self, "train_step", "test_step")
        try:
            with explain(self, data_batch):
                build(self, data_batch)
        except DatasetError:
            raise
        except Exception:
            # Without a strategy Keras builds in the first step, and so may need no specs. What
            # a step of the model's own needs is made by a trial of it.
            if not own and (self._distribute_strategy is not None or not self.built):
                raise
        build_for_own_step(self, data_batch)

    return lambda own: types.MethodType(symbolic_build, own.__self__)


def build(model: keras.Model, spec: Any) -> None:
    """Makes the variables of model, metrics and, unless its own step does, optimizer."""
    parts = (model.optimizer, model._compile_loss, model._compile_metrics)
    own = has_own(model, "train_step")
    waiting = [one for one in parts if own and one is not None and not one.built]
    for one in waiting:  # they are built for what the step gives them
        one.built = True
    try:
        with model.distribute_strategy.scope():
            # Where steps run eagerly, a metric or loss may ask for values, which specs have not.
            # Keras has made its variables by then, and goes on with the next if it is asked again.
            for _ in range(2 if model.run_eagerly else 0):
                with contextlib.suppress(AttributeError, NotImplementedError):
                    _build_symbolically(model, spec)
            _build_symbolically(model, spec)
    finally:
        for one in waiting:
            one.built = False


def _build_symbolically(model: keras.Model, spec: Any) -> None:
    """Makes variables as Keras does, which would call a model that is built, and take all as dense.

    A call costs a trace, and can fail where the step does not: if a layer assigns in a condition.
    """
    outputs = _known_outputs(model)
    sparse = any(isinstance(part, tf.SparseTensorSpec) for part in tf.nest.flatten(spec))
    if outputs is None and not sparse:
        model._symbolic_build(data_batch=spec)
        return
    x, y, weights = keras.utils.unpack_x_y_sample_weight(keras.tree.map_structure(_symbolic, spec))
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
    """What a model gives, as symbols, if it is built and says so; else None."""
    if not all(layer.built for layer in model._flatten_layers()):
        return None
    if type(model).call is keras.Sequential.call:
        return model.outputs[0] if model._functional else None
    return model.output if type(model).call is Functional.call else None


def _symbolic(spec: Any) -> Any:
    sparse = isinstance(spec, tf.SparseTensorSpec)
    return None if spec is None else keras.KerasTensor(spec.shape, spec.dtype.name, sparse=sparse)


def build_for_own_step(model: keras.Model, spec: Any) -> None:
    """Makes what a step of the model's own makes when it runs, which replicas cannot."""
    if not has_own(model, "train_step") or "_distlab_step_built" in vars(model):
        return
    vars(model)["_distlab_step_built"] = True
    batch = keras.tree.map_structure(_symbolic, spec)
    with (
        model.distribute_strategy.scope(),
        gradients.building(),
        contextlib.suppress(Exception),  # a step that needs values: it fails, or not, later
    ):
        backend.compute_output_spec(model.train_step, batch)


def make_predict_function(
    model: keras.Model,
    prepare: Callable[[Any], Any],
    *,
    strategy: tf.distribute.Strategy | None = None,
) -> Callable[[list[Any]], Any]:
    """Returns Keras's own function for `predict`, which first builds a model that is not built.

    Keras would make the variables inside the replicas' function.
    """
    type(model).make_predict_function(model, force=True)
    function = model.predict_function

    def predict(batches: list[Any]) -> Any:
        build_for(model, batches[0], strategy or model.distribute_strategy)
        return function([prepare(batch) for batch in batches])

    return predict


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


def batches_in(iterator: Any) -> int | None:
    """Returns how many batches the data of an iterator over epochs have; None if unknown."""
    return iterator.data_adapter.num_batches  # type: ignore[no-any-return]


def undistributed(iterator: Any) -> tf.data.Dataset | None:
    """Returns the data set of an iterator over epochs; None if it came distributed already."""
    data = iterator.data_adapter.get_tf_dataset()
    return data if isinstance(data, tf.data.Dataset) else None


def iterate(iterator: Any, data: Any) -> None:
    """Lets an iterator over epochs take its batches from here."""
    iterator._distributed_dataset = data


def spec_of_replica(iterator: Any) -> Any:
    """Returns what one replica gets of an iterator over epochs, as specs."""
    return one_replica(iterator._distributed_dataset.element_spec)


def one_replica(element_spec: Any) -> Any:
    """Returns what one replica gets of a distributed data set, as specs."""
    return tf.nest.map_structure(
        lambda spec: getattr(spec, "_value_specs", [spec])[0], element_spec
    )


def profiles(callback: keras.callbacks.TensorBoard) -> bool:
    """Whether a TensorBoard callback is to profile some of the batches."""
    return bool(callback._start_batch > 0)
