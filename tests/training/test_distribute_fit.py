"""What users do with `fit`: their data, their callbacks, their mistakes."""

import inspect
import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import DatasetError, InvalidArgument, ModelError
from distlab.training import fitting, steps_per_execution
from distlab.training.keras_private import epochs, versions
from distlab.training.sharding import choose_sharding
from distlab.training.steps_per_execution import choose, listens
from distlab.training.workers.exchanging import workers_of
from tests.support.distribution import (
    BATCH,
    EPOCHS,
    EXAMPLES,
    LOSS,
    X,
    Y,
    alone,
    assert_same,
    builder,
    shuffled,
    strategy_of,
    train,
)

BOTH = pytest.mark.parametrize("kind", ["mirrored", "central_storage"])


def batches():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def distributed(build=None, kind="mirrored", replicas=2):
    return dl.distribute(build or builder(), strategy_of(kind, replicas))


def fit(model, data, **options):
    history = model.fit(data, verbose=0, shuffle=False, **options)
    return history.history, [weight.numpy() for weight in model.trainable_variables]


# Data


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (lambda: batches().repeat(), {"epochs": 2, "steps_per_epoch": 4}),
        (lambda: batches().repeat(3), {"epochs": 3, "steps_per_epoch": 2}),
        (lambda: batches().repeat(), {"epochs": 3, "initial_epoch": 1, "steps_per_epoch": 2}),
        (shuffled, {"epochs": 2, "validation_data": None, "validation_freq": 2}),
        (shuffled, {"epochs": 2, "validation_data": None, "validation_steps": 1}),
    ],
    ids=["endless", "part of it", "initial_epoch", "validation", "part of that"],
)
@BOTH
def test_data_sets_of_all_kinds(kind, data, options):
    if "validation_data" in options:
        options = options | {"validation_data": batches()}
    model, plain = distributed(kind=kind), alone(builder())
    assert_same(fit(model, data(), **options), fit(plain, data(), **options))
    assert model.optimizer.iterations.numpy() == plain.optimizer.iterations.numpy()


def test_data_of_unknown_length_take_as_many_steps_as_they_have_batches():
    """Keras alone counts one more in each epoch, and updates what needs no data."""
    model, plain = distributed(), builder()()
    unknown = batches().filter(lambda x, y: True)
    assert_same(fit(model, unknown, epochs=2), fit(plain, batches(), epochs=2))
    assert model.optimizer.iterations.numpy() == 2 * 3
    plain = builder()()
    fit(plain, unknown, epochs=2)
    assert plain.optimizer.iterations.numpy() == 2 * 4


def test_a_data_set_that_is_distributed_already():
    strategy = strategy_of("mirrored", 2)
    data = strategy.experimental_distribute_dataset(batches())
    run = fit(distributed(), data, epochs=2)
    assert_same(run, fit(alone(builder()), batches(), epochs=2))


@BOTH
@pytest.mark.parametrize("known", [True, False])
def test_batches_that_tensorflow_brings_to_the_devices_as_it_does_to_gpus(monkeypatch, kind, known):
    monkeypatch.setattr(fitting, "splits", lambda strategy: False)
    data = batches() if known else batches().filter(lambda x, y: True)
    model = distributed(builder(steps_per_execution=2), kind, 4)
    options = {"epochs": 2, "validation_data": batches()}
    assert_same(fit(model, data, **options), fit(alone(builder()), batches(), **options))
    assert model.optimizer.iterations.numpy() == 2 * 3


