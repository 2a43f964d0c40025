"""What `distribute` cannot train right is refused, with what was found and what to do."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import distlab as dl
from distlab.errors import DatasetError, InvalidArgument, ModelError
from tests.support.distribution import strategy_of
from tests.training.cases.case import (
    BATCH,
    SGD,
    Adam,
    CrossEntropy,
    X,
    Y,
    batches,
    compile_model,
    network,
)
from tests.training.cases.steps import Guide, Net, net

REFUSALS = {}


def refused(error, *texts):
    """Enters a function which must raise an error whose message has the texts."""

    def enter(call):
        REFUSALS[call.__name__] = call, error, texts
        return call

    return enter


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_trained_is_refused(name):
    call, error, texts = REFUSALS[name]
    with pytest.raises(error) as caught:
        call()
    missing = [text for text in texts if text not in str(caught.value)]
    assert not missing, str(caught.value)


def distribute(build, kind="mirrored", replicas=3, **options):
    return dl.distribute(build, strategy_of(kind, replicas), **options)


def fit(build, *data, kind="mirrored", **options):
    distribute(build, kind).fit(*data or [batches(X, Y)], verbose=0, **options)


def dense(**compiled):
    return network(layers.Dense(4, name="logits"), **compiled)


# What is built


@refused(InvalidArgument, 'make one: strategy = distlab.make_strategy("mirrored")')
def a_name_instead_of_a_strategy():
    dl.distribute(dense, "mirrored")


@refused(ModelError, "outside the strategy's scope", "write `def build(): ...; return model`")
def a_model_instead_of_a_function():
    distribute(dense())


@refused(ModelError, "made outside the strategy's scope", "create the layers and the optimizer")
def a_model_made_before():
    model = dense()
    distribute(lambda: model)


@refused(ModelError, "a model, or its optimizer, that was made outside")
def an_optimizer_made_before():
    optimizer = Adam()
    distribute(lambda: dense(optimizer=optimizer))


@refused(ModelError, "its optimizer, that was made outside the strategy")
def an_optimizer_that_a_later_compile_brings_from_outside():
    optimizer, model = Adam(), distribute(dense)
    optimizer.build([keras.Variable([0.0])])  # without slots it would be made again in the scope
    model.compile(optimizer, CrossEntropy())
    model.fit(batches(X, Y), verbose=0)


@refused(ModelError, "the layer 'first', which was made outside of build()", "trainable = False")
def a_backbone_to_train_that_was_made_before():
    outside = keras.Sequential([keras.Input((8,)), layers.Dense(6, name="first")])
    distribute(lambda: network(outside, layers.Dense(4)))


@refused(ModelError, "such as enable_lora(), call that method `with model")
def weights_that_a_layer_makes_outside_the_scope():
    model = distribute(dense)
    model.layers[0].enable_lora(2)
    compile_model(model).fit(batches(X, Y), verbose=0)


@refused(ModelError, "build() returned NoneType, not a keras.Model", "let build() call model.comp")
def a_build_that_returns_nothing():
    distribute(lambda: None)


@refused(ModelError, "a model that was not compiled")
def a_model_that_was_not_compiled():
    distribute(lambda: keras.Sequential([layers.Dense(4)]))


@refused(ModelError, "a custom make_train_function, in the place of which")
def a_function_of_ones_own_that_would_be_replaced():
    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            pass

    distribute(lambda: compile_model(Own([keras.Input((8,)), layers.Dense(4)])))


# Central storage, where all replicas share one copy of a variable


def test_where_xla_compiles_a_loss_that_is_not_finite_stops_after_its_update():
    model = distribute(lambda: dense(jit_compile=True), "default", None)
    x = X.copy()
    x[BATCH + 5] = np.nan
    with pytest.raises(ModelError, match=r"step 2, counted(.|\n)*have its update already"):
        model.fit(batches(x, Y), verbose=0)
    assert model.optimizer.iterations.numpy() == 2, "the third step was not taken"
    model.set_weights([np.zeros(weight.shape) for weight in model.get_weights()])
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"][0]), "no error is left over"


def test_optimizers_that_cannot_share_one_copy_are_refused():
    optimizers = {
        "gradient_accumulation_steps=2": lambda: SGD(gradient_accumulation_steps=2),
        "use_ema=True": lambda: SGD(use_ema=True),
        "a LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(SGD()),
        "Muon": keras.optimizers.Muon,
    }
    for text, make in optimizers.items():
        with pytest.raises(ModelError, match=f"{text}, which cannot update the one copy"):
            distribute(lambda make=make: dense(optimizer=make()), "central_storage")


@refused(ModelError, "writes a trainable weight, as SpectralNormalization does", "'mirrored'")
def a_weight_that_is_written_where_replicas_share_it():
    fit(lambda: network(layers.SpectralNormalization(layers.Dense(4))), kind="central_storage")


# Steps


class OfTwelve(layers.Layer):
    whole_batch = False

    def call(self, x):
        return x + tf.zeros((12, 8))


@refused(
    ModelError,
    "a layer that takes the rows of a whole batch, and not a replica's own: ",
    "Incompatible shapes",
    "take the number of examples from keras.ops.shape(x)[0], and not from a",
)
def a_batch_size_as_a_constant():
    fit(lambda: network(OfTwelve(), layers.Dense(4)), batches(X[:24], Y[:24], batch=12))


class CountsBatches(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="batches")
        self.count = tf.Variable(0.0)

    def update_state(self, y, y_pred, sample_weight=None):
        self.count.assign_add(1.0)

    def result(self):
        return self.count + 0.0

    def reset_state(self):
        self.count.assign(0.0)


@refused(
    ModelError,
    "the metric 'batches' with variables (count) of which the replicas do not have a copy",
    "make the variable with self.add_weight, and the metric inside build()",
)
def a_metric_made_before_that_counts_in_a_variable_of_tensorflow():
    metric = CountsBatches()
    fit(lambda: dense(metrics=[metric]))


@refused(ModelError, "the metric 'mean' with variables (total, count) of which the replicas")
def a_metric_of_keras_made_before():
    metric = keras.metrics.MeanSquaredError(name="mean")
    fit(lambda: network(layers.Dense(1), loss="mse", metrics=[metric]), X, X[:, :1])


class DrawsByGenerator(Net):
    def begin(self):
        self.generator = tf.random.Generator.from_seed(3)

    def loss_of(self, x, y):
        return super().loss_of(x + self.generator.normal(tf.shape(x)), y)


@refused(
    ModelError,
    "RngReadAndSkip, by which a tf.random.Generator draws, in a step (test_distribute_refusals",
    "self.generator.normal(tf.shape(x))",
    "draw with keras.random and a keras.random.SeedGenerator(seed) made in __init__",
)
def a_draw_by_a_generator():
    fit(lambda: net(DrawsByGenerator))


class Jacobian(Net):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            out = self(data[0])
        return {"size": tf.reduce_sum(tape.jacobian(out, self.head.bias))}


@refused(ModelError, "the layer 'chains'", "an AugMix, which draws", "augment the data")
def an_augmentation_that_draws_by_python():
    distribute(lambda: network(layers.AugMix(name="chains"), shape=(8, 8, 3)))


@refused(
    ModelError,
    "tape.jacobian, for which replicas cannot wait for each other, in a step (test_",
    "take tape.gradient, or ask for it inside a layer",
)
def a_jacobian_in_a_step():
    fit(lambda: net(Jacobian))


class ForwardMode(Net):
    def loss_of(self, x, y):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            out = self(x)
        return tf.reduce_mean(forward.jvp(out) ** 2)


@refused(ModelError, "tf.autodiff.ForwardAccumulator, for which", "ask for it inside a layer")
def a_derivative_in_forward_mode():
    fit(lambda: net(ForwardMode))


class DrawsInALoop(Net):
    def loss_of(self, x, y):
        draw = lambda i, x: (i + 1, x + tf.random.normal(tf.shape(x)))  # noqa: E731
        _, x = tf.while_loop(lambda i, x: i < 3, draw, (0, x))
        return super().loss_of(x, y)


@refused(
    ModelError,
    "RandomStandardNormal in a loop or a condition, where it would happen once for each replica",
    "do it outside of the loop or the condition, or draw with keras.random",
)
def a_draw_in_a_loop():
    fit(lambda: net(DrawsInALoop))


class CallsWhatWasTracedBefore(Net):
    def begin(self):
        self.drawn = tf.function(lambda: tf.random.normal(())).get_concrete_function()

    def loss_of(self, x, y):
        return super().loss_of(x, y) * self.drawn()


@refused(
    ModelError,
    "RandomStandardNormal in a function that was traced before the step",
    "call what it does in the step itself",
)
def a_draw_in_a_function_that_was_traced_before():
    fit(lambda: net(CallsWhatWasTracedBefore))


class CountsInACondition(Net):
    def begin(self):
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    def log(self, x, y, loss):
        one = tf.constant([1], tf.int64)
        tf.cond(loss > 0, lambda: self.table.insert(one, one) and one, lambda: one)
        return {}


@refused(ModelError, "LookupTableInsertV2 in a loop or a condition", "do it outside of the loop")
def an_effect_in_a_condition():
    fit(lambda: net(CountsInACondition))


class DifferentiatesPython(Net):
    def loss_of(self, x, y):
        out = tf.py_function(lambda out: 2 * out, [self(x)], tf.float32)
        return self.mean_loss(y, tf.reshape(out, (-1, 4)))


@refused(
    ModelError,
    "tf.py_function, through which a gradient flows: it would run once for each replica",
    "write it with TensorFlow's operations, or put tf.numpy_function into a tf.custom_gradient",
)
def a_gradient_through_python():
    fit(lambda: net(DifferentiatesPython))


class Keeps(layers.Layer):
    def call(self, x):
        self.kept, self.rows = 2 * x, tf.shape(x)[0]
        return x


class OfWhatWasKept(Net):
    def begin(self):
        self.layer = Keeps()

    def learn(self, tape, loss):
        tape.gradient(loss, self.layer.kept)

    def loss_of(self, x, y):
        return super().loss_of(self.layer(self.hidden(x))[:, :1] + x, y)


@refused(ModelError, "the gradient of a tensor that a layer has kept", "return the tensor from")
def a_gradient_of_what_a_layer_kept():
    fit(lambda: net(OfWhatWasKept))


class DividesByRowsThatWereKept(OfWhatWasKept):
    learn = Net.learn

    def loss_of(self, x, y):
        loss = super().loss_of(x, y)
        return loss / tf.cast(self.layer.rows, tf.float32)


@refused(ModelError, "a number of rows that a layer has kept", "return it from the layer's call()")
def a_number_of_rows_that_a_layer_kept():
    fit(lambda: net(DividesByRowsThatWereKept))


class DrawsEagerlyByAGenerator(Net):
    def begin(self):
        self.generator = tf.random.Generator.from_seed(3)

    def loss_of(self, x, y):
        return super().loss_of(x, y) * self.generator.uniform(())


@refused(ModelError, "a draw of a tf.random.Generator, with a state for each", "keras.random")
def an_eager_draw_of_a_generator():
    fit(lambda: net(DrawsEagerlyByAGenerator, optimizer=SGD(0.1), run_eagerly=True))


class DrawsByAWeight(Net):
    def begin(self):
        self.shape_of_draws = self.add_weight(initializer="ones", trainable=True)

    def loss_of(self, x, y):
        drawn = tf.random.gamma((8,), tf.convert_to_tensor(self.shape_of_draws))
        return super().loss_of(x + drawn, y)


@refused(ModelError, "RandomGamma, through which a gradient flows", "tf.random.stateless_*")
def a_draw_that_a_weight_shapes():
    fit(lambda: net(DrawsByAWeight))


class MakesItsVariablesInTheStep(Net):
    def begin(self):
        self.sums = None

    def log(self, x, y, loss):
        if self.sums is None:
            self.sums = tf.Variable(tf.zeros_like(loss), trainable=False)
        tf.cond(loss > 0, lambda: self.sums.assign_add(loss), lambda: loss)
        return {}


@refused(ModelError, "AssignAddVariableOp in a loop or a condition", "make the variable in the")
def a_variable_of_a_step_that_is_assigned_in_a_condition():
    fit(lambda: net(MakesItsVariablesInTheStep))


class Merges(Net):
    def learn(self, tape, loss):
        tf.distribute.get_replica_context().merge_call(lambda strategy, loss: loss, args=(loss,))


@refused(ModelError, "merge_call, which brings replicas together", "leave it out: the step already")
def a_merge_of_replicas():
    fit(lambda: net(Merges))


class Reduces(Net):
    def log(self, x, y, loss):
        return {"mean": tf.distribute.get_strategy().reduce("MEAN", loss, axis=None)}


@refused(ModelError, "strategy.reduce, which brings replicas together", "leave it out: the step")
def a_sum_over_replicas_of_a_strategy():
    fit(lambda: net(Reduces))


class DrawsByPython(Net):
    def loss_of(self, x, y):
        return super().loss_of(x, y) * random.random()


@refused(
    ModelError,
    "replicas that came apart, first in 'loss' of the step's logs",
    "look for something in the step that is not the same on every replica",
)
def random_numbers_of_python_in_a_step():
    fit(lambda: net(DrawsByPython))


class ScalesByPython(layers.Layer):
    def call(self, x):
        return x * (1 + random.random())


@refused(ModelError, "numbers that differ from replica to replica", "the layer 'scales_by_python'")
def random_numbers_of_python_in_a_layer():
    fit(lambda: network(ScalesByPython(name="scales_by_python"), layers.Dense(4)))


class CountsInALoop(Net):
    def begin(self):
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    @tf.function
    def count(self):
        for _ in tf.range(2):
            self.table.insert(tf.constant([1], tf.int64), tf.constant([1], tf.int64))
        return tf.constant(0.0)

    def log(self, x, y, loss):
        return {"count": self.count()}


@refused(
    ModelError,
    "LookupTableInsertV2 in a loop or a condition",
    'return {"count": self.count()}',
    "do it outside of the loop",
)
def an_effect_in_a_loop_that_autograph_has_converted():
    fit(lambda: net(CountsInALoop))


class AssignsByPython(Net):
    def begin(self):
        self.drawn = self.state(())

    def log(self, x, y, loss):
        self.drawn.assign(random.random())
        return {}


@refused(ModelError, "first in assigns_by_python/state, whose copies are 0.")
def a_state_whose_copies_come_apart():
    fit(lambda: net(AssignsByPython))


@refused(ModelError, "a tf_keras model", "call its own fit in the strategy's scope")
def a_model_of_tf_keras():
    tf_keras = pytest.importorskip("tf_keras", reason="the legacy extra is not installed")

    def build():
        model = tf_keras.Sequential([tf_keras.layers.Dense(4)])
        model.compile("sgd", "mse")
        return model

    distribute(build)


class Broken(Net):
    def loss_of(self, x, y):
        return self(x).no_such_thing


def test_an_error_in_the_step_is_raised_at_the_users_own_line():
    with pytest.raises(AttributeError, match="no_such_thing") as error:
        fit(lambda: net(Broken))
    assert any(str(entry.path) == __file__ for entry in error.traceback[2:])


class Mistaken(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        raise ValueError("my own mistake")


def test_a_users_own_error_is_not_explained_away():
    with pytest.raises(ValueError, match="my own mistake") as error:
        fit(lambda: dense(metrics=[Mistaken()]))
    assert not isinstance(error.value, DatasetError)


# Losses that are not finite


@pytest.mark.parametrize(
    ("build", "build_plain"),
    [(dense, dense), (lambda: net(Guide, steps_per_execution=2), lambda: net(Guide))],
    ids=["Keras's step", "own step, several in one execution"],
)
def test_a_loss_that_is_not_finite_stops_before_its_update(build, build_plain):
    x = X.copy()
    x[BATCH + 5] = np.nan  # in the second step, on the second replica
    model, plain = distribute(build), build_plain()
    plain.set_weights(model.get_weights())
    with pytest.raises(ModelError, match="step 2, counted") as error:
        model.fit(batches(x, Y), verbose=0, shuffle=False)
    assert error.value.found.startswith("a loss of nan")
    assert "TerminateOnNaN" in error.value.do
    plain.fit(batches(x, Y).take(1), verbose=0)
    for weight, expected in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-6)
    with pytest.raises(ModelError, match="a loss of nan"):
        model.train_on_batch(X * np.nan, Y)


def test_terminate_on_nan_ends_training_as_it_does_in_keras():
    class Own(keras.Sequential):
        def fit(self, *args, **kwargs):
            return super().fit(*args, **kwargs)

    stops = [keras.callbacks.TerminateOnNaN()]
    model = distribute(lambda: compile_model(Own([keras.Input((8,)), layers.Dense(4)])))
    history = model.fit(batches(X * np.nan, Y), verbose=0, callbacks=stops)
    assert np.isnan(history.history["loss"]).all()
    assert len(stops) == 1


# Data


def unknown(keep):
    return batches(X, Y).filter(lambda x, y: keep)


@refused(DatasetError, "found: a data set without a batch")
def an_empty_data_set():
    fit(dense, batches(X, Y).take(0))


@refused(DatasetError, "found: a data set without a batch")
def an_empty_data_set_in_evaluate():
    distribute(dense).evaluate(batches(X, Y).take(0))


@refused(DatasetError, "found: a data set without a batch")
def an_empty_data_set_of_unknown_length():
    fit(dense, unknown(False))


@refused(ValueError, "expected shape=(None, 8), found shape=(None, 6)")
def inputs_of_another_shape():
    model = distribute(dense)
    for inputs in (X, X[:, :6]):
        model.fit(inputs, Y, verbose=0)


@refused(DatasetError, "data without targets, and a model that was")
def data_without_targets():
    fit(dense, X)


@refused(DatasetError, "batches (a tensor, None, a tensor): Tensor")
def none_before_another_part_of_a_batch():
    fit(dense, batches(X, Y).map(lambda x, y: (x, None, y)))


@refused(DatasetError, "batches (a tensor, None, a tensor): Tensor")
def none_before_another_part_from_a_generator():
    fit(dense, ((X, None, Y) for _ in range(1)))


def with_prototypes():
    """Each example is compared with ten prototypes, which its data set brings along."""
    x, prototypes = keras.Input((8,), name="x"), keras.Input((8,), name="prototypes")
    outputs = layers.Dense(4)(x @ keras.ops.transpose(prototypes) @ prototypes)
    return compile_model(keras.Model({"x": x, "prototypes": prototypes}, outputs))


def beside(prototypes):
    return batches(X, Y).map(lambda x, y: ({"x": x, "prototypes": prototypes}, y))


@pytest.mark.parametrize("use", ["fit", "evaluate", "predict"])
def test_parts_of_a_batch_without_a_row_for_each_example_are_refused(use):
    wrong = {
        "found: parts whose first dimensions are": beside(tf.zeros([10, 8])),
        r"found: a part of shape \(\), which has no examples": beside(2.0),
    }
    model = distribute(with_prototypes)
    for text, data in wrong.items():
        with pytest.raises(DatasetError, match=text):
            getattr(model, use)(data, verbose=0)


@refused(DatasetError, "divide a batch among 3 replicas", "so that each part has one row for")
def parts_of_a_single_batch():
    distribute(with_prototypes).train_on_batch({"x": X, "prototypes": X[:10]}, Y)
