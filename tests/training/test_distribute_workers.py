"""Several workers take the steps of one device, and do alike whatever one of them is told to do."""

import functools

import numpy as np
import pytest

from tests.support import distribution_workers as cases
from tests.support.clusters import run_on_tasks
from tests.support.distribution import EXAMPLES
from tests.support.parity import unlike

ON_FOUR = ["batch normalisation", "fewer examples than replicas"]


@functools.cache
def one_device(name):
    return cases.PARITY[name](lambda build: build())


def on_workers(folder, names, *, last, devices=1, **layout):
    return run_on_tasks(
        "support.distribution_workers:run",
        folder,
        args=[names, devices, str(folder), last],
        timeout_secs=900,
        **layout,
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two workers came to, in all that there is to do."""
    names = [*(name for name in cases.PARITY if name not in ON_FOUR), *cases.ON_WORKERS]
    return on_workers(tmp_path_factory.mktemp("two"), names, workers=2, last=cases.one_is_lost)


@pytest.fixture(scope="module")
def four_replicas(tmp_path_factory):
    """What a chief and a worker came to, on two devices each."""
    layout = {"workers": 1, "chief": True, "devices": 2}
    return on_workers(tmp_path_factory.mktemp("four"), ON_FOUR, last=cases.one_fails, **layout)


@pytest.mark.parametrize("name", [name for name in cases.PARITY if name not in ON_FOUR])
def test_two_workers_take_the_steps_of_one_device(two, name):
    for worker in two:
        assert unlike(one_device(name), worker[name]) == {}
    assert two[0][name][0] == two[1][name][0], "the same logs on both, to the last bit"


def test_a_chief_and_a_worker_on_two_devices_each_take_the_steps_of_one(four_replicas):
    for worker, is_chief in zip(four_replicas, (True, False), strict=True):
        assert worker["described"] == f"multi_worker 4 2, chief: {is_chief}"
        for name in ON_FOUR:
            assert unlike(one_device(name), worker[name]) == {}, name


def test_batches_that_tensorflow_brings_to_workers_as_it_does_to_gpus(two):
    for worker in two:
        for name, trained in worker["TensorFlow's sharding"].items():
            assert unlike(one_device(name), trained) == {}, name


def test_workers_start_from_the_chiefs_weights_and_take_as_many_steps_at_once(two):
    (ends, weights), (other_ends, others) = (worker["alike"] for worker in two)
    assert ends == other_ends
    for weight, same in zip(weights, others, strict=True):
        np.testing.assert_array_equal(weight, same)


def test_all_workers_are_told_the_same_of_parity(two):
    (equal, wrong, refused), others = (worker["parity"] for worker in two)
    assert others == (equal, wrong, refused)
    assert equal.startswith("Equal: 2 replicas (distlab.distribute) took the 3 steps of one")
    assert "NOT equal: 2 replicas (by_hand)" in wrong
    assert "every update is 2 times one device's" in wrong
    assert "found: batches with the checksum" in refused


def test_what_stops_one_worker_stops_all_in_the_same_step(two):
    assert [worker["stopped"] for worker in two] == [[2, 2]] * 2


def test_the_chief_writes_and_all_can_read_at_once(two):
    for worker in two:
        written = worker["written"]
        assert written["csv"].count("\n") == 3, "a header and two epochs, written once"
        # A whole batch and the workers' halves may run other kernels.
        assert written["loaded"] < 1e-5 and written["served"] < 1e-5
        assert [place.rpartition("/written/")[2] for place in written["places"]] == [
            "each/{epoch}.keras",
            "log.csv",
        ], "the callbacks are as they were"
    assert two[0]["written"]["files"] == [
        "best.weights.h5",
        "board/train/events.out.tfevents",
        "each/1.keras",
        "each/2.keras",
        "log.csv",
    ], "one file each, of which none is another worker's"
    assert two[1]["written"]["elsewhere"] and not two[0]["written"]["elsewhere"]
    assert two[1]["written"]["left behind"] == []


ORDER = (
    "found: {}: each worker would have an order of its own, and of all examples some would be "
    "read twice and others never\n  to do: set seed= of shuffle, or call distlab.set_seed with one"
)
MISTAKES = {
    "shuffle": ORDER.format("Shuffle has no seed (give one: seed=...)"),
    "arrays": ORDER.format(
        "Map draws random numbers without a seed (RandomShuffle: set_seed first)"
    ),
    "other batches": "found: a batch whose targets have the checksum",
    "fewer batches": "found: 2 batches on worker:1, and 3 batches on worker:0\n",
    "other epochs": "found: epochs=2 on worker:1, and epochs=1 on worker:0\n",
    "Resume on one": "found: 1 dl.Resume on worker:1, and 0 dl.Resume on worker:0\n",
    "nan": "found: a loss of nan on replica 1 in step 2, counted as",
    "callback": "on all of them",
    "backup": "found: a callback whose files all workers would write at once\n",
}
WEIGHTS = "/kernel has different values on worker:1 and on worker:0\n  to do: load weights on every"
TARGETS = "evaluate on 2 workers\n  found: a batch whose targets have the checksum"
UNLIKE = {
    "weights": WEIGHTS,
    "rate": "/learning_rate has different values on worker:1 and on worker:0\n",
    "seeds": "on worker:1, and shuffles with the seeds",
    "targets in evaluate": TARGETS,
    "targets in validation": TARGETS,
    "rows in predict": "predict on 2 workers\n  found: a batch whose rows are others on worker:1",
    "restored by one": WEIGHTS,
}


@pytest.mark.parametrize(("case", "expected"), [("refused", MISTAKES), ("unlike", UNLIKE)])
def test_a_mistake_of_one_or_of_all_is_told_to_all_workers(two, case, expected):
    others = [
        f"{name}: {texts[name]}"
        for texts, _ in (worker[case] for worker in two)
        for name, part in expected.items()
        if part not in texts[name]
    ]
    assert others == [], "\n".join(others)


def test_workers_train_on_after_a_mistake(two):
    (_, losses), (_, others) = (worker["refused"] for worker in two)
    assert losses == others and np.isfinite(losses).all()


def test_weights_that_one_worker_alone_restores_at_the_end_of_fit_are_warned_of(two):
    for worker in two:
        _, (warned,) = worker["unlike"]  # and nothing is said of what is right
        assert "kernel has different values on worker:1 and on worker:0. The chief saves" in warned


def test_workers_that_are_apart_are_told_who_is_where(two):
    for worker in two:
        asked, found, do, see = worker["apart"].split("\n")
        assert asked in ("save on 2 workers", "fit on 2 workers")
        assert found == "  found: worker:0 is at save, worker:1 is at fit"
        assert do.startswith("  to do: call fit, evaluate, predict, save and export of a distr")
        assert see == "  see: docs/pitfalls.md, 'The chief hangs while it saves'"


def test_workers_share_files_only_where_that_is_asked_for(two):
    first, second = (worker["files"] for worker in two)
    assert len(first["AUTO"]) == 16 + 16 + 5
    for policy, sizes in {"AUTO": [37, 36], "FILE": [49, 24]}.items():
        assert [len(first[policy]), len(second[policy])] == sizes
        assert len({*first[policy], *second[policy]}) == EXAMPLES


def test_an_error_of_one_worker_ends_all_with_its_text(four_replicas):
    first, second = (worker["last"] for worker in four_replicas)
    assert second == "this is the reason"
    asked, found, do = first.split("\n")
    assert asked == "fit on 2 workers"
    assert found == "  found: worker:0 stopped: ValueError: this is the reason, after step 2"
    assert do.startswith("  to do: look at what that worker printed, then start all workers again")


def test_a_lost_worker_is_named_without_waiting_for_its_heartbeat(two):
    assert "found: worker:1 (127.0.0.1:" in two[0]["last"]
    assert ") was lost, after step 2\n" in two[0]["last"]
    assert "last" not in two[1]


def test_what_describe_says(two):
    said = [f"multi_worker 2 2, chief: {is_chief}" for is_chief in (True, False)]
    assert [worker["described"] for worker in two] == said