def test_a_data_set_made_for_each_worker_by_a_function_of_ones_own():
    """There the batch is the replica's: two of 16 make the global batch of 32."""
    strategy = strategy_of("mirrored", 2)
    halves = tf.data.Dataset.from_tensor_slices((X[:64], Y[:64])).batch(BATCH // 2)
    data = strategy.distribute_datasets_from_function(lambda context: halves)
    whole = tf.data.Dataset.from_tensor_slices((X[:64], Y[:64])).batch(BATCH)
    assert_same(fit(distributed(), data, epochs=2), fit(alone(builder()), whole, epochs=2))


def first_batch_of_two_workers(dataset):
    from tensorflow.python.data.experimental.ops.distribute import _AutoShardDataset

    workers = [_AutoShardDataset(dataset, num_workers=2, index=index) for index in range(2)]
    return np.sort(np.concatenate([next(iter(worker)).numpy() for worker in workers]))


def test_workers_share_examples_and_not_files_unless_asked_to(tmp_path):
    names = [str(tmp_path / f"{index}.tfrecord") for index in range(4)]
    for index, name in enumerate(names):
        with tf.io.TFRecordWriter(name) as file:
            for number in range(3 * index, 3 * index + 3):
                file.write(str(number).encode())
    data = tf.data.TFRecordDataset(names).map(lambda text: tf.strings.to_number(text, tf.int32))
    data = data.batch(4)
    np.testing.assert_array_equal(first_batch_of_two_workers(choose_sharding(data)), range(8))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    by_file = choose_sharding(data.with_options(options))
    others = [0, 1, 2, 3, 4, 5, 6, 9]
    assert list(first_batch_of_two_workers(by_file)) == others
    assert list(first_batch_of_two_workers(data)) == others  # where TensorFlow chooses


# evaluate, predict, save


@BOTH
@pytest.mark.parametrize("replicas", [2, 4])
def test_predict_keeps_the_order(kind, replicas):
    model, plain = distributed(kind=kind, replicas=replicas), alone(builder())
    expected = plain.predict(X, verbose=0)
    for data, size in ((X, 32), (X, EXAMPLES), (batches().map(lambda x, y: x), None)):
        found = model.predict(data, batch_size=size, verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    unknown = batches().map(lambda x, y: x).filter(lambda x: True)
    np.testing.assert_allclose(model.predict(unknown, verbose=0), expected, atol=1e-6)


@BOTH
def test_a_model_that_was_never_built_can_evaluate_and_predict_first(kind):
    model = distributed(builder(built=False), kind)
    assert model.predict(X, verbose=0).shape == (EXAMPLES, 4)
    model = distributed(builder(built=False), kind)
    plain = builder(built=False)()
    assert model.evaluate(batches(), verbose=0) == pytest.approx(
        plain.evaluate(batches(), verbose=0)
    )


@BOTH
def test_single_batches(kind):
    build = builder("sgd_momentum")
    model, plain = distributed(build, kind), build()
    for method in ("train_on_batch", "test_on_batch"):
        ours, theirs = getattr(model, method)(X, Y), getattr(plain, method)(X, Y)
        np.testing.assert_allclose(ours, theirs, 1e-5)
    np.testing.assert_allclose(model.predict_on_batch(X), plain.predict_on_batch(X), atol=1e-6)


def test_inputs_given_by_name_to_a_model_that_lists_them():
    def build():
        keras.utils.set_random_seed(3)
        title, body = keras.Input((2,), name="title"), keras.Input((6,), name="body")
        both = keras.layers.Concatenate()([title, body])
        model = keras.Model([title, body], keras.layers.Dense(4)(both))
        model.compile("sgd", LOSS())
        return model

    named = {"title": X[:, :2], "body": X[:, 2:]}
    data = tf.data.Dataset.from_tensor_slices((named, Y)).batch(BATCH)
    assert_same(fit(distributed(build), data), fit(build(), data))


@BOTH
def test_a_saved_model_goes_on_under_a_strategy_where_it_stopped(kind, tmp_path):
    model, plain = distributed(kind=kind), alone(builder())
    for one in (model, plain):
        fit(one, batches(), epochs=1)
    model.save(tmp_path / "model.keras")

    def load():
        return keras.saving.load_model(tmp_path / "model.keras")

    again = distributed(load, kind)
    assert_same(fit(again, batches(), epochs=2), fit(plain, batches(), epochs=2))


# Callbacks


class Reports(keras.callbacks.Callback):
    def __init__(self, **flags):
        super().__init__()
        self.ends = []
        self.__dict__.update(flags)

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(versions.last_batch(batch, epochs.running_fit(self.model).iterator))


def test_kerass_callbacks_see_and_do_the_same(tmp_path):
    def callbacks(name):
        return [
            keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.5),
            keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10, factor=0.5),
            keras.callbacks.ModelCheckpoint(
                tmp_path / f"{name}.weights.h5", save_weights_only=True
            ),
            keras.callbacks.CSVLogger(tmp_path / f"{name}.csv"),
            keras.callbacks.TensorBoard(tmp_path / name),
        ]

    options = {"epochs": 6, "validation_data": batches()}
    model, plain = distributed(), builder()()
    run = fit(model, shuffled(), callbacks=callbacks("model"), **options)
    reference = fit(plain, shuffled(), callbacks=callbacks("plain"), **options)
    assert_same(run, reference)
    assert 1 < len(run[0]["loss"]) < 6
    model.load_weights(tmp_path / "plain.weights.h5")
    assert list((tmp_path / "model").rglob("events.out*"))


