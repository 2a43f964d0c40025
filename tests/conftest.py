"""What every test process shares: an empty home, four logical devices, and how it reports."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import distlab as dl
from distlab.cluster.warm.process import can_fork, shared_server, task_environment
from tests.support import fresh_home
from tests.support.limits import HANG_SECS

pytest_plugins = ["tests.support.reporting"]
fresh_home.enter()

# A shell lets what it starts in the background ignore an interrupt, and tests send some. Processes
# that tests start inherit what this one does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The room that computes longest begins, and beside it those whose tests wait for processes; what
# is left is in files of all lengths, so that all processes end at about the same time.
ORDER = ("zoo", "cluster", "strategy", "autograder", "training", "course")
# Python objects that a test may leave to the next. Iterators over data are among them, and the
# longer one has lived, the longer TensorFlow waits for its thread when it is deleted: seconds.
MOST_OBJECTS = 20_000


def pytest_collection_modifyitems(items):
    def rank(item):
        room = item.path.relative_to(Path(__file__).parent).parts[0]
        return ORDER.index(room) if room in ORDER else len(ORDER)

    items.sort(key=rank)


@pytest.fixture(scope="session", autouse=True)
def brought():
    """On request, replicas on CPUs get their rows as GPUs do: TensorFlow brings them to each."""
    if os.environ.get("DISTLAB_BROUGHT"):
        from distlab.training import fit_session

        fit_session.splits = lambda strategy: False


@pytest.fixture(scope="session", autouse=True)
def devices():
    """TensorFlow fixes its devices once, so a process has one set: four, on CPU or GPU.

    No test may touch TensorFlow's devices while it is collected. Garbage is collected between
    tests, not while a graph is traced, and not among what was imported.
    """
    devices = dl.split_devices(4)
    gc.collect()
    gc.freeze()
    gc.disable()
    return devices


def forget_graphs(*, most=0):
    """Lets go of the graphs of custom gradients, if there are more than that.

    TensorFlow keeps each `tf.custom_gradient`, and with it the graph around it, until the process
    ends: a test process grew to 10 GB. No entry is needed once its graph has been traced.
    """
    from tensorflow.python.framework import ops

    kept = ops.gradient_registry._registry
    names = [name for name in kept if name.startswith("CustomGradient-")]
    if len(names) > most:
        for name in names:
            del kept[name]
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def graphs_of_a_module_are_forgotten():
    yield
    forget_graphs()


@pytest.fixture(autouse=True)
def much_garbage_is_collected():
    yield
    forget_graphs(most=300)
    if gc.get_count()[0] > MOST_OBJECTS:
        gc.collect()


@pytest.fixture(scope="module")
def graphs_that_run_a_few_times():
    """So it costs more than it saves to optimize them, or to mend each call's traceback."""
    import keras
    import tensorflow as tf

    filters = keras.config, tf.debugging
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for each in filters:
        each.disable_traceback_filtering()
    yield
    for each in filters:
        each.enable_traceback_filtering()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.fixture
def run_python(tmp_path):
    """Runs code in a process of its own and returns what it printed, or fails with its error.

    With `warm=True` the process is forked where that can be done, and spared TensorFlow's import:
    for code in which that import is not what is tested.
    """

    def run(code, *, environ=None, fails=False, warm=False, cwd=tmp_path):
        out, err = tmp_path / "stdout", tmp_path / "stderr"
        with out.open("w") as stdout, err.open("w") as stderr:
            options = {"cwd": cwd, "stdout": stdout, "stderr": stderr}
            if warm and can_fork():
                env = task_environment(environ or {})
                task = shared_server().spawn(["-c", code], env=env, **options)
                code = task.wait(timeout_secs=HANG_SECS)
            else:
                env = {**os.environ, **(environ or {})}
                code = subprocess.run(
                    [sys.executable, "-c", code],
                    env={name: value for name, value in env.items() if value is not None},
                    timeout=HANG_SECS,
                    check=False,
                    **options,
                ).returncode
        assert (code != 0) == fails, out.read_text() + err.read_text()
        return (err if fails else out).read_text()

    return run


@pytest.fixture(scope="module")
def shared():
    """A cluster that tests may use which leave its tasks as they were."""
    with dl.LocalCluster(workers=2) as cluster:
        yield cluster


@pytest.fixture
def two():
    """A cluster of the test's own."""
    with dl.LocalCluster(workers=2) as cluster:
        yield cluster
