"""check_parity: equal where it should be, and where not, the step, the weight and the cause."""

import functools
import itertools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import DatasetError, InvalidArgument, ModelError
from distlab.parity import noise
from distlab.parity.batches import read
from distlab.parity.causes import scaled
from distlab.parity.randomness import switch_off
from distlab.parity.scaling import Factor
from distlab.parity.structure import plain_names

EXAMPLES, BATCH = 40, 16  # batches of 16, 16 and 8
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(EXAMPLES, 8)).astype("float32")
Y = DRAW.integers(0, 4, EXAMPLES)
LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
SGD = functools.partial(keras.optimizers.SGD, 0.1)


def data(x=X, y=Y, batch=BATCH):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)


def builder(optimizer=SGD, *, layers=(), l2=0.0, inputs=(8,), **compiled):
    """Initial weights are drawn anew in each build: parity may not depend on a seed."""

    def build():
        penalty = keras.regularizers.L2(l2) if l2 else None
        hidden = [layer() for layer in layers]
        head = keras.layers.Dense(4, kernel_regularizer=penalty, dtype="float32")
        model = keras.Sequential([keras.Input(inputs), *hidden, head])
        model.compile(optimizer(), LOSS(), **compiled)
        return model

    return build


@functools.cache
def strategy_of(kind="mirrored", replicas=2):
    return dl.make_strategy(kind, devices=replicas)


def check(build, dataset=None, *, steps=1, **options):
    options.setdefault("strategy", strategy_of())
    return dl.check_parity(build, data() if dataset is None else dataset, steps=steps, **options)


def loop(loss_of):
    """A loop by hand, as lesson 03 teaches it."""

    def by_hand(model, dataset):
        strategy = model.distribute_strategy

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(model, x, y)
            weights = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, weights), weights)

        run = tf.function(lambda batch: strategy.run(step, args=batch))
        for batch in strategy.experimental_distribute_dataset(dataset):
            run(batch)

    return by_hand


def cross_entropy(model, x, y):
    losses = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
    return tf.reduce_sum(losses) / BATCH


def regularisers(model):
    return tf.add_n(model.losses)


def mean_of_means(model, x, y):
    share = tf.cast(tf.shape(x)[0], tf.float32)
    scaled = cross_entropy(model, x, y) * BATCH / share / 2
    return scaled + tf.nn.scale_regularization_loss(regularisers(model))


def right(model, x, y):
    return cross_entropy(model, x, y) + tf.nn.scale_regularization_loss(regularisers(model))


# Equal.


def test_distribute_takes_the_steps_of_one_device():
    """All at once: Adam, dropout, BatchNormalization, a regulariser, clipping, a partial batch."""
    layers = [
        lambda: keras.layers.Dense(6, use_bias=False),
        lambda: keras.layers.BatchNormalization(synchronized=True),
        lambda: keras.layers.Dropout(0.5),
    ]
    adam = functools.partial(keras.optimizers.Adam, 1e-2, clipnorm=0.1)
    parity = check(builder(adam, layers=layers, l2=1e-2, steps_per_execution=2), steps=5)
    assert parity.equal
    assert parity.max_abs_diff <= parity.tolerance < 1e-5
    assert (parity.steps, parity.replicas, parity.first_step, parity.cause) == (3, 2, None, None)
    assert parity.switched_off == ("dropout",)
    assert [row.step for row in parity.differences] == [1, 2, 3]
    assert parity.notes == ("the data end after 3 of 5 steps",)
    assert repr(parity).startswith("Equal: 2 replicas (distlab.distribute) took the 3 steps of one")
    assert "Switched off on both sides: dropout" in repr(parity)


@pytest.mark.parametrize("kind", ["default", "one_device", "central_storage"])
def test_other_kinds_and_keras_alone_on_plain_data(kind):
    strategy = strategy_of(kind, 2 if kind == "central_storage" else None)
    parity = check(builder(), strategy=strategy, train="keras")
    assert parity.equal
    assert parity.train == "keras"


def test_a_loop_by_hand_that_is_right():
    parity = check(builder(l2=1e-2), train=loop(right), steps=2)
    assert parity.equal
    assert parity.train == "by_hand"
    assert parity.notes == ()


def test_a_model_without_an_input_and_a_batch_that_is_a_dict():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = {"drops": [keras.layers.Dropout(0.5)], "head": keras.layers.Dense(4)}
            self.head = self.inner["head"]

        def call(self, inputs, training=False):
            return self.head(self.inner["drops"][0](inputs["x"], training=training))

    def build():
        model = Own()
        model.compile("sgd", LOSS())
        return model

    parity = check(build, data().map(lambda x, y: ({"x": x}, y)))
    assert parity.equal
    assert parity.switched_off == ("dropout",)


