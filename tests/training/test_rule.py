"""The rule's own corners: what it replaces, what it is told, and what it finds."""

import inspect
import random
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import distlab as dl
from distlab.errors import InvalidArgument
from distlab.training.keras_private import runs
from distlab.training.keras_private.registry import DECLARED, declared_in, described
from distlab.training.rule import replaced
from distlab.training.rule.layers import sees_whole
from tests.support.distribution import pair, strategy_of
from tests.support.parity import differences
from tests.training.cases.case import (
    ONE_LEFT,
    SGD,
    CrossEntropy,
    X,
    Y,
    batches,
    compile_model,
    network,
)
from tests.training.cases.steps import Net, net
from tests.training.cases.whole_batches import Conditional

TRAINS_BEFORE_AND_AFTER = """
import keras, numpy as np, tensorflow as tf
from distlab.training.keras_private.registry import DECLARED
from distlab.training.rule.replaced import install

def train():
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((8,)), layers.Dense(6, activity_regularizer="l2"), layers.BatchNormalization(),
        layers.Dropout(0.5), layers.Lambda(lambda x: x - keras.ops.mean(x, 0)), layers.Dense(4),
    ])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW(clipnorm=0.1))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = np.random.default_rng(0).normal(size=(20, 8)), np.arange(20) % 4
    logs = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history
    return [*model.get_weights(), *logs.values()]

before = train()
places = [each.place() for each in DECLARED]
originals = [getattr(owner, name, None) for owner, name in places]
install()
install()
after = train()
assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
assert all(getattr(o, n) is not f for (o, n), f in zip(places, originals, strict=True))
names = {"tf": tf}
exec("f = tf.function(lambda x: x + 1, autograph=False)", names)  # of no module
assert int(names["f"](1)) == 2
print("alike", len(places))
"""


def test_outside_of_a_distributed_step_all_that_is_replaced_does_what_it_did(run_python):
    assert f"alike {len(DECLARED)}" in run_python(TRAINS_BEFORE_AND_AFTER, warm=True)


def fit(model, data=None, **options):
    data = batches(X, Y) if data is None else data
    return model.fit(data, **{"epochs": 2, "verbose": 0, "shuffle": False, **options}).history


def difference(plain, model):
    return max(differences(({}, plain.weights), ({}, model.weights)).values())


def normalised():
    return network(layers.BatchNormalization(), layers.Dense(4))


def test_statistics_of_each_replicas_own_rows_agree_on_every_replica():
    plain, model = pair(normalised, batch_norm="replica")
    fit(plain, batches(X[ONE_LEFT], Y[ONE_LEFT])), fit(model, batches(X[ONE_LEFT], Y[ONE_LEFT]))
    assert difference(plain, model) > 1e-3, "they are not those of the whole batch"
    norm, expected = model.layers[0], plain.layers[0].moving_mean
    np.testing.assert_allclose(
        norm.moving_mean.numpy(), expected.numpy(), atol=1e-6, err_msg="each example counts once"
    )
    for variable in norm.weights:
        copies = model.distribute_strategy.experimental_local_results(variable.value)
        first, *others = (copy.numpy() for copy in copies)
        assert np.isfinite(first).all(), "a replica without an example leaves them alone"
        for other in others:
            np.testing.assert_allclose(other, first, atol=1e-6)


def test_another_choice_is_refused():
    with pytest.raises(InvalidArgument, match="did you mean 'global'"):
        dl.distribute(normalised, strategy_of("mirrored", 2), batch_norm="globl")


def squares(y, y_pred):
    return ops.square(y_pred - ops.cast(ops.reshape(y, (-1, 1)), "float32"))


INNER = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SCALE = np.arange(12, dtype="float32")[:, None]
# Losses, and whether they get own rows.
LOSSES = {
    "a value for each row": (lambda y, p: ops.mean(squares(y, p), -1), True),
    "several for each row": (squares, True),
    "a mean": (lambda y, p: ops.mean(squares(y, p)), True),
    "of means and constants": (
        lambda y, p: 3 - 2 * ops.mean(-squares(y, p)) / 4 + ops.mean(p),
        True,
    ),
    "with noise": (lambda y, p: squares(y, p + keras.random.normal(ops.shape(p))), True),
    "a root of a mean": (lambda y, p: ops.sqrt(ops.mean(squares(y, p))), False),
    "a mean in whole numbers": (
        lambda y, p: (
            ops.mean(squares(y, p)) * 0.1 + ops.cast(ops.cast(ops.mean(p) * 9, "int32"), "float32")
        ),
        False,
    ),
    "a product of means": (lambda y, p: ops.mean(squares(y, p)) * ops.mean(p**2), False),
    "a sum": (lambda y, p: ops.sum(squares(y, p)) / 100, False),
    "of the batch's mean": (lambda y, p: squares(y, p - ops.mean(p, 0)), False),
    "of what Keras gives": (lambda y, p: INNER(y, p) ** 2, False),
    "of other tensors": (lambda y, p: SCALE * squares(y, p), False),
    "of a size that is known": (lambda y, p: squares(y, ops.reshape(p, (12, 4))), False),
}


