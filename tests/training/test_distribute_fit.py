"""What surrounds the steps of a distributed model: `fit` and its callbacks, `predict`, files."""

import contextlib
import inspect
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import distlab as dl
from distlab.training import fit_session
from distlab.training.keras_private import KERAS
from tests.support.distribution import pair, seeded, strategy_of
from tests.support.parity import alone, unlike
from tests.training.cases.case import (
    BATCH,
    NUMBERS,
    ROWS,
    SGD,
    TOKENS,
    WEIGHTS,
    Adam,
    X,
    Y,
    batches,
    compile_model,
    network,
)
from tests.training.cases.steps import Net, gan, net

pytestmark = pytest.mark.usefixtures("graphs_that_run_a_few_times")


def build(**compiled):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,), name="features")
    hidden = layers.Dense(6, activation="tanh", name="hidden")(inputs)
    hidden = layers.BatchNormalization(name="norm", trainable=False)(hidden)
    model = keras.Model(inputs, layers.Dense(4, name="head")(hidden), name="net")
    options = {"optimizer": Adam(1e-2), "metrics": ["accuracy"], **compiled}
    return compile_model(model, **options)


def replicated(make):
    return dl.distribute(make, strategy_of("mirrored", 2))


def fit(model, data=None, **options):
    data = batches(X, Y) if data is None else data
    return model.fit(data, **{"epochs": 2, "verbose": 0, "shuffle": False, **options}).history


def assert_same(plain, model, expected=(), logs=()):
    reference = dict(expected), plain.weights + plain.optimizer.variables
    found = dict(logs), model.weights + model.optimizer.variables
    assert unlike(reference, found, floor=1e-3) == {}
    assert list(logs) == list(expected)


def same_fit(plain, model, data=None, **options):
    assert_same(plain, model, fit(plain, data, **options), fit(model, data, **options))


# Strategies


@pytest.mark.parametrize("kind", ["default", "one_device", "central_storage"])
def test_other_strategies_take_the_steps_of_one_device(kind):
    replicas = 2 if kind == "central_storage" else None
    plain, model = alone(build), dl.distribute(build, strategy_of(kind, replicas))
    same_fit(plain, model, validation_data=(X[:9], Y[:9], WEIGHTS[:9]))
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(plain.evaluate(X, Y, verbose=0), 1e-5)
    np.testing.assert_allclose(model.predict(X, verbose=0), plain.predict(X, verbose=0), atol=1e-5)


def test_variables_that_all_replicas_share_decay_once_and_layers_add_losses():
    class Penalised(layers.Layer):
        def build(self, shape):
            self.centre = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

        def call(self, inputs):
            self.centre.assign(ops.mean(inputs, 0) / 2)  # through which no gradient goes
            self.add_loss(0.1 * ops.mean((inputs - self.centre) ** 2))
            return inputs

    def penalised():
        optimizer = keras.optimizers.AdamW(1e-2, weight_decay=0.1)
        return network(layers.Dense(6), Penalised(), layers.Dense(4), optimizer=optimizer)

    make = seeded(penalised)
    same_fit(alone(make), dl.distribute(make, strategy_of("central_storage", 2)))


class LogsItsLoss(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x)) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"last": loss}


