"""Pitfalls of docs/pitfalls.md that no lesson reproduces: here they happen, without a cluster."""

import subprocess
import sys
import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl


def two_replicas():
    return dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])


def last_loss(reduction, rate):
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    y = x @ np.float32([[1], [2], [3]])
    dl.set_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    model.compile(keras.optimizers.SGD(rate), loss=loss)
    return model.fit(x, y, batch_size=32, epochs=6, shuffle=False, verbose=0).history["loss"][-1]


def test_a_rate_that_is_multiplied_by_the_replicas_explodes_if_the_loss_is_a_sum():
    rate, replicas = 0.01, 4
    assert last_loss("sum", rate) < 0.01
    assert last_loss("sum", replicas * rate) > 1e6
    mean = "sum_over_batch_size"
    assert last_loss(mean, replicas * rate) < last_loss(mean, rate)


def test_keras_compiles_plain_fit_with_xla_and_not_under_a_strategy(monkeypatch):
    strategy = two_replicas()
    gpu = types.SimpleNamespace(device_type="GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [gpu])

    def compiles():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")  # jit_compile="auto"
        return model.jit_compile

    assert compiles()
    with strategy.scope():
        assert not compiles()


def test_a_model_saved_with_xla_is_loaded_with_xla_in_a_scope(tmp_path):
    one = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    one.compile("sgd", "mse", jit_compile=True)  # on a GPU, "auto" becomes this
    one.save(path := tmp_path / "one.keras")
    x, strategy = np.ones((8, 3), "float32"), two_replicas()
    with strategy.scope():
        loaded = keras.saving.load_model(path)
    assert loaded.jit_compile is True
    with pytest.raises(tf.errors.InvalidArgumentError, match="Trying to access resource"):
        loaded.fit(x, x[:, :1], batch_size=4, verbose=0)

    model = dl.distribute(lambda: keras.saving.load_model(path), two_replicas())
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
    with strategy.scope():
        without = keras.saving.load_model(path)
    without.jit_compile = False
    without.fit(x, x[:, :1], batch_size=4, verbose=0)


def furthest_weight(policy):
    """How far two replicas are from one device after ten epochs of four steps."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(64, 16)).astype("float32"), draw.integers(0, 4, size=64)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

    def build():
        dl.set_seed(1)
        hidden = keras.layers.Dense(32, "relu", dtype=policy)
        model = keras.Sequential([keras.Input((16,)), hidden, keras.layers.Dense(4, dtype=policy)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, jit_compile=False)
        return model

    one, two = build(), dl.distribute(build, two_replicas())
    for model in (one, two):
        model.fit(data, epochs=10, verbose=0)
    pairs = zip(one.get_weights(), two.get_weights(), strict=True)
    return max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)


def test_in_16_bits_two_replicas_are_far_from_one_device_without_any_bug():
    assert furthest_weight("float32") < 1e-6
    assert furthest_weight("mixed_float16") > 1e-3


def test_a_loss_scale_clips_in_its_inner_optimizer_only():
    with pytest.raises(ValueError, match="set `clipnorm` on the `inner_optimizer`"):
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), clipnorm=1.0)
    inner = keras.optimizers.SGD(0.1, clipnorm=1.0)
    assert keras.optimizers.LossScaleOptimizer(inner).inner_optimizer.clipnorm == 1


def weights_after_two_steps(optimizer, train, reduction="sum_over_batch_size", padding=0):
    """Trains on 24 rows of which the last are padding; `train` makes a model of its `build`."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(24, 3)).astype("float32"), draw.normal(size=(24, 1))
    weights = np.float32(np.arange(24) < 24 - padding)

    def build():
        dl.set_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer(), loss=keras.losses.MeanSquaredError(reduction=reduction))
        return model

    model = train(build)
    data = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(24)
    model.fit(data, epochs=2, verbose=0)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def on_one_device(build):
    return build()


def by_keras(build):
    with two_replicas().scope():
        return build()


