"""The picture of seeds shows every run, and says in words how far apart they are."""

from distlab.pictures.seed_spread import draw_seeds


def test_every_seed_is_a_curve_in_percent_and_the_text_names_the_spread():
    figure = draw_seeds({"seed 1": [0.25, 0.5], "seed 2": [0.5, 0.625]})
    (axes,) = figure.axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[25, 50], [50, 62.5]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["seed 1", "seed 2"]
    assert axes.get_ylabel() == "training accuracy (%)"
    assert "25 percentage points apart" in figure.alt
    assert "between 50 and 62 %" in figure.alt
