"""Several workers take the steps of one device, and do alike whatever one of them is told to do."""

import functools

import numpy as np
import pytest

import distlab as dl
from tests.support.clusters import run_on_tasks
from tests.support.distribution import EXAMPLES, assert_same
from tests.support.distribution_workers import ON_WORKERS, PARITY


@functools.cache
def one_device(name):
    return PARITY[name](lambda build: build())


def on_workers(folder, names, *, workers=2, devices=1, chief=False):
    return run_on_tasks(
        "support.distribution_workers:run",
        folder,
        workers=workers,
        chief=chief,
        args=[names, devices, str(folder)],
        timeout_secs=900,
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two workers came to, in all that there is to do."""
    return on_workers(tmp_path_factory.mktemp("two"), [*PARITY, *ON_WORKERS])


@pytest.mark.parametrize("name", PARITY)
def test_two_workers_take_the_steps_of_one_device(two, name):
    for worker in two:
        assert_same(worker[name], one_device(name))
    assert two[0][name][0] == two[1][name][0], "the same logs on both, to the last bit"


UNEVEN = [
    "adam_clipnorm",
    "batch normalisation",
    "fewer examples than replicas",
    "evaluate and predict",
    "own train_step",
]


@pytest.mark.parametrize(
    "cluster", [{"workers": 3}, {"workers": 1, "chief": True, "devices": 2}], ids=str
)
def test_any_cluster(tmp_path, cluster):
    for worker in on_workers(tmp_path, UNEVEN, **cluster):
        for name in UNEVEN:
            assert_same(worker[name], one_device(name))


def test_batches_that_tensorflow_brings_to_workers_as_it_does_to_gpus(two):
    for worker in two:
        for name, run in worker["TensorFlow's sharding"].items():
            assert_same(run, one_device(name))


def test_workers_start_from_the_chiefs_weights_and_pace_themselves_by_its_clock(two):
    (first, ends, trained), (other, other_ends, other_trained) = (w["alike"] for w in two)
    assert ends == other_ends
    assert ends[:10] == list(range(10)) and len(ends) < 3 * 10, "later epochs in fewer executions"
    for one, same in zip(first + trained, other + other_trained, strict=True):
        np.testing.assert_array_equal(one, same)


def test_what_stops_one_worker_stops_all_in_the_same_step(two):
    for worker in two:
        in_an_epoch, at_its_end, of_the_chief_alone = worker["stopped"]
        assert in_an_epoch == [0, 1]
        assert at_its_end == [0, 1, 2]
        assert of_the_chief_alone == 1


def test_the_chief_writes_and_all_can_read_at_once(two):
    for worker in two:
        written = worker["written"]
        assert written["csv"].count("\n") == 3, "a header and two epochs, written once"
        assert written["same"] and written["served"] < 1e-6
        assert [place.rpartition("/written/")[2] for place in written["places"]] == [
            "each/{epoch}.keras",
            "log.csv",
            "backup/latest.weights.h5",
        ], "the callbacks are as they were"
    assert two[0]["written"]["files"] == [
        "backup/latest.weights.h5",
        "backup/training_metadata.json",
        "best.weights.h5",
        "board/train/events.out.tfevents",
        "each/1.keras",
        "each/2.keras",
        "log.csv",
    ], "one file each, of which none is another worker's"
    assert two[1]["written"]["elsewhere"] and not two[0]["written"]["elsewhere"]
    assert two[1]["written"]["left behind"] == []


def test_kerass_own_backup_is_restored_by_all(two):
    """After one epoch of two: the second is that of a training which nothing stopped."""
    expected, weights = one_device("sgd, in order")
    for worker in two:
        logs, ends, is_kept = worker["restored"]
        assert_same((logs, ends), ({k: v[1:] for k, v in expected.items()}, weights))
        assert not is_kept


ORDER = (
    "found: {}: each worker would have an order of its own, and of all examples some would be "
    "read twice and others never\n  to do: give shuffle a seed=, or call distlab.set_seed with one"
)
SHUFFLE = ORDER.format("Shuffle has no seed (give one: seed=...)")
MISTAKES = {
    "shuffle": SHUFFLE,
    "evaluate": SHUFFLE,
    "predict": SHUFFLE,
    "arrays": ORDER.format(
        "Map draws random numbers without a seed (RandomShuffle: set_seed first)"
    ),
    "any order": ORDER.format("ParallelMap has deterministic=False (leave it out)"),
    "other batches": "found: a batch whose targets are others on worker:1 than on worker:0: each",
    "fewer batches": "found: 2 batches on worker:1 and 3 batches on worker:0\n",
    "data that end": "found: data that end on worker:1 before they do on worker:0\n",
    "other epochs": "fit(..., epochs=2) on worker:1\n  found: epochs=1 on worker:0\n",
    "Resume on one": "fit(..., dl.Resume=1) on worker:1\n  found: dl.Resume=0 on worker:0\n",
    "nan": "found: a loss of nan on replica 1 in step 2, counted as",
    "callback": "on all of them",
    "files": "found: a data set that is read from no files\n",
    "sparse": "found: batches with sparse tensors or single numbers, which cannot be cut\n",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_to_all_workers_alike(two, name):
    for worker in two:
        texts, _ = worker["refused"]
        assert MISTAKES[name] in texts[name]
        assert texts.keys() == MISTAKES.keys()


def test_workers_that_are_apart_are_told_who_is_where(two):
    for worker in two:
        asked, found, do, see = worker["apart"].split("\n")
        assert asked in ("save on 2 workers", "fit on 2 workers")
        assert found == "  found: worker:0 is at save, worker:1 is at fit"
        assert do.startswith("  to do: call fit, evaluate, predict, save and export of a distr")
        assert see == "  see: docs/pitfalls.md, 'The chief hangs while it saves'"


def test_workers_train_on_after_a_mistake(two):
    (_, losses), (_, others) = (worker["refused"] for worker in two)
    assert losses == others and np.isfinite(losses).all()


def test_workers_share_files_only_where_that_is_asked_for(two):
    (by_example, by_file), (other_examples, other_files) = (worker["files"] for worker in two)
    assert len(by_example) == 16 + 16 + 5 and len(by_example + other_examples) == EXAMPLES
    assert len(set(by_example + other_examples)) == EXAMPLES
    assert len(other_files) == 24, "one file of three"
    assert len(by_file) == EXAMPLES - 24 and not set(by_file) & set(other_files)


WEIGHTS = "/kernel has different values on worker:1 and on worker:0\n  to do: load weights on every"
SEEDS = "found: a shuffle with a different seed on worker:1 than on worker:0: each takes its part"
TARGETS = "evaluate on 2 workers\n  found: a batch whose targets are others on worker:1 than on"
ROWS = "predict on 2 workers\n  found: a batch whose rows are others on worker:1 than on worker:0"
UNLIKE = {
    "weights": WEIGHTS,
    "weights in evaluate": WEIGHTS,
    "weights in predict": WEIGHTS,
    "rate": "found: a learning rate of 0.005 on worker:1 and of 0.01 on worker:0\n",
    "first epoch": "found: training that begins at epoch 0 on worker:1 and at epoch 1 on",
    "seeds": SEEDS,
    "seeds in evaluate": SEEDS,
    "seeds in predict": SEEDS,
    "images": SEEDS,
    "targets in evaluate": TARGETS,
    "arrays in evaluate": TARGETS,
    "targets in validation": TARGETS,
    "rows in predict": ROWS,
    "later rows in predict": ROWS,
    "restored by one": WEIGHTS,
}


@pytest.mark.parametrize("name", UNLIKE)
def test_workers_that_hold_or_read_something_else_are_all_told(two, name):
    for worker in two:
        texts, _ = worker["unlike"]
        assert UNLIKE[name] in texts[name]
        assert texts.keys() == UNLIKE.keys()


def test_weights_that_one_worker_alone_restores_at_the_end_of_fit_are_warned_of(two):
    for worker in two:
        _, (warned,) = worker["unlike"]  # and nothing is said of what is right
        assert "kernel has different values on worker:1 and on worker:0. The chief saves" in warned


def test_with_the_policy_off_an_epoch_reads_its_share_of_what_each_worker_has(two):
    for worker in two:
        (by_itself, with_steps), predict = worker["own data"]
        assert by_itself == 0.5 and with_steps == 1, "data.repeat() and two times the steps"
        assert ROWS in predict


def test_a_save_of_the_users_own_may_name_its_path_as_it_likes(two):
    assert [worker["own save"] for worker in two] == [[True] * 3, [False] * 3]


def test_an_error_of_one_worker_ends_all_with_its_text(tmp_path):
    first, second = run_on_tasks("support.distribution_workers:one_fails", tmp_path)
    assert second == "this is the reason"
    asked, found, do = first.split("\n")
    assert asked == "fit on 2 workers"
    assert found == "  found: worker:1 stopped: ValueError: this is the reason, after step 2"
    assert do.startswith("  to do: look at what that worker printed, then start all workers again")


@pytest.mark.parametrize("how", ["in_fit", "while_adding"])
def test_a_lost_worker_is_named_long_before_a_heartbeat_is_missed(tmp_path, how):
    told, secs = run_on_tasks(
        f"support.distribution_workers:one_is_lost_{how}", tmp_path, args=[str(tmp_path)]
    )[0]
    assert "found: worker:1 (127.0.0.1:" in told and ") was lost" in told
    assert (", after step 10\n" in told) == (how == "in_fit")
    assert secs < 5, "TensorFlow waits ten for a heartbeat"


def test_a_cluster_of_one_worker_is_one_device(tmp_path):
    (alone,) = on_workers(tmp_path, ["adam_clipnorm", "evaluate and predict"], workers=1)
    for name, run in alone.items():
        assert_same(run, one_device(name))


def test_what_describe_says(two):
    assert [worker["described"] for worker in two] == ["multi_worker 2 2"] * 2
    assert dl.describe(dl.make_strategy("default")).kind == "default"
