"""The curves of a step's memory are those that were given, and the words name what fits."""

import pytest

from distlab.pictures.memory_by_replicas import draw_memory_by_replicas

CURVES = {"mirrored": [112, 112, 112], "ZeRO 1": [112, 70, 49]}


@pytest.fixture
def figure():
    return draw_memory_by_replicas([1, 2, 4], CURVES, limit_gb=80)


def test_each_curve_has_its_numbers_and_a_look_of_its_own(figure):
    first, second, limit = figure.axes[0].lines
    assert list(first.get_ydata()) == [112, 112, 112]
    assert list(second.get_xdata()) == [1, 2, 4]
    assert list(second.get_ydata()) == [112, 70, 49]
    assert list(limit.get_ydata()) == [80, 80]
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()


def test_the_words_say_from_where_it_fits(figure):
    assert "with a line at 80 GB" in figure.alt
    assert "mirrored: 112 GB with 1 and 112 GB with 4; it never fits." in figure.alt
    assert "ZeRO 1: 112 GB with 1 and 49 GB with 4; it fits from 2 replicas." in figure.alt
