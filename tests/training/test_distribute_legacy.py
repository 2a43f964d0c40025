"""Models of the legacy tf_keras take the steps of one device too, by tf_keras's own `fit`."""

import ast
import functools
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import DatasetError, ModelError
from distlab.training.legacy_models import is_legacy
from tests.support import graph_orders
from tests.support.clusters import run_on_tasks
from tests.support.distribution import BATCH, DRAW, EPOCHS, EXAMPLES, X, Y, assert_same, strategy_of

tf_keras = pytest.importorskip("tf_keras", reason="the legacy extra is not installed")

TOKENS = DRAW.integers(0, 5, (EXAMPLES, 6))  # 0 is padding, of a different length in each
TOKENS[np.arange(6) >= DRAW.integers(1, 7, EXAMPLES)[:, None]] = 0
CrossEntropy = functools.partial(tf_keras.losses.SparseCategoricalCrossentropy, from_logits=True)
SGD = tf_keras.optimizers.SGD
BOTH = pytest.mark.parametrize("kind", ["mirrored", "central_storage"])


def sequential(*layers, optimizer=None, loss=None, shape=(8,), **compiled):
    def build():
        tf_keras.utils.set_random_seed(3)
        l2 = tf_keras.regularizers.L2(1e-2)
        usual = [
            lambda: tf_keras.layers.Dense(6, "tanh", kernel_regularizer=l2),
            lambda: tf_keras.layers.Dense(4),
        ]
        model = tf_keras.Sequential([tf_keras.Input(shape), *(make() for make in layers or usual)])
        model.compile(
            optimizer=optimizer() if optimizer else tf_keras.optimizers.Adam(1e-2),
            loss=CrossEntropy() if loss is None else loss,
            **{"metrics": ["accuracy"], **compiled},
        )
        return model

    return build


def in_order(x=X, y=Y, *more):
    return tf.data.Dataset.from_tensor_slices((x, y, *more)).batch(BATCH)


def train(model, data=None, **options):
    history = model.fit(in_order() if data is None else data, epochs=EPOCHS, verbose=0, **options)
    return history.history, [weight.numpy() for weight in model.weights]


def assert_equal_to_one_device(build, data=None, kind="mirrored", replicas=2, **options):
    model = dl.distribute(build, strategy_of(kind, replicas))
    assert is_legacy(model)
    run = train(model, data, **options)
    with graph_orders.in_order():
        assert_same(run, train(build(), data, **options))
    return model


@pytest.mark.parametrize(
    ("kind", "replicas"),
    [("default", None), ("one_device", None), ("mirrored", 3), ("central_storage", 2)],
)
def test_every_kind_takes_the_steps_of_one_device(kind, replicas):
    validation = {"validation_data": (X[:50], Y[:50])}
    assert_equal_to_one_device(sequential(), None, kind, replicas, **validation)


OPTIMIZERS = {
    "adamw": lambda: tf_keras.optimizers.AdamW(1e-2, weight_decay=0.1),
    "clipnorm": lambda: tf_keras.optimizers.Adam(1e-2, clipnorm=0.1),
    "global_clipnorm": lambda: tf_keras.optimizers.SGD(0.1, global_clipnorm=0.5),
    "ema": lambda: tf_keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("mirrored", name) for name in OPTIMIZERS), ("central_storage", "clipnorm")],
)
def test_optimizers(kind, name):
    assert_equal_to_one_device(sequential(optimizer=OPTIMIZERS[name]), kind=kind)


def test_tf_keras_alone_does_not_where_the_last_batch_is_partial_or_gradients_are_clipped():
    """Were this to pass, there would be nothing to mend."""
    build = sequential(optimizer=OPTIMIZERS["clipnorm"])
    with strategy_of("mirrored", 2).scope():
        model = build()
    (_, weights), (_, expected) = train(model), train(build())
    assert max(np.abs(w - e).max() for w, e in zip(weights, expected, strict=True)) > 1e-4


@pytest.mark.parametrize("overflows", [False, True])
def test_a_loss_scale_and_an_overflow_on_one_replica(overflows):
    x, scale = X.copy(), 2.0**122
    x[30] *= 1e4 if overflows else 1  # on the second replica, in the first batch

    def optimizer():
        inner = SGD(0.1, clipnorm=0.3)
        return tf_keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=scale)

    loss = CrossEntropy(reduction="sum")
    build = sequential(lambda: tf_keras.layers.Dense(4), optimizer=optimizer, loss=loss)
    model = dl.distribute(build, strategy_of("mirrored", 2))
    plain, data = build(), in_order(x, Y)
    (_, weights), (_, expected) = train(model, data), train(plain, data)
    for weight, reference in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight, reference, atol=1e-6)
    found, same = model.optimizer.loss_scale.numpy(), plain.optimizer.loss_scale.numpy()
    assert found == same == scale / (4 if overflows else 1)


