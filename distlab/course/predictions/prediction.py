"""`dl.predict` asks, and `Prediction.reveal` answers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from distlab.course.predictions.frontend import can_answer, show, stored_guess, text_bundle
from distlab.course.predictions.question import (
    Answer,
    Question,
    agree,
    as_predicted,
    compared,
    in_words,
    offered,
    revealed,
    with_choices,
)
from distlab.environment import explain_missing
from distlab.errors import InvalidArgument

# By the text of the question: what this kernel has asked.
_asked: dict[str, Prediction] = {}


def predict(question: str, choices: Sequence[Any] | None = None, *, unit: str = "") -> Prediction:
    """Asks the reader to predict a result, before a later cell shows it.

    In JupyterLab you answer with a click, or in a box for a number, and may change your mind until
    `reveal` shows the answer. The next cell doesn't wait for you, and a question that you leave out
    stays open. If you run the question's cell again before the answer, your prediction stays; in
    `distlab lab` it even survives a restart of the kernel. After the answer, running the cell again
    lets you predict again. Where nobody can answer, in a build or a terminal, the question is text.
    `recap()` of `distlab.course.predictions` counts the prediction that you made before you saw the
    answer for the first time.

    Args:
        question: The question, in Markdown.
        choices: Two or more answers to choose from; None asks for a number.
        unit: The unit of the number.

    Returns:
        A `Prediction`, for its `reveal`.

    Raises:
        InvalidArgument: There's only one choice, or two are the same.

    Example:
        >>> copies = dl.predict("How many copies of a weight?", ["one", "one a replica"])
        Predict: How many copies of a weight?
        - one
        - one a replica
        >>> copies.keep("one")  # as a click does
        >>> copies.reveal("one a replica", {"one": "Then replicas would have to fetch it."})
        ✗ You predicted one. It was one a replica.
        Then replicas would have to fetch it.
    """
    prediction = Prediction(Question.of(question, choices, unit))
    earlier = _asked.get(question)
    if earlier is None or earlier.came_true is None:  # else that one counts
        _asked[question] = prediction
        if earlier and earlier.answer is None and earlier.question == prediction.question:
            prediction.guess = earlier.guess
    if earlier is None and can_answer():
        prediction._recall(stored_guess())
    prediction._show()
    return prediction


class Prediction:
    """A reader's prediction, and what happened.

    Attributes:
        question: The question.
        guess: What was predicted; None for nothing.
        answer: What happened; None before `reveal`.
        came_true: Whether the two agree; None before `reveal` and without a guess.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.guess: Answer | None = None
        self.answer: Answer | None = None
        self.came_true: bool | None = None
        self._control: Control | None = None
        self._place: Any = None  # IPython's handle of the output that shows the control

    def __repr__(self) -> str:
        return f"Prediction({self.question.text!r})"

    def keep(self, guess: Any) -> None:
        """Keeps a prediction, as a click does; the last one before `reveal` compares it counts."""
        asked = f"keep({guess!r})"
        if self.came_true is not None:
            raise InvalidArgument(
                asked=asked,
                found="the answer has been shown already",
                do="run the question's cell again to predict again",
            )
        self.guess = self.question.read(guess, asked=asked)

    def reveal(
        self, answer: Any, words: Mapping[Any, str] | None = None, *, within: float = 0
    ) -> None:
        """Shows what happened beside what was predicted.

        Where nobody can answer, and where nothing was predicted, the answer is folded. In the
        second case the question stays open: predict, and call `reveal` again.

        Args:
            answer: What happened: one of the choices, or a number.
            words: For a choice, in Markdown, what would have to be true for it and what is true
                here. A reader sees the words of the choice that they made.
            within: How far a number may be off and still count as right.

        Raises:
            InvalidArgument: The answer is none of the choices, or not a number.

        Example:
            >>> steps = dl.predict("How many steps?", unit="steps")
            Predict: How many steps? (a number of steps)
            >>> steps.keep(20)
            >>> steps.reveal(23, within=2)
            ✗ You predicted 20 steps. It was 23 steps.
        """
        asked = f"reveal({answer!r})"
        answer = self.question.read(answer, asked=asked)
        read = self.question.read_words(words or {}, asked=asked)
        self._settle(answer, within)
        if self.guess is None:
            self._show_answer(answer, read, within)
        else:
            mark = "✓" if self.came_true else "✗"
            markdown, plain = compared(self.question, self.guess, answer, read, within)
            show(f"{mark} {markdown}", f"{mark} {plain}")

    def _recall(self, guess: str | None) -> None:
        """Takes over what an earlier kernel was told, if the question still has that answer."""
        by_label = {_label(choice): choice for choice in self.question.choices}
        with contextlib.suppress(InvalidArgument):
            self.guess = self.question.read(by_label.get(str(guess), guess), asked="recall")

    def _show(self) -> None:
        if not can_answer():
            show(*with_choices(self.question))
            return
        try:
            self._control = Control(self)
        except ModuleNotFoundError as error:  # a base install, in a notebook
            markdown, plain = with_choices(self.question)
            cure = f"To answer here: {explain_missing(str(error.name)).do}"
            show(f"{markdown}\n\n{cure}", f"{plain}\n{cure}")
            return
        from IPython.display import display

        show(*in_words(self.question))
        self._place = display(self._control.bundle, raw=True, display_id=True)

    def _settle(self, answer: Answer, within: float) -> None:
        """Compares what is chosen, if anything is, and puts text in the place of the control."""
        self.answer = answer
        if self.guess is None:
            return
        if self._control is not None and self.came_true is None:
            self._place.update(text_bundle(*as_predicted(self.question, self.guess)), raw=True)
            self._control.close()
        self.came_true = agree(self.guess, answer, within)

    def _show_answer(self, answer: Answer, words: Mapping[Answer, str], within: float) -> None:
        markdown, plain = revealed(self.question, answer, words, within)
        if can_answer():
            markdown, plain = f"{_UNANSWERED}\n\n{markdown}", f"{_UNANSWERED}\n{plain}"
        show(markdown, plain)


