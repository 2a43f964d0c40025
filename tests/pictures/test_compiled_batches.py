"""The picture of lesson 15 shows each batch, its padding, and the program that runs it."""

import pytest

from distlab.pictures.compiled_batches import draw_compiled_batches
from distlab.pictures.palette import category

PLANS = {"as they come": [(32, 32, 1), (4, 4, 2)], "padded": [(32, 32, 1), (4, 32, 1)]}


@pytest.fixture(scope="module")
def figure():
    return draw_compiled_batches(PLANS)


def heights(axes):
    return [(bar.get_y(), bar.get_height()) for bar in axes.patches]


def test_a_bar_has_the_examples_and_above_them_the_padding(figure):
    ragged, padded = figure.axes
    assert heights(ragged) == [(0, 32), (0, 4)]
    assert heights(padded) == [(0, 32), (0, 4), (4, 28)]


def test_each_program_has_its_colour(figure):
    from matplotlib.colors import to_hex

    ragged, padded = figure.axes
    assert [to_hex(bar.get_facecolor()).upper() for bar in ragged.patches] == [
        category(0).colour,
        category(1).colour,
    ]
    assert to_hex(padded.patches[1].get_facecolor()).upper() == category(0).colour


def test_titles_and_legend_name_the_programs_and_the_padding(figure):
    assert [axes.get_title() for axes in figure.axes] == [
        "as they come: 2 programs",
        "padded: 1 program",
    ]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["program 1", "program 2", "padding"]


def test_the_alternative_text_says_the_numbers(figure):
    assert figure.alt == (
        "as they come: 2 batches of 32, 4 rows, 0 of them padding, run by programs 1, 2. "
        "padded: 2 batches of 32, 32 rows, 28 of them padding, run by programs 1, 1."
    )
