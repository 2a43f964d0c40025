"""The card of lesson 21 decides the exercise's cases, and its page prints the same card."""

import itertools

import pytest

from distlab.course.lesson_21_choosing_a_strategy.checks import CHOOSE
from distlab.course.lesson_21_choosing_a_strategy.strategy_card import (
    CARD,
    DIVIDE,
    ORDER,
    OTHERWISE,
    SHRINK,
    card_table,
    choose,
    divide,
)
from distlab.errors import InvalidArgument
from tests.support.lesson_checks import run_check
from tests.support.repository import lesson_text
from tools.write_tables import WITH_CARD, with_card

# What a reader answers yes to in each case of the exercise, on the card and in the order, and the
# reason that decides.
CASES = {
    "A": ({"one_is_enough"}, {}, "batch_too_small"),
    "B": ({"several_hosts"}, {}, "hosts_step_together"),
    "C": ({"uneven_hosts"}, {}, "no_waiting"),
    "D": ({"step_can_shrink"}, {}, "state_too_large"),
    "E": ({"too_large"}, {}, "replica_too_large"),
    "F": ({"too_large"}, {"layer_too_large"}, "layer_too_large"),
}


def test_the_card_and_the_order_decide_all_cases_of_the_exercise():
    def by_card(case):
        questions, needs, why = CASES[case]
        answer = choose(**dict.fromkeys(questions, True))
        if answer == DIVIDE:  # the last way that is added is the one that the case is about
            answer = divide(**dict.fromkeys(needs, True))[-1]
        return ("smaller_step" if answer == SHRINK else answer, why)

    assert run_check(CHOOSE, by_card).passed


ALL, SHRUNK = "everything", "everything once the step is smaller"
NO_STATE, TOO_LITTLE = "what a step needs and no state", "less than a step needs"
NEEDS = ("more devices would help", "one is fast enough", "the batch is too small to share")
# The right strategy if one device holds everything, and more devices would help.
RIGHT = {
    "one GPU": "one_device",
    "one CPU": "one_device",
    "GPUs in one host": "mirrored",
    "one TPU core": "tpu",
    "TPU cores in one host": "tpu",
    "TPU cores in several hosts": "tpu",
    "hosts that step together": "multi_worker",
    "hosts that come and go": "parameter_server",
}
SITUATIONS = list(itertools.product(RIGHT, (ALL, SHRUNK, NO_STATE, TOO_LITTLE), NEEDS))


def right_strategy(machines, holds, needs):
    if holds == SHRUNK:
        return SHRINK
    on_servers = machines == "hosts that come and go"  # which hold the state
    if holds == TOO_LITTLE or (holds == NO_STATE and not on_servers):
        return DIVIDE
    if holds == ALL and needs != NEEDS[0] and "TPU" not in machines:
        return "one_device"
    return RIGHT[machines]


def answers_of(machines, holds, needs):
    """What a reader answers yes to who takes each question of the card by its words."""
    single, on_servers = machines.startswith("one "), machines == "hosts that come and go"
    answers = {
        "step_can_shrink": holds == SHRUNK,
        "too_large": holds == TOO_LITTLE or (holds == NO_STATE and not on_servers),
        "tpu": "TPU" in machines,
        "one_is_enough": holds == ALL and (single or needs != NEEDS[0]),
        "uneven_hosts": on_servers,
        "several_hosts": machines in ("hosts that step together", "TPU cores in several hosts"),
    }
    assert set(answers) == set(CARD)
    return {name: True for name, yes in answers.items() if yes}


def test_the_card_leads_to_the_right_strategy():
    led = {situation: choose(**answers_of(*situation)) for situation in SITUATIONS}
    assert {each: led[each] for each in led if led[each] != right_strategy(*each)} == {}
    assert set(led.values()) == {answer for _, answer in CARD.values()} | {OTHERWISE}


def test_no_answer_is_an_experimental_strategy():
    assert "central" not in WITH_CARD.read_text(encoding="utf-8").lower()


def test_a_model_is_divided_in_one_order_with_sharded_data_first():
    assert list(ORDER) == ["sharded_data", "tensor", "pipeline", "expert", "text"]
    assert divide() == ["sharded_data"]
    assert divide(host_too_small=True, layer_too_large=True) == list(ORDER)[:3]
    assert divide(long_texts=True, has_experts=False) == ["sharded_data", "text"]
    with pytest.raises(InvalidArgument, match="no question 'too_slow' on the card"):
        divide(too_slow=True)


def test_one_device_takes_no_core_of_a_tpu(monkeypatch):
    import tensorflow as tf

    from distlab.strategy.factory import make_strategy

    core = tf.config.LogicalDevice(name="/device:TPU:0", device_type="TPU")
    devices = [core, *tf.config.list_logical_devices()]
    monkeypatch.setattr(
        tf.config,
        "list_logical_devices",
        lambda kind=None: [device for device in devices if kind in (None, device.device_type)],
    )
    (device,) = make_strategy("one_device").extended.worker_devices
    assert "TPU" not in device


def test_the_first_yes_decides():
    for first, later in itertools.pairwise(CARD):
        assert choose(**{later: True, first: True}) == CARD[first][1]
    assert choose() == choose(tpu=False) == OTHERWISE
    with pytest.raises(InvalidArgument, match="no question 'many_hosts' on the card"):
        choose(many_hosts=True)


def test_the_page_prints_the_card_that_the_lesson_draws():
    text = WITH_CARD.read_text(encoding="utf-8")
    assert with_card(text) == text
    assert all(question in card_table() for question, _ in CARD.values())
    lesson = lesson_text("21_choosing_a_strategy")
    assert "from distlab.course.lesson_21_choosing_a_strategy.strategy_card import" in lesson