# Losses


@pytest.mark.parametrize(("kind", "weighted"), [("mirrored", True), ("central_storage", False)])
def test_two_outputs_and_what_is_logged_of_each(kind, weighted):
    def build():
        tf_keras.utils.set_random_seed(3)
        inputs = tf_keras.Input((8,), name="features")
        hidden = tf_keras.layers.Dense(6, "tanh")(inputs)
        heads = {n: tf_keras.layers.Dense(size, name=n)(hidden) for n, size in units.items()}
        model = tf_keras.Model({"features": inputs}, heads)
        summed = tf_keras.losses.MeanSquaredError(reduction="sum")
        losses = {"class": CrossEntropy(), "size": summed}
        weights = {"class": 0.3, "size": 0.02}
        model.compile(tf_keras.optimizers.Adam(1e-2), losses, loss_weights=weights)
        return model

    units = {"class": 4, "size": 1}
    weights = [{name: np.linspace(0, 1, EXAMPLES) for name in units}] if weighted else []
    data = in_order({"features": X}, {"class": Y, "size": X[:, :1] * 2}, *weights)
    model = assert_equal_to_one_device(build, data, kind, 3, validation_data=data)
    assert {"class_loss", "val_size_loss"} <= model.history.history.keys()


def test_a_masked_loss_is_a_mean_over_what_the_mask_leaves_on_all_replicas():
    layers = (
        lambda: tf_keras.layers.Embedding(5, 6, mask_zero=True),
        lambda: tf_keras.layers.Dense(5),
    )
    build = sequential(*layers, shape=(6,))
    assert_equal_to_one_device(build, in_order(TOKENS, TOKENS), replicas=3)


def test_a_class_that_the_loss_ignores():
    build = sequential(loss=CrossEntropy(ignore_class=1))
    assert_equal_to_one_device(build, replicas=3)


def test_a_loss_that_is_a_function_which_takes_the_mean_itself():
    def loss(y_true, y_pred):
        return tf.reduce_mean(tf.square(y_pred - tf.cast(tf.reshape(y_true, (-1, 1)), tf.float32)))

    assert_equal_to_one_device(sequential(loss=loss, metrics=[]), replicas=3)


def test_class_weights():
    options = {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5, 3: 3.0}}
    assert_equal_to_one_device(sequential(weighted_metrics=["accuracy"]), **options)


