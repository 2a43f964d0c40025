"""The picture of example weights shows each example in the colour of its replica."""

from matplotlib.colors import to_hex

from distlab.pictures.example_weights import draw_example_weights
from distlab.pictures.palette import ONE_DEVICE, replica

OF_MEANS = [1 / 9] * 6 + [1 / 3]


def bars(axes):
    return [(round(bar.get_height(), 4), to_hex(bar.get_facecolor())) for bar in axes.patches]


def test_each_example_has_its_weight_in_the_colour_of_its_replica():
    figure = draw_example_weights([3, 3, 1], {"means": OF_MEANS})
    colours = [replica(number).colour.lower() for number in (0, 0, 0, 1, 1, 1, 2)]
    expected = [(round(w, 4), colour) for w, colour in zip(OF_MEANS, colours, strict=True)]
    assert bars(figure.axes[0]) == expected


def test_a_line_shows_the_weight_on_one_device():
    (line,) = draw_example_weights([2, 2], {"right": [1 / 4] * 4}).axes[0].lines
    assert (list(line.get_ydata()), line.get_color()) == ([1 / 4, 1 / 4], ONE_DEVICE.colour)


def test_each_rule_has_a_panel_and_a_sentence_in_the_alternative_text():
    figure = draw_example_weights([3, 3, 1], {"all": [1 / 7] * 7, "means": OF_MEANS})
    assert [axes.get_title() for axes in figure.axes] == ["all", "means"]
    assert "means: on replica 0 each example weighs 0.111" in figure.alt
    assert "on replica 2 each example weighs 0.333" in figure.alt


def test_a_replica_without_examples_has_no_bar_and_no_words():
    figure = draw_example_weights([5, 5, 0, 0], {"files": [1 / 10] * 10})
    assert len(figure.axes[0].patches) == 10
    assert "replica 2 each" not in figure.alt
