"""Steps, layers, losses, metrics and data that are seldom seen take the steps of one device."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import ModelError
from tests.support.distribution import BATCH, LOSS, X, Y, strategy_of
from tests.training.test_distribute_models import assert_equal_to_one_device
from tests.training.test_distribute_own_step import assert_equal, in_order

BOTH = pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
ONE_HOT = np.eye(4, dtype="float32")[Y]
WEIGHTS = np.linspace(0.5, 1.5, len(X), dtype="float32")


class Net(keras.Model):
    """Two layers, and a step that subclasses make of `loss_of` and `log`."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(6, activation="tanh")
        self.head = keras.layers.Dense(4)
        self.mean_loss = LOSS()
        self.losses_of = LOSS(reduction="none")
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

    def learn(self, tape, loss):
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    def loss_of(self, x, y):
        return self.mean_loss(y, self(x, training=True))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        self.learn(tape, loss)
        return {"loss": tf.reduce_mean(loss)} | (self.log(x, y, loss) or {})

    def log(self, x, y, loss):
        pass


def building(kind, *, steps=True, optimizer=lambda: keras.optimizers.SGD(0.1), **compiled):
    if not steps:
        kind = type(kind.__name__, (kind,), {"train_step": keras.Model.train_step})
        compiled = {"loss": LOSS()} | compiled

    def build():
        keras.utils.set_random_seed(3)
        model = kind()
        model.build((None, 8))
        model.compile(optimizer(), **compiled)
        return model

    return build


def equal(kind, data=None, where="mirrored", **options):
    """Trains, with no warning that the step could not be distributed."""
    data = in_order() if data is None else data
    fit = {key: options.pop(key) for key in ("validation_data",) if key in options}
    fit = {"validation_data": None} | fit
    return assert_equal(building(kind, **options), data, where, 3, **fit)


# What a step differentiates


class Vector(Net):
    def loss_of(self, x, y):
        return self.losses_of(y, self(x)) * 0.02


class ByShape(Net):
    def loss_of(self, x, y):
        return tf.reduce_sum(self.losses_of(y, self(x))) / tf.cast(tf.shape(x)[0], tf.float32)


class ByConstant(Net):
    def loss_of(self, x, y):
        return tf.reduce_sum(self.losses_of(y, self(x))) / 32


class Average(Net):
    """TensorFlow's helpers divide by the number of replicas themselves."""

    def loss_of(self, x, y):
        penalty = tf.nn.scale_regularization_loss(0.01 * tf.reduce_sum(self.hidden.kernel**2))
        return tf.nn.compute_average_loss(self.losses_of(y, self(x))) + penalty


class GlobalAverage(Net):
    def loss_of(self, x, y):
        return tf.nn.compute_average_loss(self.losses_of(y, self(x)), global_batch_size=32)


class Functional(Net):
    def loss_of(self, x, y):
        return keras.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True) / 32


