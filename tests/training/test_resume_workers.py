"""Resume on several workers: whoever is killed, training ends with the bits of one undisturbed."""

import keras
import numpy as np
import pytest

import distlab as dl
from tests.support import resuming_workers
from tests.support.clusters import run_on_tasks
from tests.training import test_resume as alone


def on_workers(name, folder, *args):
    logs = folder / f"logs-{name}-{len(list(folder.iterdir()))}"
    logs.mkdir()
    return run_on_tasks(
        f"support.resuming_workers:{name}",
        logs,
        args=[str(folder / "c"), *args],
        fails=name == "killed",
    )


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Logs and state of a training on two workers that nothing stops."""
    first, second = on_workers("undisturbed", tmp_path_factory.mktemp("undisturbed"))
    assert_same(first, second)
    return first


def assert_same(one, other):
    assert one[0] == other[0], "the logs"
    alone.assert_same(one[1], other[1])


@pytest.mark.parametrize(("which", "step"), [(0, 9), (1, 17)])
def test_a_worker_that_is_killed_costs_no_bit(tmp_path, expected, which, step):
    on_workers("killed", tmp_path, which, step)
    (*ends,) = on_workers("resumed", tmp_path)
    for run, _, _ in ends:
        assert_same(run, expected)
    (_, begun, shown), (_, other_begun, silent) = ends
    assert begun == other_begun
    assert begun.step in (4, 6, 8, 12, 16) and begun.step < step
    assert shown.startswith(f"resumed from {begun}\n")
    assert "resumed" not in silent, "the chief alone says it"


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory):
    """What workers did of which none was killed, and the folder of their checkpoints."""
    folder = tmp_path_factory.mktemp("unkilled")
    of_one_device = folder / "of_one_device"
    keras.utils.set_random_seed(1)
    with pytest.raises(alone.Stopped):
        resume = dl.Resume(of_one_device, every_steps=1)
        alone.fit(resuming_workers.no_dropout(), resume, alone.Stop(after=(1, 2)))
    return on_workers("without_a_kill", folder, str(of_one_device)), folder / "c"


def test_one_worker_that_is_asked_to_leave_takes_all_with_it_and_all_go_on(unkilled, expected):
    for worker in unkilled[0]:
        assert worker["left with"] == 143
        assert worker["put back"] and worker["warned"] == []
        assert worker["from"].step in (8, 9, 10, 11, 12)
        assert_same(worker["undisturbed"], expected)
        assert_same(worker["resumed"], expected)
    (chiefs_own,) = unkilled[0][0]["diary"]
    assert chiefs_own == [("epoch", 0), ("batch", 0)], "it remembers what came before"


def test_by_the_clock_is_by_the_chiefs(unkilled):
    """Its clock moves 3 s each time all agree, so every other execution is saved."""
    first, second = (worker["by the clock"] for worker in unkilled[0])
    assert first == second
    steps = [int(name.rpartition("-")[2]) for name in first]
    assert {2, 4, 6} < set(steps) and not {1, 3, 5} & set(steps)


def test_a_folder_that_a_worker_does_not_share_is_named_by_all(unkilled):
    for worker in unkilled[0]:
        asked, found, do = worker["not shared"].split("\n")
        assert asked.endswith("/elsewhere') on 2 workers")
        assert found.startswith("  found: worker:1 cannot read epoch-0003-step-00000018, which the")
        assert do.startswith("  to do: give all workers one folder that they share")


def test_a_training_goes_from_one_device_to_two_workers_and_back(unkilled):
    workers, folder = unkilled
    keras.utils.set_random_seed(1)
    model = resuming_workers.no_dropout()
    history = alone.fit(model)
    state = alone.state_of(model)
    keras.utils.set_random_seed(2)
    again = resuming_workers.no_dropout()
    back = alone.fit(again, dl.Resume(folder / "of_two"), alone.NEVER)
    ends = [worker["from one device"] for worker in workers] + [
        (back.history, alone.state_of(again))
    ]
    for logs, other in ends:
        for a, b in zip(other, state, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
        for name, values in history.history.items():
            np.testing.assert_allclose(logs[name], values, rtol=0, atol=1e-6)
