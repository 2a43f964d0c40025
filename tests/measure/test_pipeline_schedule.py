"""A pipeline's schedule is in an order that can be computed, and its bubble is counted."""

import pytest

from distlab.errors import InvalidArgument
from distlab.measure.pipeline_schedule import Work, idle_share, pipeline_schedule

SIZES = [(1, 1), (1, 5), (2, 1), (2, 4), (4, 4), (5, 3)]


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_each_stage_computes_each_micro_batch_once_in_each_direction(stages, micro_batches):
    works = [
        Work(kind, number) for kind in ("forward", "backward") for number in range(micro_batches)
    ]
    for lane in pipeline_schedule(stages, micro_batches=micro_batches):
        assert sorted(filter(None, lane)) == sorted(works)


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_nothing_is_computed_before_it_can_be(stages, micro_batches):
    lanes = pipeline_schedule(stages, micro_batches=micro_batches)
    for number in range(micro_batches):
        forward = [lane.index(Work("forward", number)) for lane in lanes]
        backward = [lane.index(Work("backward", number)) for lane in lanes]
        order = forward + backward[::-1]
        assert order == sorted(set(order))


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_the_idle_share_is_the_formula_of_the_bubble(stages, micro_batches):
    counted = idle_share(pipeline_schedule(stages, micro_batches=micro_batches))
    assert counted == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@pytest.mark.parametrize(("stages", "micro_batches"), [(0, 4), (2, 0)])
def test_a_pipeline_without_work_is_refused(stages, micro_batches):
    with pytest.raises(InvalidArgument) as caught:
        pipeline_schedule(stages, micro_batches=micro_batches)
    assert caught.value.asked == f"pipeline_schedule({stages}, micro_batches={micro_batches})"
    assert caught.value.found == "a pipeline without work"
    assert caught.value.do == "pass at least 1 stage and 1 micro-batch"
