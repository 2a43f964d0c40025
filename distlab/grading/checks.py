"""What a check is made of: its three parts, and what judging finds.

    Check(name="...", function="...", inputs=..., call=..., judge=..., mistakes=(...), ...)

Only `call` touches the learner's code; `judge` sees plain arrays and numbers that have
been through bytes, so it can run where the submission is never imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distlab.errors import InvalidArgument

Plain = Any  # None, bool, int, float, str, numpy array, or lists and dicts of these
Inputs = dict[str, Plain]


@dataclass(frozen=True)
class Criterion:
    """One thing that a check looks at.

    Args:
        label: What is looked at, in the learner's words; unique within its verdict.
        passed: Whether it is right.
        message: What is wrong, in one sentence; empty when passed.
        yours: The learner's value as text.
        expected: The expected value as text.
        weight: Its share of the check's points, relative to the other criteria.
    """

    label: str
    passed: bool
    message: str = ""
    yours: str = ""
    expected: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise InvalidArgument(
                asked=f"Criterion({self.label!r}, weight={self.weight!r})",
                found="a criterion that counts for nothing",
                do="give a weight above 0",
            )


@dataclass(frozen=True)
class Verdict:
    """All criteria of one judged draw; passed when every one is."""

    criteria: tuple[Criterion, ...]

    def __post_init__(self) -> None:
        if not self.criteria:
            raise InvalidArgument(
                asked="Verdict(criteria=())",
                found="no criterion, so anything would pass",
                do="judge at least one thing, for instance with expect_close",
            )

    @classmethod
    def of(cls, *criteria: Criterion) -> Verdict:
        """The verdict made of these criteria."""
        return cls(criteria)

    @property
    def passed(self) -> bool:
        """Whether every criterion passed."""
        return all(criterion.passed for criterion in self.criteria)

    @property
    def share(self) -> float:
        """The weighted part of the criteria that passed, 0 to 1."""
        whole = sum(criterion.weight for criterion in self.criteria)
        return sum(c.weight for c in self.criteria if c.passed) / whole


@dataclass(frozen=True)
class Mistake:
    """A plausible wrong answer that the check knows by name.

    Exactly one of `yields`, `when` and `error` says how it is recognised. Mistakes are only
    looked for in answers that fail, in their order: put the more particular one first.

    Args:
        name: Short, like `mean_of_means`; unique within its check.
        says: Which idea to think about again, one or two sentences.
        yields: `yields(inputs)` returns the outputs this mistake gives; of a dict, only the
            keys it names are compared.
        when: `when(inputs, outputs)` is true for outputs that this mistake gives.
        error: A regular expression found in `TypeName: message` of the learner's error.
        atol: How near `yields` must come (absolute and relative).
    """

    name: str
    says: str
    yields: Callable[[Inputs], Plain] | None = None
    when: Callable[[Inputs, Plain], bool] | None = None
    error: str = ""
    atol: float = 1e-5

    def __post_init__(self) -> None:
        ways = [self.yields is not None, self.when is not None, bool(self.error)]
        if sum(ways) != 1:
            raise InvalidArgument(
                asked=f"Mistake({self.name!r})",
                found=f"{sum(ways)} ways to recognise it",
                do="give exactly one of yields, when and error",
            )


@dataclass(frozen=True)
class Check:
    """A graded question.

    Args:
        name: Unique over all lessons; what the learner writes in `check("name")`.
        function: Name of the function that the learner writes.
        title: What the question asks, a few words.
        points: What a full answer earns.
        inputs: `inputs(seed)` makes plain inputs, the same for the same seed.
        call: `call(function, inputs)` uses the learner's function and returns outputs; the
            only part that touches their code. Tensors and variables are made plain for it.
        judge: `judge(inputs, outputs)` returns a `Verdict`; both come fresh and plain.
        hint: Shown from the second failed attempt.
        revisit: The section of the lesson to read again; shown from the third.
        mistakes: Plausible wrong answers that the feedback names.
    """

    name: str
    function: str
    title: str
    points: float
    inputs: Callable[[int], Inputs]
    call: Callable[[Callable[..., Any], Inputs], Any]
    judge: Callable[[Inputs, Plain], Verdict]
    hint: str
    revisit: str
    mistakes: tuple[Mistake, ...] = ()

    def __post_init__(self) -> None:
        def refuse(found: str, do: str) -> None:
            raise InvalidArgument(asked=f"Check(name={self.name!r})", found=found, do=do)

        if not self.name.isidentifier():
            refuse("a name that is no identifier", "use letters, digits and underscores")
        if not self.function.isidentifier():
            refuse(f"function={self.function!r}", "name the function the learner writes")
        if not self.points > 0:
            refuse(f"points={self.points!r}", "give points above 0")
        names = [mistake.name for mistake in self.mistakes]
        if len(set(names)) != len(names):
            refuse(f"mistakes named {names}", "name each mistake once")