class Penalty(Net):
    """Second-order gradients: with respect to inputs, inside another tape."""

    def loss_of(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = self(x)
        slopes = tape.gradient(out, x)
        return self.mean_loss(y, out) + tf.reduce_mean((tf.norm(slopes, axis=-1) - 1) ** 2)


class Slopes(Net):
    def loss_of(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = self(x)
        return self.mean_loss(y, out) + 0.1 * tf.reduce_mean(tape.batch_jacobian(out, x) ** 2)


class Weighted(Net):
    """Reads the optimizer's count."""

    def loss_of(self, x, y):
        done = tf.cast(self.optimizer.iterations, tf.float32)
        return super().loss_of(x, y) * tf.minimum(1.0, (done + 1) / 4)


@pytest.mark.parametrize(
    "kind", [Vector, ByShape, ByConstant, Average, GlobalAverage, Functional, Penalty, Slopes]
)
def test_losses(kind, recwarn):
    equal(kind)
    assert not [one for one in recwarn if "first batch" in str(one.message)]


class TwoLosses(Net):
    """A persistent tape, sources in a dictionary, several targets, one that is unconnected."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            out = self(x)
            loss, size = self.mean_loss(y, out), tf.reduce_mean(out**2)
        sources = {"hidden": self.hidden.trainable_variables, "head": self.head.kernel}
        found = tape.gradient(loss, sources)
        more = tape.gradient([loss, size], [self.head.bias, self.hidden.kernel])
        zero = tf.UnconnectedGradients.ZERO
        none = tape.gradient(tf.reduce_sum(x), self.head.kernel.value, unconnected_gradients=zero)
        gradients = [*found["hidden"], found["head"] + none, more[0]]
        gradients[0] += more[1]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "size": size}


class ByOutput(Net):
    """The gradient at the output is computed by hand."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            out = self(x)
        slope = (tf.nn.softmax(out) - tf.one_hot(y, 4)) / tf.cast(tf.shape(x)[0], tf.float32)
        weights = self.trainable_variables
        gradients = tape.gradient(out, weights, output_gradients=slope)
        self.optimizer.apply(gradients, weights)
        return {"out": tf.reduce_mean(out)}


class TwoSteps(Net):
    """Sharpness-aware: a step up, the gradient there, a step back."""

    def train_step(self, data):
        x, y = data
        weights = self.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        gradients = tape.gradient(loss, weights)
        up = [0.05 * one / tf.linalg.global_norm(gradients) for one in gradients]
        for weight, step in zip(weights, up, strict=True):
            weight.assign_add(step)
        with tf.GradientTape() as tape:
            above = self.loss_of(x, y)
        gradients = tape.gradient(above, weights)
        for weight, step in zip(weights, up, strict=True):
            weight.assign_sub(step)
        self.optimizer.apply(gradients, weights)
        return {"loss": loss}


@pytest.mark.parametrize("kind", [TwoLosses, ByOutput, TwoSteps])
def test_gradients(kind):
    equal(kind)


class OwnRate(Net):
    def train_step(self, data):
        done = tf.cast(self.optimizer.iterations, tf.float32)
        self.optimizer.learning_rate.assign(0.1 / (1 + done))
        return super().train_step(data) | {"rate": self.optimizer.learning_rate}


@BOTH
@pytest.mark.parametrize("kind_of_net", [OwnRate, Weighted])
def test_a_step_that_reads_and_writes_what_the_optimizer_keeps(kind, kind_of_net):
    equal(kind_of_net, where=kind)


# Functions in the step


class Compiled(Net):
    @tf.function
    def train_step(self, data):
        return super().train_step(data)


class Helped(Net):
    @tf.function
    def gradients_of(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        scale = tf.where(self.optimizer.iterations < 2, 0.5, 1.0)
        return loss, tape.gradient(loss, self.trainable_variables), scale

    def train_step(self, data):
        loss, gradients, scale = self.gradients_of(*data)
        self.optimizer.apply([scale * one for one in gradients], self.trainable_variables)
        return {"loss": loss}


class CompiledCall(Net):
    def begin(self):
        self.center = self.state((4,))

    @tf.function
    def call(self, x):
        out = super().call(x)
        self.center.assign(0.9 * self.center + 0.1 * tf.reduce_mean(out, 0))
        return out


@BOTH
@pytest.mark.parametrize("kind_of_net", [Compiled, Helped, CompiledCall])
def test_a_tf_function_in_a_step_becomes_part_of_it(kind, kind_of_net):
    equal(kind_of_net, where=kind)


class Conditional(Net):
    def learn(self, tape, loss):
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        even = tf.equal(self.optimizer.iterations % 2, 0)
        tf.cond(even, lambda: self.optimizer.apply(gradients, weights), lambda: None)


def test_an_update_inside_a_condition_is_named():
    model = dl.distribute(building(Conditional), strategy_of("mirrored", 2))
    with pytest.raises(ModelError, match=r"an update inside tf\.cond"):
        model.fit(in_order(), verbose=0)


# Batch sizes written as constants


class Noise(keras.layers.Layer):
    def call(self, x):
        return x + tf.zeros((BATCH, 8))


class OnesAsLabels(Net):
    def loss_of(self, x, y):
        return keras.losses.MeanSquaredError()(tf.ones((BATCH, 4)), self(x))


def noisy():
    model = keras.Sequential([keras.Input((8,)), Noise(), keras.layers.Dense(4)])
    model.compile("sgd", LOSS())
    return model


@pytest.mark.parametrize("build", [noisy, building(OnesAsLabels)])
def test_a_batch_size_as_a_constant_is_named(build):
    full = in_order().unbatch().batch(BATCH, drop_remainder=True)
    build().fit(full, verbose=0)  # works, as each batch has this size
    with pytest.raises(ModelError) as error:
        dl.distribute(build, strategy_of("mirrored", 2)).fit(full, verbose=0)
    text = str(error.value)
    assert "a step that takes a batch of 32 examples, and not a replica's share of 16: Inc" in text
    assert "to do: take the number of examples from keras.ops.shape(x)[0], and not from a" in text


# What a step or a layer writes


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


@BOTH
def test_a_mean_that_a_step_keeps(kind, recwarn):
    model = equal(Center, where=kind)
    assert model.steps.numpy() == 6
    assert not [one for one in recwarn if "first batch" in str(one.message)]


class Codebook(Net):
    """VQ-VAE: codes are moving averages of sums over the batch."""

    gathers = False

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
        self.count(tf.one_hot(nearest, 5), tf.stop_gradient(features))
        return self.mean_loss(y, self.head(passed)) + 0.25 * near

    def count(self, chosen, features):
        if self.gathers:
            chosen, features = dl.all_gather(chosen), dl.all_gather(features)
        self.counts.assign(0.9 * self.counts + 0.1 * tf.reduce_sum(chosen, 0))
        sums = tf.matmul(chosen, features, transpose_a=True)
        self.sums.assign(0.9 * self.sums + 0.1 * sums)
        self.codes.assign(self.sums / self.counts[:, None])


class GatheredCodebook(Codebook):
    gathers = True


class Queue(Net):
    def begin(self):
        self.queue = self.state((64, 4), "random_normal")

    def log(self, x, y, loss):
        self.queue.assign(tf.concat([self(x), self.queue], 0)[:64])


class CountsExamples(Net):
    def begin(self):
        self.examples = self.state((), dtype="int32")

    def log(self, x, y, loss):
        self.examples.assign_add(tf.shape(x)[0])


class RawMean(Net):
    def begin(self):
        self.mean = tf.Variable(0.0, trainable=False, name="raw")

    def log(self, x, y, loss):
        self.mean.assign(0.9 * self.mean + 0.1 * loss)


class SumInCall(Net):
    def begin(self):
        self.seen = self.state((4,))

    def call(self, x):
        out = super().call(x)
        self.seen.assign(0.9 * self.seen + 0.1 * tf.reduce_sum(out, 0))
        return out


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Codebook, "state"),
        (Queue, "state"),
        (CountsExamples, "state"),
        (RawMean, "raw"),
        (SumInCall, "state"),
    ],
)
def test_what_is_written_from_the_batch_as_a_whole_is_named(kind, named):
    steps = kind is not SumInCall
    model = dl.distribute(building(kind, steps=steps), strategy_of("mirrored", 2))
    with pytest.warns(UserWarning, match=rf"a step writes \S*{named}"):
        model.fit(in_order(), verbose=0)