@pytest.fixture
def clock(monkeypatch):
    """A step of an epoch of three takes 2**-7 s: 25 fit into an execution."""
    ticks = itertools.count(step=2**-6)
    monkeypatch.setattr(steps_per_execution, "perf_counter", lambda: next(ticks))


@pytest.mark.usefixtures("clock")
def test_the_number_of_steps_in_an_execution_is_chosen_after_the_first_epoch():
    listening, indifferent = Reports(), Reports(listens_to_executions=True)
    model = distributed()
    fit(model, batches(), epochs=2, callbacks=[listening])
    assert listening.ends == [0, 1, 2, 0, 1, 2]
    fit(model, batches(), epochs=2, callbacks=[indifferent])
    assert indifferent.ends == [0, 1, 2, 24]
    assert model.optimizer.iterations.numpy() == 4 * 3
    assert model.steps_per_execution == 1


def test_what_the_model_was_compiled_with_stays():
    report = Reports(listens_to_executions=True)
    fit(distributed(builder(steps_per_execution=2)), batches(), epochs=2, callbacks=[report])
    assert report.ends == [1, 3, 1, 3]


@pytest.mark.usefixtures("clock")
def test_executions_end_where_an_epoch_of_an_endless_data_set_does_and_at_a_callbacks_mark():
    report = Reports(listens_to_executions=True, every_steps=4)
    model = distributed()
    fit(model, batches().repeat(), epochs=2, steps_per_epoch=6, callbacks=[report])
    assert report.ends == [0, 1, 2, 3, 4, 5, 1, 3, 5]
    assert model.optimizer.iterations.numpy() == 2 * 6
    assert choose(20, 0) == 20
    assert choose(20, 12) == 12
    assert choose(5, 12) == 4
    assert choose(0, 7) == 1


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("steps", [None, 2])
def test_validation_takes_the_steps_that_it_is_given_whatever_was_chosen(recwarn, steps):
    options = {"epochs": 3, "validation_data": batches(), "validation_steps": steps}

    class Predicts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            assert len(self.model.predict(batches(), steps=2, verbose=0)) == 2 * BATCH

    run = fit(distributed(), batches(), callbacks=[Predicts()], **options)
    assert_same(run, fit(alone(builder()), batches(), **options))
    assert not [warning for warning in recwarn if "ran out of data" in str(warning.message)]


def generated():
    for first in range(0, EXAMPLES, 7):
        yield X[first : first + 7], Y[first : first + 7]


def of_unknown_length():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(EXAMPLES, seed=1).batch(7)
    return data.filter(lambda x, y: True)


