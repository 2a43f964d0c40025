"""What the workers of a cluster do for test_resume_workers.py, each in a process of its own."""

import contextlib
import io
import pathlib
import pickle
import signal
import warnings

import distlab as dl
from distlab.errors import DistlabError
from tests.support import resuming
from tests.support.resuming import VALIDATION, Diary, Signal

build = resuming.build


def train(strategy, *callbacks, seed, **options):
    """Returns logs and state at the end, or the code that the process was to end with."""
    dl.set_seed(seed, deterministic=True)
    model = dl.distribute(build, strategy)
    try:
        history = resuming.fit(model, *callbacks, validation_data=VALIDATION, **options)
    except SystemExit as end:
        return end.code
    return history.history, resuming.state_of(model)


def disturbed(folder, step):
    """Three trainings that go on from one device's checkpoint; the last is killed in a step."""
    folder, strategy = pathlib.Path(folder), dl.make_strategy("multi_worker")
    is_second = strategy.cluster_resolver.task_id == 1
    results = {"undisturbed": train(strategy, dl.Resume(folder / "undisturbed"), seed=1)}

    # The second worker alone is asked to leave; before and after somebody else listens.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    handler = signal.getsignal(signal.SIGTERM)
    own = [Signal(12, signal.SIGTERM)] if is_second else [Diary()]
    resume = dl.Resume(folder / "left")
    results["left with"] = train(strategy, *own, resume, seed=2)
    results["put back"] = signal.getsignal(signal.SIGTERM) is handler
    signal.signal(signal.SIGTERM, before)
    own = [] if is_second else [Diary()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results["resumed"] = train(strategy, *own, resume, seed=3)
    results["warned"] = [str(each.message) for each in caught if "Resume" in str(each.message)]
    results["diary"] = [each.calls for each in own]
    results["from"] = resume.resumed_from

    try:
        train(strategy, dl.Resume(folder / ("elsewhere" if is_second else "left")), seed=1)
    except DistlabError as error:
        results["not shared"] = str(error)
    (folder / f"results-{int(is_second)}.pickle").write_bytes(pickle.dumps(results))

    kill = [Signal(step, signal.SIGKILL)] if is_second else []
    train(strategy, *kill, dl.Resume(folder / "killed", every_steps=2), seed=4)


def resumed(folder):
    strategy = dl.make_strategy("multi_worker")
    resume, shown = dl.Resume(pathlib.Path(folder) / "killed"), io.StringIO()
    with contextlib.redirect_stdout(shown):
        run = train(strategy, resume, seed=5, verbose=2)
    return run, resume.resumed_from, shown.getvalue()
