"""Everyday code that was once trained wrongly without a word, or stopped, takes the right steps."""

import contextlib
import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import InvalidArgument, ModelError
from distlab.training.trial.look import Trial
from distlab.training.variables import name_optimizer
from tests.support.distribution import BATCH, LOSS, X, Y, alone, strategy_of
from tests.training.test_distribute_models import (
    BOTH,
    TOKENS,
    assert_equal_to_one_device,
    dense,
    in_order,
    sequential,
)


def nested(y, p):
    return LOSS()(y, p) + keras.losses.MeanSquaredError()(keras.ops.one_hot(y, 4), p)


@BOTH
def test_a_keras_loss_that_a_loss_function_calls(kind):
    build = sequential(dense(), loss=nested, optimizer=lambda: keras.optimizers.SGD(0.1))
    assert_equal_to_one_device(build, in_order(), kind, 3)


class Endpoint(keras.layers.Layer):
    """A layer that takes the targets, adds the loss and keeps a metric, as keras.io shows it."""

    def __init__(self):
        super().__init__()
        self.loss_of = LOSS()
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, inputs):
        logits, targets = inputs
        loss = self.loss_of(targets, logits)
        self.add_loss(loss)
        self.seen.update_state(loss)
        return logits


@BOTH
def test_a_keras_loss_that_a_layer_calls(kind):
    def build():
        keras.utils.set_random_seed(3)
        x, y = keras.Input((8,), name="x"), keras.Input((), dtype="int32", name="y")
        outputs = Endpoint()([keras.layers.Dense(4)(x), y])
        model = keras.Model({"x": x, "y": y}, outputs)
        model.compile(keras.optimizers.SGD(0.1))
        return model

    data = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(32)
    assert_equal_to_one_device(build, data, kind, 3)


class Positions(keras.layers.Layer):
    def __init__(self, tiled=False):
        super().__init__()
        self.tiled = tiled
        self.tokens = keras.layers.Embedding(5, 6)
        self.places = keras.layers.Embedding(6, 6)

    def call(self, x):
        places = keras.ops.arange(keras.ops.shape(x)[1])
        if self.tiled:  # then one device has a row for each occurrence
            places = keras.ops.zeros_like(x) + keras.ops.cast(places, x.dtype)
        return self.tokens(x) + self.places(places)


@BOTH
@pytest.mark.parametrize("optimizer", ["Adam", "RMSprop", "Adagrad", "SGD"])
def test_an_embedding_of_positions_under_an_optimizer_that_squares_gradients(kind, optimizer):
    build = sequential(
        Positions,
        keras.layers.GlobalAveragePooling1D,
        dense(),
        shape=(6,),
        optimizer=lambda: getattr(keras.optimizers, optimizer)(1e-2),
    )
    assert_equal_to_one_device(build, in_order(TOKENS, Y), kind, 3)


def test_an_embedding_of_positions_that_are_tiled_over_the_batch():
    build = sequential(
        lambda: Positions(tiled=True),
        keras.layers.GlobalAveragePooling1D,
        dense(),
        shape=(6,),
        optimizer=lambda: keras.optimizers.Adam(1e-2),
    )
    assert_equal_to_one_device(build, in_order(TOKENS, Y), replicas=3)


class Counted(keras.metrics.Metric):
    """Its result is its variable."""

    def __init__(self):
        super().__init__(name="counted")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

    def result(self):
        return self.total


@pytest.mark.parametrize("verbose", [0, 1])
def test_a_metric_whose_result_is_its_variable(verbose):
    def counting():
        model = sequential(dense())()
        model.compile(keras.optimizers.SGD(0.1), LOSS(), metrics=[Counted()])
        return model

    model = dl.distribute(counting, strategy_of("mirrored", 2))
    history = model.fit(in_order(), epochs=2, verbose=verbose).history
    assert [float(value) for value in history["counted"]] == [73.0, 73.0]
    assert not any(isinstance(value, tf.Variable) for value in history["counted"])


def sum_of_squares(y_true, y_pred):
    return keras.ops.sum((keras.ops.one_hot(y_true, 4) - y_pred) ** 2)


@BOTH
def test_a_loss_function_that_adds_up_over_the_batch(kind):
    build = sequential(dense(), loss=sum_of_squares, optimizer=lambda: keras.optimizers.SGD(1e-3))
    assert_equal_to_one_device(build, in_order(), kind, 3)


