"""Where a picture computes something, what it draws is that."""

from itertools import pairwise

import numpy as np
import pytest

from distlab.course.figures.underflow import Lost, lost_in_float16
from distlab.course.lesson_05_input_pipelines.figures import draw_overlap, recorded_splits
from distlab.course.lesson_21_choosing_a_strategy.figures import FIELD


def ends_of(axes):
    """From where to where each bar goes."""
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]


# Recorded times, which must show what the lessons say if they are recorded again


def test_the_recorded_times_show_what_the_lesson_says():
    """Prefetch gains little, each of the others much."""
    slow, prefetch, at_once, cached, all_three = recorded_splits().values()
    assert slow.compute_ms < 0.1 * slow.real_ms
    assert prefetch.real_ms > 0.8 * slow.real_ms
    assert max(at_once.real_ms, cached.real_ms) < 0.2 * slow.real_ms
    assert all_three.real_ms == pytest.approx(cached.real_ms, rel=0.15)
    assert all_three.real_ms == pytest.approx(all_three.compute_ms + all_three.input_ms, rel=0.2)


@pytest.mark.parametrize(("read", "compute", "in_turns", "ahead"), [(3, 2, 20, 14), (1, 2, 12, 9)])
def test_reading_ahead_ends_when_the_longer_part_ends(read, compute, in_turns, ahead):
    figure = draw_overlap(read=read, compute=compute, steps=4)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"nothing is read ahead: {in_turns} units of time",
        f"one batch is read ahead: {ahead} units of time",
    ]
    for axes in figure.axes:
        bars = ends_of(axes)
        for (_, is_read), (computes, _) in zip(bars[:4], bars[4:], strict=True):
            assert computes >= is_read


# Numbers in float16


def test_what_is_lost_is_what_float16_rounds_to_zero_or_infinity():
    sizes = 2.0 ** np.array([-30.5, -20.5, 0.5, 20.5])
    assert lost_in_float16(sizes) == Lost(zero=0.25, infinite=0.25)
    assert lost_in_float16(sizes, scale=2.0**-10) == Lost(zero=0.5, infinite=0.0)
    assert lost_in_float16(-sizes, scale=2.0**16) == Lost(zero=0.0, infinite=0.5)
    smallest, largest = 2.0**-25, 65520.0
    assert lost_in_float16([smallest]).zero == 1
    assert lost_in_float16([np.nextafter(smallest, 1)]).zero == 0
    assert lost_in_float16([largest]).infinite == 1
    assert lost_in_float16([np.nextafter(largest, 0)]).infinite == 0
    # Zeros that were there before are not lost.
    assert lost_in_float16([0.0, 0.0, 1e-9, 1.0]).zero == 0.5
    assert lost_in_float16(np.zeros(3)) == Lost(zero=0.0, infinite=0.0)


# Who has what


def test_the_devices_together_have_the_whole_batch_and_the_whole_model():
    def covered(pieces):
        """What pieces between 0 and 1 cover together, each part counted once."""
        pieces = [piece for piece in pieces if piece]
        cuts = sorted({edge for piece in pieces for edge in piece})
        return sum(
            end - start
            for start, end in pairwise(cuts)
            if any(piece[0] <= start and end <= piece[1] for piece in pieces)
        )

    for kind in FIELD:
        assert covered([part.batch for part in kind.parts]) == 1, kind.name
        for layer in range(3):
            assert covered([part.layers[layer] for part in kind.parts]) == 1, kind.name
