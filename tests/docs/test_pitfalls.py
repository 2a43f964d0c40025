"""Pitfalls of docs/pitfalls.md that no lesson reproduces: here they happen, without a cluster."""

import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl


def two_replicas():
    return dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])


def rows(count, width):
    return np.random.default_rng(0).normal(size=(count, width)).astype("float32")


def dense_model(layer=None, width=3):
    return keras.Sequential([keras.Input((width,)), layer or keras.layers.Dense(1)])


def largest_difference(first, second):
    pairs = zip(first.get_weights(), second.get_weights(), strict=True)
    return max(float(np.abs(weight - other).max()) for weight, other in pairs)


def test_a_rate_that_is_multiplied_by_the_replicas_explodes_if_the_loss_is_a_sum():
    x = rows(64, 3)
    y = x @ np.float32([[1], [2], [3]])

    def last_loss(reduction, rate):
        dl.set_seed(1)
        model = dense_model()
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        model.compile(keras.optimizers.SGD(rate), loss=loss)
        history = model.fit(x, y, batch_size=32, epochs=6, shuffle=False, verbose=0).history
        return history["loss"][-1]

    rate, replicas = 0.01, 4
    assert last_loss("sum", rate) < 0.1
    assert last_loss("sum", replicas * rate) > 1e3
    assert last_loss("sum_over_batch_size", replicas * rate) < 10


def test_keras_compiles_plain_fit_with_xla_and_not_under_a_strategy(monkeypatch):
    strategy = two_replicas()
    gpu = types.SimpleNamespace(device_type="GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [gpu])

    def compiles():
        model = dense_model()
        model.compile("sgd", "mse")  # jit_compile="auto"
        return model.jit_compile

    assert compiles()
    with strategy.scope():
        assert not compiles()


def test_a_model_saved_with_xla_is_loaded_with_xla_in_a_scope(tmp_path):
    saved = dense_model()
    saved.compile("sgd", "mse", jit_compile=True)  # on a GPU, "auto" becomes this
    saved.save(path := tmp_path / "saved.keras")
    x, strategy = np.ones((8, 3), "float32"), two_replicas()
    with strategy.scope():
        loaded = keras.saving.load_model(path)
    assert loaded.jit_compile is True
    with pytest.raises(tf.errors.InvalidArgumentError, match="Trying to access resource"):
        loaded.fit(x, x[:, :1], batch_size=4, verbose=0)

    model = dl.distribute(lambda: keras.saving.load_model(path), two_replicas())
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
    with strategy.scope():
        cured = keras.saving.load_model(path)
    cured.jit_compile = False
    cured.fit(x, x[:, :1], batch_size=4, verbose=0)


def test_in_16_bits_two_replicas_are_far_from_one_device_without_any_bug():
    x, y = rows(64, 16), np.arange(64) % 4
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

    def build():
        dl.set_seed(1)
        hidden = keras.layers.Dense(32, "relu", dtype="mixed_float16")
        last = keras.layers.Dense(4, dtype="mixed_float16")
        model = keras.Sequential([keras.Input((16,)), hidden, last])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer, loss=loss, jit_compile=False)
        return model

    alone, shared = build(), dl.distribute(build, two_replicas())
    for model in (alone, shared):
        model.fit(data, epochs=10, verbose=0)
    # A gradient has three digits. In float32 all is within rounding, as tests/training holds.
    assert largest_difference(alone, shared) > 1e-4


def test_a_loss_scale_clips_in_its_inner_optimizer_only():
    with pytest.raises(ValueError, match="set `clipnorm` on the `inner_optimizer`"):
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), clipnorm=1.0)
    inner = keras.optimizers.SGD(0.1, clipnorm=1.0)
    assert keras.optimizers.LossScaleOptimizer(inner).inner_optimizer.clipnorm == 1


def trained_on_24_rows(how, *, reduction="sum_over_batch_size", padding=0, **options):
    """A model after two steps, made by `how(build)`; the last rows are padding."""
    weights = np.float32(np.arange(24) < 24 - padding)

    def build():
        dl.set_seed(1)
        model = dense_model()
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        model.compile(keras.optimizers.SGD(0.1, **options), loss=loss)
        return model

    model = how(build)
    x = rows(24, 4)
    data = tf.data.Dataset.from_tensor_slices((x[:, :3], 5 * x[:, 3:], weights)).batch(24)
    model.fit(data, epochs=2, verbose=0)
    return model


def by_keras(build):
    with two_replicas().scope():
        return build()


def difference_by_keras(**options):
    """How far Keras on two replicas is from one device; tests/training trains with distribute."""
    alone = trained_on_24_rows(lambda build: build(), **options)
    return largest_difference(alone, trained_on_24_rows(by_keras, **options))


def test_keras_clips_the_part_of_each_replica():
    assert difference_by_keras(clipnorm=0.5) > 1e-2