def test_a_sum_stays_one_in_a_second_trial():
    build = sequential(dense(), loss=sum_of_squares, optimizer=lambda: keras.optimizers.SGD(1e-3))
    plain, model = alone(build), dl.distribute(build, strategy_of("mirrored", 2))
    for one in (plain, model):
        one.logs = [one.evaluate(in_order(), verbose=0)]
        stops = keras.callbacks.TerminateOnNaN()  # with it, the step is made anew
        for callbacks in ([], [stops]):
            data = {"validation_data": in_order(), "shuffle": False}
            history = one.fit(in_order(), verbose=0, callbacks=callbacks, **data).history
            one.logs += [history["loss"][0], history["val_loss"][0]]
    np.testing.assert_allclose(model.logs, plain.logs, rtol=1e-5)
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6)


# Keras multiplies a sum by the mean weight: only with equal weights is the product a sum, too.
WEIGHTED = np.full(BATCH, 2, "float32")


@pytest.mark.parametrize(
    ("prepare", "options"),
    [
        (np.asarray, {}),
        (tf.constant, {}),
        (np.asarray, {"sample_weight": WEIGHTED}),
        (tf.constant, {"sample_weight": WEIGHTED}),
        (np.asarray, {"class_weight": dict.fromkeys(range(4), 2.0)}),
    ],
    ids=["arrays", "tensors", "weighted arrays", "weighted tensors", "classes"],
)
@pytest.mark.parametrize("first", [BATCH, 1])
def test_a_sum_in_single_batches_and_in_the_fit_that_follows(first, prepare, options):
    build = sequential(dense(), loss=sum_of_squares, optimizer=lambda: keras.optimizers.SGD(1e-3))
    plain, model = alone(build), dl.distribute(build, strategy_of("mirrored", 3))
    for one in (plain, model):
        one.logs = []
        for rows in (first, BATCH, 7):
            weights = {
                name: value[:rows] if name == "sample_weight" else value
                for name, value in options.items()
            }
            one.logs.append(one.train_on_batch(prepare(X[:rows]), prepare(Y[:rows]), **weights))
        one.logs += one.fit(in_order(), epochs=2, verbose=0, shuffle=False).history["loss"]
    np.testing.assert_allclose(model.logs, plain.logs, rtol=1e-5)
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6)


@pytest.mark.parametrize("first", [BATCH, 1])
def test_a_sum_in_a_single_batch_and_in_the_evaluation_that_follows(first):
    build = sequential(dense(), loss=sum_of_squares)
    logs = [
        [one.test_on_batch(X[:first], Y[:first]), one.evaluate(in_order(), verbose=0)]
        for one in (alone(build), dl.distribute(build, strategy_of("mirrored", 2)))
    ]
    np.testing.assert_allclose(*logs, rtol=1e-5)


def test_data_whose_first_batch_shows_nothing_are_tried_with_the_next():
    build = sequential(dense(), loss=sum_of_squares, optimizer=lambda: keras.optimizers.SGD(1e-3))
    data = in_order(X[:1], Y[:1]).concatenate(in_order())
    assert_equal_to_one_device(build, data, replicas=3)


def test_a_sum_and_a_mean_in_two_compiled_losses():
    def build():
        keras.utils.set_random_seed(3)
        x = keras.Input((8,))
        a = keras.layers.Dense(4, name="a")(x)
        b = keras.layers.Dense(4, name="b")(x)
        model = keras.Model(x, {"a": a, "b": b})
        model.compile(keras.optimizers.SGD(1e-3), loss={"a": sum_of_squares, "b": nested})
        return model

    assert_equal_to_one_device(build, in_order(X, {"a": Y, "b": Y}), replicas=3)


@BOTH
@pytest.mark.parametrize("weighs", [False, True], ids=["unweighted", "weighted"])
def test_outputs_without_a_second_axis_and_weights_of_examples(kind, weighs):
    def build():
        keras.utils.set_random_seed(3)
        inputs = keras.Input((8,))
        model = keras.Model(inputs, keras.ops.squeeze(keras.layers.Dense(1)(inputs), -1))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    weights = np.linspace(0.1, 3, len(X), dtype="float32")
    parts = (X, Y.astype("float32"), *([weights] if weighs else []))
    data = tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)
    assert_equal_to_one_device(build, data, kind, 3)