def test_a_strategy_made_elsewhere_with_tensorflows_own_all_reduce():
    """It gathers the rows of an embedding; Keras's `fit` stops there with steps_per_execution."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert dl.describe(strategy).all_reduce == "CollectiveAllReduce"

    def embedding(**compiled):
        body = layers.Embedding(5, 4), layers.Flatten(), layers.Dense(1)
        model = LogsItsLoss([keras.Input((6,)), *body])
        return compile_model(model, loss=None, optimizer="adam", **compiled)

    plain = alone(seeded(embedding))
    model = dl.distribute(seeded(lambda: embedding(steps_per_execution=4)), strategy)
    data = batches(TOKENS[:20], NUMBERS[:20], batch=8)  # two, and a smaller one
    assert_same(plain, model, fit(plain, data), fit(model, data.filter(lambda x, y: True)))


def test_a_loop_by_hand_on_a_distributed_model_still_sums_gradients():
    model = replicated(lambda: build(optimizer=SGD(0.5)))
    fit(model)
    weights = model.trainable_variables
    before = [weight.numpy() for weight in weights]

    def step():
        ones = [tf.ones(weight.shape) for weight in weights]
        model.optimizer.apply_gradients(zip(ones, weights, strict=True))

    tf.function(lambda: model.distribute_strategy.run(step))()
    for weight, old in zip(weights, before, strict=True):
        np.testing.assert_allclose(weight.numpy(), old - 0.5 * 2, atol=1e-6)


# Data


def test_endless_data_and_parts_of_epochs_and_of_validations():
    plain, model = pair(build)
    options = {"epochs": 4, "initial_epoch": 1, "steps_per_epoch": 2, "validation_freq": 2}
    held_back = {"validation_data": batches(X, Y), "validation_steps": 1}
    same_fit(plain, model, batches(X, Y).repeat(), **options, **held_back)
    assert model.optimizer.iterations.numpy() == 3 * 2


def of_unknown_length():
    return batches(X, Y).filter(lambda x, y: True)


def ending_in_none():
    return of_unknown_length().map(lambda x, y: (x, y, None))


def generated():
    for first in range(0, ROWS, BATCH):
        yield X[first : first + BATCH], Y[first : first + BATCH]


@pytest.mark.parametrize("data", [ending_in_none, generated])
def test_data_run_out_as_they_do_on_one_device(data):
    """From the second epoch on an execution takes several steps."""

    def run(model):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            options = {"epochs": 4, "steps_per_epoch": 2, "validation_steps": 4}
            logs = fit(model, data(), validation_data=of_unknown_length(), **options)
        return logs, sum("ran out of data" in str(warning.message) for warning in warned)

    plain, model = pair(build)
    (expected, warnings_of_keras), (logs, count) = run(plain), run(model)
    assert_same(plain, model, expected, logs)
    assert count == warnings_of_keras


def test_data_that_are_distributed_already():
    plain, model = pair(build)
    strategy = model.distribute_strategy
    data = strategy.experimental_distribute_dataset(batches(X, Y))
    assert_same(plain, model, fit(plain), fit(model, data))
    shares = batches(X[:24], Y[:24], batch=6)  # each replica's batch: two make one of 12
    data = strategy.distribute_datasets_from_function(lambda context: shares)
    assert_same(plain, model, fit(plain, batches(X[:24], Y[:24], batch=12)), fit(model, data))


def test_batches_that_tensorflow_brings_to_the_devices_as_it_does_to_gpus(monkeypatch):
    monkeypatch.setattr(fit_session, "splits", lambda strategy: False)
    plain, model = pair(lambda: build(steps_per_execution=2))
    held_back = {"validation_data": batches(X, Y)}
    expected, logs = fit(plain, **held_back), fit(model, of_unknown_length(), **held_back)
    assert_same(plain, model, expected, logs)
    assert model.optimizer.iterations.numpy() == 2 * 3, "Keras alone counts one more an epoch"


@pytest.mark.skipif(KERAS < (3, 11), reason="its progress bar shows an execution's first batch")
def test_the_progress_bar_ends_at_the_last_batch_where_executions_do_not(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(fit_session, "EXECUTION_SECS", 1e9)
    monkeypatch.setattr(fit_session, "MOST_STEPS", 2)
    batches_of_an_epoch = len(batches(X, Y))
    assert batches_of_an_epoch % 2 == 1
    for callbacks in ([], [dl.Resume(tmp_path, every_steps=4)]):
        replicated(build).fit(batches(X, Y), epochs=3, shuffle=False, callbacks=callbacks)
        shown = re.findall(r"(\d+)/(\d+)", capsys.readouterr().out.split("Epoch 2/3")[1])
        steps = {int(done) for done, of in shown if int(of) == batches_of_an_epoch}
        assert max(steps) == batches_of_an_epoch and 2 in steps


def test_the_iterator_that_validates_every_epoch_is_bounded_once():
    enumerations = set()

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            enumerations.add(self.model._eval_epoch_iterator._enumerate_iterator)

    held_back = {"validation_data": batches(X, Y)}
    fit(replicated(build), epochs=3, callbacks=[Looks()], **held_back)
    assert len(enumerations) == 1


def test_a_model_without_an_input_is_built_without_drawing_a_batch():
    drawn = []

    def count(x, y):
        drawn.append(1)
        return x, y

    def counted(x, y):
        x, y = tf.py_function(count, (x, y), (tf.float32, tf.int64))
        return tf.ensure_shape(x, (None, 8)), tf.ensure_shape(y, (None,))

    def make():
        keras.utils.set_random_seed(3)
        return compile_model(keras.Sequential([layers.Dense(6), layers.Dense(4)]))

    plain, model = pair(make)
    logs = fit(model, batches(X, Y).map(counted))
    assert len(drawn) == 2 * 3
    assert_same(plain, model, fit(plain), logs)
    plain, model = pair(make)
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(plain.evaluate(X, Y, verbose=0), 1e-5)
    model = replicated(make)
    np.testing.assert_allclose(model.predict(X, verbose=0), plain.predict(X, verbose=0), atol=1e-5)


# Other methods


class Outputs(keras.Model):
    """Gives several outputs, and single numbers; its pooling cannot take an empty share."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = layers.Conv2D(4, 2, padding="same"), layers.MaxPooling2D(2)
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        rows = tf.reduce_sum(self.pool(self.conv(tf.reshape(x, (-1, 4, 2, 1)))), (1, 2))
        numbers = [2 * self.scale, tf.reduce_mean(rows), tf.constant(4)]
        return {"rows": [rows, tf.argmax(rows, -1)], "numbers": numbers}


