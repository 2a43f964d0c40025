"""Every part of a compiled model takes the steps of one device: losses, layers, optimizers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import ModelError
from tests.support.distribution import (
    BATCH,
    DRAW,
    EXAMPLES,
    LOSS,
    X,
    Y,
    alone,
    assert_same,
    strategy_of,
    train,
)

TOKENS = DRAW.integers(0, 5, (EXAMPLES, 6))  # 0 is padding, of a different length in each
TOKENS[np.arange(6) >= DRAW.integers(1, 7, EXAMPLES)[:, None]] = 0
BOTH = pytest.mark.parametrize("kind", ["mirrored", "central_storage"])


def in_order(x=X, y=Y, *more):
    return tf.data.Dataset.from_tensor_slices((x, y, *more)).batch(BATCH)


def sequential(*layers, shape=(8,), optimizer=None, loss=None, **compiled):
    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input(shape), *(make() for make in layers)])
        model.compile(
            optimizer=optimizer() if optimizer else keras.optimizers.SGD(0.1, momentum=0.9),
            loss=LOSS() if loss is None else loss,
            **compiled,
        )
        return model

    return build


def dense(units=4, **options):
    return lambda: keras.layers.Dense(units, **options)


def assert_equal_to_one_device(build, data, kind="mirrored", replicas=2, **options):
    plain, model = alone(build), dl.distribute(build, strategy_of(kind, replicas))
    fit = {"verbose": 0, "shuffle": False, "epochs": 2, **options}
    expected, history = plain.fit(data, **fit).history, model.fit(data, **fit).history
    weights = [[weight.numpy() for weight in one.weights] for one in (model, plain)]
    for weight, reference, variable in zip(*weights, plain.weights, strict=True):
        if "seed" not in variable.path:
            np.testing.assert_allclose(weight, reference, atol=1e-6, err_msg=variable.path)
    assert history.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-5, err_msg=name)
    return model


# Losses


def two_outputs(**compiled):
    def build():
        keras.utils.set_random_seed(3)
        inputs = keras.Input((8,), name="features")
        hidden = keras.layers.Dense(6, activation="tanh")(inputs)
        heads = [keras.layers.Dense(units, name=name)(hidden) for name, units in NAMED.items()]
        model = keras.Model({"features": inputs}, dict(zip(NAMED, heads, strict=True)))
        model.compile(optimizer=keras.optimizers.Adam(1e-2), **compiled)
        return model

    return build


NAMED = {"kind": 4, "size": 1}
TWO_LOSSES = {"kind": LOSS(), "size": "mse"}


@BOTH
@pytest.mark.parametrize(
    "compiled",
    [
        {},
        {"loss_weights": {"kind": 0.3, "size": 2.0}, "metrics": {"kind": "accuracy"}},
        {"loss_weights": {"kind": 0.3, "size": 2.0}, "weighted_metrics": {"size": ["mae"]}},
    ],
)
def test_two_outputs_with_dict_inputs_loss_weights_and_sample_weights(kind, compiled):
    targets = {"kind": Y, "size": X[:, :1] * 2}
    weights = {name: DRAW.uniform(size=EXAMPLES).astype("float32") for name in NAMED}
    data = in_order({"features": X}, targets, weights)
    build = two_outputs(loss=TWO_LOSSES, **compiled)
    model = assert_equal_to_one_device(build, data, kind, 3, validation_data=data)
    history = model.evaluate(data, verbose=0, return_dict=True)
    assert {"loss", "kind_loss", "size_loss"} <= history.keys()


def test_losses_given_by_name_and_one_that_is_a_sum_beside_one_that_is_a_mean():
    summed = keras.losses.MeanSquaredError(reduction="sum")
    data = in_order({"features": X}, {"kind": Y, "size": X[:, :1]})
    assert_equal_to_one_device(two_outputs(loss={"kind": LOSS(), "size": summed}), data)
    names = {"kind": "sparse_categorical_crossentropy", "size": "mae"}
    assert_equal_to_one_device(two_outputs(loss=names), data)


def embedding(**options):
    return lambda: keras.layers.Embedding(5, 6, **options)


@BOTH
def test_a_masked_loss_is_a_mean_over_what_the_mask_leaves_on_all_replicas(kind):
    build = sequential(
        embedding(mask_zero=True), dense(5), shape=(6,), metrics=["sparse_categorical_accuracy"]
    )
    assert_equal_to_one_device(build, in_order(TOKENS, TOKENS), kind, 3)


@BOTH
def test_a_loss_that_is_a_mean_by_sample_weights(kind):
    build = sequential(dense(), loss=LOSS(reduction="mean_with_sample_weight"))
    weights = DRAW.uniform(size=EXAMPLES).astype("float32")
    assert_equal_to_one_device(build, in_order(X, Y, weights), kind, 3)
    assert_equal_to_one_device(build, in_order(), kind, 3)


@BOTH
def test_a_loss_that_ignores_a_class(kind):
    build = sequential(dense(), loss=LOSS(ignore_class=1))
    assert_equal_to_one_device(build, in_order(), kind, 3)


def mean_of_squares(y_true, y_pred):
    return keras.ops.mean((keras.ops.one_hot(y_true, 4) - y_pred) ** 2)


@BOTH
@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_function_that_averages_by_itself(kind, weighted):
    build = sequential(dense(), loss=mean_of_squares)
    weights = [np.full(EXAMPLES, 0.5, "float32")] if weighted else []
    assert_equal_to_one_device(build, in_order(X, Y, *weights), kind, 3)


class OwnCall(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return mean_of_squares(y_true, y_pred)


def test_a_loss_class_with_a_call_of_its_own():
    assert_equal_to_one_device(sequential(dense(), loss=OwnCall()), in_order(), replicas=3)


class AddsVector(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.01 * keras.ops.mean(x**2, axis=-1))  # one number an example: a sum
        return x


@BOTH
def test_losses_of_layers_that_are_vectors_are_added_up(kind):
    assert_equal_to_one_device(sequential(dense(6), AddsVector, dense()), in_order(), kind, 3)


ONE_LEFT = slice(0, BATCH + 1)  # the last batch has one example


@pytest.mark.parametrize("eagerly", [False, True])
@BOTH
def test_a_batch_with_fewer_examples_than_replicas(kind, eagerly):
    """Pooling aborts the process where it gets none, and a mean over none is not a number."""
    layers = [
        lambda: keras.layers.Reshape((4, 2, 1)),
        lambda: keras.layers.Conv2D(3, 2, padding="same"),
        lambda: keras.layers.MaxPooling2D(2),
        keras.layers.Flatten,
        lambda: keras.layers.ActivityRegularization(l2=1e-2),
    ]
    build = sequential(*layers, dense(), run_eagerly=eagerly, metrics=["accuracy"])
    assert_equal_to_one_device(build, in_order(X[ONE_LEFT], Y[ONE_LEFT]), kind, 4, epochs=1)


@BOTH
def test_an_example_that_only_fills_a_place_is_in_no_mean_of_a_mask_or_of_weights(kind):
    tokens = TOKENS[ONE_LEFT]
    masked = sequential(embedding(mask_zero=True), dense(5), shape=(6,))
    assert_equal_to_one_device(masked, in_order(tokens, tokens), kind, 4)
    weights = np.linspace(0.5, 1, len(tokens), dtype="float32")
    weighted = sequential(dense(), loss=LOSS(reduction="mean_with_sample_weight"))
    assert_equal_to_one_device(weighted, in_order(X[ONE_LEFT], Y[ONE_LEFT], weights), kind, 4)


@BOTH
def test_a_loss_function_of_no_examples_is_nothing(kind):
    build = sequential(dense(), loss=mean_of_squares)
    assert_equal_to_one_device(build, in_order(X[ONE_LEFT], Y[ONE_LEFT]), kind, 4)


@BOTH
def test_a_model_without_targets(kind):
    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), AddsVector()])
        model.compile(keras.optimizers.SGD(0.1))
        return model

    assert_equal_to_one_device(build, tf.data.Dataset.from_tensor_slices((X,)).batch(BATCH), kind)


class AddsLoss(keras.layers.Layer):
    """The mean of its inputs' squares, beside them a batch normalisation that all wait at."""

    def __init__(self):
        super().__init__()
        self.normalize = keras.layers.BatchNormalization(synchronized=True)

    def build(self, shape):
        self.normalize.build(shape)

    def call(self, x, training=False):
        self.add_loss(0.1 * keras.ops.mean(x**2))
        return self.normalize(x, training=training)


