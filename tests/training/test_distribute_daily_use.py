"""What people do with a model from day to day works on a distributed one as on one device."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from tests.support.distribution import LOSS, X, Y, alone, strategy_of

BOTH = pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
W = np.linspace(0.5, 1.5, len(X), dtype="float32")


def build(metrics=("accuracy",), **compiled):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,), name="features")
    hidden = keras.layers.Dense(6, activation="tanh", name="hidden")(inputs)
    hidden = keras.layers.BatchNormalization(name="norm", trainable=False)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(4, name="head")(hidden), name="net")
    model.compile(keras.optimizers.Adam(1e-2), LOSS(), metrics=list(metrics), **compiled)
    return model


def pair(kind="mirrored", replicas=3, make=build):
    return alone(make), dl.distribute(make, strategy_of(kind, replicas))


def fit(model, *, epochs=2, **options):
    given = {"x": X, "y": Y, "batch_size": 32, "shuffle": False, "verbose": 0} | options
    return model.fit(epochs=epochs, **given).history


def assert_same(plain, model, expected=None, found=None):
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6, err_msg=one.path)
    for one, other in zip(plain.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6, err_msg=one.path)
    assert list(found or {}) == list(expected or {})
    for name, values in (expected or {}).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


def same_fit(plain, model, **options):
    assert_same(plain, model, fit(plain, **options), fit(model, **options))


@BOTH
def test_arrays_with_weights_and_a_validation_split_one_fit_after_another(kind):
    plain, model = pair(kind)
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(plain.evaluate(X, Y, verbose=0))
    same_fit(plain, model, sample_weight=W, validation_split=0.2)
    same_fit(plain, model, class_weight={0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}, batch_size=20)
    same_fit(plain, model, initial_epoch=1, epochs=3, validation_data=(X[:9], Y[:9], W[:9]))
    logs = [
        one.evaluate(X, Y, sample_weight=W, return_dict=True, verbose=0) for one in (plain, model)
    ]
    assert logs[1] == pytest.approx(logs[0], rel=1e-5)
    np.testing.assert_allclose(model.predict(X, verbose=0), plain.predict(X, verbose=0), atol=1e-5)
    np.testing.assert_allclose(model(X[:5]), plain(X[:5]), atol=1e-5)


@BOTH
def test_freezing_recompiling_and_a_callback_that_freezes(kind):
    class Freezes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.01 / (epoch + 1)
            self.model.get_layer("hidden").trainable = epoch != 1

    plain, model = pair(kind)
    frozen = model.get_layer("hidden").kernel
    for one in (plain, model):
        one.get_layer("hidden").trainable = False
        one.compile(keras.optimizers.SGD(0.1, momentum=0.9), LOSS(), metrics=["accuracy"])
    before = np.array(frozen.numpy())
    same_fit(plain, model)
    np.testing.assert_array_equal(frozen.numpy(), before)
    for one in (plain, model):
        one.get_layer("hidden").trainable = True
        one.compile("sgd", LOSS(), weighted_metrics=["accuracy"])
    same_fit(plain, model)
    assert np.abs(frozen.numpy() - before).max() > 1e-4
    same_fit(plain, model, epochs=3, callbacks=[Freezes()])


@BOTH
def test_lora_that_is_enabled_in_the_scope_between_two_fits(kind):
    plain, model = pair(kind)
    same_fit(plain, model)
    kernel = model.get_layer("hidden")._kernel.numpy()
    for one in (plain, model):
        keras.utils.set_random_seed(5)
        with model.distribute_strategy.scope() if one is model else contextlib.nullcontext():
            one.get_layer("hidden").enable_lora(2)
        one.compile(keras.optimizers.Adam(1e-2), LOSS(), metrics=["accuracy"])
    same_fit(plain, model, validation_split=0.2)
    np.testing.assert_allclose(model.predict(X, verbose=0), plain.predict(X, verbose=0), atol=1e-5)
    np.testing.assert_array_equal(model.get_layer("hidden")._kernel.numpy(), kernel)
    assert np.abs(model.get_layer("hidden").lora_kernel_b.numpy()).max() > 1e-4


def test_looking_at_a_model(capsys):
    plain, model = pair()
    fit(plain), fit(model)
    texts = []
    for one in (plain, model):
        one.summary()
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "hidden" in texts[1]
    features = [keras.Model(one.inputs, one.get_layer("hidden").output) for one in (plain, model)]
    expected, found = (one.predict(X, verbose=0) for one in features)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert model.count_params() == plain.count_params()
    assert model.get_config() == plain.get_config()
    assert [w.shape for w in model.get_weights()] == [w.shape for w in plain.get_weights()]
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    assert not model.predict(X, verbose=0).any()


@BOTH
def test_saved_and_loaded_it_goes_on_without_a_strategy_and_a_clone_starts_anew(kind, tmp_path):
    plain, model = pair(kind)
    fit(plain), fit(model)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "some.weights.h5")
    model.export(tmp_path / "exported", verbose=False)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    served = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(served.serve(X), plain(X), atol=1e-5)
    same_fit(plain, loaded)
    fit(model)
    model.load_weights(tmp_path / "some.weights.h5")
    another = build()
    another.load_weights(tmp_path / "some.weights.h5")
    for one, other in zip(another.weights, model.weights, strict=True):
        np.testing.assert_array_equal(other.numpy(), one.numpy())
    clone = keras.models.clone_model(model)
    clone.compile("sgd", LOSS())
    clone.set_weights(model.get_weights())
    another.compile("sgd", LOSS())
    assert_same(another, clone, fit(another), fit(clone))


class Stops(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


@BOTH
def test_backup_and_restore_and_the_best_checkpoint(kind, tmp_path):
    plain, model = pair(kind)
    expected = fit(plain, epochs=4, validation_split=0.2)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        fit(model, epochs=4, validation_split=0.2, callbacks=[backup, Stops()])
    again = dl.distribute(build, strategy_of(kind, 3))
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    found = fit(again, epochs=4, validation_split=0.2, callbacks=[backup])
    assert_same(plain, again)
    assert len(found["loss"]) < 4
    np.testing.assert_allclose(found["val_loss"][-1], expected["val_loss"][-1], rtol=1e-5)

    logs = []
    for one, name in ((build(), "plain"), (dl.distribute(build, strategy_of(kind, 3)), "ours")):
        best = keras.callbacks.ModelCheckpoint(
            tmp_path / f"{name}.keras", monitor="val_accuracy", save_best_only=True, mode="max"
        )
        logs.append(fit(one, epochs=3, validation_split=0.3, callbacks=[best]))
    assert_same(
        *(keras.saving.load_model(tmp_path / f"{name}.keras") for name in ("plain", "ours")), *logs
    )


@pytest.mark.parametrize("verbose", [1, 2])
def test_progress_bars_and_files_of_logs(verbose, capsys, tmp_path):
    def shown(one, name):
        writers = [
            keras.callbacks.CSVLogger(tmp_path / f"{name}.csv"),
            keras.callbacks.TensorBoard(
                tmp_path / name, histogram_freq=1, write_graph=True, update_freq="batch"
            ),
        ]
        fit(one, verbose=verbose, validation_split=0.2, callbacks=writers)
        lines = capsys.readouterr().out.replace("\b", "\n").replace("\r", "\n").splitlines()
        last = [line.split(" - ") for line in lines if "val_loss" in line]
        return [[part.strip() for part in line if ":" in part] for line in last]

    plain, model = pair()
    expected, found = shown(plain, "plain"), shown(model, "ours")
    assert found == expected
    assert len(found) == 2
    tables = [
        np.genfromtxt(tmp_path / f"{name}.csv", delimiter=",", names=True)
        for name in ("plain", "ours")
    ]
    for name in tables[0].dtype.names:
        np.testing.assert_allclose(tables[1][name], tables[0][name], rtol=1e-5)
    tags = [
        sorted(
            value.tag
            for file in (tmp_path / name).rglob("events.out*")
            for event in tf.compat.v1.train.summary_iterator(str(file))
            for value in event.summary.value
        )
        for name in ("plain", "ours")
    ]
    assert tags[1] == tags[0]
    assert any("kernel" in tag for tag in tags[1])
