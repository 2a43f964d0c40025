"""A table as an exercise task: for each case two words are chosen, such as a strategy and a reason.

PAIRS = PairsByCase(
    {"A": ("mirrored", "copies_in_one_host", "in which host are the four?"), ...},
    strategy=("mirrored", "tpu"),
    reason=("copies_in_one_host", "no_waiting"),
)
Check(..., inputs=PAIRS.inputs, call=PAIRS.call, read=PAIRS.read, reference=PAIRS.reference,
      criteria=PAIRS.criteria, mistakes=(Fault("always_mirrored", A="mirrored"), ...))

The answer to case A is judged under two keys: "A" for the first word, and "A_reason" for the
second one, named like the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from distlab.checks.criteria import Choice, Gate, Holds, Stated
from distlab.checks.verdict import Criterion, Inputs, Plain


class PairsByCase:
    """The parts of a check in which each case is answered with a pair of words.

    Args:
        cases: By the name of each case the two right words, and a question that leads on after a
            wrong one, and does not say the answer.
        among: For the first and for the second word, under its name: all words to choose from.
    """

    def __init__(self, cases: Mapping[str, tuple[str, str, str]], **among: tuple[str, ...]) -> None:
        self.cases = cases
        (self.first, self.second), self.among = among, among

    @property
    def criteria(self) -> tuple[Stated, ...]:
        """Half a point for each word, if not all cases have the same answer."""
        gate = Holds(
            "the answer depends on the case",
            lambda _, out: out["varies"] or out[next(iter(self.cases))] is None,
            "your function gives the same answer to every case",
        )
        return Gate(gate), *(word for case in self.cases for word in self._words(case))

    def _words(self, case: str) -> tuple[Choice, Choice]:
        def word(key: str, name: str) -> Choice:
            label, ask = f"case {case}: the {name}", self.cases[case][2]
            return _Word(key, label, among=self.among[name], ask=ask, points=0.5)

        return word(case, self.first), word(self._second(case), self.second)

    def _second(self, case: str) -> str:
        return f"{case}_{self.second}"

    def inputs(self, seed: int) -> Inputs:
        """Draws the order in which the cases are asked for."""
        return {"order": np.random.default_rng(seed).permutation(sorted(self.cases)).tolist()}

    def call(self, choose: Callable[[str], Any], inputs: Inputs) -> Plain:
        """Returns the learner's answer to each case."""
        return {case: choose(case) for case in inputs["order"]}

    def read(self, given: Inputs, outputs: Plain) -> Plain:
        """Takes each answer apart; an answer that is no pair is read as the first word alone."""
        answers = [outputs[case] for case in self.cases]
        answers = [each.tolist() if isinstance(each, np.ndarray) else each for each in answers]
        words: dict[str, Plain] = {"varies": any(answer != answers[0] for answer in answers)}
        for case, answer in zip(self.cases, answers, strict=True):
            is_pair = isinstance(answer, list) and len(answer) == 2
            first, second = answer if is_pair else (answer, answer if answer is None else "")
            words |= {case: first, self._second(case): second}
        return words

    def reference(self, given: Inputs, **answers: Plain) -> Plain:
        """Returns the right words, or others for the keys that are given."""
        right: dict[str, Plain] = {"varies": True}
        for case, (first, second, _) in self.cases.items():
            right |= {case: first, self._second(case): second}
        return right | answers

    def any_is(self, word: str) -> Callable[[Inputs, Plain], bool]:
        """Returns the condition that some case was answered with this word."""
        keys = [key for case in self.cases for key in (case, self._second(case))]
        return lambda _, out: any(out[key] == word for key in keys)


class _Word(Choice):
    """One of the two words that are asked for in each case."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        """As for every choice, but an answer that is no pair has no second word."""
        found = super().compare(yours, expected)
        asked = "two words were asked for, as a pair"
        return replace(found, message=asked, yours="") if yours == "" else found
