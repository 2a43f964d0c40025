"""What the two checks of lesson 00 that ask for lists of shares have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distlab.checks import Equal, Fault, Inputs, Observed, Plain
from distlab.results.plain_values import to_plain

Rule = Callable[..., Any]  # takes the numbers of a case, and returns the shares


def asked(function: str, numbers: Any) -> str:
    """Returns the call as a learner would write it, such as "split(10, 4)"."""
    return f"{function}({', '.join(str(int(number)) for number in numbers)})"


def shares_by(rule: Rule, given: Inputs, *, called: str = "rule") -> Plain:
    """Returns the shares of each kind of case."""
    return {
        kind: to_plain(rule(*map(int, numbers)), at=asked(called, numbers))
        for kind, numbers in given.items()
    }


def row(kind: str, label: str, *, called: str, points: float) -> Equal:
    """Returns the criterion that the shares of one kind are right."""
    return Equal(kind, label, asked=lambda given: asked(called, given[kind]), points=points)


def below_zero(name: str) -> Observed:
    """Returns the mistake of a share that is negative."""
    return Observed(name, lambda given, out: any(min(out[kind]) < 0 for kind in given)).feedback(
        "One of your shares is below 0, because you subtracted whole pieces from fewer examples. "
        "What does a replica get if nothing is left for it?"
    )


def left_out(name: str, rule: Rule) -> Fault:
    """Returns the mistake of a list without the replicas that get nothing."""
    return Fault(name, rule=lambda *of: [share for share in rule(*of) if share]).feedback(
        "You stopped when no example was left, so your list is too short. How many entries does "
        "the list need, even if a replica gets nothing?"
    )