def test_a_weight_that_only_rounding_moves_is_named_and_not_compared(monkeypatch):
    """A bias before BatchNormalization has no gradient, and Adam makes steps of what is left."""
    monkeypatch.setattr(noise, "NOISE_FACTOR", 0)  # or that would allow it
    layers = [
        lambda: keras.layers.Dense(6),
        lambda: keras.layers.BatchNormalization(synchronized=True),
    ]
    drawn_anew = builder(functools.partial(keras.optimizers.Adam, 1e-2), layers=layers)

    def build():
        # One draw in some hundreds has a gradient that is as small by chance.
        keras.utils.set_random_seed(5)
        return drawn_anew()

    parity = check(build)
    assert parity.equal
    assert any(note.startswith("not compared: dense/bias;") for note in parity.notes)


def test_low_precision_is_allowed_more_and_policies_stay_as_they_were():
    def build():
        keras.config.set_dtype_policy("mixed_bfloat16")  # and never set back
        return builder(layers=[lambda: keras.layers.Dense(32, "relu")])()

    parity = check(build)
    assert parity.equal
    assert parity.max_abs_diff > 1e-6
    assert "of its movement (the layers' precision)" in parity.tolerance_why
    assert keras.config.dtype_policy().name == "float32"


# Not equal: the cause is found.


def test_keras_clips_on_each_replica():
    build = builder(functools.partial(SGD, clipnorm=0.05), layers=[lambda: keras.layers.Dense(6)])
    parity = check(build, train="keras", steps=2)
    assert (parity.equal, parity.first_step, parity.first_layer) == (False, 1, "dense/kernel")
    assert "clipped (clipnorm=0.05) on each replica" in parity.cause
    assert "distlab.distribute does" in parity.do
    assert parity.max_abs_diff > parity.tolerance
    text, table = repr(parity), parity._repr_html_()
    assert text.startswith("NOT equal: 2 replicas (Keras's own fit) left the steps of one device")
    assert "at step 1 of 2, first in dense/kernel." in text
    assert f"Likely cause: {parity.cause}\nTo do: {parity.do}" in text
    assert table.count("<tr") == 3
    assert "rounding only, since replicas add up in another order" in table


def test_keras_weighs_replicas_alike_also_in_a_partial_last_batch():
    parity = check(builder(), data(X[:27], Y[:27]), train="keras", steps=3)
    assert parity.first_step == 2
    assert [row.max_abs_diff > row.allowed for row in parity.differences] == [False, True]
    assert "unequal shares (batches of 11 and 16 examples)" in parity.cause


def test_batch_normalisation_that_is_not_synchronised():
    parity = check(builder(layers=[keras.layers.BatchNormalization]))
    assert "BatchNormalization (batch_normalization) takes its mean and variance" in parity.cause
    assert parity.do == "BatchNormalization(synchronized=True)"


def test_keras_weighs_replicas_alike_also_where_other_numbers_of_steps_are_masked():
    tokens = DRAW.integers(0, 3, (EXAMPLES, 6))
    layers = [lambda: keras.layers.Embedding(3, 5, mask_zero=True), lambda: keras.layers.Dense(5)]
    dataset = data(tokens, DRAW.integers(0, 4, (EXAMPLES, 6)))
    parity = check(builder(layers=layers, inputs=(6,)), dataset, train="keras")
    assert parity.cause.startswith("steps are masked (embedding), in other numbers on each")


@pytest.mark.parametrize(
    ("loss_of", "cause"),
    [
        (lambda *args: right(*args) / 2, "every update is 1/2 of one device's"),
        (lambda *args: right(*args) * 2, "every update is 2 times one device's"),
        (mean_of_means, "the 2 replicas get unequal shares"),
        (lambda m, x, y: cross_entropy(m, x, y) + regularisers(m), "regularisers count 2 times"),
        (cross_entropy, "the regularisers do not count under the strategy"),
        (lambda m, x, y: tf.reduce_max(m(x) ** 2) + regularisers(m), "not found: the difference"),
    ],
    ids=["twice", "not_divided", "unequal", "l2_unscaled", "l2_missing", "unknown"],
)
def test_a_loop_by_hand_that_is_wrong(loss_of, cause):
    dataset = data(batch=15 if "unequal" in cause else BATCH)
    parity = check(builder(l2=1e-2), dataset, train=loop(loss_of))
    assert not parity.equal
    assert cause in parity.cause
    assert (parity.first_step, parity.first_layer) == (1, "dense/kernel")