def fit_with_warnings(model, data, **options):
    """Returns what `fit` does, and how often Keras warns that the data ran out."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run = fit(model, data, **options)
    return run, len([one for one in warned if "ran out of data" in str(one.message)])


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("data", "steps", "validation_steps"),
    [
        (of_unknown_length, None, None),
        (of_unknown_length, 3, 5),
        (of_unknown_length, 4, 12),  # of 11 batches
        (of_unknown_length, 11, 11),
        (lambda: of_unknown_length().repeat(2), 4, None),
        (lambda: of_unknown_length().apply(tf.data.experimental.assert_cardinality(11)), 4, None),
        (generated, 4, None),
    ],
    ids=["whole", "3", "4", "11", "repeated", "known", "generator"],
)
def test_data_that_run_out_in_an_execution_do_as_one_step_after_another(
    data, steps, validation_steps
):
    plain, model = alone(builder("sgd")), distributed(builder("sgd"))
    options = {"epochs": 7, "steps_per_epoch": steps, "validation_steps": validation_steps}
    expected, told = fit_with_warnings(
        plain, data(), validation_data=of_unknown_length(), **options
    )
    run, told_here = fit_with_warnings(
        model, data(), validation_data=of_unknown_length(), **options
    )
    assert_same(run, expected)
    assert told_here == told


@pytest.mark.parametrize(
    ("make", "listening"),
    [
        (lambda: keras.callbacks.EarlyStopping(), False),
        (lambda: keras.callbacks.ModelCheckpoint("x.keras"), False),
        (lambda: keras.callbacks.ModelCheckpoint("x.keras", save_freq=10), True),
        (lambda: keras.callbacks.TensorBoard("x"), False),
        (lambda: keras.callbacks.TensorBoard("x", update_freq=10), True),
        (lambda: keras.callbacks.TensorBoard("x", profile_batch=2), True),
        (lambda: keras.callbacks.LambdaCallback(on_train_batch_end=print), True),
        (lambda: keras.callbacks.LambdaCallback(on_epoch_end=print), False),
    ],
)
def test_which_of_kerass_callbacks_listen_to_batches(make, listening):
    assert listens(make()) == listening


def test_progress_is_kerass_own(capsys):
    distributed().fit(batches(), epochs=2, shuffle=False)
    shown = capsys.readouterr().out
    assert "Epoch 2/2" in shown
    assert "3/3" in shown
    assert "accuracy:" in shown


def test_fit_has_the_signature_of_kerass():
    model = distributed()
    assert inspect.signature(model.fit) == inspect.signature(builder()().fit)
    callbacks = keras.callbacks.CallbackList([], add_history=True, model=model)
    model.fit(batches(), verbose=0, callbacks=callbacks, shuffle=False)
    assert not [one for one in callbacks.callbacks if type(one).__module__.startswith("distlab")]


@pytest.mark.usefixtures("clock")
def test_a_callback_may_call_fit_itself():
    class Again(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                self.model.fit(batches(), verbose=0, shuffle=False)

    model = distributed()
    fit(model, batches(), epochs=4, callbacks=[Again()])
    assert model.optimizer.iterations.numpy() == 5 * 3


def test_a_callback_derived_from_one_of_kerass_is_told_of_every_batch():
    class Own(keras.callbacks.History):
        def on_train_batch_end(self, batch, logs=None):
            pass

    assert listens(Own())
    assert not listens(keras.callbacks.History())


def test_a_later_compile_needs_no_scope():
    model, plain = distributed(), builder()()
    for one in (model, plain):
        one.compile("adam", LOSS(), metrics=["accuracy"])
    assert_same(fit(model, batches()), fit(plain, batches()))


# Mistakes


@pytest.mark.parametrize("steps", [1, 2])
def test_a_loss_that_is_not_finite_is_told_with_its_step_and_replica(steps):
    x = X[:64].copy()
    x[50] = np.nan  # the second batch's second half
    data = tf.data.Dataset.from_tensor_slices((x, Y[:64])).batch(BATCH)
    model = distributed(builder("sgd_momentum", steps_per_execution=steps))
    with pytest.raises(ModelError) as error:
        model.fit(data, verbose=0)
    assert error.value.found.startswith("a loss of nan on replica 1 in step 2, counted as")
    assert "TerminateOnNaN" in error.value.do
    assert all(np.isfinite(weight.numpy()).all() for weight in model.weights)
    plain = alone(builder("sgd_momentum"))
    _, expected = fit(plain, data.take(1))
    for weight, reference in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(weight.numpy(), reference, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", ["one_device", "mirrored", "default"])
def test_where_xla_compiles_a_loss_that_is_not_finite_is_told_after_the_update(steps, own, kind):
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    def build():
        model = (Own if own else keras.Sequential)([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile("sgd", LOSS(), jit_compile=True, steps_per_execution=steps)
        return model

    x = X[:96].copy()
    x[50] = np.nan
    data = tf.data.Dataset.from_tensor_slices((x, Y[:96])).batch(BATCH)
    model = dl.distribute(build, strategy_of(kind, 1 if kind == "mirrored" else None))
    with pytest.raises(ModelError) as error:
        model.fit(data, verbose=0)
    assert error.value.found.startswith("a loss of nan on replica 0 in step 2, counted as")
    assert "the weights have its update already" in error.value.found
    assert model.optimizer.iterations.numpy() == 2, "the third step was not taken"
    with pytest.raises(ModelError, match="in step 3"):
        model.train_on_batch(X, Y)
    model.set_weights([np.zeros(weight.shape) for weight in model.get_weights()])
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"][0]), "no error is left over"


def test_terminate_on_nan_ends_training_as_it_does_in_keras():
    data = tf.data.Dataset.from_tensor_slices((X * np.nan, Y)).batch(BATCH)
    history = distributed().fit(data, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()])
    assert np.isnan(history.history["loss"]).all()


def test_callbacks_are_seen_if_the_models_own_fit_takes_any_arguments():
    class Own(keras.Sequential):
        def fit(self, *args, **kwargs):
            return super().fit(*args, **kwargs)

    def build():
        model = Own([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile("sgd", LOSS())
        return model

    data = tf.data.Dataset.from_tensor_slices((X * np.nan, Y)).batch(BATCH)
    model, stops = distributed(build), [keras.callbacks.TerminateOnNaN()]
    history = model.fit(data, verbose=0, callbacks=stops)
    assert np.isnan(history.history["loss"]).all()
    assert len(stops) == 1
    report = Reports(listens_to_executions=True)
    model = distributed(build)
    model.compile("sgd", LOSS(), steps_per_execution=2)
    model.fit(batches(), verbose=0, callbacks=[report])
    assert report.ends == [1, 3]
    model.fit(batches(), verbose=0)


def test_a_fit_of_the_models_own_may_train_twice_on_endless_data():
    class Twice(keras.Sequential):
        def fit(self, x, **options):
            super().fit(x, **options | {"epochs": 1})
            return super().fit(x, **options)

    def build():
        keras.utils.set_random_seed(1)
        model = Twice([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile("sgd", LOSS())
        return model

    (found, weights), (expected, plain) = (
        fit(model, batches().repeat(), epochs=3, steps_per_epoch=6)
        for model in (distributed(build), alone(build))
    )
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    for one, other in zip(weights, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            "a generator",
            marks=pytest.mark.skipif(
                versions.KERAS < (3, 12), reason="this Keras takes no None from a generator"
            ),
        ),
        "a data set",
    ],
)
@pytest.mark.parametrize("targets", [True, False])
def test_batches_may_end_in_none(kind, targets):
    def without_weights():
        for start in range(0, EXAMPLES, BATCH):
            rows = slice(start, start + BATCH)
            yield (X[rows], Y[rows], None) if targets else (X[rows], None)

    def data():
        if kind == "a generator":
            return without_weights()
        return batches().map(lambda x, y: (x, y, None) if targets else (x, None))

    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((8,))
        outputs = keras.layers.Dense(4, activity_regularizer="l2")(inputs)
        model = keras.Model(inputs, outputs)
        model.compile("sgd", LOSS() if targets else None)
        return model

    def run(model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Keras: the generator has ended
            history = model.fit(data(), validation_data=data(), shuffle=False, verbose=0).history
            evaluated = model.evaluate(data(), verbose=0)
            return [*history.values(), [evaluated]], model.predict(data(), verbose=0)

    (logs, predicted), (expected, plain) = run(distributed(build)), run(alone(build))
    np.testing.assert_allclose(logs, expected, rtol=1e-5)
    np.testing.assert_allclose(predicted, plain, atol=1e-5)


@pytest.mark.parametrize("kind", ["a generator", "a data set"])
def test_none_before_another_part_of_a_batch_is_refused(kind):
    def without_targets():
        yield X[:BATCH], None, Y[:BATCH]

    data = batches().map(lambda x, y: (x, None, y))
    with pytest.raises(DatasetError, match=r"found: batches \(a tensor, None, a tensor\): Tensor"):
        distributed().fit(without_targets() if kind == "a generator" else data, verbose=0)


def test_an_epoch_that_begins_in_the_middle_is_timed_from_there(monkeypatch):
    now = iter([100.0, 100.19])
    monkeypatch.setattr(steps_per_execution, "perf_counter", lambda: next(now))
    model = distributed()
    pace = steps_per_execution.ChosenSteps(
        [], asked=1, workers=workers_of(model.distribute_strategy)
    )
    pace.begin(type("Iterator", (), {"steps_per_epoch": None, "steps_per_execution": 1}))
    pace.on_epoch_begin(0)
    for batch in range(40, 61):
        pace.on_train_batch_end(batch)
    pace.on_epoch_end(0, {"loss": 1.0})
    pace.on_epoch_begin(1)
    assert pace.steps == 21


def test_an_empty_data_set_is_refused():
    for run in (lambda m: m.fit(batches().take(0)), lambda m: m.evaluate(batches().take(0))):
        with pytest.raises(DatasetError, match="found: a data set without a batch"):
            run(distributed())


def test_an_empty_data_set_of_unknown_length_is_refused():
    nothing = batches().filter(lambda x, y: False)
    with pytest.raises(DatasetError, match="found: a data set without a batch"):
        distributed().fit(nothing, verbose=0)


def test_a_data_set_that_runs_out_early_is_refused():
    with pytest.raises(DatasetError) as error:
        distributed().fit(batches(), steps_per_epoch=5)
    assert error.value.asked == "fit(..., steps_per_epoch=5)"
    assert error.value.found == "a data set of 3 batches, which runs out early"


def test_more_steps_in_an_execution_than_in_an_epoch_are_refused():
    with pytest.raises(InvalidArgument) as error:
        distributed(builder(steps_per_execution=5)).fit(batches())
    assert error.value.asked == "fit with steps_per_execution=5"
    assert error.value.do == "compile with at most 3, or leave it out: it is chosen then"


def test_data_of_another_shape_than_the_model_takes_are_told_by_name_and_shapes():
    def build():
        model = keras.Sequential([keras.Input((8,), name="features"), keras.layers.Dense(4)])
        model.compile("sgd", LOSS())
        return model

    with pytest.raises(DatasetError) as error:
        distributed(build).fit(X[:, :6], Y)
    assert error.value.found == (
        "batches of shape (None, 6) for its input 'features', which takes (None, 8)"
    )


def with_prototypes():
    """Each example is compared with ten prototypes, which its data set brings along."""
    keras.utils.set_random_seed(3)
    x, prototypes = keras.Input((8,), name="x"), keras.Input((8,), name="prototypes")
    outputs = keras.layers.Dense(4)(x @ keras.ops.transpose(prototypes) @ prototypes)
    model = keras.Model({"x": x, "prototypes": prototypes}, outputs)
    model.compile("sgd", LOSS())
    return model


def and_prototypes(rows):
    return batches().map(lambda x, y: ({"x": x, "prototypes": tf.zeros([rows, 8])}, y))


USES = pytest.mark.parametrize("use", ["fit", "evaluate", "predict"])


@USES
def test_parts_of_a_batch_that_do_not_have_a_row_for_each_example_are_refused(use):
    with pytest.raises(DatasetError) as error:
        getattr(distributed(with_prototypes), use)(and_prototypes(10), verbose=0)
    assert error.value.asked == "divide a batch among 2 replicas"
    assert error.value.found.startswith("parts whose first dimensions are")
    assert error.value.do.startswith("give each part of a batch one row for each example")
    assert distributed(with_prototypes, replicas=1).fit(and_prototypes(10), verbose=0)


@USES
def test_such_parts_are_refused_where_tensorflow_divides_the_batch(monkeypatch, use):
    monkeypatch.setattr(fitting, "splits", lambda strategy: False)
    with pytest.raises(DatasetError, match="found: parts whose first dimensions are 5, "):
        getattr(distributed(with_prototypes), use)(and_prototypes(10), verbose=0)


def test_such_parts_are_refused_from_their_shapes_if_these_are_known():
    known = batches().unbatch().batch(8, drop_remainder=True)
    data = known.map(lambda x, y: ({"x": x, "prototypes": tf.zeros([10, 8])}, y))
    with pytest.raises(DatasetError, match="found: parts whose first dimensions are 10, 8, 8"):
        distributed(with_prototypes).fit(and_prototypes(32), validation_data=data)
    with pytest.raises(DatasetError, match="found: parts whose first dimensions are 10, 73, 73"):
        distributed(with_prototypes).train_on_batch({"x": X, "prototypes": X[:10]}, Y)


@USES
def test_a_single_number_in_a_batch_and_a_data_set_without_batches_are_refused(use):
    with_number = batches().map(lambda x, y: ({"x": x, "prototypes": 2.0}, y))
    for data in (with_number, batches().unbatch()):
        with pytest.raises(DatasetError, match=r"found: a part of shape \(\), which has no"):
            getattr(distributed(with_prototypes), use)(data, verbose=0)


@pytest.mark.parametrize("kind", ["mirrored", "default"])
def test_targets_of_another_shape_than_the_loss_takes_are_told_with_the_outputs(kind):
    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, name="logits")])
        model.compile("sgd", LOSS())
        return model

    with pytest.raises(DatasetError) as error:
        distributed(build, kind, None if kind == "default" else 2).fit(X, np.tile(Y[:, None], 3))
    assert "targets of shape (None, 3)" in error.value.found
    assert "outputs 'logits' (None, 4)" in error.value.found


def test_data_without_targets_are_told():
    with pytest.raises(DatasetError, match="found: data without targets, and a model that was"):
        distributed().fit(X, verbose=0)


def test_what_the_targets_are_not_to_blame_for_is_told_as_keras_tells_it():
    class Broken(keras.metrics.Mean):
        def update_state(self, y_true, y_pred, sample_weight=None):
            raise ValueError("my own mistake")

    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile("sgd", LOSS(), metrics=[Broken()])
        return model

    with pytest.raises(ValueError, match="my own mistake") as error:
        distributed(build).fit(batches(), verbose=0)
    assert not isinstance(error.value, DatasetError)


def test_a_single_batch_whose_loss_is_not_finite_is_told_too():
    with pytest.raises(ModelError, match="a loss of nan on replica 0 in step 1"):
        distributed().train_on_batch(X * np.nan, Y)


def test_an_optimizer_that_a_later_compile_brings_from_outside_is_refused():
    model, built = distributed(), keras.optimizers.Adam()
    built.build([keras.Variable([0.0])])  # one without slots is made again in the scope
    model.compile(built, LOSS())
    with pytest.raises(ModelError, match="its optimizer, that was made outside the strategy"):
        fit(model, batches())


@pytest.mark.parametrize(
    "change",
    [
        {"kernel_constraint": "unit_norm"},
        {"optimizer": "nadam"},
    ],
)
def test_what_central_storage_cannot_write_is_named(change):
    def build():
        layer = keras.layers.Dense(4, kernel_constraint=change.get("kernel_constraint"))
        model = keras.Sequential([keras.Input((8,)), layer])
        model.compile(change.get("optimizer", "sgd"), LOSS())
        return model

    with pytest.raises(ModelError, match="of which all replicas share one copy"):
        distributed(build, "central_storage").fit(batches(), verbose=0)


def test_statistics_that_are_written_twice_in_a_step_are_refused_under_central_storage():
    def build():
        inputs = keras.Input((4,))
        shared = keras.layers.BatchNormalization()
        model = keras.Model(inputs, shared(shared(inputs)))
        model.compile("sgd", LOSS())
        return model

    with pytest.raises(ModelError, match="a layer that is called twice and keeps statistics"):
        distributed(build, "central_storage").fit(X[:, :4], Y, verbose=0)


class Noise(keras.layers.Layer):
    def call(self, x):
        return x + keras.random.normal((8,))


@BOTH
def test_randomness_without_a_seed_in_a_step_is_explained(kind):
    def build():
        model = keras.Sequential([keras.Input((8,)), Noise(), keras.layers.Dense(4)])
        model.compile("sgd", LOSS())
        return model

    model = distributed(build, kind)
    with pytest.raises(ModelError, match=r"keras.random.SeedGenerator\(seed\)"):
        model.fit(batches(), verbose=0)


def test_train_takes_the_epochs_that_the_others_compare():
    assert len(train(distributed())[0]["loss"]) == EPOCHS
