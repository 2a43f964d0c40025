"""N replicas with global batch B take the steps of one device with batch B."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import InvalidArgument, ModelError
from tests.support.distribution import (
    BATCH,
    DRAW,
    EPOCHS,
    EXAMPLES,
    LOSS,
    OPTIMIZERS,
    X,
    Y,
    alone,
    assert_same,
    builder,
    one_device,
    shuffled,
    strategy_of,
    train,
)


def test_the_reference_is_what_keras_computes_in_a_graph_too():
    assert_same(train(alone(builder())), one_device())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_replicas_take_the_steps_of_one_device(optimizer):
    model = dl.distribute(builder(optimizer), strategy_of("mirrored", 2))
    assert_same(train(model), one_device(optimizer))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd_momentum", "adam_clipnorm"])
def test_central_storage_takes_them_too_and_logs_the_right_loss(optimizer):
    model = dl.distribute(builder(optimizer), strategy_of("central_storage", 2))
    assert_same(train(model), one_device(optimizer))


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_validation_logs_are_those_of_one_device(kind):
    validation = {"validation_data": (X[:50], Y[:50])}
    run = train(dl.distribute(builder(), strategy_of(kind, 2)), **validation)
    reference = train(alone(builder()), **validation)
    assert {"val_loss", "val_accuracy"} <= run[0].keys()
    assert_same(run, reference)


@pytest.mark.parametrize(
    ("kind", "replicas"),
    [("default", None), ("one_device", None), ("mirrored", 3), ("mirrored", 4)],
)
def test_every_kind_and_number_of_replicas(kind, replicas):
    assert_same(train(dl.distribute(builder(), strategy_of(kind, replicas))), one_device())


@pytest.mark.parametrize("steps", [1, 3])
def test_a_strategy_made_elsewhere_with_tensorflows_own_all_reduce(steps):
    """Keras's `fit` stops there with several steps in one execution."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert dl.describe(strategy).all_reduce == "CollectiveAllReduce"
    model = dl.distribute(builder(steps_per_execution=steps), strategy)
    assert_same(train(model), one_device())


def test_keras_alone_does_not_under_a_mirrored_strategy():
    """Were this to pass, `distribute` would have nothing left to mend."""
    with strategy_of("mirrored", 2).scope():
        model = builder("adam_clipnorm")()
    _, weights = train(model)
    _, expected = one_device("adam_clipnorm")
    assert max(np.abs(w - e).max() for w, e in zip(weights, expected, strict=True)) > 1e-4


@pytest.mark.parametrize("kind", ["one_device", "mirrored", "central_storage"])
@pytest.mark.parametrize("steps", [2, 3])
def test_several_steps_in_one_execution_stop_where_the_data_stop(kind, steps):
    build = builder(steps_per_execution=steps)
    replicas = None if kind == "one_device" else 2
    assert_same(train(dl.distribute(build, strategy_of(kind, replicas))), one_device())


def test_several_steps_stop_where_data_of_unknown_length_stop():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).take(2)
    data = data.filter(lambda x, y: True)  # its length is not known; a second execution is empty
    assert data.cardinality() == tf.data.UNKNOWN_CARDINALITY
    build = builder(steps_per_execution=2)
    model, plain = dl.distribute(build, strategy_of("mirrored", 2)), build()
    assert_same(train(model, data), train(plain, data))
    assert model.optimizer.iterations.numpy() == EPOCHS * 2


def test_a_model_without_an_input_is_built_without_drawing_a_batch():
    drawn = []

    def count(x, y):
        drawn.append(1)
        return x, y

    def counted(x, y):
        x, y = tf.py_function(count, (x, y), (tf.float32, tf.int64))
        return tf.ensure_shape(x, (None, 8)), tf.ensure_shape(y, (None,))

    model = dl.distribute(builder(built=False), strategy_of("mirrored", 2))
    assert_same(train(model, shuffled().map(counted)), one_device())
    assert len(drawn) == EPOCHS * 3


