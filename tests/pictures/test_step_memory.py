"""The picture of a step's memory stacks the parts, and says what fits."""

import pytest

from distlab.pictures.palette import RIGHT, WRONG, category
from distlab.pictures.step_memory import draw_memory

ROWS = {"copied": {"weights": 40, "state": 60}, "divided": {"weights": 40, "state": 6}}


@pytest.fixture
def axes():
    return draw_memory(ROWS, limit_gb=80).axes[0]


def test_parts_are_stacked_in_their_order(axes):
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    assert ends == [(0, 40), (0, 40), (40, 100), (40, 46)]
    assert len({bar.get_facecolor() for bar in axes.patches}) == 2
    assert axes.patches[0].get_hatch() != category(1).hatch


def test_the_limit_decides_what_fits(axes):
    words = {text.get_text().strip(): text.get_color() for text in axes.texts}
    assert words == {"100 GB, too large": WRONG.colour, "46 GB, fits": RIGHT.colour}
    assert list(axes.lines[0].get_xdata()) == [80, 80]


def test_the_alternative_text_has_the_totals():
    alt = draw_memory(ROWS, limit_gb=80).alt
    assert "copied: 100 GB, which is too large. divided: 46 GB, which fits." in alt
