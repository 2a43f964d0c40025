"""What a step uses and no attribute of the model shows takes the steps of one device, too."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import ModelError
from tests.support.distribution import X, Y, strategy_of
from tests.training.test_distribute_models import assert_equal_to_one_device
from tests.training.test_distribute_own_step import assert_equal, in_order
from tests.training.test_distribute_unusual_steps import Net, building, equal


class InTwoParts(keras.optimizers.Optimizer):
    """Gives the first layer to one optimizer, and the last one to a second."""

    def __init__(self):
        super().__init__(learning_rate=0.1, name="in_two_parts")
        self.parts = [keras.optimizers.SGD(0.3), keras.optimizers.SGD(0.1)]

    def build(self, variables):
        super().build(variables)
        self.parts[0].build(variables[:2])
        self.parts[1].build(variables[2:])

    def apply_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        self.parts[0].apply_gradients(pairs[:2])
        self.parts[1].apply_gradients(pairs[2:])
        self.iterations.assign_add(1)

    def update_step(self, gradient, variable, learning_rate):
        raise AssertionError("its parts take the step")


@pytest.mark.parametrize("steps", [True, False], ids=["own step", "Keras's step"])
def test_optimizers_inside_an_optimizer_do_not_sum_again(steps):
    equal(Net, steps=steps, optimizer=InTwoParts)


class WithBag(Net):
    """Its optimizer is in an object of which Keras knows nothing."""

    def learn(self, tape, loss):
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.bag.optimizer.apply_gradients(zip(gradients, weights, strict=True))


def test_an_optimizer_in_an_object_of_the_users_does_not_sum_again():
    def build():
        model = building(WithBag)()
        model.bag = types.SimpleNamespace(optimizer=keras.optimizers.SGD(0.3))
        return model

    assert_equal(build, in_order(), "mirrored", 3, validation_data=None)


@tf.function
def halved_if_large(number):
    if number > 0.01:
        number = number * 0.5
    return number


class ByFunction(Net):
    """Decides by the value of a tensor, in a function that is compiled by itself."""

    def loss_of(self, x, y):
        return halved_if_large(self.mean_loss(y, self(x, training=True)))


def test_a_function_of_tensorflow_in_a_step_may_decide_by_values():
    equal(ByFunction)


def test_a_compiled_call_may_decide_by_values():
    class Limited(Net):
        @tf.function
        def call(self, x):
            outputs = self.head(self.hidden(x))
            if tf.reduce_max(tf.abs(outputs)) > 1e3:
                outputs = outputs * 0.5
            return outputs

    assert_equal_to_one_device(building(Limited, steps=False), in_order())


class StartingAgain(Net):
    """Logs the accuracy of the last batch only."""

    def begin(self):
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    def log(self, x, y, loss):
        self.accuracy.reset_state()
        self.accuracy.update_state(y, self(x))
        return {"accuracy": self.accuracy.result()}


def test_a_metric_that_is_reset_in_the_step_is_reset_on_a_replica_without_an_example():
    data = in_order(X[:33], Y[:33])  # the last batch has one example
    equal(StartingAgain, data)


class Noisy(Net):
    def loss_of(self, x, y):
        return self.mean_loss(y, self(x + 0.1 * tf.random.normal(tf.shape(x))))


def test_parity_of_a_step_that_draws_where_a_replica_has_no_example():
    data = in_order(X[:33], Y[:33])
    report = dl.check_parity(building(Noisy), data, strategy=strategy_of("mirrored", 3))
    assert report.equal, report


# Labels that a step gives in a different form


class ByIndex(Net):
    """Learns from one-hot labels, by their indices."""

    def train_step(self, data):
        x, y = data
        y = tf.argmax(y, axis=-1)
        super().train_step((x, y))
        return self.compute_metrics(x, y, self(x))


ONE_HOT = np.eye(4, dtype="float32")[Y]


def test_accuracy_that_keras_chose_by_the_labels_of_the_data_is_refused():
    model = dl.distribute(building(ByIndex, metrics=["accuracy"]), strategy_of("mirrored", 2))
    with pytest.raises(ModelError) as refused:
        model.fit(in_order(X, ONE_HOT), verbose=0)
    assert str(refused.value).splitlines() == [
        "metrics=['accuracy'], with a step of the model's own",
        "  found: labels of shape (32,) from the step, and CategoricalAccuracy, which Keras has "
        "chosen by the data's labels",
        "  to do: compile with keras.metrics.SparseCategoricalAccuracy(name='accuracy')",
    ]


def test_the_accuracy_that_the_error_names_is_that_of_one_device():
    def build():
        metric = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        return building(ByIndex, metrics=[metric])()

    assert_equal(build, in_order(X, ONE_HOT), "mirrored", 3, validation_data=None)


# Losses and metrics of Keras that go over the examples


NUMBERS = np.linspace(-1, 1, len(X), dtype="float32")[:, None]


def one_output(**compiled):
    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), **compiled)
        return model

    return build


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize(
    "metric",
    [
        lambda: keras.metrics.PearsonCorrelation(axis=0),
        lambda: keras.metrics.ConcordanceCorrelation(axis=None),
        lambda: keras.metrics.CosineSimilarity(axis=0),
    ],
    ids=["pearson", "concordance", "cosine"],
)
def test_a_metric_of_kerass_over_the_examples_gets_all_of_them(metric, replicas):
    def build():
        return one_output(loss="mse", metrics=[metric()])()

    assert_equal_to_one_device(build, in_order(X, NUMBERS), replicas=replicas)


def test_a_loss_of_kerass_over_the_examples_is_named_and_can_be_gathered():
    def build():
        return one_output(loss=keras.losses.CosineSimilarity(axis=0))()

    data, strategy = in_order(X, NUMBERS), strategy_of("mirrored", 2)
    with pytest.warns(UserWarning, match="the loss 'cosine_similarity' looks at the batch as a"):
        dl.distribute(build, strategy).fit(data, verbose=0)
    gathered = dl.distribute(build, strategy, batch_losses="gather")
    plain = build()
    for model in (gathered, plain):
        model.fit(data, epochs=2, verbose=0, shuffle=False)
    for one, other in zip(gathered.weights, plain.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-6)