@BOTH
def test_losses_of_layers_and_regularisers_count_once(kind):
    l2 = keras.regularizers.L2(1e-2)
    layers = [dense(6, activity_regularizer=l2, kernel_regularizer=l2, use_bias=False), AddsLoss]
    assert_equal_to_one_device(sequential(*layers, dense()), in_order(), kind, 3)


def test_a_model_whose_only_loss_is_its_layers_own():
    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), AddsLoss()])
        model.compile(keras.optimizers.SGD(0.1))
        return model

    assert_equal_to_one_device(build, tf.data.Dataset.from_tensor_slices((X,)).batch(BATCH))


def test_metrics_of_a_models_own_get_the_inputs():
    class Own(keras.Sequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            logs = super().compute_metrics(x, y, y_pred, sample_weight)
            self.largest.update_state(keras.ops.max(x))
            return logs

    def build():
        keras.utils.set_random_seed(3)
        model = Own([keras.Input((8,)), keras.layers.Dense(4)])
        model.largest = keras.metrics.Mean(name="largest")
        model.compile("sgd", LOSS())
        return model

    history = dl.distribute(build, strategy_of("mirrored", 2)).fit(in_order(), verbose=0)
    assert history.history["largest"][0] > 1


# Layers that keep something from step to step


@BOTH
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_synchronised_batch_normalisation(kind, replicas):
    layers = [dense(6, use_bias=False), lambda: keras.layers.BatchNormalization(synchronized=True)]
    # 9 are left for the last batch: four replicas have 3, 3, 3 and none.
    assert_equal_to_one_device(sequential(*layers, dense()), in_order(), kind, replicas)


def copies(model, variable):
    parts = model.distribute_strategy.experimental_local_results(variable.value)
    return [part.numpy() for part in parts]


@BOTH
def test_moving_statistics_of_each_replicas_own_batch_agree_on_every_replica(kind):
    layers = [dense(6, use_bias=False), keras.layers.BatchNormalization]
    model = dl.distribute(sequential(*layers, dense()), strategy_of(kind, 2))
    model.fit(in_order(X[:64], Y[:64]), verbose=0)
    plain = sequential(*layers, dense())()
    plain.fit(in_order(X[:64], Y[:64]), verbose=0)
    mean, variance = model.layers[1].moving_mean, model.layers[1].moving_variance
    for variable in (mean, variance):
        first, *others = copies(model, variable)
        for other in others:
            np.testing.assert_array_equal(other, first)
    np.testing.assert_allclose(copies(model, mean)[0], plain.layers[1].moving_mean, atol=2e-2)


def test_moving_statistics_behind_a_mask_agree_too():
    layers = [embedding(mask_zero=True), lambda: keras.layers.BatchNormalization(synchronized=True)]
    build = sequential(*layers, dense(5), shape=(6,))
    model = dl.distribute(build, strategy_of("mirrored", 2))
    model.fit(in_order(TOKENS, TOKENS), verbose=0)
    first, other = copies(model, model.layers[1].moving_mean)
    np.testing.assert_array_equal(first, other)
    assert np.abs(first).max() > 1e-4


def test_an_empty_replica_leaves_moving_statistics_alone():
    layers = [dense(6, use_bias=False), keras.layers.BatchNormalization]
    model = dl.distribute(sequential(*layers, dense()), strategy_of("mirrored", 4))
    model.fit(in_order(X[:33], Y[:33]), verbose=0)
    for variable in model.weights:
        assert np.isfinite(copies(model, variable)).all(), variable.path


def normalized(units):
    """A hidden layer and, behind it, statistics of its outputs."""
    hidden = keras.layers.Dense(units, use_bias=False)
    return keras.Sequential([hidden, keras.layers.BatchNormalization(synchronized=True)])


def generator_and_discriminator(make):
    """Two models that share the discriminator's layers; the second has one more before them."""

    def judging():
        keras.utils.set_random_seed(3)
        layers = [normalized(6), normalized(6), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    def combining():
        keras.utils.set_random_seed(4)
        inputs = keras.Input((8,))
        model = keras.Model(inputs, discriminator(normalized(6)(inputs)))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    discriminator = make(judging)
    return {"discriminator": discriminator, "combined": make(combining)}


@BOTH
@pytest.mark.parametrize(
    "turns",
    [  # with a size of batch that is new, a step is traced again
        [("discriminator", 9), ("combined", 9), ("discriminator", 7)],
        [("combined", 9), ("discriminator", 9), ("combined", 7), ("combined", 8)],
    ],
    ids=["discriminator first", "combined first"],
)
def test_models_that_share_layers_with_statistics_are_trained_in_turns(kind, turns):
    trained = []
    for make in (lambda build: build(), lambda build: dl.distribute(build, strategy_of(kind, 2))):
        models = generator_and_discriminator(make)
        for name, examples in turns:
            x = X[:examples, :6] if name == "discriminator" else X[:examples]
            models[name].train_on_batch(x, X[:examples, 7:])
        trained.append(models["combined"].weights)
    for reference, weight in zip(*trained, strict=True):
        np.testing.assert_allclose(
            weight.numpy(), reference.numpy(), atol=1e-6, err_msg=reference.path
        )


class Draws(keras.layers.Layer):
    """Keeps the two vectors that it drew last, on each replica."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(5)

    def build(self, shape):
        self.drawn = self.add_weight(shape=(2, 8), trainable=False, name="drawn")

    def call(self, x):
        rows = [keras.random.uniform((8,), seed=self.generator) for _ in range(2)]
        self.drawn.value.assign(keras.ops.stack(rows))  # past Keras: each replica keeps its own
        return x


def test_replicas_draw_differently_and_the_same_again_in_a_second_run():
    def run(epochs):
        model = dl.distribute(sequential(Draws, dense()), strategy_of("mirrored", 2))
        model.fit(in_order(), epochs=epochs, verbose=0)
        return copies(model, model.layers[0].drawn)

    first, second, later = run(1), run(1), run(2)
    rows = np.concatenate(first)
    assert len({row.tobytes() for row in rows}) == 4  # no draw of one is a draw of another
    np.testing.assert_array_equal(first, second)
    assert not np.allclose(first[0], later[0])


@BOTH
def test_dropout_trains_and_what_it_draws_depends_on_the_step_alone(kind):
    """A second model that starts with the first one's weights and step number goes on alike."""
    dropouts = [lambda seed=seed: keras.layers.Dropout(0.5, seed=seed) for seed in (1, 2)]
    build = sequential(dense(32), *dropouts, dense())
    one, other = (dl.distribute(build, strategy_of(kind, 2)) for _ in range(2))
    one.fit(in_order(), verbose=0)
    with other.distribute_strategy.scope():
        other.optimizer.build(other.trainable_variables)
    other.set_weights(one.get_weights())
    for target, source in zip(other.optimizer.variables, one.optimizer.variables, strict=True):
        target.assign(source)
    for model in (one, other):
        model.fit(in_order(), verbose=0)
    for weight, same in zip(one.trainable_weights, other.trainable_weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), same.numpy())


class Adapts(keras.layers.Layer):
    """Takes the mean of what it has seen before from its inputs, in inference too."""

    def __init__(self, by="assignment"):
        super().__init__()
        self.by = by
        self.function = tf.function(self.see)

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

    def see(self, x):
        self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(x, axis=0))
        return tf.constant(True)

    def call(self, x):
        before = tf.identity(self.mean)
        if self.by == "condition":
            tf.cond(tf.shape(x)[0] > 0, lambda: self.see(x), lambda: tf.constant(False))
        else:
            (self.function if self.by == "function" else self.see)(x)
        return x - before


