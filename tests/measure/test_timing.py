"""Timings leave the first calls out, wait for the devices, and tell noise from a difference."""

import pytest

from distlab.errors import InvalidArgument
from distlab.measure.timing import Timing, differ, time_call, time_in_turns


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


def test_a_timing_has_the_median_and_the_middle_half_of_its_blocks():
    timing = Timing((1.0, 2.0, 3.0, 4.0, 50.0))
    assert timing.median_secs == 3.0
    assert timing.middle_half_secs == (2.0, 4.0)


@pytest.mark.parametrize(("shift", "apart"), [(0.5, False), (2.5, True), (-2.5, True)])
def test_timings_differ_if_their_middle_halves_lie_apart(shift, apart):
    blocks = (1.0, 2.0, 3.0, 4.0, 5.0)
    other = Timing(tuple(secs + shift for secs in blocks))
    assert differ(Timing(blocks), other) is apart


def test_one_block_is_refused_because_it_has_no_spread():
    with pytest.raises(InvalidArgument) as error:
        time_call(lambda: None, blocks=1)
    assert "blocks=1, calls=5" in str(error.value)
    assert "how far the times scatter" in str(error.value)