class AddsLoss(tf_keras.layers.Layer):
    """A loss of a weight and a mean over the examples, which without examples is no number."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        self.add_loss(0.1 * self.scale * tf.reduce_mean(x**2))
        return x


@BOTH
def test_losses_of_layers_count_once_and_by_shares_with_an_empty_replica(kind):
    l2 = tf_keras.regularizers.L2(1e-2)
    layers = (
        lambda: tf_keras.layers.Dense(6, activity_regularizer=l2, kernel_regularizer=l2),
        AddsLoss,
        lambda: tf_keras.layers.Dense(4),
    )
    data = in_order(X[:33], Y[:33])  # 1 for 4 replicas
    assert_equal_to_one_device(sequential(*layers), data, kind, 4)


# Layers, and the rest of fit


def test_synchronised_batch_normalization_where_shares_are_equal():
    layers = (
        lambda: tf_keras.layers.Dense(6, use_bias=False),
        lambda: tf_keras.layers.BatchNormalization(synchronized=True),
        lambda: tf_keras.layers.Dense(4),
    )
    assert_equal_to_one_device(sequential(*layers), in_order(X[:64], Y[:64]))


def test_several_steps_in_one_execution():
    assert_equal_to_one_device(sequential(steps_per_execution=3))


def test_evaluate_predict_and_save(tmp_path):
    model = dl.distribute(sequential(), strategy_of("mirrored", 2))
    plain = sequential()()
    train(model), train(plain)
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(plain.evaluate(X, Y, verbose=0), 1e-5)
    predicted = plain.predict(X, verbose=0)
    np.testing.assert_allclose(model.predict(X, verbose=0), predicted, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = tf_keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(X, verbose=0), predicted, atol=1e-5)


def test_a_later_compile_keeps_the_distributed_step():
    def twice(model, scope):
        train(model)
        with scope:
            model.layers[0].trainable = False
            model.compile(tf_keras.optimizers.Adam(1e-2, clipnorm=0.1), CrossEntropy())
        return train(model)

    strategy = strategy_of("mirrored", 2)
    model = dl.distribute(sequential(), strategy)
    same = tf.distribute.get_strategy().scope()
    assert_same(twice(model, strategy.scope()), twice(sequential()(), same))


def test_the_library_imports_tf_keras_in_functions_only():
    found = []
    for path in pathlib.Path(dl.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom) and "tf_keras" in ast.unparse(node):
                found.append(path)
    assert found == []
    assert not is_legacy(keras.Sequential())


# Mistakes


def test_a_legacy_model_instead_of_a_function_is_refused():
    with pytest.raises(ModelError, match="not a function that builds a model"):
        dl.distribute(sequential()(), strategy_of("mirrored", 2))


def test_a_legacy_model_made_outside_the_scope_is_refused():
    model = sequential()()
    with pytest.raises(ModelError, match="a model that was made outside the strategy's scope"):
        dl.distribute(lambda: model, strategy_of("mirrored", 2))


def test_a_legacy_model_that_was_not_compiled_is_refused():
    with pytest.raises(ModelError, match="a model that was not compiled"):
        dl.distribute(lambda: tf_keras.Sequential([]), strategy_of("mirrored", 2))


def test_gathering_its_losses_is_refused():
    with pytest.raises(ModelError, match="found: a tf_keras model"):
        dl.distribute(sequential(), strategy_of("mirrored", 2), batch_losses="gather")


def test_a_step_of_ones_own_is_refused():
    class Own(tf_keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    def build():
        model = Own([tf_keras.Input((8,)), tf_keras.layers.Dense(4)])
        model.compile("sgd", "mse")
        return model

    with pytest.raises(ModelError, match="a custom train_step, which distribute cannot run"):
        dl.distribute(build, strategy_of("mirrored", 2))


@pytest.mark.parametrize(
    ("compiled", "found"),
    [
        (
            {"optimizer": lambda: tf_keras.optimizers.legacy.SGD(0.1)},
            "an optimizer of tf_keras.optimizers.legacy",
        ),
        ({"loss": CrossEntropy(reduction="none")}, "a loss with reduction='none'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(compiled, found):
    with pytest.raises(ModelError) as error:
        dl.distribute(sequential(**compiled), strategy_of("mirrored", 2))
    assert error.value.found == f"{found}, which cannot be honoured there"


def test_tf_keras_itself_refuses_a_loss_scale_under_central_storage():
    build = sequential(optimizer=lambda: tf_keras.mixed_precision.LossScaleOptimizer(SGD()))
    with pytest.raises(ValueError, match="Loss scaling is not supported with"):
        dl.distribute(build, strategy_of("central_storage", 2))


def of_workers_or_one_device(make):
    """Trainings that workers do together and one device alone."""
    clipped = make(sequential(optimizer=OPTIMIZERS["clipnorm"]))
    trained = train(clipped, validation_data=(X[:50], Y[:50]))
    model = make(sequential())
    few = model.fit(X[:33], Y[:33], batch_size=BATCH, shuffle=False, verbose=0)
    loss, accuracy = model.evaluate(in_order(), verbose=0)
    predicted = [model.predict(data, verbose=0) for data in (X, in_order())]
    return [trained, (few.history | {"evaluated": [loss, accuracy]}, predicted)]


def on_workers():
    strategy = dl.make_strategy("multi_worker")
    found = {"runs": of_workers_or_one_device(lambda build: dl.distribute(build, strategy))}
    model = dl.distribute(sequential(), strategy)
    tf.random.set_seed(None)  # as where nobody has set one
    shuffled = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(EXAMPLES).batch(BATCH)
    for name, wrong in {"data": (shuffled,), "arrays": (X, Y)}.items():
        try:
            model.fit(*wrong, verbose=0)
        except DatasetError as error:
            found[name] = error.found
    return found


def test_two_workers_take_the_steps_of_one_device(tmp_path):
    expected = of_workers_or_one_device(lambda build: build())
    for worker in run_on_tasks("training.test_distribute_legacy:on_workers", tmp_path):
        for run, reference in zip(worker["runs"], expected, strict=True):
            assert_same(run, reference)
        for name in ("data", "arrays"):
            assert worker[name].startswith("Shuffle has no seed (give one: seed=...): each worker")
