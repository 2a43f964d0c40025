"""Resume: a training that was stopped ends with the bits of one that was not."""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import pickle
import shutil
import signal
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import DatasetError, InvalidArgument, ModelError
from distlab.training import pipelines
from distlab.training.resume import checkpoints
from distlab.training.resume.checkpoints import Position
from distlab.training.workers import agreement
from tests.support.parity import unlike
from tests.support.repository import ROOT
from tests.support.resuming import (
    BATCH,
    BATCHES,
    EXAMPLES,
    NEVER,
    VALIDATION,
    Diary,
    Signal,
    Stop,
    Stopped,
    X,
    Y,
    dataset,
    fit,
    make,
    names,
    state_of,
    unlike_in_bits,
)

KILLED = """
import pickle, signal, sys
sys.path.insert(0, {root!r})
import distlab as dl
from tests.support import resuming as here
model = here.make(seed={seed})
callbacks = [dl.Resume("c", every_steps=4), here.Signal({step}, signal.SIGKILL)]
history = here.fit(model, *callbacks, validation_data=here.VALIDATION)
with open("end.pickle", "wb") as file:
    pickle.dump((history.history, here.state_of(model)), file)
"""


def test_a_process_that_was_killed_goes_on_with_the_same_bits(tmp_path, run_python):
    """In mid-epoch, shuffled, with Dropout and validation."""
    run_python(KILLED.format(root=str(ROOT), seed=1, step=9), fails=True, warm=True)
    assert 4 <= checkpoints.newest(tmp_path / "c").step <= 9
    run_python(KILLED.format(root=str(ROOT), seed=2, step=None), warm=True)
    run, model = pickle.loads((tmp_path / "end.pickle").read_bytes()), make()
    history = fit(model, validation_data=VALIDATION)
    assert unlike_in_bits((history.history, state_of(model)), run) == {}


def scaled():
    adam = keras.optimizers.Adam(0.02, use_ema=True, gradient_accumulation_steps=2)
    return keras.optimizers.LossScaleOptimizer(adam, dynamic_growth_steps=3)


@pytest.mark.parametrize(
    ("kind", "options", "after", "place"),
    [
        ("mirrored", {"steps_per_execution": 4}, (1, 3), (1, 4, 10)),
        (
            "keras",
            {"optimizer": scaled},
            (1, 5),
            (1, 6, 12),
        ),  # all batches of an epoch are done, and no validation
    ],
)
def test_a_training_stopped_in_mid_epoch_ends_with_the_same_bits(
    tmp_path, kind, options, after, place
):
    expected = make(kind, **options)
    history = fit(expected, validation_data=VALIDATION)
    resume = dl.Resume(tmp_path, every_steps=2)
    with pytest.raises(Stopped):
        fit(make(kind, **options), resume, Stop(after=after), validation_data=VALIDATION)
    model, resume = make(kind, seed=2, **options), dl.Resume(tmp_path)
    again = fit(model, resume, NEVER, validation_data=VALIDATION)
    epoch, batch, step = place
    assert resume.resumed_from == Position(epoch=epoch, batch=batch, batches=BATCHES, step=step)
    runs = (history.history, state_of(expected)), (again.history, state_of(model))
    assert unlike_in_bits(*runs) == {}
    assert again.epoch == [0, 1, 2]


