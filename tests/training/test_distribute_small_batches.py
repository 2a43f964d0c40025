"""Batches with fewer examples than replicas: what layers cannot do with no example at all."""

import inspect
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from tests.support.distribution import alone, assert_same, strategy_of
from tests.support.repository import ROOT

DRAW = np.random.default_rng(0)
IMAGES = DRAW.normal(size=(9, 6, 6, 2)).astype("float32")
LABELS = DRAW.integers(0, 4, 9)

KINDS = [("mirrored", 2), ("mirrored", 4), ("central_storage", 3)]
EVERY = pytest.mark.parametrize(("kind", "replicas"), KINDS)


def convolutions(*, normalize=None, outputs=lambda y: y, inputs=1, **compiled):
    """Builds a model of what cannot take an empty batch: convolution, pooling."""

    def build():
        keras.utils.set_random_seed(3)
        given = [keras.Input((6, 6, 2)) for _ in range(inputs)]
        h = keras.layers.add(given) if inputs > 1 else given[0]
        h = keras.layers.Conv2D(4, 3, activation="tanh")(h)
        if normalize:
            h = normalize()(h)
        h = keras.layers.MaxPooling2D(2)(h)
        y = keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(h))
        model = keras.Model(given if inputs > 1 else given[0], outputs(y))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.2), loss, **compiled)
        return model

    return build


def pair(build, kind, replicas):
    """The same model on one device and on replicas."""
    return alone(build), dl.distribute(build, strategy_of(kind, replicas))


# predict


def assert_predicts(model, plain, x, **options):
    found, expected = (one.predict(x, verbose=0, **options) for one in (model, plain))
    keras.tree.assert_same_structure(found, expected)
    for part, reference in zip(
        keras.tree.flatten(found), keras.tree.flatten(expected), strict=True
    ):
        np.testing.assert_allclose(part, reference, atol=1e-6, strict=True)


@EVERY
def test_predict_of_a_single_image_and_of_short_last_batches(kind, replicas):
    plain, model = pair(convolutions(), kind, replicas)
    assert_predicts(model, plain, IMAGES[:1])
    assert_predicts(model, plain, IMAGES, batch_size=4)  # and one is left
    assert_predicts(model, plain, IMAGES[:3], batch_size=1)
    assert_predicts(model, plain, tf.data.Dataset.from_tensor_slices(IMAGES).batch(8))
    sizes = tf.data.Dataset.from_generator(
        lambda: (IMAGES[first:end] for first, end in [(0, 1), (1, 6), (6, 9)]),
        output_signature=tf.TensorSpec((None, 6, 6, 2)),
    )
    assert_predicts(model, plain, sizes)
    for x in (IMAGES[:1], IMAGES[:5]):
        expected = plain.predict_on_batch(x)
        np.testing.assert_allclose(model.predict_on_batch(x), expected, atol=1e-6, strict=True)
        np.testing.assert_allclose(model(x), plain(x), atol=1e-6)


@EVERY
def test_predict_with_several_inputs_and_named_outputs(kind, replicas):
    build = convolutions(inputs=2, outputs=lambda y: {"y": y, "all": [y, keras.ops.tanh(y)]})
    plain, model = pair(build, kind, replicas)
    for examples in (1, 9):
        x = [IMAGES[:examples], IMAGES[::-1][:examples]]
        assert_predicts(model, plain, x, batch_size=4)
    expected, found = plain.predict_on_batch(x), model.predict_on_batch(x)
    np.testing.assert_allclose(found["all"][1], expected["all"][1], atol=1e-6)


@pytest.mark.parametrize("compiled", [{"run_eagerly": True}, {"steps_per_execution": 2}])
def test_predict_step_by_step_and_in_larger_executions(compiled):
    plain, model = pair(convolutions(**compiled), "mirrored", 2)
    assert_predicts(model, plain, IMAGES, batch_size=4)


@EVERY
def test_predict_with_single_numbers_among_the_outputs(kind, replicas):
    class Numbers(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(4)
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, x):
            y = self.dense(x)
            four = tf.constant(4)
            return {"y": y, "scale": 2 * self.scale, "mean": tf.reduce_mean(y), "four": four}

    def build():
        keras.utils.set_random_seed(3)
        model = Numbers()
        model.compile("sgd")
        return model

    plain, model = pair(build, kind, replicas)
    x = IMAGES.reshape(9, -1)
    for examples in (1, 3, 9):
        assert_predicts(model, plain, x[:examples], batch_size=9)
    assert_predicts(model, plain, x, batch_size=4)  # Keras stacks the numbers of batches


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_predict_of_outputs_that_are_not_dense(kind):
    class Cut(keras.Model):
        def call(self, x):
            if kind == "sparse":
                return tf.sparse.from_dense(x)
            return tf.RaggedTensor.from_tensor(x, lengths=tf.cast(x[:, 0], tf.int32))

    def build():
        model = Cut()
        model.compile("sgd")
        return model

    x = np.array([[1, 2, 0], [2, 0, 3], [3, 1, 1]], "float32")
    plain, model = pair(build, "mirrored", 2)
    dense = tf.sparse.to_dense if kind == "sparse" else tf.RaggedTensor.to_tensor
    for examples in (1, 3):
        found, expected = (one.predict(x[:examples], 2, verbose=0) for one in (model, plain))
        np.testing.assert_array_equal(dense(found), dense(expected))


# Synchronised layers


def synchronised(**options):
    return lambda: keras.layers.BatchNormalization(synchronized=True, momentum=0.8, **options)


