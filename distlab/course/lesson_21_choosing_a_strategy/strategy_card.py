"""The decision card: six questions that lead to a strategy, and the order in which to divide.

choose(several_hosts=True)                  # "multi_worker"
divide(layer_too_large=True)                # ["sharded_data", "tensor"]
card_table(), order_table()                 # what docs/decision_card.md prints
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distlab.errors import InvalidArgument

SHRINK, DIVIDE = "make the step smaller", "divide the model"

# By its name, each question, and what a yes leads to. The first yes decides.
CARD = {
    "step_can_shrink": (
        "Is a device too small for all weights, gradients, activations and optimizer state, and "
        "would it be enough with smaller micro-batches, recomputed activations or an optimizer "
        "with less state?",
        SHRINK,
    ),
    "too_large": (
        "Is a device too small even then? (For parameter servers, count only the weights that a "
        "step reads, its gradients and its activations.)",
        DIVIDE,
    ),
    "tpu": ("Are the devices TPU cores?", "tpu"),
    "one_is_enough": (
        "Is one device enough? (It is fast enough, it is the only one, or the batch is too small "
        "to share.)",
        "one_device",
    ),
    "uneven_hosts": (
        "Several hosts, and no host may wait for a slow or a lost one?",
        "parameter_server",
    ),
    "several_hosts": ("Several hosts that take each step together?", "multi_worker"),
}
OTHERWISE = "mirrored"


@dataclass(frozen=True)
class Division:
    """One way to divide a model: when to add it, where, what then travels, and who offers it."""

    name: str
    when: str
    where: str
    travels: str
    tools: str


# By its name, each way to divide a model, in the order in which to add them. The first one always.
ORDER = {
    "sharded_data": Division(
        "sharded data",
        "first, whenever a model must be divided",
        "over all replicas",
        "the weights twice, and the gradients",
        "PyTorch `fully_shard`, DeepSpeed, JAX",
    ),
    "tensor": Division(
        "tensor",
        "if a layer or what it computes is still too large, or GPUs outnumber examples",
        "inside a host",
        "activations, four times in each layer",
        "JAX, Megatron-LM, PyTorch DTensor",
    ),
    "pipeline": Division(
        "pipeline",
        "if a whole host is still too small, or hosts wait for weights",
        "across hosts",
        "activations, from stage to stage",
        "Megatron-LM, `torch.distributed.pipelining`",
    ),
    "expert": Division(
        "expert",
        "where the model has experts: they divide nothing else",
        "over replicas",
        "each token to its experts, and back",
        "DeepSpeed, Megatron-LM",
    ),
    "text": Division(
        "text",
        "if a single text is too large: one more axis",
        "where texts are long",
        "keys and values of each layer",
        "PyTorch `context_parallel`, Megatron-LM, JAX",
    ),
}
# What leads to each of them but the first.
_NEEDS = {
    "layer_too_large": "tensor",
    "host_too_small": "pipeline",
    "has_experts": "expert",
    "long_texts": "text",
}


def choose(**yes: bool) -> str:
    """Returns what the card leads to: the answer of the first question with a yes."""
    _refuse_unknown("choose", yes, CARD)
    return next((answer for name, (_, answer) in CARD.items() if yes.get(name)), OTHERWISE)


def divide(**yes: bool) -> list[str]:
    """Returns the ways to divide a model, in the order in which to add them."""
    _refuse_unknown("divide", yes, _NEEDS)
    needed = {"sharded_data", *(way for name, way in _NEEDS.items() if yes.get(name))}
    return [way for way in ORDER if way in needed]


def _refuse_unknown(function: str, yes: Mapping[str, bool], known: Iterable[str]) -> None:
    if unknown := [name for name in yes if name not in known]:
        raise InvalidArgument(
            asked=f"{function}({', '.join(yes)})",
            found=f"no question {unknown[0]!r} on the card",
            do=f"use {', '.join(known)}",
        )


def card_table() -> str:
    """Returns the six questions as a Markdown table."""
    rows = [
        f"| {number}. {question} | `{answer}` |"
        if " " not in answer
        # What is no strategy's name stands without the marks of code.
        else f"| {number}. {question} | {answer} |"
        for number, (question, answer) in enumerate(CARD.values(), 1)
    ]
    head = ["| Ask from the top | If yes |", "| --- | --- |"]
    return "\n".join([*head, *rows, f"| No to all of them | `{OTHERWISE}` |"])


def order_table() -> str:
    """Returns the ways to divide a model as a Markdown table, in their order."""
    head = ["| | Add it | Where | What travels | Offered by |", "| --- | --- | --- | --- | --- |"]
    rows = [
        f"| {number}. {way.name} | {way.when} | {way.where} | {way.travels} | {way.tools} |"
        for number, way in enumerate(ORDER.values(), 1)
    ]
    return "\n".join([*head, *rows])