@BOTH
def test_a_codebook_that_gathers_is_that_of_one_device(kind):
    equal(GatheredCodebook, where=kind)


class Normed(Net):
    """Divides a sum of its own examples by the weight of all."""

    def train_step(self, data):
        x, y, weights = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.losses_of(y, self(x)) * weights)
            loss /= tf.reduce_sum(dl.all_gather(weights))
        self.learn(tape, loss)
        return {"loss": loss}


@BOTH
def test_a_sum_over_what_is_gathered_adds_up(kind):
    equal(Normed, in_order(X, Y, WEIGHTS), where=kind)


class AddsSum(Net):
    def call(self, x):
        out = super().call(x)
        self.add_loss(0.01 * tf.reduce_sum(out**2))
        return out


@BOTH
def test_a_sum_that_the_model_itself_adds_as_a_loss_adds_up(kind):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "(?s).*as a whole")
        equal(AddsSum, where=kind, steps=False, validation_data=in_order())


def test_a_layer_whose_sum_is_the_only_loss_adds_up():
    class Sum(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x**2))
            return x

    def build():
        keras.utils.set_random_seed(3)
        penalty = keras.regularizers.L2(1e-2)
        dense = keras.layers.Dense(4, kernel_regularizer=penalty)
        model = keras.Sequential([keras.Input((8,)), dense, Sum()])
        model.compile(keras.optimizers.SGD(0.001))
        return model

    assert_equal_to_one_device(build, tf.data.Dataset.from_tensor_slices((X,)).batch(BATCH))