@pytest.mark.parametrize(
    ("factor", "cause"),
    [(0.0, "the weights do not move"), (5.0, "5 times"), (4.0, "4 times"), (0.25, "is 1/4 of")],
)
def test_what_a_factor_on_all_updates_means(factor, cause):
    assert cause in scaled(Factor(value=factor, fits=True), 4).why
    assert scaled(Factor(value=factor, fits=False), 4) is None
    assert scaled(Factor(value=1.001, fits=True), 4) is None


def test_a_wrong_scale_that_adam_hides_is_noted():
    build = builder(functools.partial(keras.optimizers.Adam, 1e-2), l2=1e-2)
    parity = check(build, train=loop(lambda *args: right(*args) / 2), tolerance=1e-3)
    assert parity.equal
    assert parity.tolerance == 1e-3
    assert parity.tolerance_why == "the one that was given"
    assert "the gradients are 0.5 times one device's" in parity.notes[-1]


def test_copies_that_each_replica_updates_for_itself():
    def own_updates(model, dataset):
        strategy = model.distribute_strategy

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = cross_entropy(model, x, y)
            weights = [weight.value for weight in model.trainable_variables]
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.values[replica].assign_sub(0.1 * gradient)

        for x, y in strategy.experimental_distribute_dataset(dataset):
            strategy.run(step, args=(x, y))

    parity = check(builder(), train=own_updates)
    assert parity.cause.startswith("the replicas' own copies of dense/kernel are")
    assert "each replica applied a gradient of its own" in parity.cause


class Noisy(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)  # repeats itself, but not on other replicas

    def call(self, inputs):
        return inputs + keras.random.normal(tf.shape(inputs), seed=self.seeds)


class Unseeded(keras.layers.Layer):
    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs))


class Numbered(keras.layers.Layer):
    def call(self, inputs):
        return inputs * tf.cast(tf.range(tf.shape(inputs)[0])[:, None], inputs.dtype)


@pytest.mark.parametrize(
    ("layer", "by", "cause"),
    [
        (Noisy, "keras", "layer noisy draws random numbers in each step"),
        (Unseeded, "keras", "something in the model draws random numbers in each step"),
        (Numbered, "distribute", "a step depends on the order of the examples inside a batch"),
    ],
)
def test_what_cannot_be_equal_is_said(layer, by, cause):
    parity = check(builder(layers=[layer]), train=by)
    assert not parity.equal
    assert parity.cause.startswith(cause)


@pytest.mark.parametrize("layer", [Noisy, Unseeded])
def test_a_layer_that_draws_for_each_example_is_given_the_same_draws_on_both_sides(layer):
    parity = check(builder(layers=[layer]), steps=3, strategy=strategy_of(replicas=3))
    assert parity.equal, parity
    assert not parity.switched_off


def test_weights_that_are_not_finite_on_one_device_either():
    x = X.copy()
    x[20] = np.nan
    parity = check(builder(), data(x), train="keras", steps=2)
    assert parity.equal
    assert parity.notes == ("weights are not finite from step 2 on, on one device too",)


# Same batches, same order, nothing random, nothing left behind.


def test_a_loop_is_given_each_batch_once_and_in_order():
    seen = []

    def watch(model, dataset):
        seen.append([x.numpy() for x, _ in dataset])

    check(builder(), train=watch, steps=3, strategy=strategy_of("one_device", None))
    assert [len(batches) for batches in seen[:3]] == [1, 1, 1]  # then experiments: it trains not
    np.testing.assert_array_equal(np.concatenate([batches[0] for batches in seen[:3]]), X)


def test_data_that_differ_when_read_again_are_noted():
    shuffled = data().unbatch().shuffle(EXAMPLES).batch(BATCH)
    parity = check(builder(), shuffled, strategy=strategy_of("one_device", None))
    assert parity.equal
    assert parity.notes[0].startswith("the data set gives other batches when it is read again")


def test_batches_are_shared_and_described_as_those_of_the_user():
    def shares(dataset):
        distributed = strategy_of("mirrored", 4).experimental_distribute_dataset(dataset)
        return [[len(part) for part in x.values] for x, _ in distributed]

    theirs = data(X[:21], Y[:21])
    ours = read(theirs, 5)
    assert shares(ours.dataset()) == shares(theirs)
    assert shares(ours.single(1)) == shares(theirs)[1:]
    full = data(X[:32], Y[:32])
    assert read(full, 5).dataset().element_spec == full.element_spec
    assert read(full, 5).single(0).element_spec == full.element_spec


