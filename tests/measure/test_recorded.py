"""What the lesson says of the recording holds for the recording that is stored."""

import pytest

from distlab.measure.cost_model import fit, relative_errors
from distlab.measure.recorded import recorded_scaling
from distlab.measure.timing import differ


@pytest.fixture(scope="module")
def recording():
    return recorded_scaling()


def test_it_names_its_machine_and_has_every_step_that_is_asked_for(recording):
    assert recording.machine
    for replicas in (1, 2, 4):
        for batch in (32, 64, 128, 256):
            step = recording.step(replicas, batch)
            assert step.middle_half_secs[0] <= step.whole_secs <= step.middle_half_secs[1]
            # 420,042 weights in float32
            assert step.gradient_bytes == 4 * 420_042


def test_more_replicas_on_the_same_cores_are_slower(recording):
    one, _, four = (recording.step(replicas, 64) for replicas in (1, 2, 4))
    assert four.whole_secs > one.whole_secs
    assert round(four.compute_secs / one.compute_secs, 2) == 1.65
    assert recording.step(4, 256).whole_secs > 2.5 * one.whole_secs


def test_a_small_all_reduce_takes_a_latency_and_a_large_one_its_bytes(recording):
    secs = {(row.replicas, row.size_bytes): row.secs for row in recording.all_reduces}
    assert secs[2, 2048] < 1.8 * secs[2, 4]
    assert secs[2, 2**23] > 5 * secs[2, 4]


def errors_on_four_replicas(recording, *, shared):
    known = [r for r in recording.all_reduces if r.replicas == 2 and r.size_bytes <= 2**20]
    model = fit(known, [step for step in recording.steps if step.replicas <= 2], shared=shared)
    return relative_errors(model, [step for step in recording.steps if step.replicas == 4])


def test_the_model_predicts_four_replicas_well_enough_to_be_told_of(recording):
    assert all(abs(error) < 0.5 for error in errors_on_four_replicas(recording, shared=True))


def test_four_replicas_show_that_they_share_one_processor_from_64_images_on(recording):
    (shared_32, *shared), (own_32, *own) = (
        [abs(error) for error in errors_on_four_replicas(recording, shared=how)]
        for how in (True, False)
    )
    assert max(shared) < min(own) / 2
    assert abs(shared_32 - own_32) < 0.1  # the lesson says that 32 images do not decide


def test_the_shared_model_counts_too_much_waiting(recording):
    known = [r for r in recording.all_reduces if r.replicas == 2 and r.size_bytes <= 2**20]
    model = fit(known, [step for step in recording.steps if step.replicas <= 2], shared=True)
    on_four = [row for row in recording.all_reduces if row.replicas == 4]
    assert all(error > 0 for error in relative_errors(model, on_four))
    assert all(error > 0 for error in errors_on_four_replicas(recording, shared=True))


def test_the_all_reduce_of_the_model_is_too_slow_outside_its_fit(recording):
    """The times in ms, ratios and errors that the lesson names."""
    known = [r for r in recording.all_reduces if r.replicas == 2 and r.size_bytes <= 2**20]
    model = fit(known, [step for step in recording.steps if step.replicas <= 2], shared=True)
    measured = {n: recording.all_reduce(n, 4).secs for n in (2, 4)}
    assert round(1e3 * model.all_reduce_secs(4, 4), 2) == 0.65
    assert round(1e3 * measured[4], 2) == 0.35
    assert round(measured[4] / measured[2], 1) == 1.6
    large = [recording.all_reduce(n, 2**23) for n in (2, 4)]
    assert [round(error, 2) for error in relative_errors(model, large)] == [0.53, 1.07]


def test_on_the_fitted_steps_the_two_models_look_alike(recording):
    known = [r for r in recording.all_reduces if r.replicas == 2 and r.size_bytes <= 2**20]
    steps = [step for step in recording.steps if step.replicas <= 2]
    worst = {
        shared: max(map(abs, relative_errors(fit(known, steps, shared=shared), steps)))
        for shared in (True, False)
    }
    assert 0.2 < worst[True] < worst[False] < 1.5 * worst[True]


@pytest.mark.parametrize("images", [32, 128])
def test_two_replicas_are_slower_where_the_middle_halves_lie_apart(recording, images):
    one, two = (recording.step(replicas, images) for replicas in (1, 2))
    assert differ(one, two)
    assert two.whole_secs > one.whole_secs


@pytest.mark.parametrize("images", [64, 256])
def test_two_replicas_differ_from_one_in_no_way_that_may_be_reported(recording, images):
    one, two, four = (recording.step(replicas, images) for replicas in (1, 2, 4))
    assert not differ(one, two)
    assert differ(one, four)