def test_a_loss_that_a_layer_adds_and_that_looks_at_the_batch_is_named():
    class Largest(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.max(x**2))
            return x

    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), Largest()])
        model.compile("sgd", LOSS())
        return model

    model = dl.distribute(build, strategy_of("mirrored", 2))
    with pytest.warns(UserWarning, match="a layer, or a loss that it adds, looks at the batch"):
        model.fit(in_order(), verbose=0)


# What a step returns


class FromResults(Net):
    """Logs made of a metric's result, and of one that is made of two others."""

    def begin(self):
        self.mean = keras.metrics.Mean(name="mean")
        self.both = Harmonic()

    def log(self, x, y, loss):
        self.mean.update_state(self.losses_of(y, self(x)))
        self.both.update_state(y, self(x))
        found = self.both.result()
        return {
            "mean": self.mean.result(),
            "perplexity": tf.exp(self.mean.result()),
            "percent": 100 * found["accuracy"],
            **found,
        }


class Harmonic(keras.metrics.Metric):
    """A metric made of two others."""

    def __init__(self):
        super().__init__(name="both")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy()
        self.top = keras.metrics.Mean()

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.accuracy.update_state(y_true, y_pred, sample_weight)
        self.top.update_state(keras.ops.max(keras.ops.softmax(y_pred), -1))

    def result(self):
        accuracy, top = self.accuracy.result(), self.top.result()
        return {"accuracy": accuracy, "harmonic": 2 * accuracy * top / (accuracy + top)}

    def reset_state(self):
        self.accuracy.reset_state()
        self.top.reset_state()


@BOTH
def test_logs_that_are_made_of_results_of_metrics(kind):
    equal(FromResults, where=kind)
    build = building(Net, steps=False, metrics=[Harmonic(), "accuracy"])
    assert_equal(build, in_order(), kind, 3)


class Sums(Net):
    """Metrics that add single numbers up, of which Keras is not told, or that a layer keeps."""

    def begin(self):
        self.kept = {"sum": keras.metrics.Sum(name="sum"), "of": [keras.metrics.Sum(name="steps")]}
        self.mean = keras.metrics.Mean(name="mean")
        self.hidden = Kept()

    @property
    def metrics(self):
        return [self.mean]

    def log(self, x, y, loss):
        self.kept["sum"].update_state(loss)
        self.kept["of"][0].update_state(1.0)
        self.mean.update_state(tf.reduce_sum(x**2))
        kept = [self.kept["sum"], self.kept["of"][0], self.mean]
        return {one.name: one.result() for one in kept}


class Kept(keras.layers.Dense):
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


