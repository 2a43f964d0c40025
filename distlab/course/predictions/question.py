"""A question with choices, or for a number: which answers it takes, and what a reader sees of it.

question = Question("How many steps?", unit="steps")
question.read("90")                         # 90.0
question.said(90.0)                         # "90 steps"
markdown, plain = in_words(question)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distlab.errors import InvalidArgument, did_you_mean

Answer = str | float  # a choice, or a number
Texts = tuple[str, str]  # in Markdown, and plain


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


def in_words(question: Question) -> Texts:
    """Returns a question without its choices."""
    hint = "" if question.choices else f" (a number{_of(question.unit)})"
    return f"**Predict:** {question.text}{hint}", f"Predict: {question.text}{hint}"


def offered(question: Question) -> Texts:
    """Returns the choices of a question; of a number, nothing."""
    listed = "\n".join(f"- {choice}" for choice in question.choices)
    return listed, listed


def with_choices(question: Question) -> Texts:
    """Returns a question and its choices."""
    (markdown, plain), (listed, _) = in_words(question), offered(question)
    return _paragraphs([markdown, listed]), _lines([plain, listed])


def as_predicted(question: Question, guess: Answer) -> Texts:
    """Returns what stays of a control after the answer was shown."""
    answer = question.said(guess)
    return f"You predicted *{answer}*.", f"You predicted {answer}."


def revealed(
    question: Question, answer: Answer, words: Mapping[Answer, str], within: float
) -> Texts:
    """Returns the answer with its reason, and a word to each wrong one, folded if possible."""
    happened = question.said(answer)
    reason, wrong = _split(words, answer, within)
    plain = _lines([f"Answer: {happened}", reason, *_plain_list(question, wrong)])
    markdown = _paragraphs([f"**{happened}**", reason, _list(question, wrong)])
    return fold("Answer", markdown), plain


def compared(
    question: Question, guess: Answer, answer: Answer, words: Mapping[Answer, str], within: float
) -> Texts:
    """Returns what was predicted beside what happened, with the word to that prediction."""
    reason, wrong = _split(words, answer, within)
    came_true = agree(guess, answer, within)
    given = [key for key in wrong if not came_true and agree(key, guess, within)]
    said = [wrong.pop(key) for key in given[:1]] + [reason] * bool(reason)
    predicted, happened = question.said(guess), question.said(answer)
    if predicted == happened:
        openings = f"You predicted it: **{happened}**.", f"You predicted it: {happened}."
    else:
        near = " That is close enough." if came_true else ""
        openings = (
            f"You predicted *{predicted}*. It was **{happened}**.{near}",
            f"You predicted {predicted}. It was {happened}.{near}",
        )
    others = fold("About the other answers", _list(question, wrong)) if wrong else ""
    markdown = _paragraphs([openings[0], *said, others])
    return markdown, _lines([openings[1], *said, *_plain_list(question, wrong)])


def _split(
    words: Mapping[Answer, str], answer: Answer, within: float
) -> tuple[str, dict[Answer, str]]:
    """The words to the answer, and those to what is wrong."""
    wrong = {key: word for key, word in words.items() if not agree(key, answer, within)}
    return " ".join(word for key, word in words.items() if key not in wrong), wrong


def fold(title: str, markdown: str) -> str:
    """Returns Markdown that a click opens."""
    return f"<details><summary>{title}</summary>\n\n{markdown}\n\n</details>"


def _paragraphs(parts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, parts))


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(filter(None, parts))


def _list(question: Question, words: Mapping[Answer, str]) -> str:
    items = [f"- *{question.said(answer)}*: {word}" for answer, word in words.items()]
    return "\n".join(item.replace("\n", "\n  ") for item in items)  # one item, many lines


def _plain_list(question: Question, words: Mapping[Answer, str]) -> list[str]:
    return [f"  {question.said(answer)}: {word}" for answer, word in words.items()]


def _of(unit: str) -> str:
    return f" of {unit}" if unit else ""
