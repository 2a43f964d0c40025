"""A `Check`: the statement of a task. `distlab.course.checks` shows a whole one.

Only `call` touches the learner's code. What it returns is judged as plain arrays and numbers that
have been through bytes, so judging can happen where the submission is never imported.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from distlab.course.checks.criteria import Requirement, expectations_in, judge_by
from distlab.course.checks.mistakes import Fault, NamedMistake
from distlab.course.checks.verdict import Inputs, Plain, Verdict
from distlab.course.results.plain_values import to_plain
from distlab.errors import InvalidArgument, did_you_mean


class Cost(Enum):
    """The resources that a learner's function needs while a check calls it.

    The value is the pytest mark of the check's tests: `pytest -m "not cluster"`.
    """

    PURE = "pure"
    TENSORFLOW = "tensorflow"
    CLUSTER = "cluster"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The draws of inputs: several, so that a hard-coded answer does not pass."""
        return tuple(range(1, 1 + {Cost.PURE: 5, Cost.TENSORFLOW: 3, Cost.CLUSTER: 2}[self]))


@dataclass(frozen=True, kw_only=True)
class Check:
    """A graded question.

    Args:
        name: Unique over all lessons; what the learner writes in `check("name")`.
        function: Name of the function that the learner writes, if it is not the check's.
        title: What the question asks, a few words.
        points: What a full answer earns; by default the sum of what its criteria earn.
        cost: What a call needs, from which follow the number of draws and the limit of time.
        inputs: `inputs(seed)` makes plain inputs, the same for the same seed.
        call: `call(function, inputs)` uses the learner's function and returns outputs; the
            only part that touches their code. Tensors and variables are made plain for it.
        read: `read(inputs, outputs)` makes of the outputs what is judged, if that differs.
        reference: `reference(inputs, **changes)` returns what is judged for a right answer, or,
            with changed arguments, for a wrong one. It needs no TensorFlow.
        criteria: What is expected, with points, the essence first.
        question: Points at the concept. The first failed try shows it if no mistake is named.
        direction: Where to look. The second failed try shows it.
        hint: The way to the answer. The third failed try shows it; without a `direction`, the
            second does.
        revisit: The section to read again, from the third failed try on: a heading of the lesson,
            or `"Heading" in lesson 01`.
        mistakes: Plausible wrong answers that the feedback explains, the more particular first.
    """

    name: str
    function: str = ""
    title: str
    points: float = math.nan
    cost: Cost = Cost.TENSORFLOW
    inputs: Callable[[int], Inputs]
    call: Callable[[Callable[..., Any], Inputs], Any]
    read: Callable[[Inputs, Plain], Plain] | None = None
    reference: Callable[..., Plain] | None = None
    criteria: tuple[Requirement, ...]
    question: str = ""
    direction: str = ""
    hint: str
    revisit: str
    mistakes: tuple[NamedMistake, ...] = ()

    def __post_init__(self) -> None:
        def refuse(found: str, do: str) -> None:
            raise InvalidArgument(asked=f"Check(name={self.name!r})", found=found, do=do)

        for name in ("criteria", "mistakes"):
            if isinstance(only := getattr(self, name), Requirement | NamedMistake):
                kind = type(only).__name__
                refuse(f"{name}=({kind}(...)): a comma is missing", f"write ({kind}(...),)")
        if not self.function:
            object.__setattr__(self, "function", self.name)
        if self.criteria and math.isnan(self.points):
            points = sum(criterion.points for criterion in expectations_in(self.criteria))
            object.__setattr__(self, "points", points)
        if not self.name.isidentifier():
            refuse("a name that is not an identifier", "use letters, digits and underscores")
        if not self.function.isidentifier():
            refuse(f"function={self.function!r}", "name the function that the learner writes")
        if not self.criteria:
            refuse("no criteria", "state what is expected, for example with Equal")
        if not self.points > 0:
            refuse(f"points={self.points!r}", "give points above 0")
        names = [mistake.name for mistake in self.mistakes]
        if len(set(names)) != len(names):
            refuse(f"mistakes named {names}", "name each mistake once")
        faults = [mistake for mistake in self.mistakes if isinstance(mistake, Fault)]
        if faults and self.reference is None:
            refuse(f"Fault({faults[0].name!r}), and no reference", "give one, or use Observed")
        known = _changeable(self.reference) if self.reference and faults else None
        for fault, name in ((f, name) for f in faults for v in f.variants for name in v):
            if known is not None and name not in known:
                found = (
                    f"mistakes=Fault({fault.name!r}, {name}=...), and a reference without {name}"
                )
                refuse(found, did_you_mean(name, known))

    def expected(self, inputs: Inputs, **changes: Any) -> Plain:
        """Returns what the reference gives, or with changed arguments a wrong answer."""
        if self.reference is None:
            return {}
        return to_plain(self.reference(inputs, **changes), at=f"the reference of {self.name}")

    def verdict(self, inputs: Inputs, outputs: Plain) -> Verdict:
        """Returns the verdict on what the call returned."""
        outputs = outputs if self.read is None else self.read(inputs, outputs)
        return judge_by(self.criteria, inputs, outputs, self.expected(inputs))

    def looks_like(self, mistake: NamedMistake, inputs: Inputs, outputs: Plain) -> bool:
        """Returns whether what the call returned is what a mistake gives."""
        try:
            outputs = outputs if self.read is None else self.read(inputs, outputs)
            return mistake.explains(self, inputs, outputs)
        except Exception:  # an answer of a different form is not this mistake
            return False


def _changeable(reference: Callable[..., Plain]) -> list[str] | None:
    """The arguments of a reference that a `Fault` can change; None if it takes any."""
    _, *parameters = inspect.signature(reference).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL]
