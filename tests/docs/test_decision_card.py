"""The card of lesson 21 decides the exercise's cases, and its page prints the same card."""

import itertools

import pytest

from distlab.course.lesson_21_choosing_a_strategy.checks import CHOOSE
from distlab.course.lesson_21_choosing_a_strategy.strategy_card import (
    CARD,
    OTHERWISE,
    card_table,
    choose,
)
from distlab.errors import InvalidArgument
from tests.support.lesson_checks import run_check
from tests.support.repository import lesson_text
from tools.write_tables import WITH_CARD, with_card

# What a reader answers yes to in each case of the exercise, and the reason that decides.
CASES = {
    "A": ("one_is_enough", "batch_too_small"),
    "B": (None, "copies_in_one_host"),
    "C": ("several_hosts", "hosts_step_together"),
    "D": ("uneven_hosts", "no_waiting"),
    "E": ("copies_too_large", "copies_too_large"),
    "F": ("too_large", "replica_too_large"),
}


def test_the_card_decides_all_cases_of_the_exercise():
    def by_card(case):
        question, why = CASES[case]
        strategy = choose(**({question: True} if question else {}))
        return ("none" if strategy == "split the model" else strategy, why)

    assert run_check(CHOOSE, by_card).passed


ALL, NO_STATE, TOO_LITTLE = "everything", "what a step needs only", "less than a step needs"
NEEDS = ("more devices would help", "one is fast enough", "the batch is too small to share")
# The right strategy if more devices would help: if one device holds everything, and if it holds
# what a step needs only. (TPUStrategy keeps the state on each core; CentralStorage needs a host's
# memory beside several GPUs.)
RIGHT = {
    "one GPU": ("one_device", "split the model"),
    "one CPU": ("one_device", "split the model"),
    "GPUs in one host": ("mirrored", "central_storage"),
    "one TPU core": ("tpu", "split the model"),
    "TPU cores in one host": ("tpu", "split the model"),
    "TPU cores in several hosts": ("tpu", "split the model"),
    "hosts that step together": ("multi_worker", "split the model"),
    "hosts that come and go": ("parameter_server", "parameter_server"),
}
SITUATIONS = list(itertools.product(RIGHT, (ALL, NO_STATE, TOO_LITTLE), NEEDS))


def right_strategy(machines, holds, needs):
    if holds == TOO_LITTLE:  # no strategy divides the weights and gradients of a replica
        return "split the model"
    if holds == ALL and needs != NEEDS[0] and "TPU" not in machines:
        return "one_device"
    return RIGHT[machines][holds == NO_STATE]


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
    return {name: True for name, yes in answers.items() if yes}


def test_the_card_leads_to_the_right_strategy():
    led = {situation: choose(**answers_of(*situation)) for situation in SITUATIONS}
    assert {each: led[each] for each in led if led[each] != right_strategy(*each)} == {}
    assert set(led.values()) == {answer for _, answer in CARD.values()} | {OTHERWISE}


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
