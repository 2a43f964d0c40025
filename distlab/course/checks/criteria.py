"""States what a check expects of an answer: its criteria with their points, the essential first.

    criteria=(
        Form("a dictionary", lambda given, out: isinstance(out, dict)),
        Close("kernel", "the kernel, one device's", atol=1e-4, points=2),
        Then(Equal("steps", "one step for each batch", points=1)),
    )

`Close`, `Equal` and `Choice` compare `outputs[key]` with the same key of the check's reference.
`Holds` asks for a condition. The criteria in a `Then` count only if all above it are met. `Gate`
and `Form` earn nothing; if one of them is not met, nothing below it counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from distlab.course.checks.matchers import (
    expect_close,
    expect_equal,
    expect_true,
    same_plain,
    shown,
)
from distlab.course.checks.verdict import Criterion, Inputs, Plain, Verdict


@dataclass(frozen=True, kw_only=True)
class Expectation(ABC):
    """One criterion, as a check states it; `judge` says whether an answer meets it."""

    points: float = 1.0

    @abstractmethod
    def judge(self, inputs: Inputs, outputs: Plain, expected: Plain) -> Criterion:
        """Compares an answer with the right one."""


@dataclass(frozen=True)
class Compared(Expectation):
    """A criterion that compares one value of the answer with the reference's.

    Args:
        key: Of the outputs, and of what the reference returns.
        label: What is compared, in the learner's words.
        points: What it earns.
        asked: `asked(inputs)` is shown before the message, such as "split(10, 4)".
    """

    key: str
    label: str
    asked: Callable[[Inputs], str] | None = field(default=None, kw_only=True)

    def judge(self, inputs: Inputs, outputs: Plain, expected: Plain) -> Criterion:
        """As for every expectation."""
        difference = self.compare(outputs[self.key], expected[self.key])
        if self.asked is None or difference.passed:
            return difference
        return replace(difference, message=f"{self.asked(inputs)}: {difference.message}")

    @abstractmethod
    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        """Returns the criterion for the two values."""

    def agrees(self, yours: Plain, other: Plain) -> bool:
        """Returns whether two values are the same for this criterion."""
        return same_plain(yours, other)


@dataclass(frozen=True)
class Close(Compared):
    """Numbers, arrays or nested lists of them.

    Args:
        key: As for every comparison; also `label`, `points` and `asked`.
        atol: How far each number may be from the reference's. A mistake is recognised within this
            distance too, or, of numbers above 1, within this part of them.
    """

    atol: float = field(kw_only=True)

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        """Returns the criterion for the two values."""
        return expect_close(
            self.label, yours=yours, expected=expected, atol=self.atol, weight=self.points
        )

    def agrees(self, yours: Plain, other: Plain) -> bool:
        """Returns whether two values are near, relatively for large numbers."""
        return same_plain(yours, other, atol=self.atol)


@dataclass(frozen=True)
class Equal(Compared):
    """The same value: strings, whole numbers, booleans, lists or dicts of these."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        """Returns the criterion for the two values."""
        return expect_equal(self.label, yours=yours, expected=expected, weight=self.points)


@dataclass(frozen=True)
class Choice(Compared):
    """One of several words; the feedback asks about the case, and never shows the right word.

    Args:
        key: As for every comparison; the reference may hold a list of words that are all right.
        among: All words that can be chosen.
        ask: A question that leads on, such as "which line is reached by one worker only?".
    """

    among: tuple[str, ...] = field(kw_only=True)
    ask: str = field(kw_only=True)

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        """Returns the criterion for the two values."""
        message = f"look again: {self.ask}"
        if yours is None:
            message = "your function returned None for this case: is there a `return`?"
        elif yours not in self.among:
            message = f"not one of {', '.join(self.among)}"
        passed = isinstance(yours, str) and self.agrees(yours, expected)
        return Criterion(
            self.label, passed, "" if passed else message, shown(yours), weight=self.points
        )

    def agrees(self, yours: Plain, other: Plain) -> bool:
        """Returns whether a word is the other one, or one of the others."""
        return bool(yours == other) or (isinstance(other, list) and yours in other)


@dataclass(frozen=True)
class Holds(Expectation):
    """A condition of the check's own.

    Args:
        label: What is looked at, in the learner's words.
        condition: `condition(inputs, outputs)` is true for a right answer.
        message: What is wrong otherwise; or `message(inputs, outputs)` returns it.
        points: What it earns.
    """

    label: str
    condition: Callable[[Inputs, Plain], object]
    message: str | Callable[[Inputs, Plain], str]

    def judge(self, inputs: Inputs, outputs: Plain, expected: Plain) -> Criterion:
        """As for every expectation."""
        holds, message = self.condition(inputs, outputs), self.message
        text = message if isinstance(message, str) else "" if holds else message(inputs, outputs)
        return expect_true(self.label, holds, message=text, weight=self.points)


class Then:
    """Criteria that count only if those above passed; otherwise they are not shown.

    Args:
        criteria: What counts then.
        after: `all` those above, or `any` of them.
    """

    def __init__(
        self, *criteria: Expectation, after: Callable[[Iterable[bool]], bool] = all
    ) -> None:
        self.criteria, self.after = criteria, after


@dataclass(frozen=True)
class Gate:
    """A condition for all other criteria: it earns nothing, and shows only if it fails."""

    criterion: Expectation


class Form(Gate):
    """The form that makes an answer comparable, such as a list for each replica.

    Args:
        label: The form, in the learner's words.
        condition: `condition(inputs, outputs)` is true for outputs of this form.
        key: Of the value that is shown otherwise; by default all that was returned.
    """

    def __init__(
        self, label: str, condition: Callable[[Inputs, Plain], object], *, key: str = ""
    ) -> None:
        def message(inputs: Inputs, outputs: Plain) -> str:
            yours = outputs[key] if key else outputs
            returned = "nothing: is there a `return`?" if yours is None else shown(yours)
            return f"yours returned {returned}"

        super().__init__(Holds(label, condition, message))


Requirement = Expectation | Then | Gate


def expectations_in(criteria: Iterable[Requirement]) -> Iterator[Expectation]:
    """Yields the criteria that earn points, also those in `Then`."""
    for requirement in criteria:
        if isinstance(requirement, Then):
            yield from requirement.criteria
        elif not isinstance(requirement, Gate):
            yield requirement


def comparisons_in(criteria: Iterable[Requirement]) -> Iterator[Compared]:
    """Yields the criteria that compare with the reference, also those in `Then` and `Gate`."""
    gated = [requirement.criterion for requirement in criteria if isinstance(requirement, Gate)]
    for criterion in (*gated, *expectations_in(criteria)):
        if isinstance(criterion, Compared):
            yield criterion


def judge_by(
    criteria: Iterable[Requirement], inputs: Inputs, outputs: Plain, expected: Plain
) -> Verdict:
    """Returns the verdict on an answer."""
    criteria = tuple(criteria)
    points = sum(criterion.points for criterion in expectations_in(criteria))
    looked_at: list[Criterion] = []
    for requirement in criteria:
        if isinstance(requirement, Gate):
            first = requirement.criterion.judge(inputs, outputs, expected)
            if not first.passed:
                return Verdict((*looked_at, replace(first, weight=points)), out_of=points)
        elif isinstance(requirement, Then):
            if not requirement.after(criterion.passed for criterion in looked_at):
                break
            looked_at += [
                criterion.judge(inputs, outputs, expected) for criterion in requirement.criteria
            ]
        else:
            looked_at.append(requirement.judge(inputs, outputs, expected))
    return Verdict(tuple(looked_at), out_of=points)
