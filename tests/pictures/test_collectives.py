"""The picture of an all-reduce shows what each replica gives, the sum, and what each receives."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from distlab.pictures.collectives import draw_all_reduce
from distlab.pictures.palette import replica

GIVEN = np.array([[1, 0], [0, 3], [4, 1]])
RECEIVED = [[5, 4]] * 3


@pytest.fixture(scope="module")
def figure():
    return draw_all_reduce(GIVEN, RECEIVED)


def numbers_by_place(figure):
    """The numbers, from the left and from the top."""
    texts = [text for text in figure.axes[0].texts if text.get_text().isdigit()]
    places = sorted({round(text.get_position()[0], 3) for text in texts})
    columns = {place: [] for place in places}
    for text in sorted(texts, key=lambda text: text.get_position()[1]):
        columns[round(text.get_position()[0], 3)].append(int(text.get_text()))
    return list(columns.values())


def test_numbers_stand_where_they_are_given_added_and_received(figure):
    assert numbers_by_place(figure) == [
        *GIVEN.T.tolist(),
        [5],
        [4],
        *np.array(RECEIVED).T.tolist(),
    ]


def test_what_a_replica_gives_and_receives_has_its_colour(figure):
    frames = [to_hex(patch.get_edgecolor()) for patch in figure.axes[0].patches][:12]
    expected = [replica(number).colour.lower() for number in range(3) for _ in range(4)]
    assert frames == expected


def test_an_arrow_goes_from_every_replica_to_the_sum_and_back(figure):
    arrows = [note for note in figure.axes[0].texts if getattr(note, "arrow_patch", None)]
    assert len(arrows) == 6
    assert all(note.xyann[0] < note.xy[0] for note in arrows)


def test_the_words_say_the_sum_and_what_is_received(figure):
    assert "replica 1 gives 0, 3" in figure.alt
    assert "sum is 5, 4" in figure.alt
    assert "every replica receives 5, 4." in figure.alt
