"""Steps that users write: their losses, gradients, updates, states and logs."""

import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import distlab as dl
from tests.training.cases.case import (
    NUMBERS,
    ONE_LEFT,
    ROWS,
    SGD,
    WEIGHTS,
    Adam,
    CrossEntropy,
    X,
    Y,
    batches,
    case,
    compile_model,
)
from tests.training.cases.metrics import LargestError, mean_of_batch


class Net(keras.Model):
    """Two layers, and a step that subclasses make of `loss_of`, `learn` and `log`."""

    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(6, activation="tanh")
        self.head = layers.Dense(4)
        self.mean_loss, self.losses_of = CrossEntropy(), CrossEntropy(reduction="none")
        self.begin()

    def begin(self):
        pass

    def state(self, shape, initializer="zeros", **options):
        return self.add_weight(
            shape=shape, initializer=initializer, trainable=False, name="state", **options
        )

    def build(self, shape):
        self.hidden.build(shape)
        self.head.build((None, 6))
        self.built = True

    def call(self, x):
        return self.head(self.hidden(x))

    def loss_of(self, x, y):
        return self.mean_loss(y, self(x, training=True))

    def learn(self, tape, loss):
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    def log(self, x, y, loss):
        return {}

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        self.learn(tape, loss)
        return {"loss": tf.reduce_mean(loss)} | self.log(x, y, loss)


class KerasStep(Net):
    """The same layers in Keras's own step."""

    train_step = keras.Model.train_step


def net(kind, **compiled):
    model = kind()
    model.build((None, 8))
    own_step = {"loss": None} if kind.train_step is not keras.Model.train_step else {}
    return compile_model(model, **{**own_step, **compiled})


def step(
    data: Any = (X, Y), *, compiled: Callable[[], dict[str, Any]] = dict, **fit: Any
) -> Callable[[type[Net]], type[Net]]:
    """Enters a class of models into the table, under its name."""

    def enter(kind: type[Net]) -> type[Net]:
        def build() -> keras.Model:
            return net(kind, **compiled())

        build.__name__ = kind.__name__
        case(data, **fit)(build)
        return kind

    return enter


def scaled_and_clipped():
    optimizer = keras.optimizers.LossScaleOptimizer(Adam(1e-2, clipnorm=0.1))
    return {"optimizer": optimizer, "steps_per_execution": 2}


