"""Recognises plausible mistakes, each with the feedback that a learner gets.

    Fault("one_epoch", epochs=1).feedback("You trained for one epoch. ...")
    Raises("python_number", "'int' object has no attribute 'dtype'").feedback("...")
    Observed("never_compiled", lambda given, out: out["eager"]).feedback("...")

A `Fault` is one changed argument of the check's reference. State it wherever there is a reference
or a table of answers. `Raises` recognises an error, or a hang, by its text. `Observed` looks at
what the call has noted: an exit code, a file that was left behind, a count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

from distlab.course.checks.criteria import Requirement, comparisons_in
from distlab.course.checks.verdict import Inputs, Plain


class CheckLike(Protocol):
    """The part of a check that a mistake reads; `Check` itself imports this module."""

    @property
    def criteria(self) -> tuple[Requirement, ...]:
        """The check's criteria."""

    def expected(self, inputs: Inputs, **changes: Any) -> Plain:
        """Returns what the reference gives."""


class NamedMistake:
    """A plausible wrong answer; the first of a check's mistakes that explains an answer is named.

    Args:
        name: Its code, like `mean_of_means`, unique within its check. Learners never see it.
    """

    error = ""  # a regular expression, found in `TypeName: message` of the learner's error

    def __init__(self, name: str) -> None:
        self.name, self.says = name, ""

    def feedback(self, text: str) -> Self:
        """Sets what the learner reads: what the code did, what follows from it, and a question."""
        self.says = text
        return self

    def explains(self, check: CheckLike, inputs: Inputs, outputs: Plain) -> bool:
        """Returns whether outputs are those that this mistake gives."""
        return False


class Fault(NamedMistake):
    """One changed argument of the check's reference.

    An answer has this fault if it agrees with the changed reference in all keys that the change
    moves. The other keys do not matter, so an answer can have two faults.

    Args:
        name: As for every mistake.
        sees: The keys to compare, if they are not those that the change moves.
        changes: Arguments of the reference.
    """

    def __init__(self, name: str, *, sees: str | tuple[str, ...] = (), **changes: Any) -> None:
        super().__init__(name)
        self.sees = (sees,) if isinstance(sees, str) else sees
        self.variants = [changes]

    def or_with(self, **changes: Any) -> Self:
        """Adds a second way to make the same mistake."""
        self.variants.append(changes)
        return self

    def explains(self, check: CheckLike, inputs: Inputs, outputs: Plain) -> bool:
        """Returns whether outputs agree with the reference, changed in one of these ways."""
        expected, rows = check.expected(inputs), tuple(comparisons_in(check.criteria))

        def agrees(wrong: Plain) -> bool:
            moved = [row for row in rows if not row.agrees(wrong[row.key], expected[row.key])]
            compared = [row for row in rows if row.key in self.sees] or moved
            return bool(moved) and all(
                row.agrees(outputs[row.key], wrong[row.key]) for row in compared
            )

        return any(agrees(check.expected(inputs, **changes)) for changes in self.variants)


class Raises(NamedMistake):
    """A mistake that ends in an error, or in a hang that is reported like one.

    Args:
        name: As for every mistake.
        error: A regular expression, found in `TypeName: message`.
    """

    def __init__(self, name: str, error: str) -> None:
        super().__init__(name)
        self.error = error


class Observed(NamedMistake):
    """A mistake that shows in what the call has noted.

    Args:
        name: As for every mistake.
        when: `when(inputs, outputs)` is true for outputs that this mistake gives.
    """

    def __init__(self, name: str, when: Callable[[Inputs, Plain], object]) -> None:
        super().__init__(name)
        self.when = when

    def explains(self, check: CheckLike, inputs: Inputs, outputs: Plain) -> bool:
        """Returns whether the condition holds."""
        return bool(self.when(inputs, outputs))
