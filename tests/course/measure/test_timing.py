"""What is measured: times without first calls, and the parts of a step."""

import pytest

from distlab.course.measure import step_split
from distlab.course.measure.scaling_runs import small_cnn
from distlab.course.measure.step_split import StepSplit, split_step
from distlab.course.measure.timing import Timing, differ, time_call, time_in_turns
from distlab.errors import InvalidArgument


class Device:
    """Takes work in a queue: a call returns at once, and the first one traces for 5 seconds."""

    def __init__(self, secs=1.0):
        self.secs, self.now, self.busy_until, self.calls = secs, 0.0, 0.0, 0

    def call(self):
        self.now += 0.0 if self.calls else 5.0
        self.calls += 1
        self.busy_until = max(self.now, self.busy_until) + self.secs

    def wait(self):
        self.now = max(self.now, self.busy_until)

    @property
    def hands(self):
        return {"clock": lambda: self.now, "wait": self.wait}


def test_first_calls_do_not_count_and_the_device_is_waited_for():
    device = Device()
    timing = time_call(device.call, blocks=3, calls=4, warm_up=2, **device.hands)
    assert timing.block_secs == (1.0, 1.0, 1.0)
    assert device.calls == 2 + 3 * 4


def test_ways_take_turns_and_every_second_round_is_backwards():
    order, device = [], Device()
    ways = {name: lambda name=name: order.append(name) for name in "abc"}
    time_in_turns(ways, blocks=2, calls=1, warm_up=0, **device.hands)
    assert "".join(order) == "abccba"


def test_timings_differ_if_their_middle_halves_lie_apart():
    blocks = (1.0, 2.0, 3.0, 4.0, 5.0)
    for shift, apart in ((0.5, False), (2.5, True), (-2.5, True)):
        other = Timing(tuple(secs + shift for secs in blocks))
        assert differ(Timing(blocks), other) is apart, shift


# The parts of a step


class Clock:
    """Goes on only by what the loops do."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(step_split, "time", made)
    return made


class Data:
    """Ten batches that take 5 ms each to read, 20 ms in the first pass; the end takes a second."""

    def __init__(self, clock):
        self.clock, self.passes = clock, 0

    def __iter__(self):
        self.passes += 1
        secs = 0.020 if self.passes == 1 else 0.005
        for number in range(10):
            self.clock.now += secs
            yield number
        self.clock.now += 1


def test_the_three_loops_are_timed_alone_and_the_fastest_pass_counts(clock):
    seen = []

    def step(batch):
        seen.append(batch)
        clock.now += 0.5 if len(seen) == 1 else 0.003  # the first step is traced

    split = split_step(step, Data(clock))
    assert split.real_ms == pytest.approx(8)
    assert split.compute_ms == pytest.approx(3)
    assert split.input_ms == pytest.approx(5)
    assert split.waits == pytest.approx(5 / 8)
    assert StepSplit(real_ms=3.0, compute_ms=3.2, input_ms=1.0).waits == 0
    assert str(split) == "a step takes 8.0 ms: 3.0 ms of computation; the input takes 5.0 ms"
    assert seen[:10] == list(range(10))
    assert set(seen[10:20]) == {9}


def test_data_without_a_second_batch_and_no_pass_are_refused():
    for data in ([], [1], iter([1])):
        with pytest.raises(InvalidArgument, match="at least two batches that can be iterated aga"):
            split_step(print, data)
    with pytest.raises(InvalidArgument, match="found: passes=0"):
        split_step(print, [1, 2], passes=0)


def test_the_cnn_has_the_weights_that_the_lesson_names():
    assert small_cnn().count_params() == 420_042
