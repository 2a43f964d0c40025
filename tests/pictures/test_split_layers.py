"""The picture of two split layers gives each element to the device that has it."""

from collections import Counter

import pytest
from matplotlib.colors import to_hex

from distlab.pictures.palette import PALE, replica
from distlab.pictures.split_layers import draw_split_layers


@pytest.fixture
def axes():
    return draw_split_layers(examples=3, inputs=2, hidden=4, outputs=1).axes[0]


def test_each_device_has_half_of_both_kernels_and_a_part_of_each_output(axes):
    elements = Counter(to_hex(box.get_facecolor()).upper() for box in axes.patches)
    # x and the output on both; half of the kernels, half of the hidden units, and one part.
    own = 2 * 2 + 3 * 2 + 2 * 1 + 3
    assert elements == {PALE: 3 * 2 + 3, replica(0).colour: own, replica(1).colour: own}


def test_the_second_kernel_is_cut_where_the_hidden_units_are(axes):
    by_place = {(box.get_x(), box.get_y()): to_hex(box.get_facecolor()) for box in axes.patches}
    lefts = sorted({left for left, _ in by_place})
    second = lefts[2 + 4 + 4]  # behind x, the first kernel and the hidden units
    column = [colour for (left, _), colour in sorted(by_place.items()) if left == second]
    assert [colour.upper() for colour in column] == [replica(0).colour] * 2 + [
        replica(1).colour
    ] * 2


def test_the_names_have_the_shapes():
    figure = draw_split_layers(examples=8, inputs=6, hidden=10, outputs=4)
    words = [text.get_text() for text in figure.axes[0].texts]
    assert "first kernel\n[6, 10]" in words
    assert "second kernel\n[10, 4]" in words
    assert "each device has [6, 5] and computes 5 of the 10 hidden units" in figure.alt
