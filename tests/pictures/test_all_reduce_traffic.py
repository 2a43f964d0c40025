import matplotlib.pyplot as plt
import numpy as np
import pytest

from distlab.measure.simulated_network import Network
from distlab.pictures.all_reduce_traffic import (
    draw_busiest,
    draw_seconds,
    draw_traffic,
    shown_bytes,
)


@pytest.fixture
def networks():
    first, second = Network(2), Network(3)
    first.step({(0, 1): np.zeros(2, np.float32)})
    second.step({(0, 1): np.zeros(1, np.float32), (1, 0): np.zeros(3, np.float32)})
    second.step({(2, 1): np.zeros(1, np.float32)})
    return {"one way": first, "both ways": second}


def test_each_network_has_a_panel_with_two_bars_for_each_rank(networks):
    figure = draw_traffic(networks, vector_bytes=4)
    assert [axes.get_title() for axes in figure.axes] == ["one way: 1 step", "both ways: 2 steps"]
    heights = [[bar.get_height() for bar in axes.patches] for axes in figure.axes]
    assert heights == [[2, 0, 0, 2], [1, 3, 1, 3, 2, 0]]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["sent", "received"]
    assert "both ways, 2 steps: sent 1, 3, 1, received 3, 2, 0" in figure.alt


def test_each_algorithm_has_its_line_over_the_number_of_ranks():
    figure = draw_busiest({"naive": {2: 1.0, 4: 3.0}, "ring": {2: 1.0, 4: 1.5}})
    (axes,) = figure.axes
    naive, ring, limit = axes.lines
    assert [list(line.get_ydata()) for line in (naive, ring)] == [[1, 3], [1, 1.5]]
    assert naive.get_color() != ring.get_color()
    assert list(limit.get_ydata()) == [2, 2]
    assert "ring: 1 with 2, 1.5 with 4" in figure.alt


def test_times_are_drawn_in_milliseconds_over_sizes():
    figure = draw_seconds({"tree": {1e3: 1e-4, 1e6: 2e-3}, "yours": {1e3: 1e-3}}, ranks=8)
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.1, 2])
    assert axes.get_xlabel() == "size of the vector, 8 ranks"
    assert "tree takes 1 KB in 0.1 ms, 1 MB in 2 ms" in figure.alt


def test_many_sizes_make_no_long_text():
    figure = draw_seconds({"ring": {float(n): 1.0 for n in range(1, 61)}}, ranks=8)
    assert figure.alt.count("ms") < 10
    assert "60 B" in figure.alt


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 B"), (4000, "4 KB"), (1.5e6, "1.5 MB"), (2e9, "2 GB")]
)
def test_sizes_are_shown_with_their_unit(size, text):
    assert shown_bytes(size) == text


def test_the_figures_are_closed(networks):
    before = plt.get_fignums()
    draw_traffic(networks, vector_bytes=4)
    draw_busiest({"ring": {2: 1.0}})
    draw_seconds({"ring": {1e3: 1.0}}, ranks=2)
    assert plt.get_fignums() == before
