"""The lanes of a pipeline have a bar for each tick, on one time axis for all panels."""

import pytest

from distlab.measure.pipeline_schedule import pipeline_schedule
from distlab.pictures.pipeline_lanes import draw_pipeline


@pytest.fixture
def figure():
    return draw_pipeline({f"m = {m}": pipeline_schedule(3, micro_batches=m) for m in (1, 4, 32)})


def test_each_panel_has_its_idle_share(figure):
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["m = 1: 67 % idle", "m = 4: 33 % idle", "m = 32: 6 % idle"]


def test_a_tick_is_shorter_where_there_are_more_micro_batches(figure):
    whole, quarters, _ = ([bar.get_width() for bar in axes.patches] for axes in figure.axes)
    assert whole == pytest.approx([0.92] * len(whole))
    assert quarters == pytest.approx([0.23] * len(quarters))
    ends = [max(bar.get_x() + bar.get_width() for bar in axes.patches) for axes in figure.axes]
    assert ends == pytest.approx([6, 3, 2.125], abs=0.05)


def test_micro_batches_have_their_numbers_where_there_is_a_place(figure):
    whole, quarters, many = ([text.get_text() for text in axes.texts] for axes in figure.axes)
    assert whole == ["0"] * 6
    assert quarters[:8] == ["0", "1", "2", "3", "3", "2", "1", "0"]
    assert many == []


def test_directions_and_idle_ticks_look_different(figure):
    looks = {bar.get_facecolor() for bar in figure.axes[0].patches}
    assert len(looks) == 3
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["forward", "backward", "idle"]


def test_the_words_say_how_long_a_batch_takes(figure):
    assert "m = 1: 3 stages, 67 % idle, a batch takes 6 units of time." in figure.alt
    assert "m = 4: 3 stages, 33 % idle, a batch takes 3 units of time." in figure.alt