def by_distribute(build):
    return dl.distribute(build, two_replicas())


def distances_from_one_device(*how, **options):
    one, *two = (
        weights_after_two_steps(*how, train=train, **options)
        for train in (on_one_device, by_keras, by_distribute)
    )
    return [float(abs(weights - one).max()) for weights in two]


@pytest.mark.parametrize("kind", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_keras_clips_the_part_of_each_replica(kind):
    keras_own, ours = distances_from_one_device(lambda: keras.optimizers.SGD(0.1, **{kind: 0.5}))
    assert keras_own > 1e-2
    assert ours < 1e-6


@pytest.mark.parametrize(
    "how",
    [{"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 2}],
    ids=["accumulation", "ema"],
)
def test_keras_accumulates_gradients_in_a_condition_that_a_strategy_refuses(how):
    with pytest.raises(RuntimeError, match="`merge_call` called while defining a new graph"):
        weights_after_two_steps(lambda: keras.optimizers.SGD(0.1, **how), train=by_keras)


def test_on_replicas_a_mean_over_weights_is_wrong_if_their_padding_differs():
    how = {"reduction": "mean_with_sample_weight"}
    keras_own, ours = distances_from_one_device(lambda: keras.optimizers.SGD(0.1), **how)
    assert max(keras_own, ours) < 1e-6  # no padding
    how["padding"] = 9  # the second replica has 3 rows of 12
    keras_own, ours = distances_from_one_device(lambda: keras.optimizers.SGD(0.1), **how)
    assert keras_own > 1e-2
    assert ours < 1e-6


class Recomputed(keras.layers.Layer):
    """Keeps no activation of its block, as docs/pitfalls.md advises."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def build(self, shape):
        self.block.build(shape)

    def call(self, x):
        return tf.recompute_grad(self.block)(x)


def trained(make=keras.Sequential, mode=None):
    """A model of a block of three layers, after three epochs of `fit`."""
    dl.set_seed(1)
    with keras.RematScope(mode=mode):
        layers = [keras.layers.Dense(8, "tanh") for _ in range(3)]
    model = keras.Sequential([keras.Input((8,)), make(layers)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(8, 8))
    model.fit(x, x, epochs=3, shuffle=False, verbose=0)
    return model


def computed_activations(model):
    """How often one step computes a tanh."""

    @tf.function
    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        return tape.gradient(loss, model.trainable_variables)

    graph = gradients.get_concrete_function(tf.TensorSpec([8, 8])).graph.as_graph_def()
    nodes = [*graph.node, *(node for body in graph.library.function for node in body.node_def)]
    return sum(node.op == "Tanh" for node in nodes)


def test_activations_that_are_not_kept_are_computed_again_and_change_no_weight():
    kept = trained()
    computed_again = trained(lambda layers: Recomputed(keras.Sequential(layers)))
    assert computed_activations(kept) == 3
    assert computed_activations(computed_again) == 6
    for one, other in zip(kept.get_weights(), computed_again.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


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


def test_a_batch_normalization_that_is_computed_again_has_a_wrong_gradient():
    x = tf.constant(np.random.default_rng(0).normal(size=(8, 4)), tf.float32)
    normalise = keras.layers.BatchNormalization()
    normalise.build(x.shape)

    @tf.function
    def gradient(again):
        layer = lambda x: normalise(x, training=True)  # noqa: E731
        if again:  # as a layer's call writes it: the second computation does not know of training
            layer = tf.recompute_grad(lambda x: normalise(x))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x) ** 3)
        return tape.gradient(loss, normalise.gamma)

    assert not np.allclose(gradient(False), gradient(True), rtol=1e-3)


def test_layers_in_a_remat_scope_cannot_be_trained_by_fit():
    with pytest.raises(ValueError, match="keywords arguments only when eager execution is enabled"):
        trained(mode="full")


def a_dense_model(layer):
    return keras.Sequential([keras.Input((3,)), layer])


def test_a_file_that_two_write_at_the_same_time_is_broken(tmp_path):
    path = tmp_path / "model.keras"

    class WithAnotherWriter(keras.layers.Dense):
        def save_own_variables(self, store):
            a_dense_model(keras.layers.Dense(2)).save(path)
            super().save_own_variables(store)

    a_dense_model(WithAnotherWriter(2)).save(path)
    known = {"WithAnotherWriter": keras.layers.Dense}
    with pytest.raises(Exception, match=r"Bad CRC-32|not a zip file"):
        keras.saving.load_model(path, custom_objects=known)


WRITE = "import h5py, sys; file = h5py.File(sys.argv[1], 'w'); print(flush=True); sys.stdin.read()"


def test_a_weights_file_that_a_different_process_writes_is_locked(tmp_path):
    path = tmp_path / "model.weights.h5"
    command = [sys.executable, "-c", WRITE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()  # it has opened the file
        with pytest.raises(BlockingIOError, match="unable to lock file"):
            a_dense_model(keras.layers.Dense(2)).save_weights(path)
        other.stdin.close()


def test_data_of_unknown_length_cost_keras_one_step_too_many_in_every_epoch():
    x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    known = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(10)
    unknown = known.unbatch().batch(10)
    counted = unknown.apply(tf.data.experimental.assert_cardinality(2))

    def build(**how):
        dl.set_seed(1)
        layers = [keras.layers.Dropout(0.5, seed=2), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile(keras.optimizers.SGD(0.01, weight_decay=0.1), "mse", **how)
        return model

    def trained(model, data):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Keras: the data have ended
            model.fit(data, epochs=3, verbose=0)
        return model

    def steps(model):
        (seed_state,) = (one for one in model.variables if "seed_generator" in one.path)
        return [int(model.optimizer.iterations.numpy()), int(seed_state.numpy()[1])]

    def kernel(model):
        return model.layers[-1].kernel.numpy()

    plain, long = trained(build(), known), trained(build(), unknown)
    assert (steps(plain), steps(long)) == ([6, 6], [9, 9])
    assert np.abs(kernel(plain) - kernel(long)).max() > 1e-4
    with two_replicas().scope():
        assert steps(trained(build(), unknown))[0] == 9
    for how in ({"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}):
        assert steps(trained(build(**how), unknown)) == [6, 6]
    cured = trained(build(), counted)
    assert steps(cured) == [6, 6]
    np.testing.assert_array_equal(kernel(cured), kernel(plain))

    def without_draws():
        model = build()
        model.layers[0].rate = 0.0
        return model

    ours = trained(dl.distribute(without_draws, two_replicas()), unknown)
    assert int(ours.optimizer.iterations.numpy()) == 6
    one_device = trained(without_draws(), known)
    np.testing.assert_allclose(kernel(ours), kernel(one_device), atol=1e-6)


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "ScheduleFreeAdamW"), reason="this Keras has no such optimizer"
)
def test_a_schedule_free_optimizer_forgets_the_initial_weights_in_plain_fit():
    x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    y, rate = x[:, :3], 1e-3

    def build(**how):
        dl.set_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.ScheduleFreeAdamW(rate), "mse", **how)
        return model

    def largest(model):
        model.fit(x, y, batch_size=20, verbose=0)
        return np.abs(model.layers[-1].kernel.numpy()).max()

    def built_ahead():
        model = build()
        model.optimizer.build(model.trainable_variables)
        return model

    assert np.abs(build().layers[-1].kernel.numpy()).max() > 0.5
    assert largest(build()) < 1.001 * rate
    ours = [dl.distribute(build, two_replicas()), dl.distribute(build, dl.make_strategy("default"))]
    for right in (built_ahead(), build(run_eagerly=True), *ours):
        assert largest(right) > 0.5
    with two_replicas().scope():
        assert largest(build()) > 0.5
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    assert dl.check_parity(build, data, strategy=two_replicas()).equal
