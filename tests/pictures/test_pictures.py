import numpy as np
from matplotlib.colors import to_hex

from distlab.pictures.examples import draw_digits, draw_shares

IMAGES = np.linspace(0, 1, 7 * 4).reshape(7, 2, 2, 1)
SEEN = [[[0, 1, 2], [3, 4]], [[5], []]]


def numbers_in(axes):
    return [int(text.get_text()) for text in axes.texts if text.get_text().isdigit()]


def test_digits_are_drawn_in_order_with_their_numbers():
    (axes,) = draw_digits(IMAGES, columns=3).axes
    assert numbers_in(axes) == list(range(7))
    for drawn, image in zip(axes.images, IMAGES, strict=True):
        np.testing.assert_array_equal(drawn.get_array(), image[..., 0])


def test_shares_have_a_panel_for_each_batch_and_a_name_for_each_replica():
    first, second = draw_shares(IMAGES, SEEN).axes
    assert first.get_title(loc="left") == "batch 1: 5 examples"
    assert second.get_title(loc="left") == "batch 2: 1 examples"
    names = [t.get_text() for t in first.texts if t.get_text().startswith("replica")]
    assert names == ["replica 0", "replica 1"]


def test_each_example_stands_in_the_row_and_colour_of_its_replica():
    first, second = draw_shares(IMAGES, SEEN).axes
    assert numbers_in(first) == [0, 1, 2, 3, 4]
    assert numbers_in(second) == [5]
    tops = [frame.get_y() for frame in first.patches]
    assert tops[0] == tops[1] == tops[2] < tops[3] == tops[4]
    colours = [to_hex(frame.get_edgecolor()) for frame in first.patches]
    assert len(set(colours[:3])) == len(set(colours[3:])) == 1
    assert colours[0] != colours[3]
    assert to_hex(second.patches[0].get_edgecolor()) == colours[0]


def test_the_size_of_each_share_is_written_also_of_an_empty_one():
    first, second = draw_shares(IMAGES, SEEN).axes
    sizes = [[t.get_text() for t in axes.texts if "=" in t.get_text()] for axes in (first, second)]
    assert sizes == [["= 3", "= 2"], ["= 1", "= 0"]]


def test_figures_are_closed_so_that_a_notebook_shows_them_once():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    draw_digits(IMAGES)
    draw_shares(IMAGES, SEEN)
    assert plt.get_fignums() == before