def test_weights_of_classes_for_outputs_without_a_second_axis():
    def build():
        keras.utils.set_random_seed(3)
        inputs = keras.Input((8,))
        outputs = keras.ops.squeeze(keras.layers.Dense(1, activation="sigmoid")(inputs), -1)
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
        return model

    fit = {"batch_size": BATCH, "verbose": 0, "shuffle": False, "class_weight": {0: 1.0, 1: 9.0}}
    plain, model = build(), dl.distribute(build, strategy_of("mirrored", 3))
    labels = (Y > 1).astype("float32")
    expected, found = (one.fit(X, labels, **fit).history["loss"] for one in (plain, model))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6)


def mean_over_all(y_true, y_pred):
    """A mean over examples and steps, which does not look at a mask."""
    return keras.ops.mean(keras.ops.square(keras.ops.cast(y_true, "float32") - y_pred))


def test_a_mean_of_ones_own_over_masked_outputs(recwarn):
    def build():
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Embedding(6, 4, mask_zero=True), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])
        model.compile(keras.optimizers.SGD(0.5), mean_over_all)
        return model

    draw = np.random.default_rng(0)
    tokens = draw.integers(0, 6, (40, 5))
    tokens[:11] = draw.integers(1, 6, (11, 5))  # the first batch has no padding
    targets = draw.normal(size=(40, 5, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((tokens, targets)).batch(11)
    assert_equal_to_one_device(build, data, replicas=2)
    assert not [one for one in recwarn if "as a whole" in str(one.message)]


# Losses of the batch as a whole


def pairs(y_true, y_pred):
    """Every example against every other: examples of one class should be near."""
    features = keras.ops.normalize(y_pred, axis=-1)
    alike = keras.ops.cast(keras.ops.equal(y_true[:, None], y_true[None, :]), "float32")
    return keras.ops.mean((features @ keras.ops.transpose(features) - alike) ** 2)


def ratio(y_true, y_pred):
    """A sum over the examples that count, divided by their number."""
    counts = keras.ops.cast(keras.ops.equal(y_true, 1), "float32")
    losses = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    return keras.ops.sum(losses * counts) / (keras.ops.sum(counts) + 1e-6)


BATCHWISE = pytest.mark.parametrize("loss", [pairs, ratio])


@BATCHWISE
def test_a_loss_of_the_batch_as_a_whole_is_named_once_with_its_size(loss):
    model = dl.distribute(sequential(dense(), loss=loss), strategy_of("mirrored", 2))
    with pytest.warns(UserWarning) as warned:
        model.fit(in_order(), epochs=2, verbose=0)
    texts = [str(one.message) for one in warned if "as a whole" in str(one.message)]
    assert len(texts) == 1
    assert f"the loss '{loss.__name__}' looks at the batch as a whole" in texts[0]
    assert "differs by" in texts[0]
    assert 'batch_losses="gather"' in texts[0]


def test_another_loss_of_the_same_name_is_named_too():
    first, second = (lambda y, y_pred: pairs(y, y_pred)), (lambda y, y_pred: ratio(y, y_pred))
    model = dl.distribute(sequential(dense(), loss=first), strategy_of("mirrored", 2))
    for loss in (first, second):
        model.compile("sgd", loss)
        with pytest.warns(UserWarning, match="the loss 'lambda' looks at the batch as a whole"):
            model.fit(in_order(), verbose=0)


@pytest.mark.parametrize("name", ["dice", "tversky"])
def test_a_loss_of_kerass_for_the_batch_is_known_by_its_name(name):
    outputs = dense(1, activation="sigmoid")
    data = in_order(X, (Y[:, None] > 1).astype("float32"))
    model = dl.distribute(sequential(outputs, loss=name), strategy_of("mirrored", 2))
    with pytest.warns(UserWarning, match=f"the loss '{name}' looks at the batch as a whole"):
        model.fit(data, verbose=0)
    assert_gathered(sequential(outputs, loss=name), data)


def mean_of_squares(activations):
    return 0.5 * keras.ops.mean(keras.ops.square(activations))


def divided(features):
    return features / keras.ops.max(keras.ops.abs(features))


def centred(outputs):
    inputs = keras.Input((8,))
    features = keras.layers.Dense(5)(inputs)
    features = features - keras.ops.mean(features, axis=0, keepdims=True)
    return keras.Model(inputs, outputs(features))


@pytest.mark.parametrize(
    "model",
    [
        lambda outputs: keras.Sequential(
            [keras.layers.Dense(5, activity_regularizer=mean_of_squares), outputs]
        ),
        lambda outputs: keras.Sequential([keras.layers.Lambda(divided), outputs]),
        lambda outputs: keras.Sequential([keras.layers.Dense(5, activation=divided), outputs]),
        centred,
    ],
    ids=["a regulariser of activations", "a Lambda layer", "an activation", "operations"],
)
def test_code_of_ones_own_in_keras_layers_is_looked_at(model):
    def build():
        made = model(keras.layers.Dense(4))
        made.compile("sgd", LOSS())
        return made

    with pytest.warns(UserWarning, match="looks at the batch as a whole"):
        dl.distribute(build, strategy_of("mirrored", 2)).fit(in_order(), verbose=0)


def of_features(compute):
    def build():
        keras.utils.set_random_seed(3)
        inputs = keras.Input((8,))
        features = compute(keras.layers.Dense(6)(inputs))
        outputs = keras.layers.Dense(4)(keras.layers.Flatten()(features))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.1), LOSS())
        return model

    return build


