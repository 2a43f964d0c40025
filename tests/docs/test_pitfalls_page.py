"""docs/pitfalls.md: each entry has its parts, is shown by something that exists, and is found."""

import ast
import functools
import re

from distlab.authoring.lint.claims import cells_of, pointer_problems
from distlab.authoring.source import lesson_folder
from distlab.cluster.local.task_errors import PITFALLS
from distlab.errors import PITFALLS_PAGE
from tests.support.repository import ROOT, lesson_text

PAGE = (ROOT / PITFALLS_PAGE).read_text(encoding="utf-8")
LESSON = re.compile(r"\]\(\.\./notebooks/(\d\d_\w+)\.ipynb\)")
PARTS = ["You see", "Cause", "Cure", "Lesson", "Shown by"]
OPTIONAL = "Reported as"  # issues of TensorFlow, Keras and others
cells_in = functools.cache(lambda stem: cells_of(lesson_folder(ROOT, stem)))


def entries_of(page):
    """Each heading, and its parts by their names."""
    for block in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        heading, _, body = block.partition("\n")
        items = re.findall(
            r"^- \*\*([^*]+?):\*\* (.*?)(?=^- \*\*|\Z)", body.partition("\n## ")[0], re.S | re.M
        )
        yield heading, {name: " ".join(text.split()) for name, text in items}


def problems_of(parts):
    if [name.partition(",")[0] for name in parts if name != OPTIONAL] != PARTS:
        return [f"has the parts {list(parts)}"]
    stems = LESSON.findall(parts["Lesson"])
    cells = [cell for stem in stems for cell in cells_in(stem)]
    sources = [lesson_text(stem) for stem in stems]
    lacking = [
        f"no lesson has the section {section!r}"
        for section in re.findall(r'"([^"]+)"', parts["Lesson"])
        if not re.search(rf"^# #+ {re.escape(section)}$", "\n".join(sources), re.MULTILINE)
    ]
    empty = [f"{name} is empty" for name, text in parts.items() if not text]
    without = [] if stems else ["names no lesson"]
    return empty + without + lacking + pointer_problems(parts["Shown by"], ROOT, cells)


def test_each_entry_is_whole_names_its_lesson_and_is_shown_by_what_exists():
    entries = list(entries_of(PAGE))
    problems = {heading: problems_of(parts) for heading, parts in entries}
    assert {heading: texts for heading, texts in problems.items() if texts} == {}
    assert len(problems) == len(entries) > 50, "a heading is there twice"


def test_an_entry_that_points_to_nothing_is_found():
    page = """### x
- **You see:** a
- **Cause:** a
- **Cure:**\x20
- **Lesson:** [02](../notebooks/02_batch_scaling.ipynb), "No such section"
- **Shown by:** cell: `no_such_line()`; test: `tests/docs/test_pitfalls.py::test_nothing`
### y
- **You see:** a
"""
    (_, whole), (_, short) = entries_of(page)
    assert problems_of(whole) == [
        "Cure is empty",
        "no lesson has the section 'No such section'",
        "'no_such_line()' is in 0 cells; it must be in one",
        "tests/docs/test_pitfalls.py has no test 'test_nothing'",
    ]
    assert problems_of(short) == ["has the parts ['You see']"]


def test_the_table_of_contents_lists_all_sections():
    sections = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    listed = re.findall(r"^- \[(.+?)\]\(#(.+?)\)$", PAGE, re.MULTILINE)
    assert listed == [(name, name.lower().replace(" ", "-")) for name in sections]


def pitfalls_that_errors_name():
    """The texts that distlab gives as `pitfall=...` or under the key "pitfall"."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "distlab").rglob("*.py")]
    nodes = [node for text in sources if "pitfall" in text for node in ast.walk(ast.parse(text))]
    for node in nodes:
        if isinstance(node, ast.keyword):
            pairs = [(node.arg, node.value)]
        elif isinstance(node, ast.Dict):
            keys = [getattr(key, "value", None) for key in node.keys]
            pairs = zip(keys, node.values, strict=True)
        else:
            continue
        for name, value in pairs:
            if name == "pitfall" and isinstance(value, ast.Constant):
                yield value.value


def test_errors_name_pitfalls_that_exist():
    named = {*PITFALLS.values(), *pitfalls_that_errors_name()}
    assert len(named) >= 10
    assert named - dict(entries_of(PAGE)).keys() == set()
