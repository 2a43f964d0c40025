"""A model's own train_step, test_step and compute_loss take the steps of one device."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import ModelError
from tests.support.distribution import BATCH, EXAMPLES, LOSS, X, Y, alone, strategy_of

BOTH = pytest.mark.parametrize("kind", ["mirrored", "central_storage"])


def in_order(*parts, batch=BATCH):
    parts = parts or (X, Y)
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0]).batch(batch)


class Classifier(keras.Model):
    """The guide's pattern: an own step, a loss tracker and a metric."""

    def __init__(self, **options):
        super().__init__()
        self.hidden = keras.layers.Dense(6, activation="tanh", **options)
        self.head = keras.layers.Dense(4, dtype="float32")
        self.tracker = keras.metrics.Mean(name="loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        self.loss_of = LOSS()

    def call(self, x):
        return self.head(self.hidden(x))

    @property
    def metrics(self):
        return [self.tracker, self.accuracy]

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.loss_of(y, logits) + sum(self.losses)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_weights)
        gradients = self.changed(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.logged(y, logits, loss)

    def test_step(self, data):
        x, y = data
        logits = self(x, training=False)
        return self.logged(y, logits, self.loss_of(y, logits))

    def changed(self, gradients):
        return gradients

    def logged(self, y, logits, loss):
        self.tracker.update_state(loss)
        self.accuracy.update_state(y, logits)
        return {one.name: one.result() for one in self.metrics} | {"last": loss}


def builder(kind=Classifier, optimizer=lambda: keras.optimizers.Adam(1e-2), **options):
    def build():
        keras.utils.set_random_seed(3)
        model = kind(kernel_regularizer=keras.regularizers.L2(1e-2), **options)
        model.compile(optimizer())
        return model

    return build


def assert_equal(build, data, kind="mirrored", replicas=2, atol=1e-6, **options):
    plain, model = alone(build), dl.distribute(build, strategy_of(kind, replicas))
    fit = {"verbose": 0, "shuffle": False, "epochs": 2, "validation_data": data, **options}
    expected, found = plain.fit(data, **fit).history, model.fit(data, **fit).history
    for one, other in zip(plain.weights, model.weights, strict=True):
        if "seed" not in one.path:
            np.testing.assert_allclose(other.numpy(), one.numpy(), atol=atol, err_msg=one.path)
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
    return model


@BOTH
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_the_guides_pattern(kind, replicas):
    assert_equal(builder(), in_order(), kind, replicas)


@pytest.mark.parametrize("kind", ["default", "one_device"])
def test_one_replica(kind):
    assert_equal(builder(), in_order(), kind, None)


@BOTH
@pytest.mark.parametrize("rows", [33, 65])
def test_a_last_batch_with_fewer_examples_than_replicas(kind, rows):
    assert_equal(builder(), in_order(X[:rows], Y[:rows]), kind, 3)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(1e-2, clipnorm=0.1),
        lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.2),
        lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1, use_ema=True),
        lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
        lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-2, 6)),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)),
    ],
)
def test_optimizers(optimizer):
    assert_equal(builder(optimizer=optimizer), in_order(), replicas=3)


class Clips(Classifier):
    """Clips by the norm of all gradients, by hand."""

    def changed(self, gradients):
        return tf.clip_by_global_norm(gradients, 0.1)[0]


class Accumulates(Classifier):
    """Adds two gradients up by hand."""

    def changed(self, gradients):
        return [gradient + gradient / 3 for gradient in gradients]


@pytest.mark.parametrize("kind", [Clips, Accumulates])
def test_what_a_step_does_with_a_gradient_before_the_update(kind):
    assert_equal(builder(kind), in_order(), replicas=3)


@pytest.mark.parametrize("steps", [2, 5])
def test_several_steps_in_one_execution(steps):
    def build():
        model = builder()()
        model.compile(keras.optimizers.SGD(0.1), steps_per_execution=steps)
        return model

    data = in_order(batch=8)
    plain = builder(optimizer=lambda: keras.optimizers.SGD(0.1))()
    model = dl.distribute(build, strategy_of("mirrored", 2))
    fit = {"verbose": 0, "shuffle": False, "epochs": 2}
    expected, found = plain.fit(data, **fit).history, model.fit(data, **fit).history
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("eagerly", [False, True])
def test_eager_steps_and_single_batches(eagerly):
    def build():
        model = builder()()
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=eagerly)
        return model

    model = assert_equal(build, in_order())
    logs = model.train_on_batch(X[:5], Y[:5], return_dict=True)
    assert logs.keys() == {"loss", "accuracy", "last"}