def test_batches_of_any_shape_and_kind_are_kept():
    tensors_of = functools.partial(tf.nest.flatten, expand_composites=True)
    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1, 2], [3], [], [4]])).batch(2)
    growing = tf.data.Dataset.from_tensors(X[:2]).concatenate(
        tf.data.Dataset.from_tensors(X[:6, :3])
    )
    for dataset in (ragged, growing):
        batches = read(dataset, 5)
        assert batches.rereads_alike
        for ours, theirs in zip(batches.dataset(), dataset, strict=True):
            for pair in zip(*map(tensors_of, (ours, theirs)), strict=True):
                np.testing.assert_array_equal(*pair)
    assert read(growing, 5).reordered().sizes() == [2, 6]


def test_keras_layers_draw_nothing_once_switched_off():
    layers = [
        keras.layers.RandomFlip(),
        keras.layers.RandomZoom(0.3),
        keras.layers.SpatialDropout2D(0.5),
        keras.layers.AlphaDropout(0.5),
        keras.layers.GaussianNoise(1.0),
        keras.layers.GaussianDropout(0.5),
        keras.layers.Reshape((8, 24)),
        keras.layers.Bidirectional(keras.layers.GRU(3, dropout=0.5, return_sequences=True)),
        keras.layers.LSTM(3, recurrent_dropout=0.5, return_sequences=True),
        keras.layers.SimpleRNN(3, dropout=0.5, return_sequences=True),
    ]
    images = keras.Input((8, 8, 3))
    outputs = functools.reduce(lambda x, layer: layer(x), layers, images)
    outputs = keras.layers.MultiHeadAttention(2, 2, dropout=0.5)(outputs, outputs)
    outputs = keras.layers.Attention(dropout=0.5)([outputs, outputs])
    model = keras.Model(images, outputs)
    x = DRAW.uniform(size=(2, 8, 8, 3)).astype("float32")
    assert np.abs(model(x, training=True) - model(x)).max() > 1e-3
    found = switch_off(model)
    np.testing.assert_allclose(model(x, training=True), model(x), atol=1e-6)
    assert found.left == ()
    assert len(found.off) == 12  # a GRU has two directions


def test_weights_are_named_as_in_a_fresh_process():
    one = ["dense_7/kernel", "block_2/dense_8/kernel", "block_2/dense_8/bias", "dense_9/kernel"]
    other = ["dense_17/kernel", "block_2/dense_18/kernel", "block_2/dense_18/bias"]
    names = ["dense/kernel", "block_2/dense_1/kernel", "block_2/dense_1/bias"]
    assert plain_names(one, other) == [*names, "dense_9/kernel"]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(fails):
    def state():
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        return tf32, tf.get_logger().level, keras.config.dtype_policy().name, random.getstate()

    during = []

    def train(model, dataset):
        during.append(state()[0])
        if fails:
            raise ZeroDivisionError

    def build():
        keras.utils.set_random_seed(5)
        return builder()()

    before, numpy = state(), np.random.get_state()[1].copy()
    try:
        check(build, train=train, strategy=strategy_of("one_device", None))
    except ZeroDivisionError:
        assert fails
    assert before == state()
    assert before[0]
    assert not during[0]
    np.testing.assert_array_equal(np.random.get_state()[1], numpy)


# Bad input, each with its message.


@pytest.mark.parametrize(
    ("layers_of_call", "found"),
    [
        (
            lambda call: [lambda: keras.layers.Dense(5 + call)],
            r"dense/kernel is \(8, 5\) float32 on one call and \(8, 6\) float32 on the next",
        ),
        (
            lambda call: [lambda: keras.layers.Dense(4)] * call,
            "2 weights on one call, 4 on the next",
        ),
    ],
)
def test_a_build_that_makes_another_structure_each_time(layers_of_call, found):
    calls = itertools.count()
    with pytest.raises(ModelError, match=found) as error:
        check(lambda: builder(layers=layers_of_call(next(calls)))())
    assert error.value.found.startswith("build() makes models of different structure: ")
    assert error.value.do.startswith("let build() make the same layers each time")


@pytest.mark.parametrize("what", ["weights", "optimizer"])
def test_a_build_that_gives_the_same_model_or_optimizer_twice(what):
    model, optimizer = builder()(), SGD()
    build = (lambda: model) if what == "weights" else builder(lambda: optimizer)
    with pytest.raises(ModelError, match=rf"build\(\) gave the same {what} on two calls"):
        check(build)