def two_by_three(then):
    return lambda features: then(keras.layers.Reshape((2, 3))(features))


def layer(kind, **options):
    return lambda features: kind(**options)(features)


def twice(kind, **options):
    return lambda features: kind(**options)([features, features])


def differences(features):
    return keras.layers.GlobalAveragePooling1D()(features - keras.layers.Reshape((1, 6))(features))


def with_softmax(features):
    return keras.layers.Dense(6, activation=keras.layers.Softmax(axis=0))(features)


OVER_EXAMPLES = {
    "the first example": lambda features: features * features[0],
    "the first example of a new axis": lambda features: features - features[None, :][:, 0],
    "the last example": two_by_three(lambda features: features * features[-1, ..., :1]),
    "differences of examples": differences,
    "softmax": layer(keras.layers.Softmax, axis=0),
    "softmax from the end": layer(keras.layers.Softmax, axis=-2),
    "softmax of two axes": two_by_three(layer(keras.layers.Softmax, axis=(0, 1))),
    "softmax as an activation": with_softmax,
    "a norm": layer(keras.layers.UnitNormalization, axis=0),
    "a norm of two axes": two_by_three(layer(keras.layers.UnitNormalization, axis=[-3, 1])),
}


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("case", OVER_EXAMPLES)
def test_what_keras_brings_and_goes_over_the_examples_is_looked_at(case, replicas):
    data = tf.data.Dataset.from_tensor_slices((X[:27], Y[:27])).batch(11)
    model = dl.distribute(of_features(OVER_EXAMPLES[case]), strategy_of("mirrored", replicas))
    with pytest.warns(UserWarning, match="looks at the batch as a whole"):
        model.fit(data, verbose=0)


OF_EACH_EXAMPLE = {
    "columns": lambda features: features[:, :3] + features[0:, 3:] * 2.0,
    "rows": two_by_three(lambda features: features[:, 0] - features[..., 1, :]),
    "a new axis": two_by_three(lambda features: features / (features[..., None, 0] + 7.0)),
    "softmax": layer(keras.layers.Softmax),
    "softmax of two axes": two_by_three(layer(keras.layers.Softmax, axis=(1, 2))),
    "a norm": layer(keras.layers.UnitNormalization, axis=1),
    "layer norm": two_by_three(layer(keras.layers.LayerNormalization, axis=[-2, -1])),
    "batch norm": two_by_three(layer(keras.layers.BatchNormalization, axis=1)),
    "concatenated": two_by_three(twice(keras.layers.Concatenate, axis=1)),
    "dot": two_by_three(twice(keras.layers.Dot, axes=(1, 1))),
}


@pytest.mark.parametrize("case", OF_EACH_EXAMPLE)
def test_what_keras_brings_and_keeps_examples_apart_needs_no_trial(case):
    model = dl.distribute(of_features(OF_EACH_EXAMPLE[case]), strategy_of("mirrored", 2))
    assert not Trial(model, "train_step").is_needed()


def test_a_layer_that_draws_as_no_trial_can_repeat_is_not_said_to_look_at_the_batch():
    class Drops(keras.layers.Layer):
        def call(self, inputs, training=False):
            return tf.nn.dropout(inputs, 0.3) if training else inputs

    model = dl.distribute(sequential(Drops, dense()), strategy_of("mirrored", 2))
    with pytest.warns(UserWarning) as warned:
        model.fit(in_order(), epochs=2, verbose=0)
    said = " ".join(str(one.message) for one in warned)
    assert "it draws random numbers by functions of TensorFlow that a trial cannot repeat" in said
    assert "as a whole" not in said


