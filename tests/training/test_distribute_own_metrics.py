"""Metrics that nobody here wrote count as on one device, whatever they do with a batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from tests.support.distribution import alone, assert_same

EXAMPLES, BATCH = 13, 5  # the last batch has 3 examples: one of two replicas has 2, the other 1


class LargestError(keras.metrics.Metric):
    """Remembers one number."""

    def __init__(self):
        super().__init__(name="largest_error")
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        error = keras.ops.max(keras.ops.abs(y - y_pred))
        self.largest.assign(keras.ops.maximum(self.largest, error))

    def result(self):
        return self.largest + 0.0


class MeanOfBatches(keras.metrics.Metric):
    """Counts batches, in a whole number."""

    def __init__(self):
        super().__init__(name="mean_of_batches")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.batches = self.add_weight(name="batches", initializer="zeros", dtype="int32")

    def update_state(self, y, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.mean(keras.ops.abs(y - y_pred)))
        self.batches.assign_add(1)

    def result(self):
        return self.total / keras.ops.cast(self.batches, "float32")


class RightSigns(keras.metrics.Metric):
    """Adds up over examples, as most do."""

    def __init__(self):
        super().__init__(name="right_signs")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        self.count.assign_add(keras.ops.sum(keras.ops.cast(y * y_pred > 0, "float32")))

    def result(self):
        return self.count + 0.0


class RareOnes(keras.metrics.Metric):
    """Adds up over examples in whole numbers, one of which stays at zero."""

    def __init__(self):
        super().__init__(name="rare_ones")
        self.bounds = self.add_weight(name="bounds", initializer="ones", shape=(2,))
        self.matrix = self.add_weight(name="m", initializer="zeros", shape=(2, 2), dtype="int32")
        self.rare = self.add_weight(name="rare", initializer="zeros", dtype="int64")

    def update_state(self, y, y_pred, sample_weight=None):
        classes = [tf.cast(one[:, 0] > self.bounds[0], "int32") for one in (y, y_pred)]
        self.matrix.assign_add(tf.math.confusion_matrix(*classes, num_classes=2))
        self.rare.assign_add(keras.ops.sum(keras.ops.cast(y > 1e3 * self.bounds[1], "int64")))

    def result(self):
        return keras.ops.cast(self.matrix[0, 0], "float32")


class OfOthers(keras.metrics.Metric):
    """Made of others, of which one is Keras's."""

    def __init__(self):
        super().__init__(name="of_others")
        self.mean, self.largest = keras.metrics.Mean(), LargestError()

    def update_state(self, y, y_pred, sample_weight=None):
        self.mean.update_state(keras.ops.mean(y_pred))
        self.largest.update_state(y, y_pred)

    def result(self):
        return {"mean": self.mean.result(), "largest": self.largest.result()}


def dice(y, y_pred):
    return keras.ops.sum(y * y_pred) / keras.ops.sum(keras.ops.abs(y) + keras.ops.abs(y_pred))


def mean_of_batch(y, y_pred):
    return keras.ops.mean(keras.ops.abs(y - y_pred))


def sum_of_batch(y, y_pred):
    return keras.ops.sum(keras.ops.abs(y - y_pred))


METRICS = [
    LargestError,
    MeanOfBatches,
    RightSigns,
    OfOthers,
    lambda: dice,
    lambda: mean_of_batch,
    lambda: sum_of_batch,
]


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = keras.ops.mean((y - y_pred) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, y_pred, None)


def builder(model_class, metrics=METRICS):
    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(1)(keras.layers.Dense(3, activation="tanh")(inputs))
        model = model_class(inputs, outputs)
        model.compile("adam", "mse", metrics=[make() for make in metrics] or None)
        return model

    return build


