import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from distlab.pictures.staleness import draw_staleness, lanes

ALONE = [(0, 1, 0, 0.5), (2, 3, 0, 0.25), (4, 5, 0, 0.125)]
# The first one is slow: it reads first, and writes last.
SLOW = [(0, 7, 3, -0.5), (1, 2, 0, 0.5), (3, 4, 0, 0.25), (5, 6, 0, 0.125)]


@pytest.fixture(scope="module")
def panels():
    """Timelines, histograms and paths, each of both trainings."""
    axes = draw_staleness({"alone": ALONE, "slow": SLOW}).axes
    return axes[0:2], axes[2:4], axes[4:6]


def test_each_training_has_its_title(panels):
    assert [axes.get_title(loc="left") for axes in panels[0]] == ["alone", "slow"]


def test_steps_lie_from_reading_to_writing_in_the_row_of_a_worker(panels):
    for axes, steps, workers in (
        (panels[0][0], ALONE, [0] * 3),
        (panels[0][1], SLOW, [0, 1, 1, 1]),
    ):
        bars = axes.patches
        assert [bar.get_x() for bar in bars] == [reads for reads, *_ in steps]
        assert [bar.get_x() + bar.get_width() for bar in bars] == [w + 1 for _, w, *_ in steps]
        assert [round(bar.get_y() + bar.get_height() / 2) for bar in bars] == workers
        assert [text.get_text() for text in axes.texts] == [str(stale) for *_, stale, _ in steps]


def test_the_histogram_counts_each_staleness_and_shows_stale_ones_in_another_colour(panels):
    _, (alone, slow), _ = panels
    assert [(bar.get_x() + 0.4, bar.get_height()) for bar in alone.patches] == [(0, 3)]
    assert [(bar.get_x() + 0.4, bar.get_height()) for bar in slow.patches] == [(0, 3), (3, 1)]
    fresh, stale = (to_hex(bar.get_facecolor()) for bar in slow.patches)
    assert fresh != stale
    assert to_hex(alone.patches[0].get_facecolor()) == fresh
    assert alone.get_xlim() == slow.get_xlim()


def test_weights_are_drawn_in_the_order_of_writing(panels):
    _, _, (alone, slow) = panels
    assert list(alone.lines[1].get_ydata()) == [0.5, 0.25, 0.125]
    assert list(slow.lines[1].get_ydata()) == [0.5, 0.25, 0.125, -0.5]
    *fresh, stale = slow.lines[2:]  # after the best weight and the path
    assert [one.get_xydata().tolist() for one in fresh] == [[[1, 0.5]], [[2, 0.25]], [[3, 0.125]]]
    assert stale.get_xydata().tolist() == [[4, -0.5]]
    assert to_hex(fresh[0].get_color()) != to_hex(stale.get_color())
    assert fresh[0].get_marker() != stale.get_marker()


def test_a_stale_update_that_is_left_out_is_hollow():
    figure = draw_staleness({"limited": [(0, 1, 0, 0.5), (1, 2, 3, 0.5), (2, 3, 1, 0.25)]})
    fills = [line.get_fillstyle() for line in figure.axes[2].lines[2:]]
    assert fills == ["full", "none", "full"]
    assert "stale, left out" in [text.get_text() for text in figure.legends[0].get_texts()]
    whole = draw_staleness({"alone": ALONE})
    assert "stale, left out" not in [text.get_text() for text in whole.legends[0].get_texts()]


def test_the_alternative_text_counts_each_staleness():
    alt = draw_staleness({"slow": SLOW}).alt
    assert "slow: 3 with staleness 0, 1 with staleness 3" in alt


def test_a_step_goes_to_the_first_worker_that_is_free():
    assert lanes([(0, 2, 0, 0.0), (1, 4, 1, 0.0), (3, 6, 1, 0.0), (5, 7, 0, 0.0)]) == [0, 1, 0, 1]
    assert lanes([(0, 9, 0, 0.0), (1, 8, 0, 0.0), (2, 3, 0, 0.0), (4, 5, 0, 0.0)]) == [0, 1, 2, 2]


def test_the_figure_is_closed_so_that_a_notebook_shows_it_once():
    before = plt.get_fignums()
    draw_staleness({"alone": ALONE})
    assert plt.get_fignums() == before