class OwnLoss(keras.Sequential):
    """Overrides compute_loss, and leaves the steps to Keras."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.1 * keras.ops.mean(y_pred**2) + sum(self.losses)


@BOTH
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
def test_compute_loss(kind, reduction):
    def build():
        keras.utils.set_random_seed(3)
        l1 = keras.regularizers.L1(1e-2)
        layers = [keras.layers.Dense(6, kernel_regularizer=l1), keras.layers.Dense(4)]
        model = OwnLoss([keras.Input((8,)), *layers])
        loss = LOSS(reduction=reduction)
        model.compile(keras.optimizers.SGD(1e-2), loss, metrics=["accuracy"])
        return model

    weights = np.linspace(0.5, 1.5, EXAMPLES, dtype="float32")
    assert_equal(build, in_order(X, Y, weights), kind, 3)


class Gan(keras.Model):
    """Two optimizers, neither of them the model's; noise in the step; no call of its own."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8)])
        hidden = keras.layers.Dense(6, activation="leaky_relu")
        self.critic = keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(1)])
        self.seed = keras.random.SeedGenerator(7)

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        self.d_tracker = keras.metrics.Mean(name="d_loss")

    @property
    def metrics(self):
        return [self.d_tracker]

    def train_step(self, real):
        real = keras.utils.unpack_x_y_sample_weight(real)[0]
        rows = tf.shape(real)[0]
        noise = keras.random.normal((rows, 3), seed=self.seed)
        ones = tf.ones((rows, 1))
        with tf.GradientTape() as tape:
            fake = self.critic(self.generator(noise))
            loss = self.loss_of(ones, self.critic(real)) + self.loss_of(0 * ones, fake)
        weights = self.critic.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            fooled = self.loss_of(ones, self.critic(self.generator(noise)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(fooled, weights), weights, strict=True))
        self.d_tracker.update_state(loss)
        return {"d_loss": self.d_tracker.result(), "g_loss": fooled}


def gan():
    keras.utils.set_random_seed(3)
    model = Gan()
    model.compile(keras.optimizers.Adam(1e-2, clipnorm=0.1), keras.optimizers.RMSprop(1e-2))
    return model


def test_a_gan_repeats_itself_and_each_replica_and_step_draws_anew():
    runs = []
    for _ in range(2):
        model = dl.distribute(gan, strategy_of("mirrored", 2))
        history = model.fit(in_order(X), epochs=2, verbose=0, shuffle=False).history
        runs.append((history, [weight.numpy() for weight in model.weights]))
    (logs, weights), (again, same) = runs
    assert logs == again
    assert all(np.array_equal(one, other) for one, other in zip(weights, same, strict=True))
    assert not model.optimizer.built  # the one that compile() was not given is never used
    drawn = []

    class Draws(Gan):
        def train_step(self, real):
            noise = keras.random.normal((1,), seed=self.seed)
            super().train_step(real)
            return {"drawn": noise[0]}

    def build():
        keras.utils.set_random_seed(3)
        model = Draws()
        model.compile(keras.optimizers.SGD(0.0), keras.optimizers.SGD(0.0))
        return model

    for replicas in (1, 2):
        model = dl.distribute(build, strategy_of("mirrored", replicas))
        drawn += [model.train_on_batch(X[:4], return_dict=True)["drawn"] for _ in range(3)]
    assert all(abs(one - other) > 1e-6 for one, other in itertools.combinations(drawn, 2))


