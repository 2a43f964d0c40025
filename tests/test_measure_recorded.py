"""What the lesson says of the recording holds for the recording that is stored."""

import pytest

from distlab.measure.cost_model import fit, relative_error
from distlab.measure.recorded import recorded_scaling


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
    assert four.compute_secs > 1.1 * one.compute_secs
    assert recording.step(4, 256).whole_secs > 2.5 * one.whole_secs


def test_a_small_all_reduce_takes_a_latency_and_a_large_one_its_bytes(recording):
    secs = {(row.replicas, row.size_bytes): row.secs for row in recording.all_reduces}
    assert secs[2, 2048] < 1.8 * secs[2, 4]
    assert secs[2, 2**23] > 5 * secs[2, 4]


def test_the_model_predicts_four_replicas_well_enough_to_be_told_of(recording):
    known = [r for r in recording.all_reduces if r.replicas == 2 and r.size_bytes <= 2**20]
    model = fit(known, [step for step in recording.steps if step.replicas <= 2], shared=True)
    for step in recording.steps:
        if step.replicas == 4:
            sizes = {"per_replica_batch": step.global_batch / 4}
            said = model.step(4, gradient_bytes=step.gradient_bytes, **sizes)
            assert abs(relative_error(predicted=said.secs, measured=step.whole_secs)) < 0.5


def test_four_replicas_show_that_they_share_one_memory(recording):
    known = [r for r in recording.all_reduces if r.replicas == 2 and r.size_bytes <= 2**20]
    largest = max(recording.all_reduces, key=lambda row: (row.replicas, row.size_bytes))
    said = {}
    for shared in (True, False):
        model = fit(known, recording.steps[:8], shared=shared)
        for row in known:
            one = fit(known, recording.steps[:8]).all_reduce_secs(2, row.size_bytes)
            assert model.all_reduce_secs(2, row.size_bytes) == pytest.approx(one)
        said[shared] = abs(model.all_reduce_secs(4, largest.size_bytes) / largest.secs - 1)
    assert said[True] < 0.6 * said[False]
