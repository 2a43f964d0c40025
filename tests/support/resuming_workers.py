"""What the workers of a cluster do for test_resume_workers.py, each in a process of its own."""

import contextlib
import io
import os
import pathlib
import shutil
import signal
import warnings

import keras

import distlab as dl
from distlab.errors import DistlabError
from distlab.training.workers import agreeing
from tests.training import test_resume as alone


class Signal(keras.callbacks.Callback):
    """Sends this process a signal when a step is done."""

    listens_to_executions = True

    def __init__(self, step, number):
        super().__init__()
        self.step, self.number = step, number

    def on_train_batch_end(self, batch, logs=None):
        if self.step is not None and self.model.optimizer.iterations >= self.step:
            self.step = None
            os.kill(os.getpid(), self.number)


def no_dropout():
    """What Dropout draws depends on the replica."""
    model = alone.build(optimizer=lambda: keras.optimizers.Adam(0.01))
    model.layers[1].rate = 0.0
    return model


def train(strategy, *callbacks, seed=1, build=alone.build, **options):
    """Returns logs and state at the end, or the code that the process was to end with."""
    dl.set_seed(seed, deterministic=True)
    model = dl.distribute(build, strategy)
    try:
        history = alone.fit(model, *callbacks, **options)
    except SystemExit as exit:
        return exit.code
    return history.history, alone.state_of(model)


def undisturbed(folder):
    return train(dl.make_strategy("multi_worker"))


def killed(folder, which, step):
    """Worker `which` is killed in a step; what the others make of that is not looked at."""
    strategy = dl.make_strategy("multi_worker")
    me = strategy.cluster_resolver.task_id
    signals = [Signal(step, signal.SIGKILL)] if me == which else []
    train(strategy, *signals, dl.Resume(folder, every_steps=4))


def resumed(folder):
    strategy = dl.make_strategy("multi_worker")
    resume, shown = dl.Resume(folder), io.StringIO()
    with contextlib.redirect_stdout(shown):
        run = train(strategy, resume, seed=2, verbose=2)
    return run, resume.resumed_from, shown.getvalue()


def without_a_kill(folder, of_one_device):
    """All that Resume does on workers of which none is lost."""
    folder = pathlib.Path(folder)
    strategy = dl.make_strategy("multi_worker")
    me = strategy.cluster_resolver.task_id
    found = {"undisturbed": train(strategy)}

    # The second worker alone is asked to leave; before and after somebody else listens.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    found["handler"] = signal.getsignal(signal.SIGTERM)
    own = [Signal(8, signal.SIGTERM)] if me == 1 else [alone.Diary()]
    resume = dl.Resume(folder / "left")
    found["left with"] = train(strategy, *own, resume)
    found["put back"] = signal.getsignal(signal.SIGTERM) is found.pop("handler")
    signal.signal(signal.SIGTERM, before)
    own = [] if me == 1 else [alone.Diary()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["resumed"] = train(strategy, *own, resume, seed=2)
    found["warned"] = [str(one.message) for one in caught if "Resume" in str(one.message)]
    found["diary"] = [one.calls[:2] for one in own]
    found["from"] = resume.resumed_from

    # By the chief's clock, whatever another worker's says.
    clock = iter(range(0, 10**6, 3)) if me == 0 else iter(range(10**6))
    agreeing.monotonic, real = (lambda: next(clock)), agreeing.monotonic
    train(strategy, dl.Resume(folder / "by_clock", every_secs=6, keep=99), alone.NEVER)
    agreeing.monotonic = real
    found["by the clock"] = alone.names(folder / "by_clock")

    try:
        train(strategy, dl.Resume(folder / ("left" if me == 0 else "elsewhere")))
    except DistlabError as error:
        found["not shared"] = str(error)

    # From one device to two workers, and from there to where one device can go on.
    given = folder / "of_one_device"
    if me == 0:
        shutil.copytree(of_one_device, given)
    found["from one device"] = train(strategy, dl.Resume(given), build=no_dropout)
    with contextlib.suppress(alone.Stopped):
        train(
            strategy,
            dl.Resume(folder / "of_two", every_steps=1),
            alone.Stop(after=(1, 2)),
            build=no_dropout,
        )
    return found
