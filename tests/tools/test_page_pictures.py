"""The pictures of measured pages show what the tables of these pages say, and so do their words."""

import re

import pytest

from distlab.course.palette import RIGHT, WRONG
from tests.support.repository import ROOT
from tools.measured_pages import read_tables
from tools.page_pictures import DOCS, benchmarks_picture, pictures, zoo_picture


def page(name):
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    (words,) = re.findall(rf"!\[(.*)\]\(_static/{name}\.svg\)", text)
    return read_tables(text)[0], words


def test_the_committed_pictures_are_what_their_tables_give():
    wrong = [path.name for path, text in pictures().items() if path.read_text("utf-8") != text]
    assert wrong == [], "run `make map`"


def test_the_zoo_has_a_square_for_each_cell_and_its_words_count_them():
    models, words = page("zoo")
    ours, theirs = zip(*(list(row.values())[-2:] for row in models.values()), strict=True)
    stopped = sum(cell.startswith("stops") for cell in ours + theirs)
    equal = (ours + theirs).count("equal")
    picture = zoo_picture(models)
    # The legend has a square of each kind, and four for distances.
    assert picture.count(f'fill="{RIGHT.colour}"') == equal + 1
    assert picture.count("<path") == stopped + 1
    assert picture.count("fill-opacity") == 2 * len(models) - equal - stopped + 4
    off = 2 * len(models) - equal - stopped
    assert [int(n) for n in re.findall(r"(\d+) (?:models|squares|are|crossed)", words)] == [
        len(models),
        ours.count("equal"),
        off,
        stopped,
    ]
    assert f"![{words}](docs/_static/zoo.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("cell", "drawn"),
    [("off by 9e-05", 'opacity="0.25"'), ("off by 4e-01", 'opacity="1.0"'), ("stops: E", "<path")],
)
def test_a_darker_square_is_further_away_and_a_crossed_one_stopped(cell, drawn):
    square = zoo_picture({"a": {"like": "", "ours": "equal", "theirs": cell}}).splitlines()[5]
    assert WRONG.colour in square and drawn in square


def test_the_benchmarks_have_a_dot_for_each_number_and_their_words_have_no_other():
    cases, words = page("benchmarks")
    cells = [cell for row in cases.values() for cell in row.values()]
    medians = [number[0] for cell in cells if (number := re.match(r"[\d.]+", cell))]
    picture = benchmarks_picture(cases)
    assert picture.count("<circle") == len(medians)
    assert picture.count('stroke-width="3"') == sum("(" in cell for cell in cells)
    said = re.findall(r"\d\.\d", words)
    assert len(said) > 8 and [number for number in said if number not in {*medians, "1.5"}] == []