_UNANSWERED = "Not yet answered. Answer the question above, then run this cell again."
_VIEW = "application/vnd.jupyter.widget-view+json"


class Control:
    """A button for each choice, or a box for a number; what is chosen there is kept at once."""

    def __init__(self, prediction: Prediction) -> None:
        import ipywidgets

        self._prediction = prediction
        question = prediction.question
        self._answer = _answer_widget(ipywidgets, question, prediction.guess)
        self._answer.observe(lambda _: self._take(), names="value")
        self._status = ipywidgets.Label()
        unit = [ipywidgets.Label(question.unit)] if question.unit else []
        row = ipywidgets.HBox([self._answer, *unit])
        self._box = ipywidgets.VBox([row, self._status])
        self._say()

    @property
    def bundle(self) -> dict[str, Any]:
        """The control as an output, with the choices as text where there are no widgets."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self._box.model_id}
        return {_VIEW: view, **text_bundle(*offered(self._prediction.question))}

    def close(self) -> None:
        """Takes the control away, so that nothing more can be kept."""
        self._box.close()

    def _take(self) -> None:
        self._prediction.guess = None
        if not self._answer.value:
            self._say()
            return
        try:
            self._prediction.keep(self._answer.value)
        except InvalidArgument as error:  # what was typed is no number
            self._status.value = f"{error.found}: {error.do}"
        else:
            self._say()

    def _say(self) -> None:
        guess, question = self._prediction.guess, self._prediction.question
        if guess is not None:
            kept = _label(question.said(guess))
            until = "You can change it until the answer."
            if self._prediction.answer is not None:
                until = "Run the cell with the answer again."
            self._status.value = f"Your prediction: {kept}. {until}"
        elif question.choices:
            self._status.value = "Choose an answer."
        else:
            self._status.value = "Type a number, then press Enter."


def _answer_widget(ipywidgets: Any, question: Question, guess: Answer | None) -> Any:
    if not question.choices:
        start = "" if guess is None else f"{guess:g}"
        return ipywidgets.Text(
            start,
            placeholder="a number",
            tooltip="Your prediction, a number",
            continuous_update=False,  # what is typed is sent whole, before the next cell runs
            layout={"width": "10em"},
        )
    labels = [(_label(choice), choice) for choice in question.choices]
    # Not radio buttons: JupyterLab takes the arrow keys, which move among them, for its cells.
    return ipywidgets.ToggleButtons(
        options=labels, value=guess, style={"button_width": "max-content"}
    )


def _label(markdown: str) -> str:
    """A label shows no Markdown, so the marks of code would be in the way."""
    return markdown.replace("`", "")


def recap() -> None:
    """Says how many predictions came true, and which to think about again.

    What you predicted before you saw an answer for the first time counts.
    """
    predictions = list(_asked.values())
    if not predictions:
        text = "Nothing was asked yet. Run the cells above first."
    elif can_answer() or any(prediction.guess is not None for prediction in predictions):
        text = _counted(predictions)
    else:
        text = (
            "In your own copy, this cell says how many of your predictions came true, and which "
            "to think about again."
        )
    show(text, text.replace("*", ""))


def is_recap(text: str) -> bool:
    """Whether a plain text is what `recap` says of predictions, so that they were asked before."""
    return bool(re.match(r"(\d+ of \d+ predictions came true|Not yet answered: \d+)\.", text))


def _counted(predictions: list[Prediction]) -> str:
    answered = [prediction for prediction in predictions if prediction.guess is not None]
    wrong = [prediction for prediction in answered if not prediction.came_true]
    left = [prediction for prediction in predictions if prediction.guess is None]
    parts = []
    if answered:
        right = len(answered) - len(wrong)
        more = " Think about these again:" if wrong else ""
        parts.append(f"**{right} of {len(answered)} predictions came true.**{more}")
        parts += ["\n".join(map(_line, wrong))] if wrong else []
    if left:
        parts.append(f"**Not yet answered: {len(left)}.**")
        parts.append("\n".join(f"- {prediction.question.text}" for prediction in left))
    return "\n\n".join(parts)


def _line(prediction: Prediction) -> str:
    question, guess, answer = prediction.question, prediction.guess, prediction.answer
    assert guess is not None
    if answer is None:
        return f"- {question.text} The answer was not shown yet."
    return (
        f"- {question.text} {as_predicted(question, guess)[0]} It was **{question.said(answer)}**."
    )
