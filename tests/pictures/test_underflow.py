"""The picture of lesson 07 sorts numbers as float16 does, at every scale."""

import numpy as np
import pytest

from distlab.pictures.underflow import Lost, draw_training, draw_underflow, lost_in_float16

# As powers of two: one that becomes 0, one that is kept, one that is kept, one too large.
SIZES = 2.0 ** np.array([-30.5, -20.5, 0.5, 20.5])


def bars(axes, row=0):
    """For each colour's label in the legend, where a row has bars: their left edges."""
    names = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    colours = [patch.get_facecolor() for patch in axes.figure.legends[0].get_patches()]
    found = {name: [] for name in names}
    for bar in axes.patches:
        if bar.get_y() == row and bar.get_height() > 0 and bar.get_width() == 1:
            found[names[colours.index(bar.get_facecolor())]].append(bar.get_x())
    return found


def beside_the_rows(axes):
    return [text.get_text() for text in axes.texts]


def test_what_is_lost_is_what_float16_rounds_to_zero_or_infinity():
    assert lost_in_float16(SIZES) == Lost(zero=0.25, infinite=0.25)
    assert lost_in_float16(SIZES, scale=2.0**-10) == Lost(zero=0.5, infinite=0.0)
    assert lost_in_float16(-SIZES, scale=2.0**16) == Lost(zero=0.0, infinite=0.5)


def test_the_limits_are_exact():
    smallest, largest = 2.0**-25, 65520.0
    assert lost_in_float16([smallest]).zero == 1
    assert lost_in_float16([np.nextafter(smallest, 1)]).zero == 0
    assert lost_in_float16([largest]).infinite == 1
    assert lost_in_float16([np.nextafter(largest, 0)]).infinite == 0


def test_zeros_that_were_there_before_are_not_counted():
    assert lost_in_float16([0.0, 0.0, 1e-9, 1.0]).zero == 0.5
    assert lost_in_float16(np.zeros(3)) == Lost(zero=0.0, infinite=0.0)


def test_each_number_stands_at_its_power_of_two_in_the_colour_of_its_fate():
    axes = draw_underflow({"layer 1": SIZES}).axes[0]
    assert bars(axes) == {
        "becomes 0": [-31.0],
        "is kept": [-21.0, 0.0],
        "becomes infinite": [20.0],
    }
    assert beside_the_rows(axes) == ["50% lost"]


def test_colours_change_where_float16_ends():
    around = [0.75 * 2.0**-25, 1.5 * 2.0**-25, 0.9 * 2.0**16, 1.1 * 2.0**16]
    found = bars(draw_underflow({"layer 1": around}).axes[0])
    assert list(found.values()) == [[-26.0], [-25.0, 15.0], [16.0]]
    assert lost_in_float16(around) == Lost(zero=0.25, infinite=0.25)


def test_a_scale_slides_the_histogram_to_the_right():
    first, second = draw_underflow({"layer 1": SIZES}, scales=(1, 2**10)).axes
    assert first.get_title() == "scale 1"
    assert second.get_title() == "scale $2^{10}$"
    assert bars(second) == {
        "becomes 0": [],
        "is kept": [-21.0, -11.0, 10.0],
        "becomes infinite": [30.0],
    }
    assert first.get_xlim() == second.get_xlim()


def test_layers_are_rows_from_the_top_each_with_its_share():
    gradients = {"first": [2.0**-30], "second": [1.0] * 999 + [2.0**-30], "third": [1.0, 0.0]}
    axes = draw_underflow(gradients).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second", "third"]
    assert list(axes.get_yticks()) == sorted(axes.get_yticks(), reverse=True)
    assert beside_the_rows(axes) == ["100% lost", "< 1% lost", "all kept"]
    assert bars(axes, row=2)["becomes 0"]
    assert not bars(axes, row=0)["becomes 0"]


def test_a_few_numbers_far_outside_stand_at_the_edge():
    sizes = np.concatenate([np.full(99, 1.0), [2.0**-60]])
    axes = draw_underflow({"layer 1": sizes}).axes[0]
    low, _ = axes.get_xlim()
    assert low > -40
    assert bars(axes)["becomes 0"] == [low]


def test_a_gradient_of_nothing_but_zeros_is_an_empty_row():
    axes = draw_underflow({"dead": np.zeros(4), "alive": np.ones(4)}).axes[0]
    assert not any(bars(axes, row=1).values())
    assert beside_the_rows(axes)[0] == "all kept"


@pytest.mark.parametrize("scales", [(1,), (1, 2**8, 2**15)])
def test_there_is_a_panel_for_each_scale(scales):
    assert len(draw_underflow({"layer 1": SIZES}, scales=scales).axes) == len(scales)


def test_training_curves_are_named_and_count_steps_from_the_first_report():
    curves = {"float32": [2.0, 1.0], "float16": [2.3, 2.3]}
    figure = draw_training(curves, every_steps=10, level=("guessing", 2.3))
    broad, thin, level = figure.axes[0].lines
    assert list(broad.get_xdata()) == list(thin.get_xdata()) == [10, 20]
    assert list(broad.get_ydata()) == [2.0, 1.0]
    assert list(thin.get_ydata()) == [2.3, 2.3]
    assert set(level.get_ydata()) == {2.3}
    assert broad.get_linewidth() > 4 * thin.get_linewidth()
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["float32", "float16", "guessing"]
