"""Resume: a training that was stopped ends with the bits of one that was not."""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import shutil
import signal
import threading
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import DatasetError, InvalidArgument, ModelError
from distlab.training import pipelines
from distlab.training.resume import checkpoints
from distlab.training.resume.checkpointing import Position
from distlab.training.workers import agreeing
from tests.support.repository import ROOT

EXAMPLES, BATCH, BATCHES = 22, 4, 6  # the last batch is a partial one
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, 3)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) + RNG.normal(size=(EXAMPLES, 1)) / 9).astype("float32")


def dataset(examples=EXAMPLES):
    tf.random.set_seed(7)  # a shuffle's order comes from both seeds
    data = tf.data.Dataset.from_tensor_slices((X[:examples], Y[:examples]))
    return data.shuffle(examples, seed=1).batch(BATCH)


def build(*, optimizer=None, steps_per_execution=1, units=5, metrics=("mae",)):
    schedule = keras.optimizers.schedules.CosineDecay(0.05, decay_steps=20)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(units, "tanh"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        optimizer=optimizer() if optimizer else keras.optimizers.Adam(schedule),
        loss="mse",
        metrics=list(metrics),
        steps_per_execution=steps_per_execution,
    )
    return model


def make(kind="default", *, seed=1, **options):
    """A model with weights and Dropout seeds that follow from `seed`."""
    keras.utils.set_random_seed(seed)
    if kind == "keras":
        return build(**options)
    devices = None if kind in ("default", "one_device") else ["CPU:0", "CPU:1"]
    strategy = dl.make_strategy(kind, devices=devices)
    return dl.distribute(functools.partial(build, **options), strategy)


class Stopped(Exception):
    pass


class Stop(keras.callbacks.Callback):
    """As if the process were killed when a batch was done, with all that follows from it."""

    def __init__(self, *, after):
        super().__init__()
        self.epoch, self.batch = after
        self.running = []

    def on_epoch_begin(self, epoch, logs=None):
        self.running[:] = [epoch]
        if epoch > self.epoch:
            raise Stopped

    def on_train_batch_begin(self, batch, logs=None):
        if self.running == [self.epoch] and batch > self.batch:
            raise Stopped

    def on_test_begin(self, logs=None):
        if self.running == [self.epoch]:
            raise Stopped


NEVER = Stop(after=(99, 0))