def test_a_loss_of_ones_own_gets_own_rows_where_it_adds_up():
    """One model with an output for each loss, which is its metric too."""
    losses = {f"loss_{number}": loss for number, (loss, _) in enumerate(LOSSES.values())}

    def build():
        inputs = keras.Input((8,))
        outputs = {name: layers.Dense(4, name=name)(inputs) for name in losses}
        metrics = {name: [loss] for name, loss in losses.items()}
        return compile_model(keras.Model(inputs, outputs), loss=losses, weighted_metrics=metrics)

    plain, model = pair(build)
    data = tf.data.Dataset.from_tensor_slices((X[:24], dict.fromkeys(losses, Y[:24])))
    data = data.batch(12, drop_remainder=True)
    dl.set_seed(4)  # of what one of them draws
    expected = fit(plain, data)
    dl.set_seed(4)
    found = fit(model, data)
    assert difference(plain, model) < 1e-6
    assert {name: pytest.approx(values, rel=1e-5) for name, values in expected.items()} == found
    compiled = [each.loss for each in model._compile_loss._flat_losses]
    own = [not vars(loss).get("_distlab_sees_whole", False) for loss in compiled]
    assert dict(zip(LOSSES, own, strict=True)) == {name: rows for name, (_, rows) in LOSSES.items()}


class Centred(layers.Layer):
    def call(self, x):
        return x - ops.mean(x, axis=0)


class CentredByOwnRows(Centred):
    whole_batch = False


@pytest.mark.parametrize("eager", [False, True], ids=["traced", "eager"])
def test_a_layer_is_believed_what_it_says_of_itself(eager):
    """Eagerly every replica computes the whole batch, whatever a layer says."""
    for kind, is_equal in ((Centred, True), (CentredByOwnRows, False)):
        make = lambda kind=kind: network(  # noqa: E731
            layers.Dense(6), kind(), layers.Dense(4), optimizer=SGD(0.1), run_eagerly=eager
        )
        plain, model = pair(make)
        fit(plain, epochs=1), fit(model, epochs=1)
        assert (difference(plain, model) < 1e-6) == (is_equal or eager)


def test_a_description_of_a_model_lists_the_layers_that_get_the_whole_batch():
    _, model = pair(lambda: network(layers.Dense(6), Centred(name="centred"), layers.Dense(4)))
    fit(model, epochs=1)
    assert dl.describe(model).whole_batch == ("centred",)
    assert repr(dl.describe(model)).endswith("whole-batch centred")
    assert dl.describe(model.distribute_strategy).whole_batch is None


class DrawsInALayer(layers.Layer):
    def call(self, x):
        return tf.nn.dropout(x, 0.3) + 0.1 * tf.random.normal(tf.shape(x))


class DrawsByAHiddenState(Net):
    """In a layer, in the step, and the classes that a sampled softmax looks at."""

    def begin(self):
        self.noise = DrawsInALayer()

    def loss_of(self, x, y):
        hidden = self.hidden(self.noise(x + tf.random.uniform(tf.shape(x))))
        columns = tf.transpose(tf.convert_to_tensor(self.head.kernel))
        sampled = tf.nn.sampled_softmax_loss(
            columns, tf.convert_to_tensor(self.head.bias), y[:, None], hidden, 2, 4
        )
        return tf.reduce_mean(sampled) + super().loss_of(x, y)


def test_what_a_hidden_state_draws_does_not_depend_on_the_number_of_replicas():
    """The numbers are not plain Keras's, whose graph of a step has other draws in it."""

    def build():
        keras.utils.set_random_seed(3)
        return net(DrawsByAHiddenState)

    models = [dl.distribute(build, strategy_of("mirrored", replicas)) for replicas in (1, 2, 3)]
    for model in models:
        dl.set_seed(5)
        fit(model)
    for model in models[1:]:
        assert difference(models[0], model) < 1e-6


def test_the_list_of_what_is_replaced_says_what_each_does():
    declared = declared_in(runs, *replaced.PARTS)
    lines = described(declared).splitlines()
    assert len(lines) == len(declared) == len(DECLARED) > 60
    names, _, texts = zip(*(re.split(r"  +", line) for line in lines), strict=True)
    assert len(set(names)) == len(names), "each name is replaced once"
    assert all(text.endswith(".") for text in texts)


