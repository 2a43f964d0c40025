"""split_step measures three loops; what it says of them follows from the times."""

import itertools

import pytest

from distlab.errors import InvalidArgument
from distlab.measure import step_split
from distlab.measure.step_split import StepSplit, split_step


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
    assert str(split) == "a step takes 8.0 ms: 3.0 ms of computation; the input takes 5.0 ms"
    assert seen[:10] == list(range(10))
    assert set(seen[10:20]) == {9}


def test_a_pass_over_data_without_an_end_is_cut_off(clock):
    seen = []
    split_step(seen.append, _Endless(), passes=1, most_steps=4)
    assert seen == [0, 1, 2, 3, 3, 3, 3, 3]


class _Endless:
    def __iter__(self):
        return itertools.count()


def test_a_step_that_computation_explains_does_not_wait():
    assert StepSplit(real_ms=3.0, compute_ms=3.2, input_ms=1.0).waits == 0


@pytest.mark.parametrize("data", [[], [1], iter([1])])
def test_data_without_a_second_batch_is_refused(data):
    with pytest.raises(InvalidArgument, match="at least two batches that can be iterated again"):
        split_step(print, data)


def test_no_pass_is_refused():
    with pytest.raises(InvalidArgument, match="no pass to time"):
        split_step(print, [1, 2], passes=0)