def test_a_replica_without_examples_changes_nothing():
    data = tf.data.Dataset.from_tensor_slices((X[:33], Y[:33])).batch(BATCH)  # 1 for 4 replicas
    reference = train(alone(builder("sgd_momentum")), data)
    model = dl.distribute(builder("sgd_momentum"), strategy_of("mirrored", 4))
    assert_same(train(model, data), reference)


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_losses_that_are_sums_are_not_averaged(kind):
    build = builder("sgd_global_clipnorm", loss=LOSS(reduction="sum"))
    model = dl.distribute(build, strategy_of(kind, 2))
    assert_same(train(model), train(build()), atol=2e-6)


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_sample_weights_and_numpy_arrays(kind):
    weights = DRAW.uniform(size=EXAMPLES).astype("float32")
    fit = {"x": X, "y": Y, "sample_weight": weights, "batch_size": BATCH, "shuffle": False}

    def run(model):
        history = model.fit(**fit, epochs=EPOCHS, verbose=0)
        return history.history, [weight.numpy() for weight in model.trainable_variables]

    model = dl.distribute(builder(), strategy_of(kind, 2))
    assert_same(run(model), run(alone(builder())))


def test_class_weights():
    options = {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5, 3: 3.0}}
    model = dl.distribute(builder(), strategy_of("mirrored", 2))
    assert_same(train(model, **options), train(alone(builder()), **options))


def test_fit_remains_kerass_with_callbacks_and_history():
    seen = []

    class Spy(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((batch, sorted(logs)))

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    model = dl.distribute(builder(), strategy_of("mirrored", 2))
    logs, _ = train(model, callbacks=[Spy()])
    assert seen == [(0, ["accuracy", "loss"]), (1, ["accuracy", "loss"]), (2, ["accuracy", "loss"])]
    assert len(logs["loss"]) == 1


def test_a_later_compile_keeps_the_distributed_step():
    def twice(model, scope):
        with scope:
            train(model)
            model.layers[0].trainable = False
            model.compile(optimizer=keras.optimizers.Adam(1e-2, clipnorm=0.1), loss=LOSS())
        return train(model)

    strategy = strategy_of("mirrored", 2)
    model = dl.distribute(builder(), strategy)
    assert_same(
        twice(model, strategy.scope()), twice(builder()(), tf.distribute.get_strategy().scope())
    )


def test_evaluate_and_predict_agree_with_one_device():
    model = dl.distribute(builder(), strategy_of("mirrored", 2))
    train(model)
    plain = alone(builder())
    train(plain)
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(plain.evaluate(X, Y, verbose=0), 1e-5)
    np.testing.assert_allclose(model.predict(X, verbose=0), plain.predict(X, verbose=0), atol=1e-5)


def test_train_on_batch_and_run_eagerly():
    build = builder("sgd_momentum", run_eagerly=True)
    model, plain = dl.distribute(build, strategy_of("one_device")), build()
    ours, theirs = model.train_on_batch(X, Y), plain.train_on_batch(X, Y)
    np.testing.assert_allclose(ours, theirs, 1e-5)
    assert_same(train(model), train(plain))


def test_a_distributed_model_is_saved_and_loaded_without_distlab(tmp_path):
    model = dl.distribute(builder(), strategy_of("mirrored", 2))
    train(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-6)
    assert type(loaded).__module__.startswith("keras.")


def test_a_loop_by_hand_on_a_distributed_model_still_sums_gradients():
    """The optimizer is changed only while our own step runs."""
    strategy = strategy_of("mirrored", 2)
    model = dl.distribute(builder("sgd"), strategy)
    train(model)
    weights = model.trainable_variables
    before = [weight.numpy() for weight in weights]

    def step():
        ones = [tf.ones(weight.shape) for weight in weights]
        model.optimizer.apply_gradients(zip(ones, weights, strict=True))

    tf.function(lambda: strategy.run(step))()
    for weight, old in zip(weights, before, strict=True):
        np.testing.assert_allclose(weight.numpy(), old - 0.5 * 2, atol=1e-6)


def test_mixed_float16_trains_and_skips_an_overflow_on_all_replicas_alike():
    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, dtype="mixed_float16")])
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1e9)
        model.compile(optimizer=scaled, loss=LOSS())
        return model

    model = dl.distribute(build, strategy_of("mirrored", 2))
    before = [weight.numpy() for weight in model.trainable_variables]
    model.fit(X[:BATCH], Y[:BATCH], batch_size=BATCH, verbose=0)
    for weight, same in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), same)
    assert model.optimizer.dynamic_scale.numpy() == 5e8


