"""Lesson 17: the engine of pipelines, its schedules, and the checks that judge a learner's."""

import itertools

import keras
import numpy as np
import pytest

from distlab.course.lesson_17_pipelines.engine import Pipeline
from distlab.course.lesson_17_pipelines.schedules import (
    gpipe,
    interleaved,
    one_at_a_time,
    one_f_one_b,
    zero_bubble,
)
from distlab.course.lesson_17_pipelines.timetable import Work, play
from distlab.errors import InvalidArgument

SIZES = list(itertools.product((1, 2, 3, 4), (1, 2, 4, 8)))


# --- the timetable


def test_ticks_idle_shares_and_what_is_kept_are_those_of_the_formulas():
    for p, m in SIZES:
        table = play(gpipe(p, m), m)
        assert table.ticks == 3 * (m + p - 1)
        assert table.idle_share == pytest.approx((p - 1) / (m + p - 1))
        assert table.kept == [m] * p
        table = play(one_f_one_b(p, m), m)
        assert table.ticks == 3 * (m + p - 1)
        assert table.kept == [min(m, p - device) for device in range(p)]
        assert play(one_at_a_time(p, m), m).ticks == 3 * m * p
    for p, m in [(p, m) for p, m in SIZES if m % p == 0]:
        assert play(interleaved(p, m), m).ticks == pytest.approx(3 * m + 3 * (p - 1) / 2)
        if m >= p:
            table = play(zero_bubble(p, m), m)
            assert table.ticks == 3 * m + p - 1
            assert max(table.kept) == min(p, m)


def test_each_device_does_each_item_once_and_never_before_its_input_is_there():
    for make, p, m in itertools.product(
        (gpipe, one_f_one_b, interleaved, zero_bubble), (2, 4), (8,)
    ):
        done = []
        table = play(make(p, m), m, done.append)
        assert len(done) == len(set(done)) == sum(map(len, make(p, m)))
        for kind, stage, k in done:
            place = done.index(Work(kind, stage, k))
            before = {"F": ("F", stage - 1, k), "B": ("B", stage + 1, k), "W": ("B", stage, k)}
            if before[kind] in done:
                assert done.index(before[kind]) < place
        for lane in table.lanes:
            assert all(a.end <= b.start for a, b in itertools.pairwise(lane))


def test_devices_that_wait_forever_say_for_what():
    table = play(one_f_one_b(2, 4, longer=-1), 4)
    assert table.waits == {0: "B0", 1: "B0"}
    assert table.why == (
        "device 0 waits at B0 for device 1's B0; "
        "device 1 waits at B0 for its own F0, which is later in its list"
    )
    assert [[span.item for span in lane] for lane in table.lanes] == [["F0"], []]


def test_a_schedule_that_is_none_is_refused():
    good = ["F0", "B0"]
    cases = {
        "pass a list of items for each device": (None, [], ["F0 B0"], [good, "F0"]),
        "write F, B or W and a micro-batch, such as 'F0'": ([["F0", "C0"]], [[0, 1]], [["f0"]]),
        "number the micro-batches from 0 to 0": ([["F0", "B1"]],),
        "let each device do F and B of each micro-batch once": (
            [good, ["F0"]],
            [good, []],
            [good, [*good, "B0"]],
            [["F0.0", "F0.1", "B0.0"], good],
        ),
        "let each device do F and B and W of each micro-batch once": ([["F0", "B0", "W0"], good],),
    }
    for do, schedules in cases.items():
        for schedule in schedules:
            with pytest.raises(InvalidArgument) as refused:
                play(schedule, 1)
            assert do in refused.value.do, schedule
    with pytest.raises(InvalidArgument) as refused:
        play([good, ["F0"]], 1)
    assert refused.value.asked == "a schedule for 2 devices and 1 micro-batches"
    assert refused.value.found == "device 1 never does B0"
    many = [f"F{k}" for k in range(9)]
    with pytest.raises(InvalidArgument, match="never does B0, B1, B2, B3, B4, B5 and 3 more"):
        play([many], 9)
    with pytest.raises(InvalidArgument, match="device 0 does twice or more F0"):
        play([["F0", *good]], 1)


# --- the engine


@pytest.fixture(scope="module")
def pipeline():
    keras.utils.set_random_seed(1)
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(24, 6)).astype("float32"), draw.integers(0, 3, 24)
    layers = [keras.layers.Dense(5, "tanh") for _ in range(8)]
    keras.Sequential(layers)(x)
    measure = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def loss(outputs, y):
        return measure(y, outputs) / 24

    def make(devices, micro_batches):
        return Pipeline(layers, x, y, loss, devices=devices, micro_batches=micro_batches)

    return make


def test_every_schedule_gives_the_gradients_of_one_device(pipeline):
    for make in (gpipe, one_f_one_b, interleaved, zero_bubble, one_at_a_time):
        for p, m in ((4, 4), (2, 6)):
            pipe = pipeline(p, m)
            run = pipe.run(make(p, m))
            assert len(run.gradients) == 16
            assert pipe.difference(run) < 1e-6, (make.__name__, p, m)
    run = pipe.run(one_at_a_time(2, 6))
    run.gradients[3] += 1.0
    assert pipe.difference(run) == pytest.approx(1)


def test_what_does_not_fit_is_refused(pipeline):
    with pytest.raises(InvalidArgument, match="device 1 waits at B0 for its own F0"):
        pipeline(2, 4).run(one_f_one_b(2, 4, longer=-1))
    with pytest.raises(InvalidArgument, match="pass one list for each device"):
        pipeline(4, 4).run(gpipe(2, 4))
    with pytest.raises(InvalidArgument, match="cut 8 layers into 3 stages"):
        pipeline(3, 4).run(gpipe(3, 4))
    with pytest.raises(InvalidArgument, match="24 examples in 5 micro-batches"):
        pipeline(4, 5)
    with pytest.raises(InvalidArgument, match="pass 1 to 4 devices"):
        pipeline(5, 4)
