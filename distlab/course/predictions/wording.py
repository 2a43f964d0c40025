"""What a reader sees of a question and of its answer, in Markdown and as plain text.

markdown, plain = asked(question)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from distlab.course.predictions.question import Answer, Question

Texts = tuple[str, str]  # in Markdown, and plain


def asked(question: Question) -> Texts:
    """Returns a question without its choices."""
    hint = "" if question.choices else f" (a number{_of(question.unit)})"
    return f"**Predict:** {question.text}{hint}", f"Predict: {question.text}{hint}"


def offered(question: Question) -> Texts:
    """Returns the choices of a question; of a number, nothing."""
    listed = "\n".join(f"- {choice}" for choice in question.choices)
    return listed, listed


def asked_with_choices(question: Question) -> Texts:
    """Returns a question and its choices."""
    (markdown, plain), (listed, _) = asked(question), offered(question)
    return _paragraphs([markdown, listed]), _lines([plain, listed])


def kept(question: Question, guess: Answer | None) -> Texts:
    """Returns what stays of a control after the answer was shown."""
    if guess is None:
        return "You made no prediction.", "You made no prediction."
    answer = question.said(guess)
    return f"You predicted *{answer}*.", f"You predicted {answer}."


def revealed(
    question: Question, answer: Answer, words: Mapping[Answer, str], *, reason: str
) -> Texts:
    """Returns the answer with its reason, and a word to each wrong one, folded if possible."""
    happened = question.said(answer)
    plain = _lines([f"Answer: {happened}", reason, *_plain_list(question, words)])
    markdown = _paragraphs([f"**{happened}**", reason, _list(question, words)])
    return fold("Answer", markdown), plain


def compared(
    question: Question,
    guess: Answer,
    answer: Answer,
    words: Mapping[Answer, str],
    *,
    came_true: bool,
    said: Sequence[str],
) -> Texts:
    """Returns what was predicted beside what happened."""
    predicted, happened = question.said(guess), question.said(answer)
    if predicted == happened:
        openings = f"You predicted it: **{happened}**.", f"You predicted it: {happened}."
    else:
        near = " That is close enough." if came_true else ""
        openings = (
            f"You predicted *{predicted}*. It was **{happened}**.{near}",
            f"You predicted {predicted}. It was {happened}.{near}",
        )
    others = fold("About the other answers", _list(question, words)) if words else ""
    markdown = _paragraphs([openings[0], *said, others])
    return markdown, _lines([openings[1], *said, *_plain_list(question, words)])


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