def test_resume_of_a_model_with_two_optimizers(tmp_path):
    class Stop(Exception):
        pass

    class StopAt(keras.callbacks.Callback):
        listens_to_executions = False

        def on_train_batch_end(self, batch, logs=None):
            if self.model.d_optimizer.iterations.numpy() == 4:
                raise Stop

    strategy, data = strategy_of("mirrored", 2), in_order(X)
    fit = {"epochs": 3, "verbose": 0, "shuffle": False}
    whole = dl.distribute(gan, strategy)
    logs = whole.fit(data, **fit).history
    first = dl.distribute(gan, strategy)
    resume = [dl.Resume(tmp_path / "checkpoints", every_steps=1), StopAt()]
    with pytest.raises(Stop):
        first.fit(data, **fit, callbacks=resume)
    second = dl.distribute(gan, strategy)
    history = second.fit(data, **fit, callbacks=[dl.Resume(tmp_path / "checkpoints")]).history
    for one, other in zip(whole.weights, second.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    for name in ("d_optimizer", "g_optimizer"):
        optimizers = getattr(whole, name), getattr(second, name)
        for one, other in zip(*(optimizer.variables for optimizer in optimizers), strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert history["d_loss"][-1] == logs["d_loss"][-1]


def test_a_loss_that_is_not_finite_is_named_with_step_and_replica():
    x = X.copy()
    x[BATCH + 20] = np.nan  # of the second step, on the second replica
    model = dl.distribute(builder(), strategy_of("mirrored", 2))
    with pytest.raises(ModelError, match=r"a loss of nan on replica 1 in step 2"):
        model.fit(in_order(x, Y), verbose=0, shuffle=False)


class Broken(Classifier):
    def train_step(self, data):
        x, _ = data
        return {"loss": self(x).no_such_thing}


def test_an_error_in_the_step_is_raised_at_the_users_own_line():
    model = dl.distribute(builder(Broken), strategy_of("mirrored", 2))
    with pytest.raises(AttributeError, match="no_such_thing") as error:
        model.fit(in_order(), verbose=0)
    assert any(entry.path == __file__ or str(entry.path) == __file__ for entry in error.traceback)


class Contrast(Classifier):
    """Compares all pairs of the batch."""

    gathers = False

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            features = self(x)
            if self.gathers:
                features = dl.all_gather(features)
            features = tf.math.l2_normalize(features, axis=1)
            loss = tf.reduce_mean((features @ tf.transpose(features)) ** 2)
        weights = self.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": loss}


class ContrastOfAll(Contrast):
    gathers = True


def test_a_step_that_looks_at_the_batch_as_a_whole_is_named_and_gathering_makes_it_right():
    model = dl.distribute(builder(Contrast), strategy_of("mirrored", 2))
    with pytest.warns(UserWarning, match="the loss in its own train_step looks at the batch as a"):
        model.fit(in_order(), verbose=0)
    assert_equal(builder(ContrastOfAll), in_order(), replicas=3, validation_data=None)


def test_accumulating_optimizers_are_refused():
    accumulating = builder(optimizer=lambda: keras.optimizers.SGD(gradient_accumulation_steps=2))
    with pytest.raises(ModelError, match="an SGD with gradient_accumulation_steps=2, which"):
        dl.distribute(accumulating, strategy_of("mirrored", 2))


class ContrastInTest(Classifier):
    def test_step(self, data):
        features = tf.math.l2_normalize(self(data[0]), axis=1)
        self.tracker.update_state(tf.reduce_mean((features @ tf.transpose(features)) ** 2))
        return {"loss": self.tracker.result()}


def test_a_test_step_that_looks_at_the_batch_as_a_whole_is_named():
    model = dl.distribute(builder(ContrastInTest), strategy_of("mirrored", 2))
    with pytest.warns(UserWarning, match="the loss in its own test_step looks at the batch as a"):
        model.evaluate(in_order(), verbose=0)


class AsksItsReplica(Classifier):
    """Works only inside a replica."""

    def changed(self, gradients):
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return [gradient * (replicas / replicas) for gradient in gradients]


def test_a_step_that_asks_for_its_replica_cannot_be_tried_but_trains():
    model = dl.distribute(builder(AsksItsReplica), strategy_of("mirrored", 2))
    with pytest.warns(UserWarning, match="its train_step could not be tried on the first batch"):
        model.fit(in_order(), verbose=0)


@tf.custom_gradient
def binary(weight):
    return tf.sign(weight), lambda gradient: gradient * tf.cast(abs(weight) <= 1, gradient.dtype)


class BinaryDense(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 1), name="kernel")

    def call(self, x):
        return tf.matmul(x, binary(self.kernel))


def build_binary():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(3), BinaryDense()])
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_gradient_of_weights_by_hand_cannot_be_tried_but_trains_as_on_one_device(replicas):
    data = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(BATCH)
    one, model = build_binary(), dl.distribute(build_binary, strategy_of("mirrored", replicas))
    expected = one.fit(data, epochs=2, verbose=0).history
    with pytest.warns(UserWarning, match=r"could not be tried .*\(TypeError: @tf.custom_gradient"):
        found = model.fit(data, epochs=2, verbose=0).history
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    for weight, right in zip(model.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(weight, right, atol=1e-6)
