"""check_parity: equal where it should be, and where not, the step, the weight and the cause."""

import functools
import itertools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import DatasetError, DistlabError, InvalidArgument, ModelError

EXAMPLES, BATCH = 40, 16  # batches of 16, 16 and 8
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(EXAMPLES, 8)).astype("float32")
Y = DRAW.integers(0, 4, EXAMPLES)
LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
SGD = functools.partial(keras.optimizers.SGD, 0.1)
ADAM = functools.partial(keras.optimizers.Adam, 1e-2)


def data(x=X, y=Y, batch=BATCH):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)


def builder(optimizer=SGD, *, layers=(), l2=0.0, **compiled):
    """Initial weights are drawn anew in each build: parity may not depend on a seed."""

    def build():
        penalty = keras.regularizers.L2(l2) if l2 else None
        hidden = [layer() for layer in layers]
        head = keras.layers.Dense(4, kernel_regularizer=penalty, dtype="float32")
        model = keras.Sequential([keras.Input((8,)), *hidden, head])
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


def right(model, x, y):
    penalty = tf.nn.scale_regularization_loss(tf.add_n(model.losses))
    return cross_entropy(model, x, y) + penalty


class Noisy(keras.layers.Layer):
    """Draws for each example."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, inputs):
        return inputs + keras.random.normal(tf.shape(inputs), seed=self.seeds)


# Equal


def test_distribute_takes_the_steps_of_one_device():
    """All at once: Adam, dropout, BatchNormalization, a regulariser, clipping, a partial batch."""
    layers = [
        lambda: keras.layers.Dense(6, use_bias=False),
        keras.layers.BatchNormalization,
        lambda: keras.layers.Dropout(0.5),
    ]
    adam = functools.partial(ADAM, clipnorm=0.1)
    parity = check(builder(adam, layers=layers, l2=1e-2, steps_per_execution=2), steps=5)
    assert parity.equal
    assert parity.max_abs_diff <= parity.tolerance < 1e-5
    assert (parity.steps, parity.replicas, parity.first_step, parity.cause) == (3, 2, None, None)
    assert [row.step for row in parity.differences] == [1, 2, 3]
    assert parity.notes == ("the data end after 3 of 5 steps",)
    assert repr(parity).startswith("Equal: 2 replicas (distlab.distribute) took the 3 steps of one")
    assert parity.switched_off == (), "it draws the same numbers on both sides"


def test_keras_draws_others_on_each_replica_so_layers_that_draw_are_switched_off():
    parity = check(builder(layers=[lambda: keras.layers.Dropout(0.5)]), train="keras")
    assert parity.equal and parity.switched_off == ("dropout",)
    assert "Switched off on both sides: dropout" in repr(parity)


class Noise(keras.layers.Layer):
    def call(self, inputs):
        return inputs + 0.1 * tf.random.normal(tf.shape(inputs))


def test_what_draws_by_tensorflows_hidden_state_is_compared_with_one_replica():
    parity = check(builder(ADAM, layers=(Noise,)), steps=3)
    assert parity.equal and parity.max_abs_diff < 1e-5
    assert "Note: the model draws by tf.random" in repr(parity)


def test_a_layer_that_draws_is_given_the_same_draws_on_both_sides():
    build = builder(layers=[Noisy])
    parity = check(build, steps=2, strategy=strategy_of(replicas=3))
    assert parity.equal, parity
    parity = check(build, train="keras")
    assert not parity.equal
    assert "draws random numbers in each step" in parity.cause


def test_a_loop_by_hand_that_is_right():
    parity = check(builder(l2=1e-2), train=loop(right), steps=2)
    assert (parity.equal, parity.train, parity.notes) == (True, "by_hand", ())


def test_an_own_model_on_dicts():
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

    named = data().map(lambda x, y: ({"x": x}, y))
    parity = check(build, named, train="keras", strategy=strategy_of("one_device", None))
    assert parity.equal and parity.switched_off == ("dropout",)


def test_a_layer_made_outside_may_have_the_name_of_one_made_inside():
    keras.layers.Flatten()  # from here on Keras's own names have a number
    outside = keras.layers.Flatten(name="flatten")

    def build():
        inputs = keras.Input((8,))
        features = keras.layers.Flatten()(outside(inputs))
        model = keras.Model(inputs, keras.layers.Dense(4)(features))
        model.compile("sgd", LOSS())
        return model

    parity = check(build, strategy=strategy_of("one_device", None), tolerance=1e-6)
    assert parity.equal
    assert parity.notes[-1].startswith("one replica shares nothing, so this shows little")


@pytest.mark.bfloat16
def test_low_precision_is_allowed_more_and_policies_stay_as_they_were():
    def build():
        keras.config.set_dtype_policy("mixed_bfloat16")  # and never set back
        return builder(layers=[lambda: keras.layers.Dense(32, "relu")])()

    parity = check(build)
    assert parity.equal and parity.tolerance > 1e-6
    assert keras.config.dtype_policy().name == "float32"


def test_in_float64_rounding_is_far_below_any_fault():
    def build():
        keras.config.set_dtype_policy("float64")
        layers = [keras.layers.Dense(6, "tanh"), keras.layers.Dropout(0.5), keras.layers.Dense(4)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile(ADAM(), LOSS())
        return model

    parity = check(build, steps=3)
    assert parity.equal and parity.tolerance < 1e-12


def test_weights_that_are_not_finite_on_one_device_either():
    x = X.copy()
    x[20] = np.nan
    parity = check(builder(), data(x), train="keras", steps=2)
    assert parity.equal
    assert parity.notes == ("weights are not finite from step 2 on, on one device too",)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind_and_a_loop_is_given_each_batch_in_order(fails):
    def state():
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        return tf32, tf.get_logger().level, keras.config.dtype_policy().name, random.getstate()

    seen, during = [], []

    def train(model, dataset):
        seen.append([x.numpy() for x, _ in dataset])
        during.append(state()[0])
        if fails:
            raise ZeroDivisionError

    def build():
        keras.utils.set_random_seed(5)
        return builder()()

    before, numpy = state(), np.random.get_state()[1].copy()
    try:
        check(build, train=train, steps=3, strategy=strategy_of("one_device", None))
    except ZeroDivisionError:
        assert fails
    else:
        assert not fails
        firsts = [batch for (batch,) in seen[:3]]  # then experiments: it trains not
        np.testing.assert_array_equal(np.concatenate(firsts), X)
    assert before == state()
    assert before[0] and not during[0]
    np.testing.assert_array_equal(np.random.get_state()[1], numpy)


# Not equal: the cause is found


def test_keras_clips_on_each_replica():
    build = builder(functools.partial(SGD, clipnorm=0.05), layers=[lambda: keras.layers.Dense(6)])
    parity = check(build, train="keras", steps=2)
    assert (parity.equal, parity.first_step, parity.first_layer) == (False, 1, "dense/kernel")
    assert "clipped (clipnorm=0.05) on each replica" in parity.cause
    assert "distlab.distribute does" in parity.do
    assert parity.max_abs_diff > parity.tolerance
    text = repr(parity)
    assert text.startswith("NOT equal: 2 replicas (Keras's own fit) left the steps of one device")
    assert "at step 1 of 2, first in dense/kernel." in text
    assert f"Likely cause: {parity.cause}\nTo do: {parity.do}" in text
    assert len(parity.differences) == 2


def test_keras_weighs_replicas_alike_also_in_a_partial_last_batch():
    parity = check(builder(), data(X[:27], Y[:27]), train="keras", steps=3)
    assert parity.first_step == 2
    assert [row.max_abs_diff > row.allowed for row in parity.differences] == [False, True]
    assert "own share of a batch of 11 or 16 examples: a mean" in parity.cause


def test_batch_normalisation_that_is_not_synchronised():
    parity = check(builder(layers=[keras.layers.BatchNormalization]), train="keras")
    assert "BatchNormalization (batch_normalization) takes its mean and variance" in parity.cause
    assert parity.do == "BatchNormalization(synchronized=True)"


@pytest.mark.parametrize(
    ("loss_of", "cause"),
    [
        (lambda *args: right(*args) / 2, "every update is 1/2 of one device's"),
        (lambda m, x, y: tf.reduce_max(m(x) ** 2) + m.losses[0], "not found: the difference"),
    ],
    ids=["not divided", "unknown"],
)
def test_a_loop_by_hand_that_is_wrong(loss_of, cause):
    parity = check(builder(l2=1e-2), train=loop(loss_of))
    assert not parity.equal
    assert cause in parity.cause
    assert (parity.first_step, parity.first_layer) == (1, "dense/kernel")


def test_a_loop_by_hand_that_leaves_out_regularisers_of_weights_and_of_activities():
    penalised = functools.partial(keras.layers.Dense, 6, activity_regularizer="l2")
    parity = check(builder(l2=1e-2, layers=[penalised]), train=loop(cross_entropy))
    assert "the regularisers do not count once under the strategy" in parity.cause


def test_replicas_that_each_apply_their_own_gradient():
    def train(model, dataset):
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = cross_entropy(model, x, y)
            weights = model.trainable_variables
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(0.1 * gradient)

        for batch in model.distribute_strategy.experimental_distribute_dataset(dataset):
            model.distribute_strategy.run(step, args=batch)

    parity = check(builder(), train=train)
    assert parity.cause.startswith("the replicas' own copies of dense/")
    assert parity.cause.endswith("apart: each replica applied a gradient of its own")


def test_a_mean_over_a_replicas_own_share():
    def loss(y, outputs):
        return tf.reduce_mean(tf.reduce_mean(outputs, 0) ** 2) + 0 * outputs[:, 0]

    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(SGD(), loss)
        return model

    parity = check(build, train="keras")
    assert parity.cause.startswith("something is computed from a replica's own share of a batch")


def test_a_wrong_scale_that_adam_hides_is_noted():
    build = builder(ADAM, l2=1e-2)
    parity = check(build, train=loop(lambda *args: right(*args) / 2), tolerance=1e-3)
    assert parity.equal
    assert parity.tolerance == 1e-3, "the one that was given"
    assert "the gradients are 0.5 times one device's" in parity.notes[-1]


# Bad input


def test_what_cannot_be_checked_is_refused_with_its_reason(monkeypatch):
    calls, model, optimizer = itertools.count(), builder()(), SGD()

    def growing():
        return builder(layers=[lambda: keras.layers.Dense(5 + next(calls))])()

    def make(units):
        return builder(layers=[lambda: keras.layers.Dense(units)])()

    same = r"build() gave the same {} on two calls"
    batches = (X, Y)
    no_batch = "a data set without a batch"
    single = "a data set of single examples"
    kind = "with a strategy of kind 'parameter_server'"
    uncompiled = "a model that was not compiled"
    servers = dl.make_strategy("one_device")
    monkeypatch.setattr(servers, "_distlab_origin", ("parameter_server", "asked for"))
    cases = [
        (ModelError, "build() makes models of different structure: ", growing, {}),
        (ModelError, same.format("weights"), lambda: model, {}),
        (ModelError, same.format("optimizer"), builder(lambda: optimizer), {}),
        (ModelError, "build() returned NoneType, not a keras.Model", lambda: None, {}),
        (ModelError, uncompiled, lambda: keras.Sequential([keras.layers.Dense(1)]), {}),
        (ModelError, "not a function that builds a model", model, {}),
        (ModelError, "make(units), which is called without arguments: missing", make, {}),
        (InvalidArgument, "where a strategy should be", builder(), {"strategy": None}),
        (InvalidArgument, kind, builder(), {"strategy": servers}),
        (InvalidArgument, "did you mean 'keras'", builder(), {"train": "kears"}),
        (InvalidArgument, "data that are no tf", builder(), {"dataset": batches}),
        (InvalidArgument, single, builder(), {"dataset": data().unbatch()}),
        (DatasetError, no_batch, builder(), {"dataset": data().take(0)}),
    ]
    others = []
    for kind_of_error, text, build, options in cases:
        try:
            others.append((text, check(build, **options)))
        except DistlabError as error:
            if text not in str(error) or not isinstance(error, kind_of_error):
                others.append((text, error))
    assert others == []
    with strategy_of().scope(), pytest.raises(InvalidArgument, match="a call inside strategy"):
        check(builder())
