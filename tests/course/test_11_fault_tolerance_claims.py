"""What lesson 11 says of TensorFlow, Keras and shells, and no cell of it runs: held here."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.cluster.spec import TaskName
from tests.support.clusters import result_of, started_tasks
from tests.support.limits import HANG_SECS

_LISTENS = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"asked\\n"), os._exit(143)))
print(os.getpid(), flush=True)
signal.pause()
"""


def wait_for(condition):
    deadline = time.monotonic() + HANG_SECS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # between looks at other processes


def meet_and_survive(victim, met):
    """Plain TensorFlow, on each worker; returns the error's name on the one that is left."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    strategy.reduce("SUM", 1.0, axis=None)
    index = strategy.cluster_resolver.task_id
    Path(met, str(index)).touch()
    if index == victim:
        signal.pause()
    try:
        strategy.reduce("SUM", 1.0, axis=None)
    except Exception as error:
        return type(error).__name__


def test_the_survivor_of_a_killed_worker_gets_an_error(tmp_path):
    """Heartbeats find a worker that is gone; without the chief at once."""
    for victim in (0, 1):
        met = tmp_path / f"met-{victim}"
        met.mkdir()
        target = "course.test_11_fault_tolerance_claims:meet_and_survive"
        with started_tasks(target, met.parent, args=(victim, str(met))) as group:
            killed, survivor = TaskName("worker", victim), TaskName("worker", 1 - victim)
            wait_for(lambda met=met: len(list(met.iterdir())) == 2)
            group.send_signal([killed], signal.SIGKILL)
            wait_for(lambda group=group, survivor=survivor: survivor in group.ended())
            assert result_of(tmp_path, survivor) == "UnavailableError", victim


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == 17:
            raise InterruptedError


def steps_of_a_fit(*callbacks):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x, y = np.ones((40, 4)), np.ones((40, 1))
    model.fit(x, y, batch_size=4, epochs=4, verbose=0, callbacks=[*callbacks])
    return int(model.optimizer.iterations.numpy())


def test_backup_and_restore_trains_batches_of_the_epoch_twice(tmp_path):
    """10 batches in an epoch, 4 epochs: 40 steps, were there no stop."""

    def backup():
        return keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=1)

    with pytest.raises(InterruptedError):
        steps_of_a_fit(Stop(), backup())
    assert steps_of_a_fit(backup()) == 46


def test_without_its_optimizer_a_run_goes_on_alike_under_plain_sgd_only():
    x, y = np.arange(12.0).reshape(4, 3) / 10, np.ones((4, 1))

    def made(optimizer):
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((3,)), dense])
        model.compile(optimizer, "mse")
        return model

    for optimizer, is_alike in (("sgd", True), ("adam", False)):
        undisturbed, fresh = made(optimizer), made(optimizer)
        for _ in range(5):
            undisturbed.train_on_batch(x, y)
        fresh.set_weights(undisturbed.get_weights())
        for model in (undisturbed, fresh):
            model.train_on_batch(x, y)
        pairs = zip(undisturbed.get_weights(), fresh.get_weights(), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs) is is_alike, optimizer


def test_a_shell_keeps_sigterm_to_itself_unless_it_has_execed():
    python = f"{shlex.quote(sys.executable)} -c {shlex.quote(_LISTENS)}"
    for prefix in ("", "exec "):
        script = f"{prefix}{python}; exit $?"
        shell = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
        process_id = int(shell.stdout.readline())
        shell.send_signal(signal.SIGTERM)
        if prefix:
            assert shell.stdout.read() == "asked\n"
            assert shell.wait() == 143
        else:
            assert shell.wait() == -signal.SIGTERM
            os.kill(process_id, signal.SIGKILL)  # it is still alive: this raises where it is not
            assert shell.stdout.read() == ""
        shell.stdout.close()