def test_predict_gives_every_example_its_outputs_in_order():
    plain, model = pair(lambda: compile_model(Outputs(), loss=None))
    sizes = tf.data.Dataset.from_generator(
        lambda: (X[first:end] for first, end in [(0, 1), (1, 6), (6, 9)]),
        output_signature=tf.TensorSpec((None, 8)),
    )
    for data, size in ((X[:1], None), (X, BATCH), (X[:3], 1), (batches(X), None), (sizes, None)):
        expected, outputs = (
            tf.nest.flatten(each.predict(data, batch_size=size, verbose=0))
            for each in (plain, model)
        )
        for part, reference in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(part, reference, atol=1e-5, strict=True)


class Predicts(Net):
    def predict_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return {"best": tf.argmax(self(x), -1), "all": tf.nn.softmax(self(x))}


def test_a_predict_step_of_ones_own_in_executions_of_several_steps():
    plain, model = pair(lambda: net(Predicts, steps_per_execution=2))
    expected, outputs = (each.predict(X, batch_size=BATCH, verbose=0) for each in (plain, model))
    np.testing.assert_array_equal(outputs["best"], expected["best"])
    np.testing.assert_allclose(outputs["all"], expected["all"], atol=1e-6)


def test_single_batches():
    plain, model = pair(build)
    for rows in (1, BATCH):
        for method in ("train_on_batch", "test_on_batch"):
            logs = [
                getattr(each, method)(X[:rows], Y[:rows], return_dict=True)
                for each in (plain, model)
            ]
            assert logs[1] == pytest.approx(logs[0], rel=1e-5)
        x = tf.constant(X[:rows])
        np.testing.assert_allclose(model.predict_on_batch(x), plain.predict_on_batch(x), atol=1e-5)
        np.testing.assert_allclose(model(x), plain(x), atol=1e-5)
    assert_same(plain, model)


