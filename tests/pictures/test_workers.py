import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_hex

from distlab.pictures.workers import draw_lanes, draw_losses, draw_readers

IMAGES = np.linspace(0, 1, 6 * 4).reshape(6, 2, 2, 1)
# Two workers: example 3 is read by both, in different batches; 4 by neither.
OVERLAP = [[[0, 1], [3]], [[2, 3], [5]]]
SHARED = [[[0, 1], [4]], [[2, 3], [5]]]


def panels(read):
    return draw_readers(IMAGES, read, columns=3).axes


def frames_by_place(axes):
    """The colours of the frames around each tile, outermost first."""
    tiles = {}
    for patch in axes.patches:
        place = (round(patch.get_x() // 1.2), round(patch.get_y() // 1.6))
        tiles.setdefault(place, []).append(to_hex(patch.get_edgecolor()))
    return [tiles[column, row] for row in range(2) for column in range(3)]


def test_each_way_to_read_has_a_panel_that_says_how_many_examples_were_read():
    titles = [axes.get_title(loc="left") for axes in panels({"a": OVERLAP, "b": SHARED})]
    assert titles == ["a: 5 of 6 trained", "b: 6 of 6 trained"]


def test_examples_have_the_colours_of_the_workers_that_read_them():
    (axes,) = panels({"a": OVERLAP})
    first, second, both, nobody = (frames_by_place(axes)[n] for n in (0, 2, 3, 4))
    assert len({*first, *second, *nobody}) == 3
    assert both == first + second
    assert frames_by_place(axes)[1] == first
    assert frames_by_place(axes)[5] == second


def test_what_no_worker_read_is_pale():
    (axes,) = panels({"a": OVERLAP})
    assert [image.get_alpha() for image in axes.images] == [1, 1, 1, 1, 0.25, 1]


def test_under_each_example_stand_the_global_batches_that_it_was_in():
    (axes,) = panels({"a": OVERLAP})
    assert [text.get_text() for text in axes.texts] == ["1", "1", "1", "2, 1", "", "2"]


def test_the_legend_names_every_worker():
    (legend,) = draw_readers(IMAGES, {"a": OVERLAP}).legends
    assert [text.get_text() for text in legend.get_texts()] == ["worker:0", "worker:1", "no worker"]


def test_losses_of_workers_can_be_told_apart_where_all_are_equal():
    figure = draw_losses([2.0, 1.0], {"worker:0": [2.0, 1.0], "worker:1": [2.0, 1.0, 0.5]})
    one_device, first, second = figure.axes[0].lines
    assert one_device.get_linewidth() > 4 * first.get_linewidth()
    assert first.get_marker() != second.get_marker()
    assert first.get_color() != second.get_color()
    assert [list(line.get_xdata()) for line in (one_device, first, second)] == [
        [1, 2],
        [1, 2],
        [1, 2, 3],
    ]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["one device", "worker:0", "worker:1"]


def test_the_words_for_a_reader_who_does_not_see_count_what_was_read():
    words = draw_readers(IMAGES, {"a": OVERLAP}).alt
    assert "1 are trained by no worker and 1 more than once" in words
    assert "worker:0 trains on [0, 1]; worker:1 trains on [2, 3]" in words


LANES = {
    "worker:0": [("computes", 2.0), ("waits", 1.0, "waits for worker:1")],
    "worker:1": [("computes", 3.0)],
}


def test_each_worker_has_a_lane_in_which_one_thing_follows_the_other():
    bars = draw_lanes(LANES).axes[0].patches
    middle = [round(bar.get_y() + bar.get_height() / 2, 6) for bar in bars]
    assert [(row, bar.get_x(), bar.get_width()) for row, bar in zip(middle, bars, strict=True)] == [
        (0, 0, 2),
        (0, 2, 1),
        (1, 0, 3),
    ]


def test_lanes_say_why_a_worker_waits_and_where_a_limit_ends_it():
    figure = draw_lanes(LANES, limit=3.0)
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "waits for worker:1",
        "time limit ",
    ]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["worker:0 computes", "waits", "worker:1 computes"]
    assert "worker:0: computes for 2; then waits for worker:1 for 1." in figure.alt


def test_a_sketch_has_no_numbers_on_its_axis():
    assert list(draw_lanes(LANES, xlabel="time (a sketch)").axes[0].get_xticks()) == []


def test_the_figure_is_closed_so_that_a_notebook_shows_it_once():
    before = plt.get_fignums()
    draw_readers(IMAGES, {"a": SHARED})
    draw_losses([1.0], {"worker:0": [1.0]})
    assert plt.get_fignums() == before