@pytest.mark.parametrize("draws", [False, True], ids=["draws nothing", "draws"])
def test_pythons_generator_is_drawn_from_as_often_as_by_plain_keras(draws):
    """Keras draws a number from it where a generator without a seed is first used."""

    def noise(x):
        return x + keras.random.normal(ops.shape(x)) if draws else x * 2

    def make():
        return network(layers.Lambda(noise), layers.Dense(4))

    left = []
    for model in pair(make):
        dl.set_seed(7)
        fit(model)
        left.append(random.random())
    assert left[0] == left[1]


INTERRUPTS = []


def test_the_one_replica_of_a_mirrored_strategy_updates_in_a_condition_too():
    def build():
        return net(Conditional, optimizer=keras.optimizers.AdamW(1e-2, weight_decay=0.1))

    plain, model = pair(build, replicas=1)
    fit(plain), fit(model)
    assert difference(plain, model) < 1e-6


IMAGES = np.random.default_rng(0).uniform(size=(4, 8, 8, 3)).astype("float32")
OTHERS = np.concatenate([IMAGES[:1], 1 - IMAGES[1:-1], IMAGES[-1:]])
ARGUMENTS = {
    **dict.fromkeys(("height", "width", "output_size"), 6),
    **dict.fromkeys(("height_factor", "width_factor"), 0.2),
    "factor": 0.5,
    "value_range": (0, 1),
}
LEFT_OUT = ("AugMix", "MaxNumBoundingBoxes")  # the one is refused, the other takes no images


def image_layers():
    for name, kind in vars(layers).items():
        if hasattr(kind, "get_random_transformation") and name not in LEFT_OUT:
            taken = inspect.signature(kind).parameters
            given = {key: value for key, value in ARGUMENTS.items() if key in taken}
            yield kind(**given | ({"factor": 4} if name == "RandomPosterization" else {}))


def test_layers_of_keras_keep_images_apart_or_are_known_not_to():
    mixing = []
    keras.utils.set_random_seed(1)
    for layer in image_layers():
        call = tf.function(lambda x: layer(x, training=True), autograph=False)  # noqa: B023
        call = call.get_concrete_function(tf.TensorSpec((None, 8, 8, 3)))
        before = [variable.numpy() for variable in layer.variables]
        first = call(tf.constant(IMAGES))
        for variable, value in zip(layer.variables, before, strict=True):
            variable.assign(value)
        alike = np.isclose(first, call(tf.constant(OTHERS)), atol=1e-5)
        if not (alike[0].all() and alike[-1].all()):
            mixing.append(layer)
    assert all(map(sees_whole, mixing)), mixing
    assert mixing, "those that shuffle images do"


class Summarised(Net):
    """Writes what TensorBoard shows."""

    def train_step(self, data):
        logs = super().train_step(data)
        step = tf.cast(self.optimizer.iterations, tf.int64)
        with self.writer.as_default():
            tf.summary.scalar("loss", logs["loss"], step)
        return logs


def test_a_summary_in_a_step_is_written_once_with_the_number_of_the_whole_batch(tmp_path):
    def events(folder, model):
        model.writer = tf.summary.create_file_writer(str(folder))
        fit(model)
        model.writer.close()
        (file,) = folder.iterdir()
        _, *written = tf.compat.v1.train.summary_iterator(str(file))
        losses = [float(tf.make_ndarray(each.summary.value[0].tensor)) for each in written]
        return [each.step for each in written], losses

    plain, model = pair(lambda: net(Summarised, loss=CrossEntropy()))
    (steps, losses), found = events(tmp_path / "one", plain), events(tmp_path / "three", model)
    assert len(steps) > 4
    assert found == (steps, pytest.approx(losses, rel=1e-5))


class Interrupted(Net):
    """On a replica, is interrupted after it has looked at outputs that were only promised."""

    def loss_of(self, x, y):
        out = self(x)
        if tf.distribute.has_strategy() and tf.distribute.get_replica_context() and INTERRUPTS:
            tf.reduce_sum(out)
            raise INTERRUPTS.pop()
        return self.mean_loss(y, out)


def test_an_interrupt_while_a_step_is_traced_ends_fit():
    _, model = pair(lambda: net(Interrupted))
    INTERRUPTS.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        fit(model)
    assert INTERRUPTS == []
    assert len(fit(model)["loss"]) == 2, "and the next one trains"


def test_an_interrupt_in_a_loss_of_ones_own_ends_fit():
    def interrupted(y, y_pred):
        if tf.distribute.has_strategy() and tf.distribute.get_replica_context() and INTERRUPTS:
            raise INTERRUPTS.pop()
        return squares(y, y_pred)

    model = dl.distribute(
        lambda: network(layers.Dense(4), loss=interrupted), strategy_of("mirrored", 2)
    )
    INTERRUPTS.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        fit(model)
    assert len(fit(model)["loss"]) == 2, "and the next one trains"