EVERY = pytest.mark.parametrize(
    ("kind", "replicas"), [("mirrored", 2), ("mirrored", 3), ("central_storage", 3)]
)


def predict_between_fits(model):
    """Shares of 13 examples in batches of 5 are unequal, and of 11 on 3 replicas too."""
    model.fit(X[:13], Y[:13], batch_size=5, shuffle=False, verbose=0)
    predicted = [model.predict(X[:examples], batch_size=5, verbose=0) for examples in (13, 11)]
    predicted.append(model.predict_on_batch(X[:2]))
    logs = model.fit(X[:13], Y[:13], batch_size=5, shuffle=False, verbose=0).history
    return [*predicted, logs["loss"], *(weight.numpy() for weight in model.weights)]


@EVERY
@pytest.mark.parametrize("compiled", [{}, {"run_eagerly": True}], ids=["graph", "eager"])
def test_what_a_layer_writes_in_predict_is_averaged(kind, replicas, compiled):
    build = sequential(Adapts, dense(), **compiled)
    model = dl.distribute(build, strategy_of(kind, replicas))
    for found, expected in zip(
        predict_between_fits(model), predict_between_fits(alone(build)), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("by", ["condition", "function"])
def test_what_a_layer_writes_inside_a_condition_or_a_function_is_averaged(by):
    build = sequential(lambda: Adapts(by), dense())
    model = dl.distribute(build, strategy_of("mirrored", 3))
    expected = predict_between_fits(alone(sequential(Adapts, dense())))
    for found, reference in zip(predict_between_fits(model), expected, strict=True):
        np.testing.assert_allclose(found, reference, atol=1e-5)


class DrawsAlways(keras.layers.Dropout):
    """Dropout in inference too, as for Monte Carlo estimates."""

    def call(self, inputs, training=None):
        return super().call(inputs, training=True)


@EVERY
def test_each_example_is_predicted_with_draws_of_its_own(kind, replicas):
    def run():
        build = sequential(lambda: DrawsAlways(0.5, seed=1), shape=(64,), loss="mse")
        model = dl.distribute(build, strategy_of(kind, replicas))
        x = np.ones((13, 64), "float32")
        return [model.predict(x, batch_size=5, verbose=0) for _ in range(2)]

    first, second = run(), run()
    assert len(np.unique(np.concatenate(first), axis=0)) == 26  # in all places, batches and calls
    np.testing.assert_array_equal(first, second)


def test_predict_leaves_what_is_drawn_in_training_alone():
    def weights(predicts):
        model = dl.distribute(
            sequential(lambda: DrawsAlways(0.5, seed=1), dense()), strategy_of("mirrored", 2)
        )
        if predicts:
            model.predict(X, verbose=0)
        model.fit(in_order(), verbose=0)
        return [weight.numpy() for weight in model.trainable_weights]

    for weight, expected in zip(weights(True), weights(False), strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_predict_names_a_layer_that_draws_without_a_seed():
    class Noise(keras.layers.Layer):
        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x))

    model = dl.distribute(sequential(Noise, dense()), strategy_of("mirrored", 2))
    with pytest.raises(ModelError, match=r"predict with the model(.|\n)*SeedGenerator"):
        model.predict(X, verbose=0)


