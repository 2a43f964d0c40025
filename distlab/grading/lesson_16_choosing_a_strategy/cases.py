"""One check of lesson 16: choose a strategy for six cases, each with a reason.

Its feedback asks about the case and never says the answer: there are few to guess from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Criterion, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import shown

STRATEGIES = (
    "none",
    "default",
    "one_device",
    "mirrored",
    "central_storage",
    "multi_worker",
    "parameter_server",
    "tpu",
)
REASONS = (
    "batch_too_small",
    "copies_in_one_host",
    "hosts_step_together",
    "nobody_waits",
    "copies_too_large",
    "replica_too_large",
    "always_faster",
    "less_memory_each",
)
# What several devices share a batch under.
_SHARING = ("mirrored", "central_storage", "multi_worker", "parameter_server", "tpu")


@dataclass(frozen=True)
class _Case:
    strategies: tuple[str, ...]
    reason: str
    ask: str


_CASES = {
    "A": _Case(
        ("one_device", "default"),
        "batch_too_small",
        "how many of the 4 examples would each of eight GPUs get?",
    ),
    "B": _Case(
        ("mirrored",),
        "copies_in_one_host",
        "what has to fit on each GPU, does it, and where are the four?",
    ),
    "C": _Case(
        ("multi_worker",),
        "hosts_step_together",
        "which strategy reaches a second host, and takes one device's steps?",
    ),
    "D": _Case(
        ("parameter_server",),
        "nobody_waits",
        "what does your choice do while one host is slow, or gone?",
    ),
    "E": _Case(
        ("central_storage",),
        "copies_too_large",
        "add up what one GPU holds under your choice. What must be there, and what need not?",
    ),
    "F": _Case(
        ("none",),
        "replica_too_large",
        "what must one replica hold at the same time, under any of these strategies?",
    ),
}


def _inputs(seed: int) -> Inputs:
    order = np.random.default_rng(seed).permutation(sorted(_CASES)).tolist()
    return {"order": order}


def _call(choose: Callable[..., Any], inputs: Inputs) -> Plain:
    return {case: choose(case) for case in inputs["order"]}


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    criteria = []
    for name, case in _CASES.items():
        answer, is_pair = _of(outputs, name), _is_pair(_of(outputs, name))
        strategy, reason = _pair(answer)
        for what, yours, right, known in (
            ("strategy", strategy, strategy in case.strategies, STRATEGIES),
            ("reason", reason, reason == case.reason, REASONS),
        ):
            message = f"look again: {case.ask}"
            if answer is None:
                message = "your function returned None for this case: is there a `return`?"
            elif not is_pair:
                message = "two names were asked for: a strategy, and the reason for it"
            elif yours not in known:
                message = f"not one of {', '.join(known)}"
            label = f"case {name}: the {what}"
            criteria.append(Criterion(label, right, "" if right else message, shown(yours)))
    return Verdict.of(*criteria)


def _of(outputs: Plain, case: str) -> Plain:
    """What was answered for a case; an array as a list."""
    answer = outputs[case]
    return answer.tolist() if isinstance(answer, np.ndarray) else answer


def _is_pair(answer: Plain) -> bool:
    return isinstance(answer, list) and len(answer) == 2


def _pair(answer: Plain) -> tuple[Plain, Plain]:
    return (answer[0], answer[1]) if _is_pair(answer) else (answer, None)


def _chosen(outputs: Plain, *cases: str) -> list[Plain]:
    return [_pair(_of(outputs, case))[0] for case in cases]


def _reasons(outputs: Plain) -> list[Plain]:
    return [_pair(_of(outputs, case))[1] for case in _CASES]


CHOOSE = Check(
    name="choose_and_defend",
    function="choose",
    title="A strategy and a reason for each of six cases",
    points=6,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="Go down the card of the lesson, question by question, for one case at a time. Two cases "
    "are decided by an addition of gigabytes.",
    revisit='"The card" in lesson 16',
    mistakes=(
        Mistake(
            "more_devices_always",
            "More devices are not always better. They help only if each gets enough examples, and "
            "if one replica fits on one device. Otherwise they wait, or cannot hold the model.",
            when=lambda _, out: (
                _chosen(out, "A")[0] in _SHARING
                or _chosen(out, "F")[0] in _SHARING
                or "always_faster" in _reasons(out)
            ),
        ),
        Mistake(
            "mirrored_across_hosts",
            "MirroredStrategy ends at the edge of its host. Started on two hosts it gives two "
            "models that know nothing of each other.",
            when=lambda _, out: "mirrored" in _chosen(out, "C", "D"),
        ),
        Mistake(
            "waits_for_the_slowest",
            "Hosts that take each step together go at the pace of the slowest one, and stand still "
            "when one is taken away. Read case D again: what does it say of its hosts?",
            when=lambda _, out: _chosen(out, "D") == ["multi_worker"],
        ),
        Mistake(
            "ps_for_bitwise",
            "With parameter servers each worker steps when it is ready, on weights that others "
            "have moved on. Those are not the steps of one device.",
            when=lambda _, out: _chosen(out, "C") == ["parameter_server"],
        ),
        Mistake(
            "mirrored_saves_memory",
            "Mirrored saves no memory: every device has all weights, all of the optimizer's state "
            "and all gradients. Only the examples are shared out.",
            when=lambda _, out: (
                _chosen(out, "E") == ["mirrored"] or "less_memory_each" in _reasons(out)
            ),
        ),
    ),
)
