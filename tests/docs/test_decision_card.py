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


ALL, NO_STATE, TOO_LITTLE = "everything", "what a step needs only", "less than a step needs"
HOLDS = (ALL, NO_STATE, TOO_LITTLE)
NEEDS = ("more devices would help", "one is fast enough", "the batch is too small to share")
# By the machines and what one device holds: the right strategy if more devices would help, and why.
RIGHT = {
    "one GPU": {
        ALL: ("one_device", "there is no second one"),
        NO_STATE: ("split the model", "CentralStorage would keep its one copy on this GPU"),
    },
    "one CPU": {
        ALL: ("one_device", "there is no second one"),
        NO_STATE: ("split the model", "CentralStorage would keep its one copy in this memory"),
    },
    "GPUs in one host": {
        ALL: ("mirrored", "each GPU updates its own copy, which moves the fewest bytes"),
        NO_STATE: ("central_storage", "the host's memory holds the state"),
    },
    "one TPU core": {
        ALL: ("tpu", "one_device would take the host's CPU"),
        NO_STATE: ("split the model", "TPUStrategy keeps the state on each core"),
    },
    "TPU cores in one host": {
        ALL: ("tpu", "no different strategy runs on the cores"),
        NO_STATE: ("split the model", "TPUStrategy keeps the state on each core"),
    },
    "TPU cores in several hosts": {
        ALL: ("tpu", "no different strategy runs on the cores"),
        NO_STATE: ("split the model", "TPUStrategy keeps the state on each core"),
    },
    "hosts that step together": {
        ALL: ("multi_worker", "each step is that of one device"),
        NO_STATE: ("split the model", "each device has a copy of the state"),
    },
    "hosts that come and go": {
        ALL: ("parameter_server", "no step waits for a host"),
        NO_STATE: ("parameter_server", "the servers hold the state"),
    },
}
SITUATIONS = list(itertools.product(RIGHT, HOLDS, NEEDS))


def the_right_one(machines, holds, needs):
    if holds == TOO_LITTLE:
        return "split the model", "no strategy divides the weights and gradients of a replica"
    if holds == ALL and needs != NEEDS[0] and "TPU" not in machines:
        return "one_device", "a second one would not help"
    return RIGHT[machines][holds]


def answers_of(machines, holds, needs):
    """What a reader answers yes to who takes each question of the card by its words."""
    single, tpu = machines.startswith("one "), "TPU" in machines
    counts_state = single or tpu or machines == "hosts that step together"
    answers = {
        "too_large": holds == TOO_LITTLE or (counts_state and holds != ALL),
        "copies_too_large": machines == "GPUs in one host" and holds != ALL,
        "tpu": tpu,
        "one_is_enough": holds == ALL and (single or needs != NEEDS[0]),
        "uneven_hosts": machines == "hosts that come and go",
        "several_hosts": machines in ("hosts that step together", "TPU cores in several hosts"),
    }
    assert set(answers) == set(CARD)
    return frozenset(name for name, yes in answers.items() if yes)


@pytest.mark.parametrize(("machines", "holds", "needs"), SITUATIONS, ids=str)
def test_the_card_leads_to_the_right_strategy(machines, holds, needs):
    strategy, why = the_right_one(machines, holds, needs)
    answers = answers_of(machines, holds, needs)
    assert choose(**dict.fromkeys(answers, True)) == strategy, why


def test_the_questions_tell_apart_what_needs_different_strategies():
    right = {}
    for situation in SITUATIONS:
        right.setdefault(answers_of(*situation), set()).add(the_right_one(*situation)[0])
    assert {answers: found for answers, found in right.items() if len(found) > 1} == {}


def test_every_answer_of_the_card_is_right_for_some_machines():
    reached = {choose(**dict.fromkeys(answers_of(*each), True)) for each in SITUATIONS}
    assert reached == {answer for _, answer in CARD.values()} | {OTHERWISE}


@pytest.mark.parametrize("machines", ["one GPU", "one TPU core", "TPU cores in one host"])
def test_central_storage_is_for_several_gpus_only(machines):
    answers = answers_of(machines, NO_STATE, NEEDS[0])
    assert choose(**dict.fromkeys(answers, True)) == "split the model"
    question, _ = CARD["copies_too_large"]
    assert "several GPUs" in question


def test_central_storage_is_asked_for_where_a_gpu_does_not_hold_everything_at_once():
    question, _ = CARD["copies_too_large"]
    assert question.endswith("all weights, gradients, activations and optimizer state?")


def test_one_device_takes_no_core_of_a_tpu(monkeypatch):
    import tensorflow as tf

    from distlab.strategy.factory import make_strategy

    there = tf.config.list_logical_devices()
    core = tf.config.LogicalDevice(name="/device:TPU:0", device_type="TPU")
    monkeypatch.setattr(
        tf.config,
        "list_logical_devices",
        lambda kind=None: [d for d in [core, *there] if kind in (None, d.device_type)],
    )
    (device,) = make_strategy("one_device").extended.worker_devices
    assert "TPU" not in device


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