# Bad input, each with its message.


def test_a_model_instead_of_a_function_is_refused():
    with pytest.raises(ModelError) as error:
        dl.distribute(builder()(), strategy_of("mirrored", 2))
    assert "outside the strategy's scope" in error.value.found
    assert error.value.do.startswith("write `def build(): ...; return model`")


def test_a_model_built_outside_the_scope_is_refused():
    outside = builder()()
    with pytest.raises(ModelError, match="made outside the strategy's scope"):
        dl.distribute(lambda: outside, strategy_of("mirrored", 2))


def test_an_optimizer_made_outside_the_scope_is_refused():
    optimizer = keras.optimizers.Adam()

    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(optimizer=optimizer, loss=LOSS())
        return model

    with pytest.raises(ModelError, match="a model, or its optimizer, that was made outside"):
        dl.distribute(build, strategy_of("mirrored", 2))


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (lambda: None, r"build\(\) returned NoneType, not a keras.Model"),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), "a model that was not compiled"),
    ],
)
def test_a_build_that_returns_no_compiled_model_is_refused(returned, found):
    with pytest.raises(ModelError, match=found) as error:
        dl.distribute(returned, strategy_of("mirrored", 2))
    assert "let build() call model.compile(" in error.value.do


def test_something_that_is_no_strategy_is_refused():
    with pytest.raises(InvalidArgument) as error:
        dl.distribute(builder(), "mirrored")
    assert error.value.do == 'make one: distribute(build, distlab.make_strategy("mirrored"))'


@pytest.mark.parametrize("method", ["make_train_function", "make_test_function"])
def test_a_model_whose_own_functions_would_be_replaced_is_refused(method):
    own = type("Own", (keras.Sequential,), {method: lambda self, force=False: None})

    def build():
        model = own([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(optimizer="sgd", loss=LOSS())
        return model

    with pytest.raises(ModelError, match=f"a custom {method}, in the place of which"):
        dl.distribute(build, strategy_of("mirrored", 2))


def test_a_loss_that_is_not_one_number_is_refused():
    build = builder(loss=LOSS(reduction="none", name="each"))
    with pytest.raises(ModelError, match="a loss 'each' with reduction='none', which leaves no"):
        train(dl.distribute(build, strategy_of("mirrored", 2)))


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "gradient_accumu.*=2"),
        (lambda: keras.optimizers.SGD(0.1, use_ema=True), "use_ema=True"),
        (OPTIMIZERS["loss_scale"], "a LossScaleOptimizer"),
        (keras.optimizers.Muon, "Muon"),
    ],
)
def test_an_optimizer_that_cannot_share_one_copy_is_refused(monkeypatch, make, found):
    monkeypatch.setitem(OPTIMIZERS, "refused", make)
    with pytest.raises(ModelError, match=f"{found}, which cannot update the one copy"):
        dl.distribute(builder("refused"), strategy_of("central_storage", 2))
    dl.distribute(builder("refused"), strategy_of("mirrored", 2))


def test_an_optimizer_that_a_later_compile_brings_is_looked_at_too():
    strategy = strategy_of("central_storage", 2)
    model = dl.distribute(builder(), strategy)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(use_ema=True), loss=LOSS())
    with pytest.raises(ModelError, match="train with SGD under CentralStorageStrategy"):
        train(model)