def train(model):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(EXAMPLES, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    data = (x, y)
    history = model.fit(
        *data, batch_size=BATCH, epochs=2, shuffle=False, validation_data=(x[:7], y[:7]), verbose=0
    )
    evaluated = model.evaluate(*data, batch_size=BATCH, verbose=0, return_dict=True)
    logs = history.history | {f"evaluated {name}": [one] for name, one in evaluated.items()}
    return logs, model.get_weights()


@pytest.mark.parametrize("model_class", [keras.Model, OwnStep])
@pytest.mark.parametrize(
    ("kind", "replicas"), [("mirrored", 2), ("mirrored", 4), ("central_storage", 2)]
)
def test_logs_are_those_of_one_device(model_class, kind, replicas):
    strategy = dl.make_strategy(kind, devices=dl.split_devices(4)[:replicas])
    expected = train(alone(builder(model_class)))
    assert_same(train(dl.distribute(builder(model_class), strategy)), expected)


class MeanSquare(keras.metrics.Metric):
    """Adds up over examples, and asks a Keras loss, which Keras scales in a strategy's scope."""

    def __init__(self):
        super().__init__(name="mean_square")
        self.of_batch = keras.losses.MeanSquaredError()
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        rows = keras.ops.cast(keras.ops.shape(y)[0], "float32")
        self.total.assign_add(self.of_batch(y, y_pred) * rows)
        self.count.assign_add(rows)

    def result(self):
        return self.total / self.count


def root_of_mean_square(y, y_pred):
    return keras.ops.sqrt(keras.losses.MeanSquaredError()(y, y_pred))


@pytest.mark.parametrize("model_class", [keras.Model, OwnStep])
@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_a_metric_that_computes_a_keras_loss(model_class, kind):
    made = [keras.losses.MeanSquaredError, MeanSquare, lambda: root_of_mean_square]
    build = builder(model_class, made)
    strategy = dl.make_strategy(kind, devices=dl.split_devices(4)[:2])
    assert_same(train(dl.distribute(build, strategy)), train(alone(build)))


def squeezed(metrics):
    """A model whose outputs have no axis but that of the examples."""

    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        outputs = keras.ops.squeeze(keras.layers.Dense(1)(inputs), -1)
        model = keras.Model(inputs, outputs)
        model.compile("adam", "mse", metrics=metrics)
        return model

    return build


@pytest.mark.parametrize("rows", [11, 13])  # a last batch of 1: a replica has none; and of 3
@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_outputs_without_a_second_axis(rows, kind):
    def run(model):
        draw = np.random.default_rng(0)
        x = draw.normal(size=(rows, 4)).astype("float32")
        y = x.sum(1)
        options = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
        history = model.fit(x, y, validation_data=(x, y), **options)
        return history.history, model.get_weights()

    build = squeezed(["mae", "mse"])
    strategy = dl.make_strategy(kind, devices=dl.split_devices(4)[:2])
    assert_same(run(dl.distribute(build, strategy)), run(alone(build)))


@pytest.mark.parametrize("when", ["a list of the module", "a later compile"])
def test_a_metric_of_the_batch_that_was_made_outside_of_build(when):
    def later(metric):
        def build():
            return builder(keras.Model, [lambda: metric])()

        return build

    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    if when == "a later compile":
        model = dl.distribute(builder(keras.Model, []), strategy)
        model.compile(model.optimizer, "mse", metrics=[LargestError(), MeanOfBatches()])
        plain = builder(keras.Model, [LargestError, MeanOfBatches])
    else:
        model = dl.distribute(later(LargestError()), strategy)
        plain = builder(keras.Model, [LargestError])
    assert_same(train(model), train(alone(plain)))


def test_a_metric_that_is_zero_in_the_first_batch_is_not_taken_for_one_that_adds_up():
    def matches(y, y_pred):
        """The mean of a batch, of which nothing counts at first."""
        seen = keras.ops.cast(keras.ops.abs(y[:, 0]) > 1e3, "float32")
        counted = keras.ops.sum(seen * keras.ops.abs(y_pred[:, 0]))
        return counted / (keras.ops.sum(seen) + 1e-7)

    def run(model):
        x = np.random.default_rng(0).normal(size=(EXAMPLES, 4)).astype("float32")
        y = x.sum(1, keepdims=True)
        y[BATCH::2] = 2e3
        history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        return history.history, model.get_weights()

    build = builder(keras.Model, [lambda: matches])
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    (found, _), (expected, _) = run(dl.distribute(build, strategy)), run(alone(build))
    np.testing.assert_allclose(found["matches"], expected["matches"], rtol=1e-5)


@pytest.mark.parametrize("large", [slice(BATCH, None), slice(BATCH - 1, None)])
def test_a_largest_value_that_most_of_the_first_batch_does_not_have_is_that_of_all(large):
    """It is zero there, or in one of the two parts that are tried."""

    class Largest(LargestError):
        def update_state(self, y, y_pred, sample_weight=None):
            found = keras.ops.max(keras.ops.relu(keras.ops.abs(y) - 1e3))
            self.largest.assign(keras.ops.maximum(self.largest, found))

    def run(model):
        x = np.random.default_rng(0).normal(size=(EXAMPLES, 4)).astype("float32")
        y = x.sum(1, keepdims=True)
        y[large] = 2e3 + np.arange(EXAMPLES)[large, None]
        options = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
        return model.fit(x, y, **options).history["largest_error"]

    build = builder(keras.Model, [Largest])
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    found, expected = run(dl.distribute(build, strategy)), run(alone(build))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert min(expected) > 0


KEEPING = {
    "largest": lambda kept, y: keras.ops.maximum(kept, keras.ops.max(y)),
    "smallest": lambda kept, y: keras.ops.minimum(kept, keras.ops.min(y)),
    "last": lambda kept, y: y[-1, 0],
    "moving mean": lambda kept, y: 0.5 * kept + 0.5 * keras.ops.mean(y),
}


def kept_beside_a_count(kept, start):
    """A metric that counts examples, and keeps a number of theirs."""

    class Keeps(RightSigns):
        def __init__(self):
            super().__init__()
            first = keras.initializers.Constant(start)
            self.kept = self.add_weight(name="kept", initializer=first)

        def reset_state(self):
            super().reset_state()
            self.kept.assign(start)

        def update_state(self, y, y_pred, sample_weight=None):
            self.count.assign_add(keras.ops.cast(keras.ops.shape(y)[0], "float32"))
            self.kept.assign(KEEPING[kept](self.kept, y))

        def result(self):
            return self.kept + 0.0

    return Keeps


@pytest.mark.parametrize(
    ("kept", "start", "first"),
    [
        *((kept, 0.0, 0.0) for kept in KEEPING),
        ("largest", 0.0, -100.0),
        ("largest", -1e9, -1e9),
        ("smallest", np.inf, np.inf),
    ],
)
def test_a_number_that_stays_in_the_first_batch_while_a_count_grows_is_that_of_all(
    kept, start, first, recwarn
):
    def run(model):
        y = np.full((EXAMPLES, 1), first, "float32")
        y[BATCH:] = [[2.0], [-1], [-3], [4], [-5], [3], [-2], [5]]
        x = np.ones((EXAMPLES, 4), "float32")
        options = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
        return model.fit(x, y, **options).history["right_signs"]

    def build():
        model = builder(keras.Model, [])()
        loss = lambda y, y_pred: keras.ops.mean(y_pred, -1)  # noqa: E731
        model.compile("sgd", loss, metrics=[kept_beside_a_count(kept, start)()])
        return model

    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    np.testing.assert_allclose(run(dl.distribute(build, strategy)), run(alone(build)), rtol=1e-5)
    assert not [one for one in recwarn if one.category is RuntimeWarning], "NumPy's, of infinities"


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_eager_steps_may_ask_for_values(kind):
    def by_numpy(y, y_pred):
        return float(np.mean(np.abs(y.numpy() - y_pred.numpy())))

    def checked(y, y_pred):
        assert np.isfinite(y_pred.numpy()).all()
        return keras.ops.mean(keras.ops.square(y - y_pred), axis=-1)

    def build():
        model = builder(keras.Model)()
        model.compile("adam", checked, metrics=[by_numpy, "mae"], run_eagerly=True)
        return model

    strategy = dl.make_strategy(kind, devices=dl.split_devices(4)[:2])
    assert_same(train(dl.distribute(build, strategy)), train(alone(build)))


class LogsMore(keras.Model):
    """Counts a number of the batch, and returns one more."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.size = keras.metrics.Mean(name="size")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.size.update_state(keras.ops.mean(keras.ops.abs(y_pred)))
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        logs["root"] = keras.ops.sqrt(logs["loss"])
        return logs


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_what_a_models_own_compute_metrics_returns_is_logged(kind):
    build = builder(LogsMore, [lambda: "mae"])
    strategy = dl.make_strategy(kind, devices=dl.split_devices(4)[:2])
    logs, weights = train(dl.distribute(build, strategy))
    assert {"root", "val_root", "evaluated root", "size"} <= logs.keys()
    assert_same((logs, weights), train(alone(build)))


def test_a_sum_stays_a_sum_beside_a_compute_metrics_of_ones_own():
    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        model = LogsMore(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(0.01), sum_of_batch)
        return model

    def run(model):
        first, second = train(model), train(model)  # the second `fit` has a trial of its own
        return {**first[0], **{f"again {k}": v for k, v in second[0].items()}}, second[1]

    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    assert_same(run(dl.distribute(build, strategy)), run(alone(build)))


class Losses(keras.metrics.Mean):
    """Keras's, under a name of one's own; a step gives it a number."""


class Steps(keras.metrics.Sum):
    """The same for a sum."""

    def update_state(self, number):
        super().update_state(2 * number)


def test_metrics_of_ones_own_that_a_step_gives_a_number():
    class Tracks(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.losses_seen, self.steps = Losses(name="losses_seen"), Steps(name="steps")

        def train_step(self, data):
            logs = OwnStep.train_step(self, data)
            x, y = data
            self.losses_seen.update_state(keras.ops.mean((y - self(x)) ** 2))
            self.steps.update_state(keras.ops.mean(y))
            return logs | {one.name: one.result() for one in (self.losses_seen, self.steps)}

    build = builder(Tracks, [lambda: "mae"])
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    assert_same(train(dl.distribute(build, strategy)), train(alone(build)))


def test_outputs_with_more_rows_than_examples_reach_a_metric_whole():
    def right(y, y_pred):
        return keras.ops.mean(keras.ops.cast(keras.ops.reshape(y, (-1, 1)) * y_pred > 0, "float32"))

    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4, 3))
        outputs = keras.ops.reshape(keras.layers.Dense(1)(inputs), (-1, 1))
        model = keras.Model(inputs, outputs)
        loss = lambda y, p: keras.ops.mean((keras.ops.reshape(y, (-1, 1)) - p) ** 2)  # noqa: E731
        model.compile("adam", loss, metrics=[right])
        return model

    def run(model):
        x = np.random.default_rng(0).normal(size=(EXAMPLES, 4, 3)).astype("float32")
        history = model.fit(x, x.sum(-1), batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        return history.history, model.get_weights()

    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    assert_same(run(dl.distribute(build, strategy)), run(alone(build)))


def test_a_metric_that_adds_up_needs_no_examples_of_others(monkeypatch):
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    asked = []
    gather = tf.distribute.ReplicaContext.all_gather
    monkeypatch.setattr(
        tf.distribute.ReplicaContext,
        "all_gather",
        lambda self, value, axis: asked.append(value.shape) or gather(self, value, axis),
    )
    train(dl.distribute(builder(keras.Model, [RightSigns, RareOnes]), strategy))
    assert not asked
    train(dl.distribute(builder(keras.Model, [LargestError]), strategy))
    assert asked


def test_a_step_that_divides_by_the_replicas_sees_one_device():
    class Divides(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((y - self(x, training=True)) ** 2)
                loss /= tf.distribute.get_strategy().num_replicas_in_sync
                loss /= self.distribute_strategy.num_replicas_in_sync
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"my_loss": loss}

    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:3])
    expected = train(alone(builder(Divides, [])))
    assert_same(train(dl.distribute(builder(Divides, []), strategy)), expected)
    assert strategy.num_replicas_in_sync == 3


def test_the_trial_leaves_variables_alone_that_no_model_knows_of():
    steps, largest = tf.Variable(0), tf.Variable(0.0)

    @tf.custom_gradient
    def noted(x):
        def backward(gradient):
            steps.assign_add(1)
            largest.assign(tf.maximum(largest, tf.reduce_max(tf.abs(gradient))))
            return gradient

        return tf.identity(x), backward

    class Notes(keras.layers.Layer):
        def call(self, x):
            return noted(x)

    def build():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), Notes()])
        model.compile("sgd", "mse")
        return model

    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    model = dl.distribute(build, strategy)
    x = np.ones((4, 4), "float32")
    with pytest.warns(UserWarning, match="a step writes Variable:0 .*each keeps what it wrote"):
        model.fit(x, x[:, :1] * 1000, batch_size=4, epochs=1, shuffle=False, verbose=0)
    assert steps.numpy() == 2, "once a replica, and not in the trial"


def test_a_metric_that_takes_whole_batches_only_gets_them():
    def of_full_batch(y, y_pred):
        rows = keras.ops.reshape(y - y_pred, (BATCH, -1))  # the batch's size, written down
        return keras.ops.max(rows) * keras.ops.ones(BATCH)

    def train_on_full_batches(model):
        x = np.random.default_rng(0).normal(size=(2 * BATCH, 4)).astype("float32")
        history = model.fit(x, x[:, :1], batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        return history.history, model.get_weights()

    build = builder(keras.Model, [lambda: of_full_batch])
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    expected = train_on_full_batches(build())
    assert_same(train_on_full_batches(dl.distribute(build, strategy)), expected)


class CountsInTensorFlow(keras.metrics.Metric):
    """Keeps its numbers where Keras does not see them."""

    def __init__(self):
        super().__init__(name="in_tensorflow")
        self.positive, self.seen = tf.Variable(0.0), tf.Variable(0.0)

    def update_state(self, y, y_pred, sample_weight=None):
        self.positive.assign_add(tf.reduce_sum(tf.cast(y_pred > 0, tf.float32)))
        self.seen.assign_add(tf.cast(tf.size(y_pred), tf.float32))

    def result(self):
        return self.positive + self.seen / 1000

    def reset_state(self):
        self.positive.assign(0.0)
        self.seen.assign(0.0)


class CountsInBoth(CountsInTensorFlow):
    """Also keeps a number where Keras sees it, and more of TensorFlow's in a list."""

    def __init__(self):
        super().__init__()
        self.largest = self.add_weight(name="largest", initializer="zeros")
        self.batches = [tf.Variable(0), [tf.Variable(0.0)]]

    def update_state(self, y, y_pred, sample_weight=None):
        super().update_state(y, y_pred)
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y_pred)))
        self.batches[0].assign_add(1)
        self.batches[1][0].assign_add(keras.ops.mean(y_pred))

    def result(self):
        batches, total = self.batches[0], self.batches[1][0]
        return super().result() + self.largest + total / tf.cast(batches, "float32")

    def reset_state(self):
        super().reset_state()
        self.largest.assign(0.0)
        for one in tf.nest.flatten(self.batches):
            one.assign(tf.zeros_like(one))


