"""The picture of a loss scale draws each loss and scale at its step, and marks skipped steps."""

import matplotlib.pyplot as plt

from distlab.pictures.loss_scale import draw_loss_scale

LOSSES = {"float32": [3.0, 2.0, 1.0], "float16": [3.0, 3.0, 2.0]}


def drawn():
    return draw_loss_scale(LOSSES, [8.0, 4.0, 4.0], skipped=[1, 3])


def test_losses_and_scales_stand_at_their_steps():
    above, below = drawn().axes
    right, other = above.lines
    assert list(right.get_xdata()) == list(other.get_xdata()) == [1, 2, 3]
    assert list(other.get_ydata()) == [3, 3, 2]
    assert list(below.lines[0].get_ydata()) == [3, 2, 2]  # powers of two


def test_a_curve_that_lies_on_the_first_can_be_seen():
    right, other = drawn().axes[0].lines
    assert right.get_linewidth() > 4 * other.get_linewidth()


def test_a_skipped_step_is_marked_in_both_panels_and_named_once():
    figure = drawn()
    for ax in figure.axes:
        assert [patch.get_x() for patch in ax.patches] == [0.5, 2.5]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["skipped", "float32", "float16"]


def test_the_figure_is_closed_so_that_a_notebook_shows_it_once():
    before = plt.get_fignums()
    drawn()
    assert plt.get_fignums() == before
