"""The control with which a reader answers a question: ipywidgets, moved by mouse or keyboard.

control = Control(question, keep=prediction.keep)
control.bundle                               # an output for IPython's display(..., raw=True)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distlab.errors import InvalidArgument
from distlab.predictions import wording
from distlab.predictions.frontend import text_bundle
from distlab.predictions.question import Question

_VIEW = "application/vnd.jupyter.widget-view+json"


class Control:
    """A button for each choice or a box for a number, and a button that keeps the answer."""

    def __init__(self, question: Question, keep: Callable[[Any], None]) -> None:
        import ipywidgets

        self._question, self._keep = question, keep
        self._answer = _answer_widget(ipywidgets, question)
        self._said = ipywidgets.Label()
        button = ipywidgets.Button(description="Keep my prediction", layout={"width": "auto"})
        button.on_click(lambda _: self._keep_it())
        unit = [ipywidgets.Label(question.unit)] if question.unit else []
        row = ipywidgets.HBox([self._answer, *unit])
        self._box = ipywidgets.VBox([row, ipywidgets.HBox([button, self._said])])

    @property
    def bundle(self) -> dict[str, Any]:
        """The control as an output, with the choices as text where there are no widgets."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self._box.model_id}
        return {_VIEW: view, **text_bundle(*wording.offered(self._question))}

    def chosen(self) -> Any:
        """Returns what is chosen and perhaps not kept; None for nothing."""
        return self._answer.value or None

    def close(self) -> None:
        """Takes the control away, so that nothing more can be kept."""
        self._box.close()

    def _keep_it(self) -> None:
        if self.chosen() is None:
            self._said.value = "Choose an answer first." if self._question.choices else _NUMBER
            return
        try:
            self._keep(self.chosen())
        except InvalidArgument as error:
            self._said.value = f"{error.found}: {error.do}"
        else:
            said = _label(self._question.said(self._question.read(self.chosen(), asked="keep")))
            self._said.value = f"Kept: {said}. You can change it until you see the answer."


_NUMBER = "Type a number first."


def _answer_widget(ipywidgets: Any, question: Question) -> Any:
    if not question.choices:
        return ipywidgets.Text(placeholder="a number", layout={"width": "10em"})
    labels = [(_label(choice), choice) for choice in question.choices]
    # Not radio buttons: JupyterLab takes the arrow keys, which move among them, for its cells.
    return ipywidgets.ToggleButtons(
        options=labels, value=None, style={"button_width": "max-content"}
    )


def _label(markdown: str) -> str:
    """A label shows no Markdown, so the marks of code would be in the way."""
    return markdown.replace("`", "")