class Keeps(Net):
    def begin(self):
        self.hidden = Kept()


@BOTH
def test_numbers_that_metrics_add_up(kind):
    equal(Sums, where=kind)
    equal(Keeps, where=kind, steps=False, validation_data=in_order())


class Again(Net):
    """Takes results of metrics before it updates or resets the metrics again."""

    def begin(self):
        self.mean = keras.metrics.Mean(name="mean")
        self.sum = keras.metrics.Sum(name="sum")
        self.both = Harmonic()

    def train_step(self, data):
        x, y = data
        before = self.sum.result()
        logs = super().train_step(data)
        return logs | {"before": before, **self.twice(x, y)}

    def test_step(self, data):
        return self.twice(*data)

    def twice(self, x, y):
        logs = {}
        for name, inputs in {"clean": x, "noisy": x[:, ::-1]}.items():
            outputs = self(inputs)
            self.mean.update_state(self.losses_of(y, outputs))
            self.sum.update_state(tf.reduce_sum(outputs))
            self.both.update_state(y, outputs)
            logs |= {f"{name} {one.name}": one.result() for one in (self.mean, self.sum)}
            logs |= {f"{name} {key}": value for key, value in self.both.result().items()}
        logs["of two"] = self.mean.result()
        self.mean.reset_state()
        return logs


class AgainAndMore(Again):
    """Makes a number of a result, too."""

    def twice(self, x, y):
        logs = super().twice(x, y)
        return logs | {"half": logs["clean sum"] / 2}


class Adversarial(Net):
    """Takes Keras's own step twice."""

    def train_step(self, data):
        return self.twice(data, keras.Model.train_step)

    def test_step(self, data):
        return self.twice(data, keras.Model.test_step)

    def twice(self, data, step):
        clean, noisy = step(self, data), step(self, (-data[0], data[1]))
        return {f"clean {name}": value for name, value in clean.items()} | noisy


def share_of_largest(y_true, y_pred):
    """A metric that looks at the batch as a whole."""
    rows = keras.ops.max(y_pred, -1)
    return keras.ops.mean(rows) / keras.ops.max(keras.ops.abs(rows))


@pytest.mark.parametrize("kind_of_net", [Again, AgainAndMore, Adversarial])
@pytest.mark.parametrize(
    ("kind", "replicas", "batch"),
    # The last batch has 9 examples, or 1: then a replica has none.
    [
        ("one_device", None, 32),
        ("mirrored", 2, 32),
        ("mirrored", 3, 24),
        ("central_storage", 3, 24),
    ],
)
def test_a_result_that_is_asked_for_before_the_metric_changes(kind_of_net, kind, replicas, batch):
    compiled = {}
    if kind_of_net is Adversarial:
        compiled = {"loss": LOSS(), "metrics": ["accuracy", share_of_largest]}
    assert_equal(building(kind_of_net, **compiled), in_order(batch=batch), kind, replicas)


class Largest(Net):
    def log(self, x, y, loss):
        return {"largest": tf.reduce_max(self(x))}


def test_a_log_that_shares_do_not_make_is_named():
    model = dl.distribute(building(Largest), strategy_of("mirrored", 2))
    with pytest.warns(UserWarning, match="its train_step returns largest, which the shares"):
        model.fit(in_order(), verbose=0)


class OfGradients(Net):
    def learn(self, tape, loss):
        self.gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(self.gradients, self.trainable_variables)

    def log(self, x, y, loss):
        return {"norm": tf.linalg.global_norm(self.gradients)}


def test_the_norm_of_gradients_is_that_of_one_device(recwarn):
    equal(OfGradients)
    assert not [one for one in recwarn if "shares" in str(one.message)]


