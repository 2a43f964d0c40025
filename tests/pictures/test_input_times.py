"""The bars and lanes of lesson 05 show the numbers that they are given."""

import pytest

from distlab.measure.step_split import StepSplit
from distlab.pictures.input_times import draw_overlap, draw_step_splits, recorded_splits

SLOW = StepSplit(real_ms=100.0, compute_ms=10.0, input_ms=98.0)
QUICK = StepSplit(real_ms=12.0, compute_ms=10.0, input_ms=4.0)


def test_each_pipeline_has_three_bars_with_their_times():
    figure = draw_step_splits({"slow": SLOW, "quick": QUICK})
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [100, 12, 10, 10, 98, 4]
    assert {text.get_text() for text in axes.texts} >= {"100 ms", "98 ms", "4 ms"}
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["slow", "quick"]
    assert len(figure.legends[0].get_texts()) == 3
    assert "slow: 100 ms, of which the computation takes 10 ms; the input alone takes 98 ms." in (
        figure.alt
    )


@pytest.mark.parametrize(
    ("read", "compute", "in_turns", "ahead"), [(3, 2, 20, 14), (1, 2, 12, 9), (2, 2, 16, 10)]
)
def test_reading_ahead_ends_when_the_longer_part_ends(read, compute, in_turns, ahead):
    figure = draw_overlap(read=read, compute=compute, steps=4)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        f"nothing is read ahead: {in_turns} units of time",
        f"one batch is read ahead: {ahead} units of time",
    ]
    assert f"one batch is read ahead, the last step ends after {ahead}" in figure.alt


def test_no_batch_is_computed_before_it_is_read():
    for axes in draw_overlap(read=3, compute=2, steps=4).axes:
        bars = axes.patches
        reads, computes = bars[:4], bars[4:]
        for reading, computing in zip(reads, computes, strict=True):
            assert computing.get_x() >= reading.get_x() + reading.get_width()


def test_the_recorded_times_show_what_the_lesson_says():
    """Recorded anew, they must still show it: prefetch gains little, each of the others much."""
    found, prefetch, at_once, cached, all_three = recorded_splits().values()
    assert found.compute_ms < 0.1 * found.real_ms
    assert prefetch.real_ms > 0.8 * found.real_ms
    assert max(at_once.real_ms, cached.real_ms) < 0.2 * found.real_ms
    assert all_three.real_ms == pytest.approx(cached.real_ms, rel=0.15)
    assert all_three.real_ms == pytest.approx(all_three.compute_ms + all_three.input_ms, rel=0.2)