def test_frozen_layers_stay_as_they_are():
    def build():
        model = sequential(dense(6), keras.layers.BatchNormalization, dense())()
        model.layers[0].trainable = model.layers[1].trainable = False
        model.compile(keras.optimizers.Adam(1e-2), LOSS())
        return model

    model = assert_equal_to_one_device(build, in_order())
    assert model.optimizer.iterations.numpy() == 6


def test_layers_that_are_unfrozen_before_the_first_fit_train():
    def build():
        model = sequential(dense(6), dense())()
        model.layers[0].trainable = False
        model.compile(keras.optimizers.Adam(1e-2), LOSS())
        return model

    model, plain = dl.distribute(build, strategy_of("mirrored", 2)), build()
    for one in (model, plain):
        one.layers[0].trainable = True
        one.fit(in_order(), verbose=0, shuffle=False)
    for weight, expected in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), atol=1e-6)


def test_augmentation_that_draws_only_in_training_runs_where_there_is_no_strategy():
    crop = [lambda: keras.layers.Reshape((4, 2, 1)), lambda: keras.layers.RandomCrop(2, 2, seed=1)]
    build = sequential(*crop, keras.layers.Flatten, dense())
    model = dl.distribute(build, strategy_of("default", None))
    assert np.isfinite(model.fit(in_order(), verbose=0, shuffle=False).history["loss"]).all()