@pytest.mark.parametrize("model_class", [keras.Model, OwnStep])
@pytest.mark.parametrize("metric", [CountsInTensorFlow, CountsInBoth])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_metric_that_counts_in_variables_of_tensorflow(model_class, metric, replicas):
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:replicas])
    build = builder(model_class, [metric])
    assert_same(train(dl.distribute(build, strategy)), train(alone(build)))


def test_variables_of_tensorflow_that_say_how_replicas_add_up_are_left_to_it():
    def make():
        metric = CountsInTensorFlow()
        for name in ("positive", "seen"):
            setattr(metric, name, tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM))
        return metric

    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    build = builder(keras.Model, [make])
    assert_same(train(dl.distribute(build, strategy)), train(alone(build)))


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_a_variable_of_tensorflow_without_a_copy_for_each_replica_is_refused(kind):
    metric = CountsInTensorFlow()
    made_in = {"mirrored": lambda: metric, "central_storage": CountsInTensorFlow}
    strategy = dl.make_strategy(kind, devices=dl.split_devices(4)[:2])
    model = dl.distribute(builder(keras.Model, [made_in[kind]]), strategy)
    with pytest.raises(dl.errors.ModelError) as caught:
        train(model)
    assert (
        "the metric 'in_tensorflow' with a tf.Variable (positive, seen), of which the replicas do "
        "not have a copy each" in str(caught.value)
    )
    assert "make the variable with self.add_weight, and the metric inside build()" in str(
        caught.value
    )