def test_keras_accumulates_gradients_in_a_condition_that_a_strategy_refuses():
    for options in (
        {"gradient_accumulation_steps": 2},
        {"use_ema": True, "ema_overwrite_frequency": 2},
    ):
        with pytest.raises(RuntimeError, match="`merge_call` called while defining a new graph"):
            trained_on_24_rows(by_keras, **options)


def test_on_replicas_a_mean_over_weights_is_wrong_if_their_padding_differs():
    # The second replica has 3 rows of 12.
    assert difference_by_keras(reduction="mean_with_sample_weight", padding=9) > 1e-2


def test_activations_that_are_not_kept_are_computed_again_and_change_no_gradient():
    block = keras.Sequential([keras.layers.Dense(8, "tanh") for _ in range(3)])
    block.build((8, 8))
    x = tf.constant(rows(8, 8))

    def gradients_and_activations(layer):
        @tf.function
        def gradients():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(x))
            return tape.gradient(loss, block.trainable_variables)

        graph = gradients.get_concrete_function().graph.as_graph_def()
        nodes = [*graph.node, *(node for body in graph.library.function for node in body.node_def)]
        return gradients(), sum(node.op == "Tanh" for node in nodes)

    kept, activations = gradients_and_activations(block)
    again, activations_again = gradients_and_activations(tf.recompute_grad(block))
    assert (activations, activations_again) == (3, 6)
    for gradient, other in zip(kept, again, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-5, atol=1e-6)


def test_a_dropout_that_is_computed_again_draws_a_mask_of_its_own():
    dropout = keras.layers.Dropout(0.5, seed=1)

    @tf.function
    def masks(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.recompute_grad(lambda x: dropout(x, training=True))(x)
        return y, tape.gradient(y, x)

    forward, backward = masks(tf.ones(64))
    assert not np.array_equal(forward, backward)


def test_a_file_that_two_write_at_the_same_time_is_broken(tmp_path):
    path = tmp_path / "model.keras"

    class WithAnotherWriter(keras.layers.Dense):
        def save_own_variables(self, store):
            dense_model(keras.layers.Dense(2)).save(path)
            super().save_own_variables(store)

    dense_model(WithAnotherWriter(2)).save(path)
    known = {"WithAnotherWriter": keras.layers.Dense}
    with pytest.raises(Exception, match=r"Bad CRC-32|not a zip file"):
        keras.saving.load_model(path, custom_objects=known)


def test_data_of_unknown_length_cost_keras_one_step_too_many_in_every_epoch():
    x = rows(20, 4)
    known = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(10)
    unknown = known.unbatch().batch(10)
    counted = unknown.apply(tf.data.experimental.assert_cardinality(2))

    def build(**options):
        dl.set_seed(1)
        layers = [keras.layers.Dropout(0.5, seed=2), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile(keras.optimizers.SGD(0.01, weight_decay=0.1), "mse", **options)
        return model

    def trained(model, data):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Keras: the data have ended
            model.fit(data, epochs=3, verbose=0)
        return model

    def steps(model):
        return int(model.optimizer.iterations.numpy())

    plain, long, cured = (trained(build(), data) for data in (known, unknown, counted))
    assert [steps(model) for model in (plain, long, cured)] == [6, 9, 6]
    assert largest_difference(plain.layers[-1], long.layers[-1]) > 1e-4
    assert largest_difference(plain.layers[-1], cured.layers[-1]) < 1e-6
    assert steps(trained(build(run_eagerly=True), unknown)) == 6
    assert steps(trained(dl.distribute(build, two_replicas()), unknown)) == 6


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "ScheduleFreeAdamW"), reason="this Keras has no such optimizer"
)
def test_a_schedule_free_optimizer_forgets_the_initial_weights_in_plain_fit():
    x, rate = rows(20, 3), 1e-3

    def build():
        dl.set_seed(1)
        model = dense_model(keras.layers.Dense(3))
        model.compile(keras.optimizers.ScheduleFreeAdamW(rate), "mse")
        return model

    def largest_weight(model):
        model.fit(x, x, batch_size=20, verbose=0)
        return np.abs(model.get_weights()[0]).max()

    built_ahead = build()
    built_ahead.optimizer.build(built_ahead.trainable_variables)
    assert largest_weight(build()) < 1.001 * rate
    for model in (built_ahead, dl.distribute(build, two_replicas())):
        assert largest_weight(model) > 0.3


def test_a_batch_of_a_distributed_data_set_is_no_tensor_outside_of_run():
    strategy = dl.make_strategy("mirrored", devices=2)
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))
    batch = next(iter(data))
    text = r"(?s)Attempt to convert a value \(PerReplica:.*with an unsupported type.*to a Tensor"
    with pytest.raises(ValueError, match=text):
        tf.constant(batch)
    sums = strategy.run(tf.reduce_sum, args=(batch,))
    assert [int(part) for part in strategy.experimental_local_results(sums)] == [1, 5]