@pytest.mark.parametrize(
    ("build", "found"),
    [
        (lambda: None, r"build\(\) returned NoneType, not a keras.Model"),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), "a model that was not compiled"),
    ],
)
def test_a_build_that_returns_no_compiled_model(build, found):
    with pytest.raises(ModelError, match=found) as error:
        check(build)
    assert "let build() call model.compile(" in error.value.do


def test_a_model_instead_of_a_function():
    with pytest.raises(ModelError, match="not a function that builds a model") as error:
        check(builder()())
    assert error.value.do.startswith("write `def build(): ...; return model`")


@pytest.mark.parametrize("strategy", [None, "mirrored"])
def test_no_strategy(strategy):
    with pytest.raises(InvalidArgument, match="where a strategy should be") as error:
        check(builder(), strategy=strategy)
    assert error.value.do == 'make one: strategy=distlab.make_strategy("mirrored")'


def test_a_strategy_of_several_processes(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(InvalidArgument, match="with a strategy of kind 'multi_worker'"):
        check(builder(), strategy=dl.make_strategy("multi_worker"))


def test_a_call_inside_a_scope():
    with strategy_of().scope(), pytest.raises(InvalidArgument, match="a call inside strategy"):
        check(builder())


@pytest.mark.parametrize(
    ("options", "found", "do"),
    [
        ({"steps": 0}, "no whole number of steps from 1 on", "for example steps=5"),
        ({"steps": 2.0}, "no whole number of steps from 1 on", "for example steps=5"),
        ({"train": "kears"}, "nobody of that name trains", "did you mean 'keras'"),
        ({"tolerance": -1.0}, "no size of a difference", "tolerance=1e-6"),
    ],
)
def test_arguments_that_cannot_be_meant(options, found, do):
    with pytest.raises(InvalidArgument, match=found) as error:
        check(builder(), **options)
    assert do in error.value.do


def test_data_that_are_no_batches():
    with pytest.raises(InvalidArgument, match="data that are no tf"):
        check(builder(), (X, Y))
    with pytest.raises(InvalidArgument, match="a data set of single examples") as error:
        check(builder(), data().unbatch())
    assert error.value.do.endswith("data.batch(32)")
    with pytest.raises(DatasetError, match="a data set without a batch"):
        check(builder(), data().take(0))


# Two causes at once, steps of the model's own, and losses of the batch as a whole


def test_two_causes_at_once_are_both_named():
    """Statistics of each replica and clipping: without one of them the other is left."""
    build = builder(
        functools.partial(keras.optimizers.Adam, 1e-2, clipnorm=0.05),
        layers=[lambda: keras.layers.Dense(6), keras.layers.BatchNormalization],
    )
    found = check(build, train="keras")
    assert not found.equal
    assert "causes at once" in found.cause
    assert "BatchNormalization" in found.cause
    assert "clipnorm=0.05" in found.cause
    assert "plain SGD" not in found.cause
    assert "synchronized=True" in found.do


def test_a_cause_that_is_not_the_optimizer_is_not_called_so():
    def per_replica(y_true, y_pred):
        each = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        return keras.ops.max(each)

    build = builder(keras.optimizers.Adam, layers=[lambda: keras.layers.Dense(6)])

    def worst_example():
        model = build()
        model.compile(keras.optimizers.Adam(1e-2), per_replica)
        return model

    found = check(worst_example)
    assert not found.equal
    assert "the loss 'per_replica' looks at the batch as a whole" in found.cause
    assert 'batch_losses="gather"' in found.do
    assert "Adam" not in found.cause


class NoisyStep(keras.Model):
    """Its own step draws noise for each example."""

    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(4)
        self.seed = keras.random.SeedGenerator(1)

    def call(self, x):
        return self.head(x)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            noisy = x + keras.random.normal(keras.ops.shape(x), seed=self.seed)
            noisy += tf.random.uniform(tf.shape(x))
            losses = keras.losses.sparse_categorical_crossentropy(y, self(noisy), from_logits=True)
            loss = tf.reduce_mean(losses)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def noisy_model(optimizer=SGD):
    model = NoisyStep()
    model.compile(optimizer())
    return model


def test_a_step_that_draws_is_compared_with_the_same_draws_on_both_sides():
    found = check(noisy_model, steps=3, strategy=strategy_of(replicas=3))
    assert found.equal, found
    assert found.max_abs_diff < 1e-6
    wrong = check(noisy_model, steps=3, train="keras")
    assert not wrong.equal


def test_a_nested_loss_is_compared_too():
    def build():
        model = builder()()
        model.compile(SGD(), lambda y, p: LOSS()(y, p) + keras.ops.mean(p**2))
        return model

    assert check(build).equal
    found = check(build, train="keras")
    assert not found.equal