@step((X[ONE_LEFT], Y[ONE_LEFT]), compiled=scaled_and_clipped, validates=True)
class Guide(Net):
    """keras.io's pattern: a loss tracker, a metric, a scaled loss, and a `test_step`."""

    def begin(self):
        self.hidden.kernel_regularizer = keras.regularizers.L2(1e-2)
        self.tracker = keras.metrics.Mean(name="loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    @property
    def metrics(self):
        return [self.tracker, self.accuracy]

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.mean_loss(y, logits) + sum(self.losses)
            scaled = self.optimizer.scale_loss(loss)
        self.learn(tape, scaled)
        return self.logged(y, logits, loss)

    def test_step(self, data):
        x, y = data
        logits = self(x, training=False)
        return self.logged(y, logits, self.mean_loss(y, logits))

    def logged(self, y, logits, loss):
        self.tracker.update_state(loss)
        self.accuracy.update_state(y, logits)
        return {metric.name: metric.result() for metric in self.metrics} | {"last": loss}


# What a step differentiates


@step()
class Means(Net):
    """TensorFlow's helpers divide by the number of replicas themselves."""

    def loss_of(self, x, y):
        each = self.losses_of(y, self(x))
        penalty = tf.nn.scale_regularization_loss(0.01 * tf.reduce_sum(self.hidden.kernel**2))
        by_shape = tf.reduce_sum(each) / tf.cast(tf.shape(x)[0], tf.float32)
        return by_shape + tf.nn.compute_average_loss(each) + penalty


@step()
class Vector(Net):
    """Its loss is a vector, divided by the replicas as tutorials do."""

    def loss_of(self, x, y):
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        each = self.losses_of(y, self(x)) * 0.05
        return each / replicas / self.distribute_strategy.num_replicas_in_sync


@step()
class TwoLosses(Net):
    """A persistent tape, sources in a dictionary, several targets, and one gradient by hand."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            out = self(x)
            loss, size = self.mean_loss(y, out), tf.reduce_mean(out**2)
        sources = {"hidden": self.hidden.trainable_variables, "head": self.head.kernel}
        first = tape.gradient(loss, sources)
        more = tape.gradient([loss, size], [self.head.bias, self.hidden.kernel])
        zero = tf.UnconnectedGradients.ZERO
        none = tape.gradient(tf.reduce_sum(x), self.head.kernel.value, unconnected_gradients=zero)
        slope = (tf.nn.softmax(out) - tf.one_hot(y, 4)) / tf.cast(tf.shape(x)[0], tf.float32)
        by_hand = tape.gradient(out, self.hidden.kernel, output_gradients=slope)
        gradients = [*first["hidden"], first["head"] + none, more[0]]
        gradients[0] += more[1] + by_hand
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "size": size}


@step()
class SharpnessAware(Net):
    """A step up, the gradient there, a step back; and what clipping by hand leaves of it."""

    def train_step(self, data):
        x, y = data
        weights = self.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.1)
        up = [0.5 * gradient for gradient in gradients]
        for weight, step in zip(weights, up, strict=True):
            weight.assign_add(step)
        with tf.GradientTape() as tape:
            above = self.loss_of(x, y)
        gradients = tape.gradient(above, weights)
        for weight, step in zip(weights, up, strict=True):
            weight.assign_sub(step)
        self.optimizer.apply(gradients, weights)
        return {"loss": loss, "norm": norm}


@step()
class OwnRate(Net):
    """Reads and writes what the optimizer keeps, in a step that is compiled by itself."""

    @tf.function
    def train_step(self, data):
        done = tf.cast(self.optimizer.iterations, tf.float32)
        self.optimizer.learning_rate.assign(0.1 / (1 + done))
        return super().train_step(data) | {"rate": self.optimizer.learning_rate}

    def loss_of(self, x, y):
        done = tf.cast(self.optimizer.iterations, tf.float32)
        return super().loss_of(x, y) * tf.minimum(1.0, (done + 1) / 4)


@tf.function
def halved_if_large(number):
    if number > 0.01:
        number = number * 0.5
    return number


@step()
class Helped(Net):
    """Parts of the step are compiled by themselves, and decide by values."""

    @tf.function
    def gradients_of(self, x, y):
        with tf.GradientTape() as tape:
            loss = halved_if_large(self.loss_of(x, y))
        scale = tf.where(self.optimizer.iterations < 2, 0.5, 1.0)
        return loss, tape.gradient(loss, self.trainable_variables), scale

    def train_step(self, data):
        loss, gradients, scale = self.gradients_of(*data)
        self.optimizer.apply([scale * each for each in gradients], self.trainable_variables)
        return {"loss": loss}


@tf.custom_gradient
def binary(weight):
    return tf.sign(weight), lambda gradient: gradient * tf.cast(abs(weight) <= 1, gradient.dtype)


class BinaryDense(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 1), name="kernel")

    def call(self, x):
        return tf.matmul(x, binary(tf.convert_to_tensor(self.kernel)))


@case((X, NUMBERS))
def gradient_of_a_weight_by_hand():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(3), BinaryDense()])
    return compile_model(model, optimizer="adam", loss="mse")


# What updates the weights


class WithBag(Net):
    """Its optimizer is in an object of which Keras knows nothing."""

    def learn(self, tape, loss):
        weights = self.trainable_variables
        self.bag.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


@case()
def optimizer_in_an_object_of_the_users():
    model = net(WithBag)
    model.bag = types.SimpleNamespace(optimizer=SGD(0.3))
    return model


class Gan(keras.Model):
    """Two optimizers, neither of them the model's; no call of its own; noise from the data."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(8)])
        hidden = layers.Dense(6, activation="leaky_relu")
        self.critic = keras.Sequential([keras.Input((8,)), hidden, layers.Dense(1)])

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        self.d_tracker = keras.metrics.Mean(name="d_loss")

    @property
    def metrics(self):
        return [self.d_tracker]

    def train_step(self, data):
        real, noise = data
        ones = tf.ones((tf.shape(real)[0], 1))
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
    model = Gan()
    model.compile(Adam(1e-2, clipnorm=0.1), keras.optimizers.RMSprop(1e-2))
    return model


# What a step writes


@step()
class Center(Net):
    def begin(self):
        self.center = self.state((4,))
        self.steps = self.state((), dtype="int32")

    def loss_of(self, x, y):
        out = self(x)
        loss = self.mean_loss(y, out - self.center)
        self.center.assign(0.9 * self.center + 0.1 * tf.reduce_mean(out, 0))
        self.steps.assign_add(1)
        return loss


@step()
class CompiledCall(KerasStep):
    """A compiled call that keeps a mean, decides by a value, and adds a sum as a loss."""

    def begin(self):
        self.center = self.state((4,))

    @tf.function
    def outputs_of(self, x):
        out = self.head(self.hidden(x))
        if tf.reduce_max(tf.abs(out)) > 1e3:
            out = out * 0.5
        self.center.assign(0.9 * self.center + 0.1 * tf.reduce_mean(out, 0))
        return out

    def call(self, x):
        out = self.outputs_of(x)
        self.add_loss(0.01 * tf.reduce_sum(out**2))
        return out


@step((X[ONE_LEFT], Y[ONE_LEFT]))
class Features(Net):
    """Learns from features that are moved uphill, as adversarial training of texts does."""

    def loss_of(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            hidden = self.hidden(x)
            loss = self.mean_loss(y, self.head(hidden))
        uphill, of_inputs = tape.gradient(loss, [hidden, x])
        moved = hidden + 0.5 * tf.stop_gradient(uphill / tf.norm(uphill))
        return loss + self.mean_loss(y, self.head(moved)) + tf.reduce_sum(of_inputs**2)

    def log(self, x, y, loss):
        return {"by_python": tf.numpy_function(np.sum, [x], tf.float32)}  # of no known shape


@step(compiled=lambda: {"run_eagerly": True})
class ByNumbers(Net):
    """Decides by Python, from variables that each replica has a copy of."""

    def loss_of(self, x, y):
        loss, optimizer = super().loss_of(x, y), self.optimizer
        is_even = int(optimizer.iterations) % 2 == 0
        return 2 * loss if is_even and float(optimizer.learning_rate) < 1 else loss


@step(atol=2e-6)
class Codebook(Net):
    """VQ-VAE: codes are moving averages of sums over the batch, one of which it gathers."""

    def begin(self):
        self.counts = self.state((5,), "ones")
        self.sums = self.state((5, 6), "random_normal")
        self.codes = self.state((5, 6), "random_normal")

    def loss_of(self, x, y):
        features = self.hidden(x)
        codes = tf.convert_to_tensor(self.codes)
        nearest = tf.argmin(tf.norm(features[:, None] - codes[None], axis=-1), -1)
        chosen = tf.gather(codes, nearest)
        passed = features + tf.stop_gradient(chosen - features)
        near = tf.reduce_mean((tf.stop_gradient(chosen) - features) ** 2)
        self.count(dl.all_gather(tf.one_hot(nearest, 5)), tf.stop_gradient(features))
        return self.mean_loss(y, self.head(passed)) + 0.25 * near

    def count(self, chosen, features):
        self.counts.assign(0.9 * self.counts + 0.1 * tf.reduce_sum(chosen, 0))
        sums = tf.matmul(chosen, features, transpose_a=True)
        self.sums.assign(0.9 * self.sums + 0.1 * sums)
        self.codes.assign(self.sums / self.counts[:, None])


@step(({"x": X, "y": Y, "weights": WEIGHTS},))
class Normed(Net):
    """Divides a sum of its own examples by the weight of all."""

    def train_step(self, data):
        x, y, weights = data["x"], data["y"], data["weights"]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.losses_of(y, self(x)) * weights)
            loss /= tf.reduce_sum(dl.all_gather(weights))
        self.learn(tape, loss)
        return {"loss": loss}


# Keras's methods, overridden


@step((X, NUMBERS), compiled=lambda: {"loss": "mse", "metrics": [LargestError(), mean_of_batch]})
class ComputesMetrics(Net):
    """Learns by itself, and leaves the logs to Keras."""

    def begin(self):
        self.head = layers.Dense(1)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean((y - y_pred) ** 2)
        self.learn(tape, loss)
        return self.compute_metrics(x, y, y_pred, None)


def share_of_largest(y_true, y_pred):
    """A metric that looks at the batch as a whole."""
    rows = ops.max(y_pred, -1)
    return ops.mean(rows) / ops.max(ops.abs(rows))


def with_a_loss():
    return {"loss": CrossEntropy(), "metrics": ["accuracy", share_of_largest]}


@step(compiled=with_a_loss)
class Adversarial(Net):
    """Takes Keras's own step twice."""

    def train_step(self, data):
        clean = keras.Model.train_step(self, data)
        noisy = keras.Model.train_step(self, (-data[0], data[1]))
        return {f"clean {name}": value for name, value in clean.items()} | noisy


# What a step logs


class Harmonic(keras.metrics.Metric):
    """A metric made of two others."""

    def __init__(self):
        super().__init__(name="both")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy()
        self.top = keras.metrics.Mean()

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.accuracy.update_state(y_true, y_pred, sample_weight)
        self.top.update_state(ops.max(ops.softmax(y_pred), -1))

    def result(self):
        accuracy, top = self.accuracy.result(), self.top.result()
        return {"accuracy": accuracy, "harmonic": 2 * accuracy * top / (accuracy + top)}

    def reset_state(self):
        self.accuracy.reset_state()
        self.top.reset_state()


@step((X[ONE_LEFT], Y[ONE_LEFT]), validates=True)
class Again(Net):
    """Takes results of metrics, and makes numbers of them, before it updates them again."""

    def begin(self):
        self.mean, self.sum = keras.metrics.Mean(name="mean"), keras.metrics.Sum(name="sum")
        self.both = Harmonic()

    def train_step(self, data):
        x, y = data
        before = self.sum.result()
        return super().train_step(data) | {"before": before, **self.twice(x, y)}

    def test_step(self, data):
        return self.twice(*data)

    def twice(self, x, y):
        logs = {}
        for name, inputs in {"clean": x, "noisy": x[:, ::-1]}.items():
            outputs = self(inputs)
            self.mean.update_state(self.losses_of(y, outputs))
            self.sum.update_state(tf.reduce_sum(outputs))
            self.both.update_state(y, outputs)
            logs |= {f"{name} mean": self.mean.result(), f"{name} sum": self.sum.result()}
            logs |= {f"{name} {key}": value for key, value in self.both.result().items()}
        logs |= {"perplexity": tf.exp(self.mean.result()), "half": logs["clean sum"] / 2}
        self.mean.reset_state()
        return logs


class Kept(layers.Dense):
    """Keeps two metrics of what it sees."""

    def __init__(self):
        super().__init__(6, activation="tanh")
        self.size = keras.metrics.Mean(name="size")
        self.whole = keras.metrics.Mean(name="whole")

    def call(self, x):
        out = super().call(x)
        self.size.update_state(out)
        self.whole.update_state(tf.reduce_sum(out**2))
        return out


class Counter(keras.metrics.Sum):
    """Keras's, changed by its user."""

    def update_state(self, number):
        super().update_state(2 * number)


@step()
class Statistics(Net):
    """Gives metrics what keras.io's examples give them, in places that Keras does not look into."""

    def begin(self):
        self.hidden = Kept()
        names = "listed", "columns", "weighed", "counted", "examples"
        self.kept = {name: keras.metrics.Mean(name=name) for name in names}
        sums = keras.metrics.Sum(name="sums"), keras.metrics.Sum(name="losses")
        self.kept["sums"] = [*sums, Counter(name="twice")]

    @property
    def metrics(self):
        return [self.kept["listed"]]

    def log(self, x, y, loss):
        kept, square = self.kept, tf.reduce_mean(x**2)
        kept["listed"].update_state([square])
        kept["columns"].update_state(tf.reduce_mean(x**2, 0))
        kept["weighed"].update_state(square, sample_weight=tf.constant(2.0))
        kept["counted"].update_state(square, sample_weight=tf.shape(x)[0])
        kept["examples"].update_state(tf.reduce_mean(x**2, 1))
        sums, losses, twice = kept["sums"]
        sums.update_state(tf.reduce_sum(x, 0))
        losses.update_state(loss)
        twice.update_state(1.0)
        return {metric.name: metric.result() for metric in tf.nest.flatten(kept)}


# What a step is given


def ragged_and_sparse():
    ragged = tf.ragged.constant([[row % 8] * (1 + row % 5) for row in range(ROWS)])
    return batches({"ragged": ragged, "sparse": tf.sparse.from_dense(np.where(X > 0.5, X, 0))}, Y)


@step(ragged_and_sparse)
class RaggedAndSparse(Net):
    """Takes numbers of rows, ragged, and numbers that are sparse."""

    def loss_of(self, x, y):
        kernel = self.hidden.kernel.value
        rows = tf.reduce_mean(tf.gather(kernel, x["ragged"]), 1)
        hidden = tf.sparse.sparse_dense_matmul(x["sparse"], kernel)
        return self.mean_loss(y, self.head(rows + tf.tanh(hidden)))