def test_callbacks_go_on_with_what_they_knew(tmp_path):
    def callbacks(note="new"):
        own = keras.callbacks
        best = tmp_path / "best.weights.h5"
        return [
            own.EarlyStopping("loss", patience=2, min_delta=0.02, restore_best_weights=True),
            own.ReduceLROnPlateau("loss", patience=1, min_delta=0.05, factor=0.5),
            own.ModelCheckpoint(best, "loss", save_best_only=True, save_weights_only=True),
            Diary(note),
        ]

    def attributes(callback):
        kept = ("min_delta", "wait", "best", "best_epoch", "stopped_epoch", "cooldown_counter")
        kept += ("calls", "sums", "note")
        return [getattr(callback, name) for name in kept if hasattr(callback, name)]

    def made(seed):
        return make(seed=seed, optimizer=functools.partial(keras.optimizers.SGD, 0.1))

    expected, known = made(1), callbacks()
    history = fit(expected, *known, epochs=9)
    assert known[0].stopped_epoch and len(history.epoch) < 9, "EarlyStopping stops it"
    rates = history.history["learning_rate"]
    assert rates[0] > rates[-1], "ReduceLROnPlateau has reduced it"

    stop, folder = Stop(after=(known[0].stopped_epoch, 3)), tmp_path / "c"
    with pytest.raises(Stopped):
        fit(made(1), dl.Resume(folder, every_steps=2), *callbacks("old"), stop, epochs=9)
    model, again = made(2), callbacks()
    assert fit(model, dl.Resume(folder), *again, NEVER, epochs=9).history == history.history
    ends = [
        ({}, state_of(each) + callbacks[0].best_weights)
        for each, callbacks in ((expected, known), (model, again))
    ]
    assert unlike_in_bits(*ends) == {}
    for callback, same in zip(again, known, strict=True):  # what was given it keeps: its note
        for value, kept in zip(attributes(callback), attributes(same), strict=True):
            np.testing.assert_array_equal(value, kept)
    model = made(3)
    finished = fit(model, *callbacks(), dl.Resume(folder), NEVER, epochs=9)
    assert finished.history == history.history, "what was stopped early stays stopped"
    assert unlike_in_bits(({}, state_of(expected)), ({}, state_of(model))) == {}


def test_a_finished_training_trains_no_more_and_a_longer_one_goes_on(tmp_path, capsys):
    """As two fits of one script do, or the same script with more epochs."""
    expected = make()
    history = fit(expected).history
    model, data, diary = make(), dataset(), Diary()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        first = fit(model, dl.Resume(tmp_path), data=data, epochs=2)
        again = fit(model, dl.Resume(tmp_path), diary, data=data, epochs=2, verbose=2)
        line = "nothing left to train, all epochs are done: 2 epochs, 12 steps\n"
        assert capsys.readouterr().out == line
        assert again.history == first.history and diary.calls == []
        assert fit(model, dl.Resume(tmp_path), data=data).history == history
    assert unlike_in_bits(({}, state_of(expected)), ({}, state_of(model))) == {}
    assert len(fit(model, epochs=1).epoch) == 1, "the next fit begins where it is told to"


def test_a_checkpoint_of_two_replicas_is_resumed_on_one_device(tmp_path):
    stop = Stop(after=(1, 2))
    with pytest.raises(Stopped):
        fit(make("mirrored"), dl.Resume(tmp_path, every_steps=1), stop)
    runs = []
    for model, callbacks in (
        (make("one_device", seed=2), [dl.Resume(tmp_path), NEVER]),
        (make(), []),
    ):
        history = fit(model, *callbacks)
        runs.append((history.history, state_of(model)))
    assert unlike(*reversed(runs), atol=1e-5) == {}


def test_a_training_that_has_ended_is_not_taken_for_one_of_another_compile(tmp_path):
    """As where a tuner gives all its trials one folder."""
    rate = lambda rate: make(optimizer=functools.partial(keras.optimizers.SGD, rate))  # noqa: E731
    first = fit(rate(0.125), dl.Resume(tmp_path)).history
    with pytest.raises(ModelError, match=r"ended, with SGD.learning_rate=0.125, and a model comp"):
        fit(rate(0.25), dl.Resume(tmp_path))
    assert fit(rate(0.125), dl.Resume(tmp_path)).history == first, "there was nothing left to do"


