"""Resume on several workers: whoever is killed, training ends with the bits of one undisturbed."""

import pickle
import shutil

import keras
import pytest

import distlab as dl
from tests.support import resuming
from tests.support.clusters import run_on_tasks
from tests.support.parity import unlike
from tests.support.resuming import unlike_in_bits
from tests.support.resuming_workers import build

BEGUN, KILLED_IN = 9, 17  # steps


def on_one_device(*callbacks, seed, epochs):
    keras.utils.set_random_seed(seed)
    model, data = build(), resuming.VALIDATION
    history = resuming.fit(model, *callbacks, epochs=epochs, validation_data=data)
    return history.history, resuming.state_of(model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the workers have gone on from one device's checkpoint, and their results are."""
    folder = tmp_path_factory.mktemp("workers")
    stop = resuming.Stop(after=(1, 2))
    with pytest.raises(resuming.Stopped):
        resume = dl.Resume(folder / "undisturbed", every_steps=1)
        on_one_device(resume, stop, seed=1, epochs=3)
    for name in ("left", "killed"):
        shutil.copytree(folder / "undisturbed", folder / name)
    (folder / "logs").mkdir()
    args = [str(folder), KILLED_IN]
    run_on_tasks("support.resuming_workers:disturbed", folder / "logs", args=args, fails=True)
    return folder


@pytest.fixture(scope="module")
def workers(folder):
    """What each came to before one was killed."""
    return [pickle.loads((folder / f"results-{i}.pickle").read_bytes()) for i in range(2)]


def test_a_worker_that_is_killed_costs_no_bit(folder, workers, tmp_path):
    ends = run_on_tasks("support.resuming_workers:resumed", tmp_path, args=[str(folder)])
    for run, _, _ in ends:
        assert unlike_in_bits(workers[0]["undisturbed"], run) == {}
    (_, begun, shown), (_, other_begun, silent) = ends
    assert begun == other_begun
    assert BEGUN < begun.step < KILLED_IN
    assert shown.startswith(f"resumed from {begun}\n")
    assert "resumed" not in silent, "the chief alone says it"


def test_one_worker_that_is_asked_to_leave_takes_all_with_it_and_all_go_on(workers):
    for worker in workers:
        assert worker["left with"] == 143
        assert worker["put back"] and worker["warned"] == []
        assert BEGUN < worker["from"].step < 18
        for name in ("undisturbed", "resumed"):
            assert unlike_in_bits(workers[0]["undisturbed"], worker[name]) == {}, name
    (chiefs_own,) = workers[0]["diary"]
    batches = [number for kind, number in chiefs_own if kind == "batch"]
    assert batches == [3, 4, 5, *range(6)], "it remembers what came before"


def test_a_folder_that_a_worker_does_not_share_is_named_by_all(workers):
    for worker in workers:
        asked, found, do = worker["not shared"].split("\n")
        assert asked.endswith("') on 2 workers")
        assert found.startswith("  found: worker:1 cannot read epoch-0003-step-00000018, which the")
        assert do.startswith("  to do: name one folder that all workers share")


def test_a_training_goes_from_one_device_to_two_workers_and_back(folder, workers):
    for worker in workers:
        assert unlike(on_one_device(seed=1, epochs=3), worker["undisturbed"], atol=1e-5) == {}
    back = on_one_device(dl.Resume(folder / "undisturbed"), seed=2, epochs=4)
    assert unlike(on_one_device(seed=1, epochs=4), back, atol=1e-5) == {}
