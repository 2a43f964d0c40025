"""docs/pitfalls.md: each entry has its parts, is shown by something that exists, and is found."""

import ast
import functools
import re
from dataclasses import dataclass

import pytest

from distlab.cluster.local.task_errors import PITFALLS
from distlab.errors import PITFALLS_PAGE
from distlab.notebooks.claims import cells_of, pointer_problems
from tests.support.repository import ROOT

PAGE = (ROOT / PITFALLS_PAGE).read_text(encoding="utf-8")
LESSON = re.compile(r"\]\(\.\./notebooks/(\d\d_\w+)\.ipynb\)")
PARTS = ["You see", "Cause", "Cure", "Lesson", "Shown by"]
OPTIONAL = "Reported as"  # issues of TensorFlow, Keras and others


@dataclass(frozen=True)
class Entry:
    heading: str
    parts: dict[str, str]


def entries_of(page):
    found = []
    for block in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        heading, _, body = block.partition("\n")
        body = body.partition("\n## ")[0]
        items = re.findall(r"^- \*\*([^*]+?):\*\* (.*?)(?=^- \*\*|\Z)", body, re.DOTALL | re.M)
        found.append(Entry(heading, {name: " ".join(text.split()) for name, text in items}))
    return found


ENTRIES = entries_of(PAGE)
HEADINGS = [entry.heading for entry in ENTRIES]


def by_heading(test):
    return pytest.mark.parametrize("entry", ENTRIES, ids=HEADINGS)(test)


@by_heading
def test_an_entry_has_its_parts(entry):
    names = [name.partition(",")[0] for name in entry.parts if name != OPTIONAL]
    assert names == PARTS
    assert all(entry.parts.values())
    assert LESSON.search(entry.parts["Lesson"])


@functools.cache
def cells_in(stem):
    return cells_of(ROOT / "lessons" / stem)


def problems_of(entry):
    stems = LESSON.findall(entry.parts["Lesson"])
    cells = [cell for stem in stems for cell in cells_in(stem)]
    return pointer_problems(entry.parts["Shown by"], ROOT, cells)


@by_heading
def test_an_entry_is_shown_by_what_exists(entry):
    assert problems_of(entry) == []


@by_heading
def test_an_entry_names_sections_that_its_lesson_has(entry):
    lessons = [ROOT / "lessons" / stem for stem in LESSON.findall(entry.parts["Lesson"])]
    sources = [(lesson / "lesson.py").read_text(encoding="utf-8") for lesson in lessons]
    for section in re.findall(r'"([^"]+)"', entry.parts["Lesson"]):
        assert any(re.search(rf"^# #+ {re.escape(section)}$", text, re.M) for text in sources)


def test_a_place_that_does_not_exist_is_found():
    lesson = "[02](../notebooks/02_batch_scaling.ipynb)"
    shown = "cell: `no_such_line()`; test: `tests/docs/test_pitfalls.py::test_nothing`; a guess"
    assert problems_of(Entry("x", {"Lesson": lesson, "Shown by": shown})) == [
        "'no_such_line()' is in 0 cells; it must be in one",
        "tests/docs/test_pitfalls.py has no test 'test_nothing`; a guess'",
    ]


def test_each_heading_is_there_once():
    assert len(set(HEADINGS)) == len(HEADINGS) > 50


def test_the_table_of_contents_lists_all_sections():
    sections = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    listed = re.findall(r"^- \[(.+?)\]\(#(.+?)\)$", PAGE, re.MULTILINE)
    assert listed == [(name, name.lower().replace(" ", "-")) for name in sections]


def pitfalls_that_errors_name():
    """The texts that distlab gives as `pitfall=...` or under the key "pitfall"."""
    named = set(PITFALLS.values())
    for path in (ROOT / "distlab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            pairs = []
            if isinstance(node, ast.Call):
                pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
            if isinstance(node, ast.Dict):
                pairs = [
                    (getattr(key, "value", None), value)
                    for key, value in zip(node.keys, node.values, strict=True)
                ]
            named |= {
                value.value
                for name, value in pairs
                if name == "pitfall" and isinstance(value, ast.Constant)
            }
    return named


def test_errors_name_pitfalls_that_exist():
    named = pitfalls_that_errors_name()
    assert len(named) >= 10
    assert named <= set(HEADINGS)