def test_a_loss_that_keeps_a_keras_variable_is_told_of():
    class Scaled(keras.losses.Loss):
        def __init__(self):
            super().__init__()
            self.size = keras.Variable(1.0, trainable=False, name="size")

        def call(self, y, y_pred):
            losses = keras.ops.mean(keras.ops.square(y_pred), -1)
            self.size.assign(0.5 * self.size + 0.5 * keras.ops.mean(losses))
            return losses / self.size

    model = dl.distribute(sequential(dense(), loss=Scaled()), strategy_of("mirrored", 2))
    size = model.loss.size.numpy()
    with pytest.warns(UserWarning, match="a step writes size"):
        model.fit(in_order(X[:32], Y[:32]), verbose=0)
    assert model.loss.size.numpy() != size


@BATCHWISE
@pytest.mark.parametrize("prepare", [np.asarray, tf.constant])
def test_a_loss_of_the_batch_as_a_whole_is_named_in_a_single_batch(loss, prepare):
    model = dl.distribute(sequential(dense(), loss=loss), strategy_of("mirrored", 2))
    with pytest.warns(UserWarning, match=f"{loss.__name__}' looks at the batch as a whole"):
        model.train_on_batch(prepare(X), prepare(Y))


@BATCHWISE
@BOTH
@pytest.mark.parametrize("rows", [73, 33])  # a last batch of 9, and of 1
def test_a_gathered_loss_of_the_batch_takes_the_steps_of_one_device(kind, loss, rows, recwarn):
    build = sequential(dense(6, activation="tanh"), dense(), loss=loss)
    plain = alone(build)
    model = dl.distribute(build, strategy_of(kind, 3), batch_losses="gather")
    data = in_order(X[:rows], Y[:rows])
    fit = {"verbose": 0, "shuffle": False, "epochs": 2}
    expected, found = plain.fit(data, **fit).history, model.fit(data, **fit).history
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    assert not [one for one in recwarn if "as a whole" in str(one.message)]


def assert_gathered(build, data, kind="mirrored", replicas=2):
    """Trains with all losses gathered, and holds the weights of one device."""
    plain = alone(build)
    model = dl.distribute(build, strategy_of(kind, replicas), batch_losses="gather")
    for one in (plain, model):
        one.fit(data, verbose=0, shuffle=False, epochs=2)
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6)


def test_a_gathered_loss_is_exact_where_the_first_batch_shows_nothing():
    """The shares of the first batch have as many rows that count, those of the others have not."""
    rows = np.arange(len(X))
    labels = np.where(rows < BATCH, rows % 2, Y)
    build = sequential(dense(6, activation="tanh"), dense(), loss=ratio)
    assert_gathered(build, in_order(X, labels))


