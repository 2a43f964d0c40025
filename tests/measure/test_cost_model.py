"""The cost model adds up its parts, finds again what made the measurements, and predicts others."""

import dataclasses
import math

import pytest

from distlab.errors import InvalidArgument
from distlab.measure.bandwidth import AllReduceTime
from distlab.measure.cost_model import CostModel, fit, predict_steps, relative_errors
from distlab.measure.scaling_runs import MeasuredStep

SIZES = {"per_replica_batch": 10, "gradient_bytes": 1000}


def model(**changes):
    return dataclasses.replace(CostModel(secs_per_example=0.1, secs_per_step=0.5), **changes)


def measured(made_by, replicas, global_batch, gradient_bytes=8e6):
    cost = made_by.step(
        replicas, per_replica_batch=global_batch / replicas, gradient_bytes=gradient_bytes
    )
    whole = {"whole_secs": cost.secs, "middle_half_secs": (cost.secs, cost.secs)}
    parts = {
        "compute_secs": cost.compute_secs,
        "communication_secs": cost.communication_secs,
        "input_secs": cost.input_secs,
    }
    return MeasuredStep(replicas, global_batch, gradient_bytes, **parts, **whole)


def test_compute_has_a_part_for_each_example_and_a_part_for_each_step():
    assert model().step(1, **SIZES).compute_secs == pytest.approx(1.5)
    assert model().step(8, **SIZES).secs == pytest.approx(1.5)


def test_replicas_that_share_a_processor_compute_one_after_the_other():
    assert model(shared=True).step(4, **SIZES).compute_secs == pytest.approx(4 * 1.5)


def test_a_ring_has_two_rounds_for_every_other_replica_and_moves_pieces():
    link = model(latency_secs=0.01, bytes_per_sec=100)
    assert link.all_reduce_secs(1, 1000) == 0
    assert link.all_reduce_secs(2, 1000) == pytest.approx(2 * 0.01 + 1000 / 100)
    assert link.all_reduce_secs(5, 1000) == pytest.approx(8 * 0.01 + 1600 / 100)


def test_a_shared_memory_moves_the_bytes_of_all_replicas():
    link = model(bytes_per_sec=100, shared=True)
    assert link.all_reduce_secs(5, 1000) == pytest.approx(8000 / 100)


def test_communication_hides_behind_the_backward_pass_and_no_longer_than_it():
    long = model(bytes_per_sec=1000 / 10, hidden=1.0)  # 10 seconds on two replicas
    assert long.step(2, **SIZES).communication_secs == pytest.approx(10 - 2 / 3 * 1.5)
    short = dataclasses.replace(long, bytes_per_sec=1000 / 0.2, hidden=0.5)
    assert short.step(2, **SIZES).communication_secs == pytest.approx(0.1)


@pytest.mark.parametrize(("replicas", "deviations"), [(1, 0), (2, 0.5642), (512, 3.04)])
def test_the_slowest_replica_is_as_late_as_the_largest_of_normal_numbers(replicas, deviations):
    waiting = model(jitter=0.1).step(replicas, **SIZES).waiting_secs
    assert waiting == pytest.approx(0.1 * 1.5 * deviations, rel=0.05)


def test_input_counts_only_where_it_is_longer_than_the_step():
    assert model(input_secs_per_example=0.1).step(1, **SIZES).input_secs == 0
    slow = model(input_secs_per_example=0.2).step(1, **SIZES)
    assert slow.input_secs == pytest.approx(2.0 - 1.5)
    assert slow.secs == pytest.approx(2.0)


def test_efficiency_compares_one_replica_with_many_of_the_same_batch():
    link = model(bytes_per_sec=1000 / 1.5)
    assert link.efficiency(2, **SIZES) == pytest.approx(0.5)


@pytest.mark.parametrize("shared", [False, True])
def test_a_fit_finds_the_numbers_that_made_the_measurements(shared):
    made_by = CostModel(
        secs_per_example=2e-4,
        secs_per_step=3e-3,
        latency_secs=2e-4,
        bytes_per_sec=2e9,
        shared=shared,
    )
    steps = [measured(made_by, n, batch) for n in (1, 2) for batch in (32, 64, 128)]
    reduced = [AllReduceTime(2, s, made_by.all_reduce_secs(2, s)) for s in (4, 2**16, 2**22)]
    found = fit(reduced, steps, shared=shared)
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(made_by), rel=1e-6)
    unseen = measured(made_by, 4, 256)
    assert relative_errors(found, [unseen]) == pytest.approx([0])
    large = AllReduceTime(4, 2**24, made_by.all_reduce_secs(4, 2**24))
    assert relative_errors(found, [large]) == pytest.approx([0])


def test_an_error_is_a_part_of_the_measurement_with_its_sign():
    twice = dataclasses.replace(measured(model(), 1, 8), whole_secs=2 * 1.3, compute_secs=2 * 1.3)
    assert predict_steps(model(), [twice])[0].secs == pytest.approx(1.3)
    assert relative_errors(model(), [twice]) == pytest.approx([-0.5])


def test_a_fit_gives_no_time_below_0():
    bent = [AllReduceTime(2, size, secs) for size, secs in ((10, 0.1), (100, 10.0), (200, 30.0))]
    steps = [measured(model(), 1, batch) for batch in (8, 16)]
    found = fit(bent, steps)
    assert found.latency_secs == 0
    assert found.bytes_per_sec > 0


def test_without_all_reduces_communication_costs_nothing():
    found = fit([], [measured(model(), 1, batch) for batch in (8, 16)])
    assert found.bytes_per_sec == math.inf
    assert found.step(8, **SIZES).communication_secs == 0


def test_too_few_measurements_are_refused():
    with pytest.raises(InvalidArgument) as error:
        fit([], [measured(model(), 1, 8)])
    assert "fit of 0 all-reduces and 1 steps" in str(error.value)
    assert "measure at least two sizes of each" in str(error.value)


@pytest.mark.parametrize("wrong", [{"latency_secs": -1e-6}, {"hidden": 1.1}, {"bytes_per_sec": 0}])
def test_numbers_that_no_machine_has_are_refused(wrong):
    with pytest.raises(InvalidArgument) as error:
        model(**wrong)
    assert "a time below 0, a bandwidth that is not above 0, or hidden" in str(error.value)