class Diary(keras.callbacks.Callback):
    """A callback of one's own: what it was called for, and some state of several kinds."""

    def __init__(self, note=""):
        super().__init__()
        self.note = note
        self.calls = []
        self.sums = np.zeros(2)
        self.best = (float("inf"), None)

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(("epoch", epoch))

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("batch", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.sums += [1.0, logs["loss"]]
        self.best = min(self.best, (logs["loss"], batch), key=lambda pair: pair[0])


def fit(model, *callbacks, data=None, epochs=3, **options):
    data = dataset() if data is None else data
    options = {"verbose": 0, "shuffle": False, **options}
    return model.fit(data, epochs=epochs, callbacks=list(callbacks), **options)


def state_of(model):
    return [np.asarray(v) for v in model.get_weights()] + [
        keras.ops.convert_to_numpy(v) for v in model.optimizer.variables
    ]


def assert_same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def stop_and_resume(
    folder, *, after, kind="default", every_steps=2, to=None, callbacks=list, **options
):
    """Trains until `after` = (epoch, batch), then in a new model with other random numbers."""
    how = {key: options.pop(key) for key in ("optimizer", "steps_per_execution") if key in options}
    data = options.pop("data", dataset)
    with pytest.raises(Stopped):
        fit(
            make(kind, seed=1, **how),
            dl.Resume(folder, every_steps=every_steps),
            *callbacks(),
            Stop(after=after),
            data=data(),
            **options,
        )
    model, again, resume = make(to or kind, seed=2, **how), callbacks(), dl.Resume(folder)
    history = fit(model, resume, *again, NEVER, data=data(), **options)
    return model, history, again, resume


def undisturbed(*, kind="default", callbacks=list, data=dataset, **options):
    how = {key: options.pop(key) for key in ("optimizer", "steps_per_execution") if key in options}
    model, made = make(kind, seed=1, **how), callbacks()
    return model, fit(model, *made, data=data(), **options), made


@pytest.mark.parametrize(
    ("kind", "steps", "after", "place"),
    [
        ("default", 1, (1, 4), (1, 4, 10)),
        ("one_device", 4, (1, 3), (1, 4, 10)),
        ("mirrored", 1, (1, 2), (1, 2, 8)),
        ("mirrored", 4, (0, 7), (0, 6, 6)),  # the last execution finds two batches of four
        ("central_storage", 1, (2, 1), (2, 2, 14)),
        ("keras", 1, (0, 3), (0, 4, 4)),
    ],
)
def test_a_training_stopped_in_mid_epoch_ends_with_the_same_bits(
    tmp_path, kind, steps, after, place
):
    how = {"kind": kind, "steps_per_execution": steps, "validation_data": (X[:8], Y[:8])}
    expected, expected_history, _ = undisturbed(**how)
    model, history, _, resume = stop_and_resume(tmp_path / "c", after=after, **how)
    epoch, batch, step = place
    assert resume.resumed_from == Position(epoch=epoch, batch=batch, batches=BATCHES, step=step)
    assert_same(state_of(model), state_of(expected))
    assert history.history == expected_history.history
    assert history.epoch == [0, 1, 2]


def test_all_that_an_optimizer_keeps_is_put_back(tmp_path):
    def optimizer():
        adam = keras.optimizers.Adam(0.02, use_ema=True, gradient_accumulation_steps=2)
        return keras.optimizers.LossScaleOptimizer(adam, dynamic_growth_steps=3)

    expected, history, _ = undisturbed(optimizer=optimizer)
    model, resumed, _, _ = stop_and_resume(
        tmp_path, after=(1, 2), every_steps=1, optimizer=optimizer
    )
    assert resumed.history == history.history
    assert_same(state_of(model), state_of(expected))


def test_executions_of_any_length_lead_to_the_same_bits(tmp_path):
    class StopBetweenExecutions(Stop):
        listens_to_executions = True  # so `fit` chooses how long they are

    def train(*callbacks, every_steps=None):
        model, resume = make(), dl.Resume(tmp_path, every_steps=every_steps)
        return fit(model, resume, *callbacks).history, state_of(model)

    expected, history, _ = undisturbed()
    with pytest.raises(Stopped):
        train(StopBetweenExecutions(after=(2, 3)), every_steps=2)
    resumed, state = train(StopBetweenExecutions(after=(99, 0)))
    assert resumed == history.history
    assert_same(state, state_of(expected))


def test_callbacks_go_on_with_what_they_knew(tmp_path):
    def callbacks():
        keras_own = keras.callbacks
        return [
            keras_own.EarlyStopping("loss", patience=2, min_delta=0.02, restore_best_weights=True),
            keras_own.ReduceLROnPlateau("loss", patience=1, min_delta=0.05, factor=0.5),
            keras_own.ModelCheckpoint(
                tmp_path / "best.weights.h5", "loss", save_best_only=True, save_weights_only=True
            ),
            Diary(),
        ]

    def attributes(callback):
        kept = (
            "min_delta",
            "wait",
            "best",
            "best_epoch",
            "stopped_epoch",
            "cooldown_counter",
            "calls",
            "sums",
        )
        return {name: getattr(callback, name) for name in kept if hasattr(callback, name)}

    how = {"callbacks": callbacks, "optimizer": functools.partial(keras.optimizers.SGD, 0.1)}
    expected, expected_history, made = undisturbed(epochs=9, **how)
    assert made[0].stopped_epoch and len(expected_history.epoch) < 9, "EarlyStopping stops it"
    rates = expected_history.history["learning_rate"]
    assert rates[0] > rates[-1], "ReduceLROnPlateau has reduced it"
    after = (made[0].stopped_epoch, 3)
    model, history, again, _ = stop_and_resume(tmp_path / "c", after=after, epochs=9, **how)
    assert history.history == expected_history.history
    assert_same(state_of(model), state_of(expected))
    for one, other in zip(made, again, strict=True):
        assert_same(list(attributes(one).values()), list(attributes(other).values()))
    assert_same(made[0].best_weights, again[0].best_weights)

    model = make(seed=3, optimizer=how["optimizer"])
    finished = fit(model, *callbacks(), dl.Resume(tmp_path / "c"), NEVER, epochs=9)
    assert finished.history == expected_history.history, "what was stopped early stays stopped"
    assert_same(state_of(model), state_of(expected))


def test_what_is_given_to_a_callback_is_not_overwritten_by_the_checkpoint(tmp_path):
    with pytest.raises(Stopped):
        fit(make(), Diary("old"), dl.Resume(tmp_path, every_steps=1), Stop(after=(0, 1)))
    diary = Diary("new")
    fit(make(), diary, dl.Resume(tmp_path), NEVER, epochs=1)
    assert diary.note == "new"
    assert diary.calls[:4] == [("epoch", 0), ("batch", 0), ("batch", 1), ("batch", 2)]
    assert diary.best[1] in range(BATCHES)


def test_a_finished_training_trains_no_more_and_a_longer_one_goes_on(tmp_path, capsys):
    expected, expected_history, _ = undisturbed(epochs=3)
    first = fit(make(), dl.Resume(tmp_path), epochs=2)
    diary, model = Diary(), make(seed=2)
    again = fit(model, dl.Resume(tmp_path), diary, epochs=2, verbose=2)
    assert (
        capsys.readouterr().out
        == "nothing left to train, all epochs are done: 2 epochs, 12 steps\n"
    )
    assert again.history == first.history and diary.calls == []
    model = make(seed=3)
    assert fit(model, dl.Resume(tmp_path), epochs=3).history == expected_history.history
    assert_same(state_of(model), state_of(expected))
    assert len(fit(model, epochs=1).epoch) == 1, "the next fit begins where it is told to"


def test_a_process_that_was_killed_goes_on(tmp_path, run_python, capsys):
    code = """
import os, sys
import distlab as dl
dl.split_devices(2)
sys.path.insert(0, {root!r})
from tests.training import test_resume as here
class Kill(here.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if {kill} and self.model.optimizer.iterations == 9:
            os.kill(os.getpid(), 9)
model = here.make("mirrored", seed={seed})
history = here.fit(model, dl.Resume("c", every_steps=4), Kill(), verbose={verbose})
here.np.savez("end.npz", *here.state_of(model))
import json
print(json.dumps(history.history))
"""
    options = {"root": str(ROOT), "verbose": 0}
    run_python(code.format(kill=True, seed=1, **options), fails=True, warm=True)
    printed = run_python(code.format(kill=False, seed=2, **options), warm=True)
    expected, history, _ = undisturbed(kind="mirrored")
    assert json.loads(printed) == history.history
    with np.load(tmp_path / "end.npz") as end:
        assert_same([end[name] for name in end.files], state_of(expected))


def test_a_checkpoint_of_two_replicas_is_resumed_on_one_device_and_back(tmp_path):
    how = {"optimizer": functools.partial(keras.optimizers.Adam, 0.01)}

    def no_dropout(model):
        model.layers[1].rate = 0.0  # what Dropout draws depends on the replica
        return model

    expected = no_dropout(make(**how))
    history = fit(expected)
    for number, (one, other) in enumerate([("mirrored", "one_device"), ("default", "mirrored")]):
        folder = tmp_path / str(number)
        with pytest.raises(Stopped):
            fit(
                no_dropout(make(one, **how)),
                dl.Resume(folder, every_steps=1),
                Stop(after=(1, 2)),
            )
        model = no_dropout(make(other, seed=2, **how))
        resumed = fit(model, dl.Resume(folder), NEVER)
        for a, b in zip(state_of(model), state_of(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
        for name, values in history.history.items():
            np.testing.assert_allclose(resumed.history[name], values, rtol=0, atol=1e-6)


def read_order(make_data, after=None, folder=None, **options):
    """Trains a model without weights worth the name; returns what each batch held."""
    seen = []

    class Order(keras.layers.Layer):
        def call(self, x):
            tf.py_function(lambda x: seen.append(x.numpy()[:, 0].tolist()), [x], [])
            return x

    model = keras.Sequential([keras.Input((1,)), Order(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True, steps_per_execution=options.pop("steps", 1))
    stop = NEVER if after is None else Stop(after=after)
    callbacks = [dl.Resume(folder, every_steps=1), stop] if folder else []
    with contextlib.suppress(Stopped):
        fit(model, *callbacks, data=make_data(), **options)
    return seen


def numbers(shuffle):
    def make_data():
        tf.random.set_seed(7)
        data = tf.data.Dataset.range(1, 9).map(lambda i: tf.cast(i, tf.float32)[None])
        return shuffle(data).map(lambda x: (x, x))

    return make_data


PIPELINES = {
    "reshuffled": (lambda d: d.shuffle(8, seed=1).batch(2), {}),
    "shuffle below repeat": (lambda d: d.shuffle(8, seed=1).repeat(2).batch(3), {}),
    "shuffle below cache": (lambda d: d.shuffle(8, seed=1).cache().batch(2), {}),
    "steps of an endless one": (
        lambda d: d.shuffle(8, seed=1).repeat().batch(3),
        {"steps_per_epoch": 4},
    ),
    "steps of a finite one": (
        lambda d: d.shuffle(8, seed=1).repeat(2).batch(2),
        {"steps_per_epoch": 4, "epochs": 4},
    ),
    "length not known": (lambda d: d.shuffle(8, seed=1).filter(lambda x: True).batch(2), {}),
    "length not known, two steps an execution": (
        lambda d: d.shuffle(8, seed=1).filter(lambda x: True).batch(3),
        {"steps": 2},
    ),
    "random map": (
        lambda d: d.map(lambda x: x + tf.random.uniform([1], seed=3)).shuffle(8, seed=1).batch(2),
        {},
    ),
}


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize(
    ("name", "after"),
    [
        *((name, (2, 1)) for name in PIPELINES),
        ("reshuffled", (1, 3)),  # between epochs
        ("steps of an endless one", (1, 3)),
        ("length not known, two steps an execution", (0, 3)),  # where four of three are counted
    ],
)
def test_each_batch_is_trained_on_once_and_in_order(tmp_path, name, after):
    shuffle, options = PIPELINES[name]
    data = numbers(shuffle)
    expected = read_order(data, **options)
    first = read_order(data, after=after, folder=tmp_path, **options)
    second = read_order(data, folder=tmp_path, **options)
    assert len(first) < len(expected)
    assert first + second == expected


@pytest.mark.parametrize("shuffle", [False, True])
def test_arrays_are_resumed_exactly_with_the_seed_set(tmp_path, shuffle):
    def train(folder, *callbacks):
        dl.set_seed(5)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        options = {"batch_size": 4, "shuffle": shuffle, "verbose": 0, "epochs": 3}
        resume = [dl.Resume(folder, every_steps=2)] if folder else []
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            history = model.fit(X, Y, callbacks=[*resume, *callbacks], **options)
        return history.history, state_of(model)

    history, expected = train(None)
    with pytest.raises(Stopped):
        train(tmp_path, Stop(after=(1, 3)))
    resumed, state = train(tmp_path, NEVER)
    assert resumed == history
    assert_same(state, expected)


def test_an_epoch_whose_batches_are_all_done_keeps_its_logs(tmp_path):
    how = {"kind": "keras", "validation_data": (X[:8], Y[:8])}
    expected, history, _ = undisturbed(**how)
    model, resumed, _, resume = stop_and_resume(tmp_path, after=(1, 5), every_steps=1, **how)
    assert resume.resumed_from.batch == BATCHES
    assert resumed.history == history.history
    assert_same(state_of(model), state_of(expected))


def complaints(data):
    return pipelines.inspect(data).complaints


def test_a_stage_that_may_not_keep_its_order_is_named():
    data = tf.data.Dataset.range(4)
    keras.utils.set_random_seed(1)
    drawn = data.map(lambda i: tf.random.uniform([]))
    assert complaints(drawn.shuffle(4, seed=1).repeat().batch(2).prefetch(1)) == ()
    assert complaints(dl.load_dataset("digits", batch_size=8)[0]) == ()
    parallel = data.map(lambda i: tf.random.uniform([]), num_parallel_calls=2)
    assert "ParallelMap draws random numbers in parallel" in complaints(parallel)[0]
    options = tf.data.Options()
    options.deterministic = False
    assert "deterministic=False gives up" in complaints(data.with_options(options))[0]
    loose = data.map(lambda i: i, num_parallel_calls=2, deterministic=False)
    assert complaints(loose) == ("ParallelMap has deterministic=False (leave it out)",)
    loose = data.interleave(
        lambda i: tf.data.Dataset.from_tensors(i), num_parallel_calls=2, deterministic=False
    )
    assert complaints(loose) == ("ParallelInterleave has deterministic=False (leave it out)",)
    generated = tf.data.Dataset.from_generator(
        lambda: iter(range(3)), output_signature=tf.TensorSpec((), tf.int32)
    )
    assert "FlatMap calls Python" in complaints(generated)[0]
    nested = data.flat_map(lambda i: tf.data.Dataset.range(2).shuffle(2, seed=1))
    assert "shuffles inside its function" in complaints(nested)[0]
    captured = data.flat_map(lambda i: data)
    assert "reads another data set inside" in complaints(captured)[0]
    counter = tf.Variable(0)
    counting = data.map(lambda i: counter.assign_add(1))
    assert "Map changes a variable (AssignAddVariableOp)" in complaints(counting)[0]
    assert "cannot be looked into" in complaints(iter(data))[0]


UNSEEDED = """
import tensorflow as tf, keras, numpy as np, sys
import distlab as dl
from distlab.training import pipelines
data = tf.data.Dataset.range(4)
print(pipelines.inspect(data.shuffle(4)).complaints)
print(pipelines.inspect(data.map(lambda i: tf.random.uniform([]))).complaints)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = np.zeros((4, 1))
    model.fit(x, x, verbose=0, callbacks=[dl.Resume("c")])
print([str(warning.message) for warning in caught if "Resume" in str(warning.message)])
"""


def test_data_without_a_seed_are_warned_of_when_training_starts(run_python):
    shuffle, drawn, arrays = run_python(UNSEEDED, warm=True).splitlines()
    assert shuffle == "('Shuffle has no seed (give one: seed=...)',)"
    assert "Map draws random numbers without a seed (RandomUniform: set_seed first)" in drawn
    assert "may not be resumed exactly: Map draws random numbers without a seed" in arrays
    assert "RandomShuffle" in arrays


def test_a_shuffle_that_validation_reads_too_is_warned_of(tmp_path):
    shuffled = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(EXAMPLES, seed=1)
    train, held = shuffled.skip(8).batch(BATCH), shuffled.take(8).batch(BATCH)
    with pytest.warns(UserWarning, match="validation reads from the same shuffle as training"):
        fit(make("keras"), dl.Resume(tmp_path), data=train, validation_data=held, epochs=1)


def test_a_data_set_that_was_read_in_this_process_is_warned_of(tmp_path):
    data = dataset()
    with pytest.raises(Stopped):
        fit(make("keras"), dl.Resume(tmp_path, every_steps=1), Stop(after=(1, 1)), data=data)
    with pytest.warns(UserWarning, match="make the data set anew before fit"):
        fit(make("keras"), dl.Resume(tmp_path), NEVER, data=data)


def test_a_part_of_validation_data_that_are_shuffled_anew_is_warned_of(tmp_path):
    held = dataset().repeat()
    warned = pytest.warns(UserWarning, match="validation reads 2 batches of data that are shuffled")
    with warned:
        fit(make("keras"), dl.Resume(tmp_path), validation_data=held, validation_steps=2)


def test_a_shuffle_that_an_earlier_fit_has_read_is_warned_of(tmp_path):
    model, data = make("keras"), dataset()
    fit(model, dl.Resume(tmp_path / "frozen"), data=data, epochs=1)
    with pytest.warns(UserWarning, match="an earlier fit has read from the same shuffle"):
        fit(model, dl.Resume(tmp_path / "tuned"), data=data, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(model, dl.Resume(tmp_path / "anew"), data=dataset(), epochs=1)


def test_two_fits_of_one_script_are_one_training(tmp_path):
    expected, history, _ = undisturbed(kind="keras")
    model, data = make("keras"), dataset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(model, dl.Resume(tmp_path), data=data, epochs=1)
        fit(model, dl.Resume(tmp_path), data=data, epochs=1)  # nothing is left for this one
        both = fit(model, dl.Resume(tmp_path), data=data, epochs=3)
    assert both.history == history.history
    assert_same(state_of(model), state_of(expected))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three checkpoints of a plain model, which tests copy and do not change."""
    folder = tmp_path_factory.mktemp("trained") / "checkpoints"
    with pytest.raises(Stopped):
        fit(make("keras"), dl.Resume(folder, every_steps=4), Stop(after=(1, 3)))
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    return pathlib.Path(shutil.copytree(trained, tmp_path / "checkpoints"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


THREE = ["epoch-0000-step-00000004", "epoch-0001-step-00000006", "epoch-0001-step-00000008"]


def test_checkpoints_are_read_without_distlab_and_without_pickle(folder):
    assert names(folder) == THREE
    state = json.loads((folder / THREE[2] / "state.json").read_text())
    assert state["position"] == {"epoch": 1, "batch": 2, "batches": 6, "step": 8}
    with np.load(folder / THREE[2] / "values.npz", allow_pickle=False) as values:
        (iteration,) = [key for key in values.files if key.endswith("/iteration")]
        assert values[iteration] == 8


def test_only_the_newest_are_kept(folder):
    fit(make("keras"), dl.Resume(folder, keep=2), NEVER, epochs=3)
    assert names(folder) == ["epoch-0002-step-00000012", "epoch-0003-step-00000018"]


@pytest.mark.parametrize("damage", ["cut", "bit", "no state", "no values"])
def test_a_damaged_checkpoint_is_passed_over_and_named(folder, damage):
    newest = folder / THREE[2]
    values = (newest / "values.npz").read_bytes()
    if damage == "cut":
        (newest / "values.npz").write_bytes(values[: len(values) // 2])
    elif damage == "bit":
        at = values.index(b"\x93NUMPY") + 130  # in the first array
        flipped = values[:at] + bytes([values[at] ^ 1]) + values[at + 1 :]
        (newest / "values.npz").write_bytes(flipped)
    else:
        (newest / ("state.json" if damage == "no state" else "values.npz")).unlink()
    with pytest.warns(UserWarning, match=f"{THREE[2]} .* is damaged; going on from {THREE[1]}"):
        found = checkpoints.newest(folder)
    assert found.name == THREE[1]
    # It does not count among those that are kept, and is written anew when training gets there.
    checkpoints.save(folder, found, keep=1)
    assert names(folder) == THREE[1:]
    again = checkpoints.Checkpoint(
        epoch=1, step=8, state=found.state | {"position": {"epoch": 1, "step": 8}}, values={}
    )
    checkpoints.save(folder, again, keep=1)
    assert names(folder) == THREE[2:]
    assert checkpoints.newest(folder).step == 8


def test_where_no_checkpoint_is_whole_training_does_not_start_anew(folder):
    for name in THREE:
        (folder / name / "state.json").write_text("{")
    with pytest.raises(InvalidArgument) as error:
        checkpoints.newest(folder)
    assert f"no whole checkpoint among 3: {THREE[2]} (JSONDecodeError" in error.value.found
    assert error.value.do.startswith("bring back a copy of one, or remove the folder")


def test_a_checkpoint_of_another_format_is_refused(folder):
    path = folder / THREE[2] / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(InvalidArgument, match="a checkpoint of format 2; this distlab reads"):
        checkpoints.newest(folder)


def test_who_is_stopped_while_saving_finds_what_was_there(folder, monkeypatch):
    found = checkpoints.newest(folder)

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.json, "dump", stopped)
    later = checkpoints.Checkpoint(epoch=2, step=12, state=found.state, values=found.values)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(folder, later, keep=1)
    monkeypatch.undo()
    assert names(folder) == [".unfinished-epoch-0002-step-00000012", *THREE]
    assert checkpoints.newest(folder).name == THREE[2]
    checkpoints.save(folder, later, keep=3)
    assert names(folder) == [*THREE[1:], "epoch-0002-step-00000012"], "the rest is cleared away"


def test_a_number_type_that_numpy_does_not_know_comes_back(tmp_path):
    values = {"a/b": np.asarray(keras.ops.cast([1.5, 2.5], "bfloat16"))}
    position = {"epoch": 0, "step": 1}
    saved = checkpoints.Checkpoint(epoch=0, step=1, state={"position": position}, values=values)
    checkpoints.save(tmp_path, saved, keep=1)
    back = checkpoints.newest(tmp_path).values["a/b"]
    assert back.dtype.name == "bfloat16" and back.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({"units": 6}, r"dense\S*/kernel \(3, 5\) float32 where this one has .*\(3, 6\)"),
        ({"optimizer": keras.optimizers.SGD}, "optimizer Adam, and a model with SGD"),
        (
            {"optimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())},
            "optimizer Adam, and a model with LossScaleOptimizer around Adam",
        ),
        ({"optimizer": lambda: keras.optimizers.Adam(amsgrad=True)}, "another optimizer: the"),
        ({"metrics": ("mse",)}, "another metrics: the checkpoint has mean_absolute_error/total"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(folder, other, found):
    with pytest.raises(ModelError, match=found) as error:
        fit(make("keras", **other), dl.Resume(folder), NEVER)
    assert error.value.do.endswith("the model as before, or give Resume another folder")


def test_data_that_end_before_the_place_are_refused(folder):
    with (
        pytest.warns(UserWarning, match="an epoch had 6 batches, and now has 1"),
        pytest.raises(DatasetError) as error,
    ):
        fit(make("keras"), dl.Resume(folder), NEVER, data=dataset(4))
    assert error.value.asked == "resume after batch 2 of an epoch"
    assert error.value.found == "a data set that ends after 1 batches"


def test_a_place_inside_an_execution_is_refused(folder):
    model = make("keras", steps_per_execution=3)
    with pytest.raises(InvalidArgument, match="batch 2 with 3 steps per execution") as error:
        fit(model, dl.Resume(folder), NEVER)
    assert error.value.do == "compile the model with the steps_per_execution it had"


def test_an_initial_epoch_may_not_lie_after_the_checkpoint(folder):
    with pytest.raises(InvalidArgument, match="a checkpoint of step 8: epoch 2, batch 2 of 6"):
        fit(make("keras"), dl.Resume(folder), NEVER, initial_epoch=2)
    history = fit(make("keras"), dl.Resume(folder), NEVER, initial_epoch=1)
    assert history.epoch == [0, 1, 2], "one that lies before it is what was begun"


def test_a_fit_that_is_stopped_again_leaves_the_model_as_it_was(folder):
    model = make("keras")
    with pytest.raises(Stopped):
        fit(model, dl.Resume(folder), Stop(after=(1, 3)))
    assert len(fit(model, epochs=1).epoch) == 1


def test_arguments_that_cannot_be_meant_are_refused(tmp_path):
    for options in ({"every_steps": 0}, {"every_steps": True}, {"keep": 0}, {"keep": 1.5}):
        with pytest.raises(InvalidArgument, match="found: not a whole number from 1 on"):
            dl.Resume(tmp_path, **options)
    for secs in (0, -1.0, "60", True):
        with pytest.raises(
            InvalidArgument, match="found: not a number of seconds above 0"
        ) as error:
            dl.Resume(tmp_path, every_secs=secs)
        assert error.value.do == "give such a number, for example every_secs=60"
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="found: a file of that name"):
        dl.Resume(tmp_path / "file")


def test_a_training_that_fit_does_not_run_is_refused(tmp_path):
    callbacks = keras.callbacks.CallbackList([dl.Resume(tmp_path)], model=make("keras"))
    with pytest.raises(ModelError, match="a training that Keras's own fit does not run"):
        callbacks.on_train_begin()


def test_what_a_callback_keeps_and_cannot_be_stored_is_named(tmp_path):
    class Keeper(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.thing = object()

    with pytest.warns(UserWarning, match="Keeper keeps thing, a object, which a checkpoint"):
        fit(make("keras"), dl.Resume(tmp_path), Keeper(), epochs=1)
    with pytest.warns(UserWarning, match="holds the state of Diary, and fit was given no such"):
        fit(make("keras"), dl.Resume(tmp_path / "d"), Diary(), epochs=1)
        fit(make("keras"), dl.Resume(tmp_path / "d"), epochs=2)


class Sends(keras.callbacks.Callback):
    """Sends this process SIGTERM, some times, in the course of a step."""

    def __init__(self, *, in_step, times=1):
        super().__init__()
        self.step, self.times = in_step, times

    def on_train_batch_begin(self, batch, logs=None):
        if self.model.optimizer.iterations == self.step - 1:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def listener():
    """The calls of a handler of SIGTERM that was there before `fit`."""
    calls = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    yield calls
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("kind", ["default", "mirrored", "central_storage", "keras"])
def test_who_is_asked_to_leave_saves_first_and_then_leaves(tmp_path, kind, listener, capsys):
    expected, history, _ = undisturbed(kind=kind)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as leaves:
        fit(make(kind), dl.Resume(tmp_path), Sends(in_step=8), verbose=2)
    assert leaves.value.code == 143
    assert names(tmp_path) == [THREE[1], THREE[2]]
    assert f"SIGTERM): saved step 8 in {tmp_path}, and ends with exit" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is handler and listener == []
    model = make(kind, seed=2)
    assert fit(model, dl.Resume(tmp_path), NEVER).history == history.history
    assert_same(state_of(model), state_of(expected))


def test_who_is_asked_twice_leaves_the_rest_to_whoever_listened_before(tmp_path, listener):
    with pytest.raises(SystemExit):
        fit(make("keras"), dl.Resume(tmp_path), Sends(in_step=2, times=2))
    assert listener == [signal.SIGTERM]


def test_who_is_asked_while_the_last_callbacks_run_is_asked_again_after_fit(tmp_path, listener):
    asks = keras.callbacks.LambdaCallback(
        on_train_end=lambda logs: os.kill(os.getpid(), signal.SIGTERM)
    )
    fit(make("keras"), dl.Resume(tmp_path), asks, epochs=1)
    assert listener == [signal.SIGTERM]


@pytest.mark.parametrize("kind", ["default", "keras"])
def test_a_fit_that_fails_does_not_keep_the_signal(tmp_path, listener, kind):
    with pytest.raises(Stopped):
        fit(make(kind), dl.Resume(tmp_path), Stop(after=(0, 1)))
    os.kill(os.getpid(), signal.SIGTERM)
    assert listener == [signal.SIGTERM]


def test_only_resume_listens_and_only_in_the_main_thread(tmp_path, listener):
    fit(make("keras"), Sends(in_step=2), epochs=1)
    assert listener == [signal.SIGTERM]
    training = threading.Thread(
        target=fit,
        args=(make("keras"), dl.Resume(tmp_path), Sends(in_step=2)),
        kwargs={"epochs": 1},
    )
    training.start()
    training.join()
    assert listener == [signal.SIGTERM] * 2


def test_a_process_that_is_asked_to_leave_ends_with_a_code_that_means_restart(
    tmp_path, warm_python
):
    code = """
import sys
import distlab as dl
sys.path.insert(0, {root!r})
from tests.training import test_resume as here
here.fit(here.make(), dl.Resume("c"), here.Sends(in_step=8))
"""
    process, environ = warm_python
    argv = ["-c", code.format(root=str(ROOT))]
    with (tmp_path / "err").open("w") as err:
        task = process.spawn(argv, env=environ, cwd=tmp_path, stdout=err, stderr=err)
        assert task.wait(timeout_secs=120) == 143, (tmp_path / "err").read_text()
    assert checkpoints.newest(tmp_path / "c").step == 8


def test_checkpoints_by_the_clock(tmp_path, monkeypatch):
    ticks = itertools.count(step=4)  # seconds, from one look to the next
    monkeypatch.setattr(agreeing, "monotonic", lambda: next(ticks))
    fit(make(), dl.Resume(tmp_path, every_secs=8, keep=9), NEVER, epochs=1)
    assert [int(name[-2:]) for name in names(tmp_path)] == [2, 4, 6, 6]
    # Steps and seconds, whichever is over first.
    fit(make(), dl.Resume(tmp_path / "b", every_secs=8, every_steps=3, keep=9), NEVER, epochs=1)
    assert [int(name[-2:]) for name in names(tmp_path / "b")] == [2, 3, 5, 6, 6]


def test_a_line_says_from_where_it_goes_on(folder, capsys):
    fit(make("keras"), dl.Resume(folder), NEVER, verbose=2)
    assert capsys.readouterr().out.startswith(
        "resumed from step 8: epoch 2, batch 2 of 6\nEpoch 2/3\n"
    )
