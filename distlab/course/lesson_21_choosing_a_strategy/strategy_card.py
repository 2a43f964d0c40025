"""The decision card: six questions, asked from the top, that lead to a strategy. Lesson 21.

choose(several_hosts=True)                        # "multi_worker"
draw_card(list(CARD.values()), otherwise=OTHERWISE)   # of pictures/strategies.py
card_table()                                      # what docs/decision_card.md prints
"""

from __future__ import annotations

from distlab.errors import InvalidArgument

# By its name, each question, and what a yes leads to. The first yes decides.
CARD = {
    "too_large": (
        "Is a device too small for a step's weights, gradients and activations? (With a "
        "single device, TPU cores, or hosts that step together: for all weights, gradients, "
        "activations and optimizer state?)",
        "split the model",
    ),
    "copies_too_large": (
        "One host with several GPUs: is a GPU too small for all weights, gradients, activations "
        "and optimizer state?",
        "central_storage",
    ),
    "tpu": ("Are the devices TPU cores?", "tpu"),
    "one_is_enough": (
        "Does one device hold everything, and is one enough? (It is fast enough, it is the only "
        "one, or the batch is too small to share.)",
        "one_device",
    ),
    "uneven_hosts": (
        "Several hosts, and no host may wait for a slow or a lost one?",
        "parameter_server",
    ),
    "several_hosts": ("Several hosts that take each step together?", "multi_worker"),
}
OTHERWISE = "mirrored"


def choose(**yes: bool) -> str:
    """Returns what the card leads to: the answer of the first question with a yes."""
    if unknown := [name for name in yes if name not in CARD]:
        raise InvalidArgument(
            asked=f"choose({', '.join(yes)})",
            found=f"no question {unknown[0]!r} on the card",
            do=f"use {', '.join(CARD)}",
        )
    return next((answer for name, (_, answer) in CARD.items() if yes.get(name)), OTHERWISE)


def card_table() -> str:
    """Returns the card as a Markdown table."""
    rows = [
        f"| {number}. {question} | `{answer}` |"
        if " " not in answer
        # What is no strategy's name stands without the marks of code.
        else f"| {number}. {question} | {answer} |"
        for number, (question, answer) in enumerate(CARD.values(), 1)
    ]
    head = ["| Ask from the top | If yes |", "| --- | --- |"]
    return "\n".join([*head, *rows, f"| No to all of them | `{OTHERWISE}` |"])