# Optimizers


SCHEDULE = keras.optimizers.schedules.CosineDecay(0.1, 6)
OPTIMIZERS = {
    "by name": lambda: "adam",
    "schedule": lambda: keras.optimizers.SGD(SCHEDULE, momentum=0.9),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.02),
    "ema": lambda: keras.optimizers.Adam(1e-2, use_ema=True),
    "ema overwrite": lambda: keras.optimizers.Adam(
        1e-2, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "accumulate": lambda: keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2),
    "accumulate all": lambda: keras.optimizers.AdamW(
        SCHEDULE,
        gradient_accumulation_steps=2,
        clipnorm=0.1,
        use_ema=True,
        ema_overwrite_frequency=2,
    ),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2)),
    "loss scale, accumulate": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), initial_scale=8.0
    ),
    # Every step is skipped: no average of the weights may take their place either.
    "loss scale, overwrite": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=1),
        initial_scale=float("inf"),
    ),
    "lion": lambda: keras.optimizers.Lion(1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    layers = [dense(6, activation="tanh", kernel_constraint="unit_norm"), dense()]
    build = sequential(*layers, optimizer=OPTIMIZERS[name])
    model = assert_equal_to_one_device(build, in_order(), "mirrored", 3, epochs=3)
    for variable in model.optimizer.variables:
        first, *others = copies(model, variable)
        for other in others:
            np.testing.assert_array_equal(other, first, err_msg=variable.path)


def test_sparse_gradients_of_an_embedding_are_summed_too():
    build = sequential(embedding(), keras.layers.Flatten, dense(), shape=(6,))
    assert_equal_to_one_device(build, in_order(TOKENS, Y))


def test_a_model_without_trainable_weights_is_warned_about_and_logs_its_loss():
    def build():
        model = sequential(dense())()
        model.trainable = False
        model.compile("sgd", LOSS())
        return model

    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        assert_equal_to_one_device(build, in_order())


def test_train_is_the_function_that_the_other_tests_compare():
    run = train(dl.distribute(sequential(dense()), strategy_of("one_device")))
    assert_same(run, train(sequential(dense())()))