class Adapts(layers.Layer):
    """Takes the mean of what it has seen before from its inputs, in inference too."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

    def call(self, x):
        before = tf.identity(self.mean)
        self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(x, axis=0))
        return x - before


def test_what_a_layer_writes_in_predict_and_evaluate_is_that_of_one_device():
    plain, model = pair(lambda: network(Adapts(), layers.Dense(4)))
    same_fit(plain, model)
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(plain.evaluate(X, Y, verbose=0), 1e-5)
    for rows in (ROWS, 13):
        expected, outputs = (
            each.predict(X[:rows], batch_size=5, verbose=0) for each in (plain, model)
        )
        np.testing.assert_allclose(outputs, expected, atol=1e-5)
    assert_same(plain, model)


# Files and looks


def test_saved_and_loaded_it_goes_on_with_and_without_a_strategy(tmp_path):
    plain, model = pair(build)
    fit(plain), fit(model)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "some.weights.h5")
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(served.serve(X), plain(X), atol=1e-5)

    def load():
        return keras.saving.load_model(tmp_path / "model.keras")

    loaded, again = load(), replicated(load)
    assert type(loaded).__module__.startswith("keras.")
    same_fit(plain, again)
    fit(loaded)
    assert_same(plain, loaded)
    model.load_weights(tmp_path / "some.weights.h5")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone(X), served.serve(X), atol=1e-5)


def test_looking_at_a_model():
    plain, model = pair(build)
    fit(plain), fit(model)
    features = [
        keras.Model(each.inputs, each.get_layer("hidden").output) for each in (plain, model)
    ]
    expected, outputs = (each.predict(X, verbose=0) for each in features)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    assert model.get_config() == plain.get_config()
    assert inspect.signature(model.fit) == inspect.signature(plain.fit)
    rate, steps = model.optimizer.learning_rate, model.optimizer.iterations
    assert (float(rate), int(steps)) == (float(plain.optimizer.learning_rate), int(steps.numpy()))
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    assert not model.predict(X, verbose=0).any()


# Callbacks


class Notes(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, sorted(logs)))

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            self.model.fit(batches(X, Y), verbose=0, shuffle=False)
            self.model.stop_training = True


def test_a_callback_is_told_of_every_batch_and_may_stop_and_train():
    plain, model = pair(build)
    notes = [Notes(), Notes()]
    for each, note in zip((plain, model), notes, strict=True):
        fit(each, epochs=9, callbacks=[note])
        fit(each, callbacks=keras.callbacks.CallbackList([], add_history=True, model=each))
    assert_same(plain, model)
    assert notes[1].seen == notes[0].seen
    assert len(notes[0].seen) == 9


def test_kerass_callbacks_see_print_and_write_the_same(tmp_path, capsys):
    def run(model, name):
        callbacks = [
            keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.5),
            keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10, factor=0.5),
            keras.callbacks.ModelCheckpoint(tmp_path / f"{name}.keras", save_best_only=True),
            keras.callbacks.CSVLogger(tmp_path / f"{name}.csv"),
            keras.callbacks.TensorBoard(tmp_path / name, histogram_freq=1, update_freq="batch"),
        ]
        held_back = {"validation_split": 0.2, "batch_size": BATCH}
        options = {"epochs": 6, "callbacks": callbacks, "verbose": 1, **held_back}
        history = model.fit(X, Y, shuffle=False, **options).history
        lines = capsys.readouterr().out.replace("\b", "\n").replace("\r", "\n").splitlines()
        names = [
            [part.partition(":")[0] for part in line.split(" - ") if ":" in part]
            for line in lines
            if "val_loss" in line
        ]
        tags = sorted(
            value.tag
            for file in (tmp_path / name).rglob("events.out*")
            for event in tf.compat.v1.train.summary_iterator(str(file))
            for value in event.summary.value
        )
        table = np.genfromtxt(tmp_path / f"{name}.csv", delimiter=",", skip_header=1)
        return history, names, tags, table

    plain, model = pair(build)
    (expected, *texts, table), (logs, *ours, own_table) = run(plain, "plain"), run(model, "model")
    assert_same(plain, model, expected, logs)
    assert 1 < len(logs["loss"]) < 6
    assert ours == texts
    assert any("kernel" in tag for tag in ours[1])
    np.testing.assert_allclose(own_table, table, rtol=1e-5)
    best = [keras.saving.load_model(tmp_path / f"{name}.keras") for name in ("plain", "model")]
    assert_same(*best)


def test_resume_of_a_model_with_two_optimizers(tmp_path):
    class Stop(Exception):
        pass

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.d_optimizer.iterations.numpy() == 4:
                raise Stop

    make, data = seeded(gan), batches(X, X[::-1, :3].copy())
    whole, first, second = alone(make), replicated(make), replicated(make)
    logs = fit(whole, data)
    with pytest.raises(Stop):
        fit(first, data, callbacks=[dl.Resume(tmp_path, every_steps=1), Stops()])
    again = fit(second, data, callbacks=[dl.Resume(tmp_path)])
    ends = [
        ({}, each.weights + each.d_optimizer.variables + each.g_optimizer.variables)
        for each in (whole, second)
    ]
    assert unlike(*ends) == {}
    assert again["d_loss"][-1] == pytest.approx(logs["d_loss"][-1], rel=1e-5)


class Twice(keras.Sequential):
    def fit(self, x, **options):
        super().fit(x, **options | {"epochs": 1})
        return super().fit(x, **options)


def test_a_fit_of_the_models_own_may_train_twice_on_endless_data():
    plain, model = pair(lambda: compile_model(Twice([keras.Input((8,)), layers.Dense(4)])))
    same_fit(plain, model, batches(X, Y).repeat(), epochs=3, steps_per_epoch=4)


# Changes between two fits


class Freezes(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.01 / (epoch + 1)
        self.model.get_layer("hidden").trainable = epoch != 1


def test_freezing_and_compiling_again_in_no_scope():
    plain, model = pair(build)
    frozen = model.get_layer("hidden").kernel
    for each in (plain, model):
        each.get_layer("hidden").trainable = False
        compile_model(each, optimizer=SGD(0.1, momentum=0.9))
    before = frozen.numpy()
    same_fit(plain, model)
    np.testing.assert_array_equal(frozen.numpy(), before)
    for each in (plain, model):
        each.get_layer("hidden").trainable = True
        optimizer = SGD(0.1, clipnorm=0.1)
        compile_model(each, optimizer=optimizer, weighted_metrics=["accuracy"])
        assert each.optimizer is optimizer
    same_fit(plain, model, epochs=3, callbacks=[Freezes()])
    assert np.abs(frozen.numpy() - before).max() > 1e-4


def test_lora_that_is_enabled_in_the_scope():
    plain, model = pair(build)
    same_fit(plain, model)
    kernel = model.get_layer("hidden")._kernel.numpy()
    for each in (plain, model):
        keras.utils.set_random_seed(5)
        with model.distribute_strategy.scope() if each is model else contextlib.nullcontext():
            each.get_layer("hidden").enable_lora(2)
        compile_model(each, optimizer=Adam(1e-2))
    same_fit(plain, model)
    np.testing.assert_array_equal(model.get_layer("hidden")._kernel.numpy(), kernel)
    assert np.abs(model.get_layer("hidden").lora_kernel_b.numpy()).max() > 1e-4


class Student(Net):
    def loss_of(self, x, y):
        return super().loss_of(x, y) + tf.reduce_mean((self(x) - self.teacher(x)) ** 2)


def test_a_backbone_and_a_teacher_that_were_compiled_elsewhere_stay_as_they_are():
    outside = network(layers.Dense(4), optimizer="adam")
    outside.trainable = False
    before = outside.get_weights()

    def student():
        model = Student()
        model.teacher = outside
        return compile_model(model, loss=None)

    for make in (lambda: network(outside, layers.Dense(4)), student):
        same_fit(*pair(make))
    for weight, old in zip(outside.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)


def test_an_overflow_on_one_replica_skips_the_step_on_all():
    def mixed():
        """With weights of zero the loss is finite, and the gradient is a multiple of the inputs."""
        scaled = keras.optimizers.LossScaleOptimizer(SGD(0.1), initial_scale=2.0**10)
        zeros = {"kernel_initializer": "zeros", "dtype": "mixed_float16"}
        return network(layers.Dense(4, **zeros), optimizer=scaled)

    x = X.copy()
    x[9] *= 6e4 / np.abs(x[9]).max()  # on the second replica
    model = replicated(mixed)
    before = model.get_weights()
    fit(model, batches(x[:BATCH], Y[:BATCH]), epochs=1)
    for weight, same in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, same)
    assert model.optimizer.dynamic_scale.numpy() == 2.0**9