def several():
    metrics = keras.metrics
    return [
        metrics.AUC(multi_label=True, num_labels=4, name="auc"),
        metrics.F1Score(average="macro", name="f1"),
        metrics.OneHotMeanIoU(4, name="iou"),
        metrics.MeanIoU(4, sparse_y_true=False, sparse_y_pred=False, name="mean_iou"),
        metrics.R2Score(name="r2"),
        metrics.PrecisionAtRecall(0.5, name="precision"),
        metrics.MeanMetricWrapper(keras.losses.mean_squared_error, name="wrapped"),
    ]


@BOTH
def test_metrics_with_and_without_weights(kind):
    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="softmax")])
        loss = keras.losses.CategoricalFocalCrossentropy(label_smoothing=0.1)
        weighted = [keras.metrics.AUC(name="w_auc"), keras.metrics.Recall(class_id=1, name="w")]
        model.compile("sgd", loss, metrics=several(), weighted_metrics=weighted)
        return model

    assert_equal(build, in_order(X, ONE_HOT, WEIGHTS), kind, 3)


@pytest.mark.parametrize("gather", ["replica", "gather"])
def test_kerass_circle_loss_looks_at_the_batch_as_a_whole(gather):
    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(1e-3), keras.losses.Circle())
        return model

    model = dl.distribute(build, strategy_of("mirrored", 3), batch_losses=gather)
    if gather == "replica":
        with pytest.warns(UserWarning, match="the loss 'circle' looks at the batch as a whole"):
            model.fit(in_order(), verbose=0)
        return
    plain = build()
    logs = [one.fit(in_order(), verbose=0, shuffle=False).history for one in (plain, model)]
    np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], atol=1e-6)
    np.testing.assert_allclose(logs[1]["loss"], logs[0]["loss"], rtol=1e-5)


def squares(y_true, y_pred):
    return keras.ops.sum((keras.ops.one_hot(y_true, 4) - y_pred) ** 2)


@BOTH
def test_evaluate_comes_before_any_fit(kind):
    for build in (building(Net, steps=False, loss=squares), building(Keeps, steps=False)):
        model = dl.distribute(build, strategy_of(kind, 3))
        found, expected = (
            one.evaluate(in_order(), verbose=0, return_dict=True) for one in (model, build())
        )
        assert found == pytest.approx(expected, rel=1e-5)


# What a step is given


class Named(Net):
    def train_step(self, data):
        return super().train_step((data["x"], data["y"]))


class Gathers(Net):
    """Takes numbers of rows, ragged."""

    def loss_of(self, x, y):
        rows = tf.reduce_mean(tf.gather(self.hidden.kernel.value, x), 1)
        return self.mean_loss(y, self.head(rows))


class Sparse(Net):
    def loss_of(self, x, y):
        hidden = tf.sparse.sparse_dense_matmul(x, self.hidden.kernel.value)
        return self.mean_loss(y, self.head(tf.tanh(hidden)))


def ragged():
    rows = [[(i * j) % 8 for j in range(1 + i % 5)] for i in range(len(X))]
    return in_order(tf.ragged.constant(rows), Y)


DATA = {  # functions: no test may touch TensorFlow's devices while it is collected
    Named: lambda: in_order({"x": X, "y": Y}),
    Gathers: ragged,
    Sparse: lambda: in_order(tf.sparse.from_dense(np.where(X > 0.5, X, 0)), Y),
}


@BOTH
@pytest.mark.parametrize("kind_of_net", list(DATA))
def test_data_of_other_kinds(kind, kind_of_net):
    equal(kind_of_net, DATA[kind_of_net](), where=kind)


class Predicts(Net):
    def predict_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return {"best": tf.argmax(self(x), -1), "all": tf.nn.softmax(self(x))}


def test_a_predict_step_of_its_own():
    build = building(Predicts)
    model = dl.distribute(build, strategy_of("mirrored", 3))
    found, expected = (one.predict(X, verbose=0) for one in (model, build()))
    np.testing.assert_array_equal(found["best"], expected["best"])
    np.testing.assert_allclose(found["all"], expected["all"], atol=1e-6)