def per_token(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


@BOTH
@pytest.mark.parametrize("labels", ["int64", "uint8"])
def test_gathered_predictions_keep_their_mask(kind, labels):
    embed = functools.partial(keras.layers.Embedding, 5, 6, mask_zero=True)
    build = sequential(embed, dense(), shape=(6,), loss=per_token)
    assert_gathered(build, in_order(TOKENS, (TOKENS % 4).astype(labels)), kind, 3)


def test_an_embedding_of_positions_below_a_gathered_loss():
    build = sequential(
        Positions,
        keras.layers.GlobalAveragePooling1D,
        dense(),
        shape=(6,),
        loss=pairs,
        optimizer=lambda: keras.optimizers.Adam(1e-2),
    )
    assert_gathered(build, in_order(TOKENS, Y), replicas=3)


def test_a_test_step_of_ones_own_gathers_without_a_warning():
    class Own(keras.Sequential):
        def test_step(self, data):
            x, y = data
            return {"loss": self.compute_loss(x, y, self(x, training=False))}

    def build():
        keras.utils.set_random_seed(3)
        model = Own([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile("sgd", pairs)
        return model

    plain = alone(build)
    model = dl.distribute(build, strategy_of("mirrored", 2), batch_losses="gather")
    data = in_order(X[:BATCH], Y[:BATCH])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "(?s).*(as a whole|by a mean or a sum)")
        for one in (plain, model):
            one.fit(data, verbose=0, shuffle=False)
            one.found = one.evaluate(data, verbose=0)
    np.testing.assert_allclose(model.found, plain.found, rtol=1e-5)


def test_what_a_layer_adds_is_named_beside_gathered_losses():
    class Largest(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.max(x**2))
            return x

    build = sequential(dense(), Largest, loss=pairs)
    model = dl.distribute(build, strategy_of("mirrored", 2), batch_losses="gather")
    with pytest.warns(UserWarning, match="a layer, or a loss that it adds, looks at the batch"):
        model.fit(in_order(), verbose=0)


def test_a_ratio_of_which_one_share_has_nothing_is_not_taken_for_a_sum():
    """In the order of their class, all that count are in the first share of the first batch."""

    class Ratio(keras.layers.Layer):
        def call(self, x):
            counts = keras.ops.cast(x[:, :1] > 0, "float32")
            self.add_loss(keras.ops.sum(counts * x**2) / (keras.ops.sum(counts) + 1e-6))
            return x

    x = X.copy()
    x[:BATCH, 0] = np.where(np.arange(BATCH) < BATCH // 2, 1, -1)
    build = sequential(Ratio, dense())
    model = dl.distribute(build, strategy_of("mirrored", 2))
    with pytest.warns(UserWarning, match="a layer, or a loss that it adds, looks at the batch"):
        model.fit(in_order(x), verbose=0)


def test_a_model_that_outputs_its_loss_has_no_rows_to_gather():
    def build():
        keras.utils.set_random_seed(3)
        x = keras.Input((8,))
        size = keras.layers.Lambda(lambda s: keras.ops.mean(s**2))(keras.layers.Dense(4)(x))
        model = keras.Model(x, size)
        model.compile("sgd", lambda y, p: p)
        return model

    assert_gathered(build, in_order())


def test_gathering_the_losses_of_a_step_of_ones_own_is_refused():
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    def build():
        model = Own([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile("sgd", ratio)
        return model

    with pytest.raises(ModelError) as error:
        dl.distribute(build, strategy_of("mirrored", 2), batch_losses="gather")
    assert error.value.found == "a train_step or compute_loss of the model's own"
    assert "call distlab.all_gather(tensor) in it" in error.value.do


def test_a_loss_function_can_gather_by_itself():
    def gathered(y_true, y_pred):
        return pairs(dl.all_gather(y_true), dl.all_gather(y_pred))

    build = sequential(dense(6, activation="tanh"), dense(), loss=gathered)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "(?s).*as a whole")
        assert_equal_to_one_device(build, in_order(), replicas=3)


def test_a_choice_that_there_is_not_is_answered_with_the_near_one():
    with pytest.raises(InvalidArgument, match="did you mean 'gather'"):
        dl.distribute(sequential(dense()), strategy_of("mirrored", 2), batch_losses="gathered")


# Models that stopped


class TwoOutputs(keras.Model):
    """One of its outputs is one number."""

    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(4)

    def call(self, x):
        return {"logits": self.head(x), "scale": keras.ops.mean(x)}


def test_an_output_that_is_one_number():
    def build():
        keras.utils.set_random_seed(3)
        model = TwoOutputs()
        model.compile(keras.optimizers.SGD(0.1), loss={"logits": LOSS(), "scale": None})
        return model

    data = tf.data.Dataset.from_tensor_slices((X, {"logits": Y, "scale": Y})).batch(32)
    plain, model = alone(build), dl.distribute(build, strategy_of("mirrored", 2))
    for one in (plain, model):
        one.fit(data, verbose=0, shuffle=False)
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6)


def test_build_may_clear_the_session():
    build = sequential(dense())

    def clearing():
        keras.backend.clear_session()
        return build()

    assert_equal_to_one_device(clearing, in_order())


def test_a_backbone_that_was_made_outside_of_build_is_named():
    outside = keras.Sequential([keras.Input((8,)), keras.layers.Dense(6, name="first")])

    def build():
        model = keras.Sequential([outside, keras.layers.Dense(4)])
        model.compile("sgd", LOSS())
        return model

    with pytest.raises(ModelError, match=r"the layer 'first', which was made outside of build\(\)"):
        dl.distribute(build, strategy_of("mirrored", 2))
    outside.trainable = False
    model = dl.distribute(build, strategy_of("mirrored", 2))
    before = outside.get_weights()[0]
    model.fit(in_order(), verbose=0)
    np.testing.assert_array_equal(outside.get_weights()[0], before)


def test_weights_that_a_layer_makes_after_distribute_belong_into_the_scope():
    def build():
        return sequential(dense(), optimizer=lambda: keras.optimizers.SGD(0.1))()

    def adapt(model):
        keras.utils.set_random_seed(1)
        model.layers[0].enable_lora(2)

    def compiled(model):
        model.compile(keras.optimizers.SGD(0.1), LOSS())
        return model

    lost = dl.distribute(build, strategy_of("mirrored", 2))
    lost.fit(in_order(), verbose=0)
    adapt(lost)
    with pytest.raises(ModelError, match=r"such as enable_lora\(\), call that method `with model"):
        compiled(lost).fit(in_order(), verbose=0)

    plain, model = alone(build), dl.distribute(build, strategy_of("mirrored", 2))
    for one in (plain, model):
        one.fit(in_order(), verbose=0, shuffle=False)
        with model.distribute_strategy.scope() if one is model else contextlib.nullcontext():
            adapt(one)
        compiled(one).fit(in_order(), verbose=0, shuffle=False, epochs=2)
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6, err_msg=one.path)


def compiled_backbone():
    outside = keras.Sequential([keras.Input((8,)), keras.layers.Dense(6, name="first")])
    outside.compile("adam", "mse")
    outside.trainable = False
    return outside


def test_the_optimizer_of_a_frozen_backbone_is_no_optimizer_of_the_model():
    outside = compiled_backbone()

    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([outside, keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(0.1), LOSS())
        return model

    model = assert_equal_to_one_device(build, in_order())
    assert name_optimizer(model) == "SGD"


def test_a_teacher_that_was_compiled_outside_may_stand_in_a_step_of_ones_own():
    class Student(keras.Model):
        def __init__(self):
            super().__init__()
            self.head, self.teacher = keras.layers.Dense(6), teacher

        def call(self, x):
            return self.head(x)

        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((self(x, training=True) - self.teacher(x)) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    teacher = compiled_backbone()

    def build():
        keras.utils.set_random_seed(3)
        model = Student()
        model.compile(keras.optimizers.SGD(0.1))
        return model

    plain, model = alone(build), dl.distribute(build, strategy_of("mirrored", 2))
    for one in (plain, model):
        one.fit(in_order(), verbose=0, shuffle=False)
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6)


def test_an_rnn_that_keeps_its_state_is_refused_on_several_replicas():
    def build():
        keras.utils.set_random_seed(3)
        inputs = keras.Input((4, 2), batch_size=8)
        recurrent = keras.layers.LSTM(3, stateful=True, name="memory")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(4)(recurrent))
        model.compile(keras.optimizers.SGD(0.1), LOSS())
        return model

    with pytest.raises(ModelError, match="found: the layer 'memory' with stateful=True"):
        dl.distribute(build, strategy_of("mirrored", 2))
    data = in_order(X.reshape(-1, 4, 2)[:64], Y[:64]).unbatch().batch(8, drop_remainder=True)
    assert_equal_to_one_device(build, data, replicas=1)


def test_unfreezing_and_compiling_with_a_new_optimizer_made_anywhere():
    def build():
        model = sequential(dense(6, activation="tanh"), dense())()
        model.layers[0].trainable = False
        model.compile(keras.optimizers.Adam(1e-2), LOSS())
        return model

    plain, model = alone(build), dl.distribute(build, strategy_of("mirrored", 2))
    for one in (plain, model):
        one.fit(in_order(), verbose=0, shuffle=False)
        one.layers[0].trainable = True
        optimizer = keras.optimizers.Adam(1e-3)
        one.compile(optimizer, LOSS())
        assert one.optimizer is optimizer
        one.fit(in_order(), epochs=2, verbose=0, shuffle=False)
        assert optimizer.iterations.numpy() == 6
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6)


@pytest.mark.parametrize("gathers", [False, True])
def test_evaluate_before_any_fit_looks_at_the_losses_too(gathers):
    build = sequential(dense(), loss=pairs)
    expected = build().evaluate(in_order(), verbose=0)
    options = {"batch_losses": "gather"} if gathers else {}
    model = dl.distribute(build, strategy_of("mirrored", 3), **options)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = model.evaluate(in_order(), verbose=0)
        model.fit(in_order(), verbose=0)
    told = [one for one in warned if "as a whole" in str(one.message)]
    assert len(told) == (0 if gathers else 1)
    assert (abs(found - expected) < 1e-5 * expected) == gathers