def read_order(make_data, after=None, folder=None, steps=1, **options):
    """Trains a model without weights worth the name; returns what each batch held."""
    seen = []

    class Order(keras.layers.Layer):
        def call(self, x):
            tf.py_function(lambda x: seen.append(x.numpy()[:, 0].tolist()), [x], [])
            return x

    model = keras.Sequential([keras.Input((1,)), Order(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True, steps_per_execution=steps)
    stop = NEVER if after is None else Stop(after=after)
    callbacks = [dl.Resume(folder, every_steps=1), stop] if folder else []
    with contextlib.suppress(Stopped):
        fit(model, *callbacks, data=make_data(), **options)
    return seen


PIPELINES = {
    "reshuffled": (lambda d: d.shuffle(8, seed=1).batch(2), (2, 1), {}),
    "between epochs": (lambda d: d.shuffle(8, seed=1).batch(2), (1, 3), {}),
    "steps of a finite one": (
        lambda d: d.shuffle(8, seed=1).repeat(2).batch(2),
        (2, 1),
        {"steps_per_epoch": 4, "epochs": 4},
    ),
    "length not known, two steps an execution": (
        lambda d: d.shuffle(8, seed=1).filter(lambda x: True).batch(3),
        (0, 3),  # where four of three are counted
        {"steps": 2},
    ),
}


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("name", PIPELINES)
def test_each_batch_is_trained_on_once_and_in_order(tmp_path, name):
    shuffle, after, options = PIPELINES[name]

    def data():
        tf.random.set_seed(7)
        numbers = tf.data.Dataset.range(1, 9).map(lambda i: tf.cast(i, tf.float32)[None])
        return shuffle(numbers).map(lambda x: (x, x))

    expected = read_order(data, **options)
    first = read_order(data, after=after, folder=tmp_path, **options)
    second = read_order(data, folder=tmp_path, **options)
    assert len(first) < len(expected)
    assert first + second == expected


def test_shuffled_arrays_are_resumed_exactly_with_the_seed_set(tmp_path):
    def train(*callbacks):
        dl.set_seed(5)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        options = {"batch_size": 4, "verbose": 0, "epochs": 3}
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            history = model.fit(X, Y, callbacks=list(callbacks), **options)
        return history.history, state_of(model)

    expected = train()
    with pytest.raises(Stopped):
        train(dl.Resume(tmp_path, every_steps=2), Stop(after=(1, 3)))
    assert unlike_in_bits(expected, train(dl.Resume(tmp_path, every_steps=2), NEVER)) == {}


def test_a_stage_that_may_not_keep_its_order_is_named():
    data = tf.data.Dataset.range(4)
    keras.utils.set_random_seed(1)

    def drawn(**options):
        return data.map(lambda i: tf.random.uniform([]), **options)

    assert pipelines.inspect(drawn().shuffle(4, seed=1).repeat().batch(2)).complaints == ()
    assert pipelines.inspect(dl.load_dataset("digits", batch_size=8)[0]).complaints == ()
    options = tf.data.Options()
    options.deterministic = False
    loose = {"num_parallel_calls": 2, "deterministic": False}
    signature = tf.TensorSpec((), tf.int32)
    generated = tf.data.Dataset.from_generator(lambda: range(3), output_signature=signature)
    stages = {
        "ParallelMap draws random numbers in parallel": drawn(num_parallel_calls=2),
        "deterministic=False gives up": data.with_options(options),
        "ParallelMap has deterministic=False": data.map(lambda i: i, **loose),
        "ParallelInterleave has deterministic=False (leave it out)": data.interleave(
            lambda i: tf.data.Dataset.from_tensors(i), **loose
        ),
        "FlatMap calls Python": generated,
        "FlatMap shuffles or reads another data set inside": data.flat_map(
            lambda i: tf.data.Dataset.range(2).shuffle(2, seed=1)
        ),
        "cannot be looked into": iter(data),
    }
    tf.random.set_seed(None)
    stages["Shuffle has no seed (give one: seed=...)"] = data.shuffle(4)
    stages["Map draws random numbers without a seed (RandomUniform"] = drawn()
    complaints = {text: pipelines.inspect(stage).complaints for text, stage in stages.items()}
    assert [text for text, told in complaints.items() if not any(text in t for t in told)] == []


def test_data_that_cannot_be_resumed_exactly_are_warned_of(tmp_path):
    tf.random.set_seed(None)
    model = make()
    tf.random.set_seed(None)
    with pytest.warns(UserWarning, match="may not be resumed exactly: Map draws random numbers"):
        model.fit(X, Y, verbose=0, callbacks=[dl.Resume(tmp_path / "arrays")])
    shuffled = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(EXAMPLES, seed=1)
    train, held = shuffled.skip(8).batch(BATCH), shuffled.take(8).batch(BATCH)
    with pytest.warns(UserWarning, match="validation reads from the same shuffle as training"):
        fit(model, dl.Resume(tmp_path / "a"), data=train, validation_data=held, epochs=1)
    data, held = dataset(), dataset().repeat()
    options = {"validation_data": held, "validation_steps": 2, "epochs": 1}
    with pytest.warns(UserWarning, match="validation reads 2 batches of data that are shuffled"):
        fit(model, dl.Resume(tmp_path / "b"), data=data, **options)
    with pytest.warns(UserWarning, match="an earlier fit has read from the same shuffle"):
        fit(model, dl.Resume(tmp_path / "c"), data=data, epochs=1)
    data = dataset()
    with pytest.raises(Stopped):
        fit(make(), dl.Resume(tmp_path / "d", every_steps=1), Stop(after=(1, 1)), data=data)
    with pytest.warns(UserWarning, match="make the data set anew before fit"):
        fit(make(), dl.Resume(tmp_path / "d"), NEVER, data=data)


# What is written, and what is refused


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three checkpoints of a plain model, which tests copy and do not change."""
    folder = tmp_path_factory.mktemp("trained") / "checkpoints"
    with pytest.raises(Stopped):
        fit(make(), dl.Resume(folder, every_steps=4), Stop(after=(1, 3)))
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    return pathlib.Path(shutil.copytree(trained, tmp_path / "checkpoints"))


THREE = ["epoch-0000-step-00000004", "epoch-0001-step-00000006", "epoch-0001-step-00000008"]


def test_checkpoints_are_read_without_pickle_and_only_the_newest_are_kept(folder, capsys):
    assert names(folder) == THREE
    state = json.loads((folder / THREE[2] / "state.json").read_text())
    assert state["position"] == {"epoch": 1, "batch": 2, "batches": 6, "step": 8}
    with np.load(folder / THREE[2] / "values.npz", allow_pickle=False) as values:
        (iteration,) = [key for key in values.files if key.endswith("/iteration")]
        assert values[iteration] == 8
    fit(make(), dl.Resume(folder, keep=2), NEVER, verbose=2)
    line = "resumed from step 8: epoch 2, batch 2 of 6\nEpoch 2/3\n"
    assert capsys.readouterr().out.startswith(line)
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
        intact = checkpoints.newest(folder)
    # It does not count among those that are kept, and is written anew when training gets there.
    checkpoints.save(folder, intact, keep=1)
    assert names(folder) == THREE[1:]
    state = intact.state | {"position": {"epoch": 1, "step": 8}}
    again = checkpoints.Checkpoint(epoch=1, step=8, state=state, values={})
    checkpoints.save(folder, again, keep=1)
    assert names(folder) == THREE[2:] and checkpoints.newest(folder).step == 8


def test_a_folder_of_which_nothing_can_be_read_is_refused(folder):
    for name in THREE:
        (folder / name / "state.json").write_text("{")
    with pytest.raises(InvalidArgument) as error:
        checkpoints.newest(folder)
    assert f"no whole checkpoint among 3: {THREE[2]} (JSONDecodeError" in error.value.found
    assert error.value.do.startswith("bring back a copy of one, or remove the folder")


def test_who_is_stopped_while_saving_finds_what_was_there(folder, monkeypatch):
    newest = checkpoints.newest(folder)

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.json, "dump", stopped)
    later = checkpoints.Checkpoint(epoch=2, step=12, state=newest.state, values=newest.values)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(folder, later, keep=1)
    monkeypatch.undo()
    assert names(folder) == [".unfinished-epoch-0002-step-00000012", *THREE]
    assert checkpoints.newest(folder).name == THREE[2]
    checkpoints.save(folder, later, keep=3)
    assert names(folder) == [*THREE[1:], "epoch-0002-step-00000012"], "the rest is cleared away"


def test_a_number_type_that_numpy_does_not_know_comes_back(tmp_path):
    values = {"a/b": np.asarray(keras.ops.cast([1.5, 2.5], "bfloat16"))}
    state = {"position": {"epoch": 0, "step": 1}}
    checkpoint = checkpoints.Checkpoint(epoch=0, step=1, state=state, values=values)
    checkpoints.save(tmp_path, checkpoint, keep=1)
    back = checkpoints.newest(tmp_path).values["a/b"]
    assert back.dtype.name == "bfloat16" and back.tolist() == [1.5, 2.5]


OTHERS = {
    "weights": ({"units": 6}, r"dense\S*/kernel \(3, 5\) float32 where this one has .*\(3, 6\)"),
    "optimizer": ({"optimizer": keras.optimizers.SGD}, "optimizer Adam, and a model with SGD"),
    "slots": ({"optimizer": lambda: keras.optimizers.Adam(amsgrad=True)}, "another optimizer: the"),
    "metrics": ({"metrics": ("mse",)}, "another metrics: the checkpoint has mean_absolute_error"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_another_model_is_refused(folder, name):
    options, text = OTHERS[name]
    with pytest.raises(ModelError, match=text) as error:
        fit(make(**options), dl.Resume(folder), NEVER)
    assert error.value.do.endswith("the model as before, or name another folder for Resume")


def test_a_place_that_this_training_does_not_have_is_refused(folder):
    shorter = pytest.warns(UserWarning, match="an epoch had 6 batches, and now has 1")
    with shorter, pytest.raises(DatasetError, match="a data set that ends after 1 batches"):
        fit(make(), dl.Resume(folder), NEVER, data=dataset(4))
    with pytest.raises(InvalidArgument, match="batch 2 with 3 steps per execution"):
        fit(make(steps_per_execution=3), dl.Resume(folder), NEVER)
    history = fit(make(), dl.Resume(folder), NEVER, initial_epoch=1)
    assert history.epoch == [0, 1, 2], "the checkpoint says where to begin"


def test_arguments_and_trainings_that_cannot_be_meant_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    wrong = [
        *(
            ({name: value}, rf"{name}={value}\n  to do: pass a whole number above 0: {name}=")
            for name, value in [("every_steps", 0), ("every_steps", True), ("keep", 1.5)]
        ),
        *(
            ({"every_secs": secs}, f"every_secs={secs!r}\n  to do: pass a number above 0: every_")
            for secs in (0, -1.0, "60")
        ),
    ]
    for options, text in wrong:
        with pytest.raises(InvalidArgument, match=f"found: {text}"):
            dl.Resume(tmp_path, **options)
    callbacks = keras.callbacks.CallbackList([dl.Resume(tmp_path)], model=make())
    with pytest.raises(ModelError, match="a training that Keras's own fit does not run"):
        callbacks.on_train_begin()
    with pytest.raises(InvalidArgument, match="found: a folder in which nothing can be written"):
        fit(make(), dl.Resume(tmp_path / "file"))


def test_what_a_callback_keeps_and_cannot_be_stored_is_named(tmp_path):
    class Keeper(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.thing = object()

    with pytest.warns(UserWarning, match="Keeper keeps thing, a object, which a checkpoint"):
        fit(make(), dl.Resume(tmp_path), Keeper(), epochs=1)
    fit(make(), dl.Resume(tmp_path / "diary"), Diary(), epochs=1)
    with pytest.warns(UserWarning, match="holds the state of Diary, and fit was given no such"):
        fit(make(), dl.Resume(tmp_path / "diary"), epochs=2)


def test_checkpoints_by_the_clock_and_by_steps_whichever_is_over_first(tmp_path, monkeypatch):
    ticks = itertools.count(step=4)  # seconds, from one look to the next
    monkeypatch.setattr(agreement, "monotonic", lambda: next(ticks))
    fit(make(), dl.Resume(tmp_path, every_secs=8, every_steps=3, keep=9), NEVER, epochs=1)
    assert [int(name[-2:]) for name in names(tmp_path)] == [2, 3, 5, 6, 6]


# A request to leave


@pytest.fixture
def listener():
    """The calls of a handler of SIGTERM that was there before `fit`."""
    calls = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    yield calls
    signal.signal(signal.SIGTERM, before)


def test_who_is_asked_to_leave_saves_first_and_then_leaves(tmp_path, listener, capsys):
    """With the code that supervisors take for "restart me"."""
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as leaves:
        fit(make("default"), dl.Resume(tmp_path), Signal(8, signal.SIGTERM), NEVER, verbose=2)
    assert leaves.value.code == 143
    assert checkpoints.newest(tmp_path).step == 8
    assert f"SIGTERM): saved step 8 in {tmp_path}, and ends with exit" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is handler and listener == []


def test_whoever_listened_before_is_asked_where_resume_does_not_leave(tmp_path, listener):
    model = make()
    with pytest.raises(SystemExit):
        fit(model, dl.Resume(tmp_path / "twice"), Signal(2, signal.SIGTERM, times=2), NEVER)
    assert listener == [signal.SIGTERM]
    ask = keras.callbacks.LambdaCallback(
        on_train_end=lambda logs: os.kill(os.getpid(), signal.SIGTERM)
    )
    fit(model, dl.Resume(tmp_path / "at the end"), ask, epochs=1)
    assert listener == [signal.SIGTERM] * 2
    with pytest.raises(Stopped):
        fit(model, dl.Resume(tmp_path / "fails"), Stop(after=(0, 1)))
    os.kill(os.getpid(), signal.SIGTERM)
    assert listener == [signal.SIGTERM] * 3, "a fit that fails does not keep the signal"
    fit(model, ask, epochs=1)
    assert listener == [signal.SIGTERM] * 4, "only Resume listens"
