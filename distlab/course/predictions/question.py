"""A question with choices, or for a number: which answers it takes, and which one is right.

question = Question("How many steps?", unit="steps")
question.read("90")                         # 90.0
question.said(90.0)                         # "90 steps"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distlab.errors import InvalidArgument, did_you_mean

Answer = str | float  # a choice, or a number


@dataclass(frozen=True)
class Question:
    """One question."""

    text: str
    choices: tuple[str, ...] = ()
    unit: str = ""

    @classmethod
    def of(cls, text: str, choices: Sequence[Any] | None, unit: str) -> Question:
        """Returns a question, or says what is wrong with it."""
        asked = f"predict({text!r})"
        if choices is None:
            return cls(text, unit=unit)
        listed = tuple(map(str, choices))
        if len(set(listed)) < max(2, len(listed)):
            raise InvalidArgument(
                asked=asked,
                found=f"choices={list(listed)}",
                do="pass two or more different choices; to ask for a number, pass none",
            )
        if unit:
            raise InvalidArgument(
                asked=asked,
                found=f"unit={unit!r} beside choices",
                do="write the unit into the choices; only a number has a unit of its own",
            )
        return cls(text, listed)

    def read(self, answer: Any, *, asked: str) -> Answer:
        """Returns an answer as the question takes it."""
        if self.choices:
            if str(answer) in self.choices:
                return str(answer)
            raise InvalidArgument(
                asked=asked,
                found=f"{str(answer)!r} is not a choice of {self.text!r}",
                do=did_you_mean(str(answer), self.choices),
            )
        try:
            number = float(answer.strip() if isinstance(answer, str) else answer)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise InvalidArgument(
                asked=asked,
                found=f"{answer!r} is not a number",
                do="write digits only, as in 1000 or 0.25",
            )
        return number

    def said(self, answer: Answer) -> str:
        """Returns an answer as text, a number with its unit."""
        if isinstance(answer, str):
            return answer
        digits = f"{answer:.0f}" if answer.is_integer() else f"{answer:.6g}"
        return f"{digits} {self.unit}".rstrip()

    def read_words(self, words: Mapping[Any, str], *, asked: str) -> dict[Answer, str]:
        """Returns the words to wrong answers, by the answer."""
        return {self.read(answer, asked=asked): word for answer, word in words.items()}


def agree(one: Answer, other: Answer, within: float) -> bool:
    """Tells whether two answers are the same."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=within)
