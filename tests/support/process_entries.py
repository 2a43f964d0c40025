"""All that a first cell, a script, a magic or a command calls, each once and once more.

Run as a program in a process of its own and an empty folder, it prints what each entry moved, as
JSON: {"load_dataset": [{"moved": [], "result": "..."}, {"moved": [], "result": "..."}], ...}
"""

import contextlib
import functools
import importlib
import io
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import keras
import matplotlib
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot

import distlab as dl
from distlab import cli, environment
from distlab.course.checks import Check, Equal
from distlab.course.runs.outcomes import what_happens
from distlab.errors import DistlabError
from tests.support.process_state import moved, process_state
from tests.support.repository import ROOT

COURSE = ROOT / "distlab" / "course"
GENERATORS = ["keras's generator", "keras's seed", "numpy.random", "random"]
GENERATORS += ["tensorflow's generator", "tensorflow's seed"]
ENTRIES, PURPOSES, LIKE = {}, {}, {}


def entry(name, *, purpose=(), like=None):
    """Notes a call under its name, what it is there to move, or an entry that moves the same."""

    def note(call):
        ENTRIES[name], PURPOSES[name], LIKE[name] = call, sorted(purpose), like
        return call

    return note


def build():
    layers = [keras.layers.Flatten(), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def digits():
    return dl.load_dataset("digits", splits=["train[:16]"], batch_size=8)[0]


def fitted(model, **options):
    logs = model.fit(digits(), shuffle=False, verbose=0, **options).history
    return [*logs["loss"], float(model.evaluate(digits(), verbose=0))]


def mirrored():
    return dl.make_strategy("mirrored", devices=["CPU:0", "CPU:1"])


def show_view(module, name):
    getattr(module, name)()._ipython_display_()


def command(*arguments):
    with tempfile.TemporaryFile("w+") as printed, contextlib.redirect_stdout(printed):
        code = cli.main(list(arguments))
        printed.seek(0)
        text = printed.read()
    assert code == 0, text
    return text


# --- public names


entry("__version__")(lambda: dl.__version__)
entry("split_devices")(lambda: dl.split_devices(2, kind="cpu"))
entry("memory_limit")(lambda: str(what_happens(lambda: dl.memory_limit(64))))  # too late
entry("set_seed", purpose=GENERATORS)(lambda: dl.set_seed(3))
entry("make_strategy")(lambda: type(mirrored()).__name__)
entry("describe")(lambda: dl.describe(mirrored()))
entry("plan_batch")(lambda: dl.plan_batch(replicas=2, global_batch=64))
entry("load_dataset")(lambda: [float(tf.reduce_sum(x)) for x, _ in digits()])
entry("doctor")(lambda: dl.doctor())
entry("all_gather")(lambda: dl.all_gather(tf.ones(2)).numpy())
entry("show")(lambda: dl.show("loss", tf.constant(0.5), expected=0.5))
entry("mixed_precision", purpose=["keras: dtype policy"])(
    lambda: dl.mixed_precision("mixed_bfloat16")
)


@entry("mixed_precision, a block")
def _():
    with dl.mixed_precision("mixed_bfloat16"):
        return keras.config.dtype_policy().name


@entry("load_dataset, of a wrong name")
def _():
    with contextlib.suppress(DistlabError):
        dl.load_dataset("mnst")


@entry("predict")
def _():
    guess = dl.predict("How many copies?", ["one", "two"])
    return guess.reveal("two", {"one": "No."})


# What plain Keras moves, and no more.
entry("plain Keras", purpose=["random"])(lambda: fitted(build()))
entry("distribute", like="plain Keras")(lambda: fitted(dl.distribute(build, mirrored())))


@entry("Resume", like="plain Keras")
def _():
    with tempfile.TemporaryDirectory() as folder:
        return fitted(dl.distribute(build, mirrored()), callbacks=[dl.Resume(folder)])


@entry("check_parity")
def _():
    def clipped():
        model = build()
        model.compile(keras.optimizers.SGD(1.0, clipnorm=1e-3), model.loss)
        return model

    parity = dl.check_parity(clipped, digits(), strategy=mirrored(), steps=1, train="keras")
    assert not parity.equal
    return parity


@entry("LocalCluster")
def _():
    with dl.LocalCluster(workers=1) as cluster:
        return cluster.run(lambda: 3)


@entry("check")
def _():
    def answer(_):
        """Moves all that can be moved."""
        keras.utils.set_random_seed(99)
        keras.config.set_dtype_policy("float16")
        keras.config.set_floatx("float64")
        keras.config.set_epsilon(1.0)
        keras.config.set_image_data_format("channels_first")
        keras.config.enable_traceback_filtering()
        keras.layers.Dense(1)
        warnings.simplefilter("ignore")
        logging.basicConfig(level="DEBUG")
        os.environ["HOME"] = os.environ["ADDED"] = "elsewhere"
        os.chdir("/")
        return 1

    return repr(dl.check(_checked(answer), answer))


def _checked(function):
    return Check(
        name="all",
        function=function.__name__,
        title="Everything",
        points=1,
        inputs=lambda seed: {"seed": seed},
        call=lambda answer, inputs: {"answer": answer(inputs["seed"])},
        reference=lambda given: {"answer": 1},
        criteria=(Equal("answer", "the answer", points=1),),
        question="?",
        direction=".",
        hint=".",
        revisit=".",
    )


@entry("load_tensorflow, in a script")
def _():
    prompt = sys.ps1
    del sys.ps1
    environment._quiet_session.cache_clear()
    del os.environ["KERAS_BACKEND"], os.environ["TF_CPP_MIN_LOG_LEVEL"]
    environment.load_tensorflow.__wrapped__()
    with environment.quiet_start():
        pass
    sys.ps1 = prompt


# --- magics and views


@entry("%load_ext")
def _():
    SHELL.extension_manager.loaded.discard("distlab")
    return SHELL.run_line_magic("load_ext", "distlab")


@entry("%%workers")
def _():
    with dl.LocalCluster(workers=1):
        SHELL.run_cell_magic("workers", "", "print(1 + 1)")


for file in sorted(COURSE.glob("lesson_*/view.py")):
    views = importlib.import_module(f"distlab.course.{file.parent.name}.view")
    for name in [name for name in vars(views) if name.startswith("explore_")]:
        entry(name)(functools.partial(show_view, views, name))


# --- what lessons call


@entry("what_repeats")
def _():
    from distlab.course.lesson_06_reproducibility.runs import what_repeats

    return what_repeats(dl.set_seed)


@entry("time_step")
def _():
    from distlab.course.measure.scaling_runs import time_step

    return time_step(build, mirrored(), digits(), blocks=2, calls=1).replicas


@entry("time_all_reduce")
def _():
    from distlab.course.measure.bandwidth import time_all_reduce

    return [time.replicas for time in time_all_reduce(mirrored(), [8], blocks=2, calls=1)]


@entry("waits_for")
def _():
    from distlab.course.runs.outcomes import waits_for

    with waits_for("answer"):
        raise NotImplementedError


# --- the command line

entry("distlab")(lambda: command())
entry("distlab doctor")(lambda: command("doctor"))
entry("distlab launch")(lambda: command("launch", "--workers", "1", "script.py"))
entry("distlab bench")(lambda: command("bench", "script.py", "--replicas", "1") and "")


@entry("distlab lab")
def _():
    shutil.rmtree("lab", ignore_errors=True)
    return command("lab", "lab", "--lay-only")


entry("distlab progress")(lambda: command("progress", "lab"))


@entry("distlab exercise")
def _():
    shutil.rmtree("own", ignore_errors=True)
    return command("exercise", "new", "20_my_topic", "--folder", "own")


entry("distlab example")(lambda: command("example"))


@entry("distlab grade")
def _():
    shutil.rmtree("graded", ignore_errors=True)
    notebook = next(Path("lab/exercises").glob("00_*.ipynb"))
    Path("handed_in").mkdir(exist_ok=True)
    shutil.copy(notebook, "handed_in")
    command("grade", "handed_in", "--out", "graded", "--seed", "1")
    return sorted(path.name for path in Path("graded").iterdir())


SCRIPT = """
import keras
import numpy as np
import tensorflow as tf

def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model

def data(batch_size):
    pairs = np.ones((64, 4), "float32"), np.ones((64, 2), "float32")
    return tf.data.Dataset.from_tensor_slices(pairs).repeat().batch(batch_size, True).take(9)
"""


def choose():
    """Sets what a user may have set: none of it is what it is by default."""
    keras.config.set_epsilon(1e-6)
    keras.config.disable_traceback_filtering()
    keras.config.disable_interactive_logging()
    tf.get_logger().setLevel("INFO")
    tf.debugging.disable_traceback_filtering()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tfds.disable_progress_bar()
    warnings.simplefilter("once", UserWarning)
    np.set_printoptions(precision=3)
    matplotlib.rcParams["axes.grid"] = True
    os.environ["CHOSEN"], os.environ["KERAS_BACKEND"] = "by the user", "tensorflow"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    signal.signal(signal.SIGTERM, chosen_handler)
    signal.signal(signal.SIGUSR1, chosen_handler)
    sys.excepthook = chosen_handler


def chosen_handler(*_):
    """Heeds nothing."""


def seed():
    """Begins every generator at the same place, and takes one step of each."""
    keras.utils.set_random_seed(7)
    random.random(), np.random.rand(), tf.random.uniform(()), keras.random.uniform(())


def run(name):
    """Runs an entry, and says what it moved, what it gave and what plain draws give then."""
    seed()
    environ, before = dict(os.environ), process_state()
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            result = repr(ENTRIES[name]())
    except BaseException:
        result = traceback.format_exc()
    after = process_state()
    generators = {state: after[state] for state in GENERATORS}
    keras.config.set_dtype_policy("float32")  # what is the purpose of some is no other's
    os.environ.clear()
    os.environ.update(environ)
    return {"moved": moved(before, after), "result": result, "generators": generators}


if __name__ == "__main__":
    SHELL = InteractiveShell.instance()
    pyplot.close(pyplot.figure())  # chooses the backend
    dl.split_devices(2, kind="cpu")
    dl.set_seed(0)  # distlab is at work
    keras.config.set_dtype_policy("float32")
    Path("script.py").write_text(SCRIPT)
    choose()
    rounds = [{name: run(name) for name in ENTRIES} for _ in range(2)]
    entries = {name: [each[name] for each in rounds] for name in ENTRIES}
    shown = {"entries": entries, "purposes": PURPOSES, "like": LIKE}
    Path("entries.json").write_text(json.dumps(shown))