def fitted(model, examples, batch, **data):
    x, y = data.get("x", IMAGES[:examples]), data.get("y", LABELS[:examples])
    logs = model.fit(x, y, batch_size=batch, epochs=2, verbose=0, shuffle=False).history
    evaluated = model.evaluate(x, y, batch_size=batch, verbose=0, return_dict=True)
    logs |= {f"evaluated {name}": [value] for name, value in evaluated.items()}
    return logs, [weight.numpy() for weight in model.weights]  # moving statistics too


@EVERY
@pytest.mark.parametrize(("examples", "batch"), [(9, 7), (5, 4), (2, 2)])
def test_synchronised_layers_count_no_example_that_fills_a_place(kind, replicas, examples, batch):
    build = convolutions(normalize=synchronised(), metrics=["accuracy"])
    plain, model = pair(build, kind, replicas)
    assert_same(fitted(model, examples, batch), fitted(plain, examples, batch))


HAS_RENORM = "renorm" in inspect.signature(keras.layers.BatchNormalization).parameters


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"renorm": True},
            marks=pytest.mark.skipif(not HAS_RENORM, reason="this Keras has no renorm"),
        ),
        {"scale": False, "axis": 1},
    ],
)
def test_layers_with_other_options_too(options):
    plain, model = pair(convolutions(normalize=synchronised(**options)), "mirrored", 4)
    assert_same(fitted(model, 9, 7), fitted(plain, 9, 7))


def test_a_layer_of_ones_own_around_a_synchronised_one():
    class Inside(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.normalize = synchronised()()

        def build(self, shape):
            self.normalize.build((None, shape[-1]))

        def call(self, x, training=False):
            shape = keras.ops.shape(x)  # examples are not what is normalised
            rows = self.normalize(keras.ops.reshape(x, (-1, x.shape[-1])), training=training)
            return keras.ops.reshape(rows, shape)

    plain, model = pair(convolutions(normalize=Inside), "mirrored", 4)
    assert_same(fitted(model, 9, 7), fitted(plain, 9, 7))


def test_data_that_come_distributed_are_filled_up_as_well():
    plain, model = pair(convolutions(normalize=synchronised()), "mirrored", 4)
    data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(4)
    distributed = model.distribute_strategy.experimental_distribute_dataset(data)
    for one, batches in ((model, distributed), (plain, data)):
        one.fit(batches, epochs=2, steps_per_epoch=3, verbose=0, shuffle=False)
    for weight, expected in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), atol=1e-6)


class Divided(keras.layers.Layer):
    """Normalises, and divides by what is 0 for an image of zeros."""

    def __init__(self):
        super().__init__()
        self.normalize = synchronised()()

    def build(self, shape):
        self.normalize.build(shape)

    def call(self, x, training=False):
        y = self.normalize(x, training=training)
        return y / keras.ops.sum(x**2, axis=(1, 2, 3), keepdims=True)


def test_an_example_that_does_not_count_cannot_spoil_the_gradient():
    """Zeros fill a place where data come distributed."""
    plain, model = pair(convolutions(normalize=Divided), "mirrored", 4)
    data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(2).take(1)
    distributed = model.distribute_strategy.experimental_distribute_dataset(data)
    for one, batches in ((model, distributed), (plain, data)):
        one.fit(batches, steps_per_epoch=1, verbose=0, shuffle=False)
    for weight, expected in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), atol=1e-6)


def test_a_layer_of_ones_own_that_looks_at_all_replicas_still_gets_no_example():
    class Mean(keras.layers.Layer):
        synchronized = True

        def compute_output_spec(self, x):
            return keras.KerasTensor(x.shape, x.dtype)

        def call(self, x):
            context = tf.distribute.get_replica_context()
            if context is None:  # Keras builds the model
                return x
            sums = [tf.reduce_sum(x, 0), tf.cast(tf.shape(x)[0], x.dtype)]
            total, count = context.all_reduce("SUM", sums)
            return x - total / count

    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((72,)), keras.layers.Dense(4), Mean()])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss)
        return model

    plain, model = pair(build, "mirrored", 4)
    x = IMAGES.reshape(9, -1)
    assert_same(fitted(model, 9, 7, x=x), fitted(plain, 9, 7, x=x))


def test_a_prepared_model_is_as_it_was_outside_of_training(tmp_path):
    plain, model = pair(convolutions(normalize=synchronised()), "mirrored", 2)
    fitted(model, 9, 7)
    fitted(plain, 9, 7)
    np.testing.assert_allclose(model(IMAGES), plain(IMAGES), atol=1e-5)
    with model.distribute_strategy.scope():
        found = model(IMAGES, training=True)
    np.testing.assert_allclose(found, plain(IMAGES, training=True), atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(IMAGES), model(IMAGES), atol=1e-6)


def test_with_the_all_reduce_that_tensorflow_chooses(run_python):
    """In a process of its own: of several such strategies in one, TensorFlow mixes up the keys."""
    code = """
        import distlab as dl

        dl.split_devices(2)
        import tensorflow as tf

        from tests.training import test_distribute_small_batches as tests

        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        tests.strategy_of = lambda *_: strategy
        tests.test_predict_of_a_single_image_and_of_short_last_batches("mirrored", 2)
        tests.test_predict_with_single_numbers_among_the_outputs("mirrored", 2)
        tests.test_synchronised_layers_count_no_example_that_fills_a_place("mirrored", 2, 5, 4)
    """
    run_python(textwrap.dedent(code), environ={"PYTHONPATH": str(ROOT)})
