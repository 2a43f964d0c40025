"""The card of lesson 16 decides the exercise's cases, and its page prints the same card."""

import itertools

import pytest

from distlab.checks.lesson_16_choosing_a_strategy.cases import CHOOSE
from distlab.coursework.strategy_card import CARD, OTHERWISE, card_table, choose
from distlab.errors import InvalidArgument
from tests.support.lesson_checks import run_check
from tests.support.repository import ROOT
from tools.write_card import PAGE, with_card

# What a reader answers yes to in each case of the exercise.
YES = {
    "A": {"one_is_enough"},
    "B": set(),
    "C": {"several_hosts"},
    "D": {"uneven_hosts"},
    "E": {"copies_too_large"},
    "F": {"too_large"},
}
REASONS = {
    "one_is_enough": "batch_too_small",
    "several_hosts": "hosts_step_together",
    "uneven_hosts": "no_waiting",
    "copies_too_large": "copies_too_large",
    "too_large": "replica_too_large",
}


def test_the_card_decides_all_cases_of_the_exercise():
    def by_card(case):
        strategy = choose(**dict.fromkeys(YES[case], True))
        why = REASONS[min(YES[case])] if YES[case] else "copies_in_one_host"
        return ("none" if strategy == "split the model" else strategy, why)

    assert run_check(CHOOSE, by_card).passed


def test_the_first_yes_decides():
    names = list(CARD)
    for first, later in itertools.pairwise(names):
        assert choose(**{later: True, first: True}) == CARD[first][1]
    assert choose() == choose(tpu=False) == OTHERWISE


def test_a_question_that_is_not_on_the_card_is_named():
    with pytest.raises(InvalidArgument, match="no question 'many_hosts' on the card"):
        choose(many_hosts=True)


def test_the_page_prints_the_card_that_the_lesson_draws():
    text = PAGE.read_text(encoding="utf-8")
    assert with_card(text) == text
    assert all(question in card_table() for question, _ in CARD.values())
    lesson = (ROOT / "lessons" / "16_choosing_a_strategy" / "lesson.py").read_text(encoding="utf-8")
    assert "from distlab.coursework.strategy_card import" in lesson
