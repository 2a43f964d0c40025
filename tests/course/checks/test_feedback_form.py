"""The form of all feedback: what was done, what follows, a question; sections that exist.

Docstrings and comments of the library keep a shorter list of words.
"""

import ast
import functools
import re
import tokenize

import pytest

from distlab.authoring.notebook_text import headings_of
from distlab.authoring.source import Page, draft_page
from distlab.course.checks.criteria import expectations_in
from distlab.course.checks.help_steps import section_to_revisit
from distlab.course.checks.registry import all_checks
from tests.support.lesson_checks import problems_of
from tests.support.repository import ROOT

# Words that make a sentence hard to read at once, or that have a plain word in their place.
AVOIDED = re.compile(
    r"\b(nobody|whoever|somebody|shall|also where|says so|the rest|another|anew|once more"
    r"|hangs on|stands in|cannot be meant|is told)\b"
)
AVOIDED_IN_CODE = re.compile(
    r"(?i)\b(whoever|somebody|anew|once more|hangs on|stands in|is told|has seen|comes to)\b"
)
RIDDLES = ("Of", "What", "Whose", "Where", "Who")  # no docstring begins with them
SENTENCE = re.compile(r"[.?!](?=\s|$)")


@functools.cache
def headings_in(stem):
    """The headings of a lesson's source."""
    return [
        heading.text for heading in headings_of(draft_page(Page(ROOT, stem, "lesson")).notebook)
    ]


def problems_of_feedback(check, mistake):
    """What is wrong with the words on a mistake."""
    text = mistake.says
    if len(SENTENCE.findall(text)) < 2:
        yield "fewer than 2 sentences"
    if "?" not in text:
        yield "no question"
    if text.lstrip().startswith(("?", "Why", "What", "Which")):
        yield "begins to ask before it says what was done"
    if word := AVOIDED.search(text):
        yield f"{word[0]!r} is not plain"
    if codes := [m.name for m in check.mistakes if "_" in m.name and m.name in text]:
        yield f"shows the codes {codes}"


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_a_check_is_complete_and_its_words_are_plain(check):
    assert problems_of(check) == []
    assert [
        f"{mistake.name}: {problem}: {mistake.says}"
        for mistake in check.mistakes
        for problem in problems_of_feedback(check, mistake)
    ] == []

    assert check.question.endswith("?")
    helps = (check.question, check.direction, check.hint)
    assert all(helps) and len(set(helps)) == 3
    # Before a row that is not met stands "not yet:".
    labels = [row.label for row in expectations_in(check.criteria)]
    assert [label for label in labels if label.startswith(("not ", "not:"))] == []
    assert [text for text in (*helps, check.title, *labels) if AVOIDED.search(text)] == []

    section = section_to_revisit(check)
    assert section.heading in headings_in(section.stem), f"{check.revisit!r} is no heading there"


def texts_in(path):
    """Each docstring and comment of a module: its line, its text, and whether it documents."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text, True
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string, False


def problems_of_code(path):
    """What is wrong with the words of a module, each with its line."""
    for line, text, is_docstring in texts_in(path):
        if is_docstring and (first := text.split()[0]) in RIDDLES:
            yield f"{path.relative_to(ROOT)}:{line}: begins with {first!r}, a riddle"
        for word in AVOIDED_IN_CODE.finditer(" ".join(text.split())):
            yield f"{path.relative_to(ROOT)}:{line}: {word[0]!r} is not plain"


def test_the_docstrings_and_comments_of_the_library_are_plain():
    """Sources of notebooks are prose for learners, which has a style of its own."""
    modules = (
        path
        for path in (ROOT / "distlab").rglob("*.py")
        if path.name not in ("lesson.py", "exercise.py")
    )
    problems = [problem for path in sorted(modules) for problem in problems_of_code(path)]
    assert problems == [], "\n".join(problems)
