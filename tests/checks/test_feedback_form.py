"""The form of all feedback: what was done, what follows, a question; sections that exist."""

import re

import pytest

from distlab.checks.criteria import expectations_in
from distlab.checks.registry import all_checks
from distlab.checks.sections import section_to_revisit
from distlab.notebooks.notebook_text import headings_of
from distlab.notebooks.source import Page, draft_page
from tests.support.repository import ROOT

CHECKS = list(all_checks())
MISTAKES = [
    pytest.param(check, mistake, id=f"{check.name}-{mistake.name}")
    for check in CHECKS
    for mistake in check.mistakes
]
# Words that make a sentence hard to read at once, or that have a plain word in their place.
AVOIDED = re.compile(
    r"\b(nobody|whoever|somebody|shall|also where|says so|the rest|another|anew|once more"
    r"|hangs on|stands in|cannot be meant|is told)\b"
)
SENTENCE = re.compile(r"[.?!](?=\s|$)")


def fault_in(text):
    """What is wrong with the words of a text; "" if nothing is."""
    found = AVOIDED.search(text)
    return f"{found[0]!r} in {text!r}" if found else ""


@pytest.fixture(scope="module")
def headings():
    """The headings of each lesson's source, by its stem."""
    stems = {section_to_revisit(check).stem for check in CHECKS}
    return {
        stem: [one.text for one in headings_of(draft_page(Page(ROOT, stem, "lesson")).notebook)]
        for stem in stems
    }


@pytest.mark.parametrize(("check", "mistake"), MISTAKES)
def test_feedback_says_what_was_done_and_asks_a_question(check, mistake):
    text = mistake.says
    sentences = len(SENTENCE.findall(text))
    assert sentences >= (2 if mistake.asks else 1), f"{sentences} sentences: {text}"
    assert ("?" in text) is mistake.asks, text
    assert not text.lstrip().startswith(("?", "Why", "What", "Which")), f"begins to ask: {text}"


@pytest.mark.parametrize(("check", "mistake"), MISTAKES)
def test_feedback_is_in_plain_words(check, mistake):
    assert fault_in(mistake.says) == ""
    codes = [one.name for one in check.mistakes if "_" in one.name]
    assert [code for code in codes if code in mistake.says] == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_help_is_a_question_a_direction_and_a_way(check):
    assert check.question.endswith("?")
    assert check.direction
    assert check.hint
    assert len({check.question, check.direction, check.hint}) == 3
    for text in (check.question, check.direction, check.hint, check.title):
        assert fault_in(text) == ""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_section_to_read_again_is_in_its_lesson(check, headings):
    section = section_to_revisit(check)
    assert section.heading in headings[section.stem], f"{check.revisit!r} is no heading there"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_row_says_what_should_be(check):
    """Before a row that is not met stands "not yet:"."""
    for row in expectations_in(check.criteria):
        assert fault_in(row.label) == ""
        assert not row.label.startswith(("not ", "not:"))
