"""The view of an all-reduce draws the schedule that the library returns."""

import itertools

import pytest

from distlab.measure.ring_schedule import all_reduce_steps, holdings
from distlab.views.ring import explore_ring


@pytest.fixture(scope="module")
def view():
    return explore_ring()


def counts_in(figure):
    """The numbers in the cells of the right panel, row by row."""
    axes = figure.axes[1]
    return [int(text.get_text()) for text in axes.texts]


def test_it_starts_with_the_first_step_of_a_ring_of_four(view):
    figure = view.draw_now()
    assert figure.get_suptitle() == "ring, step 1 of 6"
    assert "rank 0 sends chunk 0 to rank 1" in figure.alt
    assert "each target adds it to its own" in figure.alt


@pytest.mark.parametrize(
    ("algorithm", "ranks", "step"),
    [("ring", 4, 3), ("ring", 8, 9), ("tree", 8, 4), ("naive", 2, 1)],
)
def test_the_cells_hold_what_the_schedule_says(view, algorithm, ranks, step):
    figure = view.draw_now(algorithm=algorithm, ranks=ranks, step=step)
    steps = all_reduce_steps(algorithm, ranks)
    assert counts_in(figure) == holdings(steps, ranks)[step].sum(axis=-1).ravel().tolist()
    arrows = [text for text in figure.axes[0].texts if getattr(text, "arrow_patch", None)]
    assert len(arrows) == len(figure.axes[1].patches) == len(steps[step - 1])


def test_before_the_first_step_nothing_has_been_sent(view):
    figure = view.draw_now(step=0)
    assert "Nothing has been sent yet. 0 of 16 chunks are finished." in figure.alt
    assert set(counts_in(figure)) == {1}


def test_after_the_last_step_all_chunks_are_finished_whatever_the_slider_says(view):
    last, beyond = view.draw_now(step=6), view.draw_now(step=14)
    assert last.alt == beyond.alt
    assert "after step 6 of 6" in last.alt
    assert "16 of 16 chunks are finished." in last.alt


def test_a_whole_vector_is_named_as_such(view):
    figure = view.draw_now(algorithm="naive", step=4)
    assert "rank 0 sends the whole vector to rank 1" in figure.alt
    assert "keeps it in place of its own" in figure.alt


def test_every_position_of_the_sliders_can_be_drawn(view):
    algorithms, ranks, steps = (view.choices[name].values for name in view.choices)
    for algorithm, number, step in itertools.product(algorithms, ranks, (0, 1, steps[-1])):
        figure = view.draw_now(algorithm=algorithm, ranks=number, step=step)
        assert f"An all-reduce of {number} ranks, {algorithm}" in figure.alt
