import math

import pytest
import tensorflow as tf

import distlab as dl
from distlab.batching import split_batch
from distlab.errors import InvalidArgument


def test_the_global_batch_grows_with_the_replicas():
    plan = dl.plan_batch(per_replica=64, replicas=4, base_learning_rate=1e-3, rule="linear")
    assert (plan.global_batch, plan.per_replica, plan.shares) == (256, 64, (64,) * 4)
    assert plan.learning_rate == pytest.approx(4e-3)


def test_a_kept_global_batch_is_shared_and_keeps_its_rate():
    plan = dl.plan_batch(global_batch=256, replicas=4, reference_batch=256)
    assert (plan.per_replica, plan.learning_rate) == (64, 1e-3)


def test_the_square_root_rule_takes_the_root():
    plan = dl.plan_batch(per_replica=64, replicas=4, rule="square_root")
    assert plan.learning_rate == pytest.approx(2e-3)


def test_the_rule_none_leaves_the_rate():
    assert dl.plan_batch(per_replica=64, replicas=4, rule="none").learning_rate == 1e-3


def test_steps_count_the_partial_last_batch():
    assert dl.plan_batch(per_replica=8, replicas=4).steps(1437) == math.ceil(1437 / 32) == 45


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize(("batch", "examples"), [(32, 42), (10, 23), (7, 9), (3, 4)])
def test_a_batch_is_split_as_tensorflow_splits_it(replicas, batch, examples):
    strategy = dl.make_strategy("mirrored", devices=replicas)
    dataset = tf.data.Dataset.range(examples).batch(batch)
    sizes = [batch] * (examples // batch) + [examples % batch]
    for distributed, size in zip(
        strategy.experimental_distribute_dataset(dataset), sizes, strict=True
    ):
        parts = strategy.experimental_local_results(distributed)
        assert tuple(len(part) for part in parts) == split_batch(size, replicas)


def test_a_partial_batch_from_files_keeps_the_pieces_of_a_full_one():
    """Lessons say so. Should TensorFlow change it, they must change too."""
    (digits,) = dl.load_dataset("digits", splits=["train[:42]"], batch_size=32)
    strategy = dl.make_strategy("mirrored", devices=4)
    *_, (images, _) = strategy.experimental_distribute_dataset(digits)
    assert [len(part) for part in strategy.experimental_local_results(images)] == [8, 2, 0, 0]
    assert split_batch(10, 4) == (3, 3, 3, 1)


def test_the_warm_up_climbs_from_the_one_device_rate_and_stays():
    plan = dl.plan_batch(per_replica=64, replicas=4, base_learning_rate=0.1)
    schedule = plan.warmup(steps=10)
    rates = [float(schedule(step)) for step in (0, 5, 10, 1000)]
    assert rates == pytest.approx([0.1, 0.25, 0.4, 0.4])


def test_the_warm_up_may_fall_along_a_cosine():
    schedule = dl.plan_batch(per_replica=64, replicas=4, base_learning_rate=0.1).warmup(
        steps=10, decay_steps=100
    )
    assert [float(schedule(step)) for step in (10, 60, 110)] == pytest.approx([0.4, 0.2, 0.0])


def test_a_batch_that_cannot_be_shared_names_its_neighbours():
    with pytest.raises(InvalidArgument) as error:
        dl.plan_batch(global_batch=100, replicas=3)
    assert error.value.found == "100 examples cannot be shared equally by 3 replicas"
    assert error.value.do.startswith("take 99 or 102, or uneven=True")


def test_an_uneven_batch_can_be_asked_for():
    assert dl.plan_batch(global_batch=100, replicas=3, uneven=True).shares == (34, 34, 32)


@pytest.mark.parametrize(
    "arguments",
    [
        {"per_replica": 0, "replicas": 2},
        {"global_batch": 0, "replicas": 2},
        {"per_replica": 8, "replicas": 0},
        {"per_replica": 8, "replicas": 2, "reference_batch": 0},
        {"per_replica": 8.0, "replicas": 2},
    ],
)
def test_numbers_below_one_are_refused(arguments):
    with pytest.raises(InvalidArgument, match="not a whole number of at least 1"):
        dl.plan_batch(**arguments)


def test_a_warm_up_of_no_steps_is_refused():
    with pytest.raises(InvalidArgument, match=r"warmup\(steps=0\)"):
        dl.plan_batch(per_replica=8, replicas=2).warmup(steps=0)


@pytest.mark.parametrize("both", [{}, {"per_replica": 8, "global_batch": 16}])
def test_one_of_the_two_batches_must_be_given(both):
    with pytest.raises(InvalidArgument, match="give one of them"):
        dl.plan_batch(replicas=2, **both)


def test_a_misspelt_rule_is_answered_with_the_near_one():
    with pytest.raises(InvalidArgument, match="did you mean 'square_root'"):
        dl.plan_batch(per_replica=8, replicas=2, rule="squareroot")


@pytest.mark.parametrize("rate", [0, -1.0, math.nan])
def test_a_learning_rate_that_is_none_is_refused(rate):
    with pytest.raises(InvalidArgument, match="not above 0"):
        dl.plan_batch(per_replica=8, replicas=2, base_learning_rate=rate)
