"""Predictions: the texts where no person answers, and the control in a real kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

import distlab as dl
from distlab.course.predictions import Prediction, prediction, recap
from distlab.course.predictions.question import fold
from distlab.errors import InvalidArgument
from tests.support.limits import HANG_SECS

COPIES = "How many copies does each variable have?"
CHOICES = ["outside 1, inside 1", "outside 1, inside 2", "outside 2, inside 2"]
WORDS = {CHOICES[0]: "The scope does something.", CHOICES[2]: "Outside it does nothing."}


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_asked", {})


@pytest.fixture
def copies(capsys: pytest.CaptureFixture[str]) -> Prediction:
    asked = dl.predict(COPIES, CHOICES)
    capsys.readouterr()
    return asked


@pytest.fixture
def steps(capsys: pytest.CaptureFixture[str]) -> Prediction:
    asked = dl.predict("How many steps?", unit="steps")
    capsys.readouterr()
    return asked


# In a terminal


def test_the_question_and_its_choices_are_text(capsys: pytest.CaptureFixture[str]):
    dl.predict(COPIES, CHOICES)
    dl.predict("How many steps?", unit="steps")
    dl.predict("What is the loss?")
    assert capsys.readouterr().out.splitlines() == [
        "Predict: How many copies does each variable have?",
        *("- outside 1, inside 1", "- outside 1, inside 2", "- outside 2, inside 2"),
        "Predict: How many steps? (a number of steps)",
        "Predict: What is the loss? (a number)",
    ]


def test_without_a_prediction_the_answer_has_a_word_to_each_wrong_choice(copies, capsys):
    copies.reveal(CHOICES[1], WORDS)
    assert capsys.readouterr().out.splitlines() == [
        "Answer: outside 1, inside 2",
        "  outside 1, inside 1: The scope does something.",
        "  outside 2, inside 2: Outside it does nothing.",
    ]
    assert copies.came_true is None


def test_a_prediction_is_told_beside_what_happened_with_its_reason(copies, capsys):
    copies.keep(CHOICES[2])
    copies.reveal(CHOICES[1], WORDS | {CHOICES[1]: "The scope makes the copies."})
    assert capsys.readouterr().out.splitlines() == [
        "✗ You predicted outside 2, inside 2. It was outside 1, inside 2.",
        "Outside it does nothing.",
        "The scope makes the copies.",
        "  outside 1, inside 1: The scope does something.",
    ]
    assert copies.came_true is False


def test_a_number_may_be_off_by_so_much(capsys):
    cases = (
        ("90", 0, "✓ You predicted it: 90 steps.\nOne a batch.", True),
        (" 92 ", 5, "✓ You predicted 92 steps. It was 90 steps. That is close enough.", True),
        (45.0, 0, "✗ You predicted 45 steps. It was 90 steps.\nHalf of it.", False),
        (46, 2, "✗ You predicted 46 steps. It was 90 steps.\nHalf of it.", False),
        (0.5, 2, "✗ You predicted 0.5 steps. It was 90 steps.\nOne a batch.", False),
    )
    for guess, within, said, came_true in cases:
        steps = dl.predict("How many steps?", unit="steps")
        steps.keep(guess)
        capsys.readouterr()
        steps.reveal(90, {45: "Half of it.", 90: "One a batch."}, within=within)
        assert capsys.readouterr().out.startswith(said + "\n"), guess
        assert steps.came_true is came_true, guess


def test_recap_counts_what_was_predicted_before_the_first_look(copies, steps, capsys):
    copies.keep(CHOICES[2])
    copies.reveal(CHOICES[1], WORDS)
    steps.keep(90)
    steps.reveal(90)
    again = dl.predict(COPIES, CHOICES)  # too late to count
    again.keep(CHOICES[1])
    again.reveal(CHOICES[1])
    dl.predict("How long?").reveal(3)
    dl.predict("How wide?")
    dl.predict("How deep?").keep(2)
    capsys.readouterr()
    recap()
    assert capsys.readouterr().out.splitlines() == [
        "1 of 3 predictions came true. Think about these again:",
        "",
        f"- {COPIES} You predicted outside 2, inside 2. It was outside 1, inside 2.",
        "- How deep? The answer was not shown yet.",
        "",
        "Not yet answered: 2.",
        "",
        "- How long?",
        "- How wide?",
    ]


# What is refused


def refusal(call) -> tuple[str, str, str]:
    with pytest.raises(InvalidArgument) as caught:
        call()
    return caught.value.asked, caught.value.found, caught.value.do


def test_questions_that_cannot_be_asked_are_refused():
    for choices in (["a"], [1, "1"]):
        assert refusal(lambda c=choices: dl.predict("Which?", c)) == (
            "predict('Which?')",
            f"choices={[str(choice) for choice in choices]}",
            "pass two or more different choices; to ask for a number, pass none",
        )
    assert (
        refusal(lambda: dl.predict("Which?", ["a", "b"], unit="s"))[1] == "unit='s' beside choices"
    )


def test_what_is_not_among_the_choices_or_no_number_is_refused(copies, steps):
    wrong, right = "outside 1 inside 2", CHOICES[1]
    problem = f"{wrong!r} is not a choice of 'How many copies does each variable have?'"
    do = f"did you mean {right!r}? Or choose one of " + ", ".join(map(repr, CHOICES))
    assert refusal(lambda: copies.keep(wrong)) == (f"keep({wrong!r})", problem, do)
    assert refusal(lambda: copies.reveal(wrong)) == (f"reveal({wrong!r})", problem, do)
    words = refusal(lambda: copies.reveal(right, {wrong: "a word"}))
    assert words == (f"reveal({right!r})", problem, do)
    assert (copies.guess, copies.answer) == (None, None)
    for text in ("ninety", "1,000", "nan", None):
        assert refusal(lambda t=text: steps.keep(t))[1:] == (
            f"{text!r} is not a number",
            "write digits only, as in 1000 or 0.25",
        )


def test_a_question_stays_open_until_what_was_predicted_is_compared(copies):
    copies.reveal(CHOICES[1], WORDS)
    copies.keep(CHOICES[0])
    copies.reveal(CHOICES[1], WORDS)
    assert copies.came_true is False
    assert refusal(lambda: copies.keep(CHOICES[1])) == (
        "keep('outside 1, inside 2')",
        "the answer has been shown already",
        "run the question's cell again to predict again",
    )


# In a real kernel


@pytest.fixture(scope="module")
def kernel() -> Iterator[BlockingKernelClient]:
    manager, client = start_new_kernel(kernel_name="python3")
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


class Cell:
    """A cell that was run: what it shows, and the widgets that it made."""

    def __init__(self, client: BlockingKernelClient, code: str, *, person: bool) -> None:
        self._client = client
        self.shown: list[dict[str, str]] = []
        self.updates: list[dict[str, str]] = []
        self.widgets: dict[str, tuple[str, dict[str, object]]] = {}
        self.printed = ""
        reply = client.execute_interactive(
            code, allow_stdin=person, output_hook=self._take, timeout=HANG_SECS
        )
        assert reply["content"]["status"] == "ok", reply["content"]

    def _take(self, message: dict[str, object]) -> None:
        content = message["content"]
        if message["msg_type"] == "display_data":
            self.shown.append(content["data"])
        elif message["msg_type"] == "update_display_data":
            self.updates.append(content["data"])
        elif message["msg_type"] == "stream":
            self.printed += content["text"]
        elif message["msg_type"] == "comm_open":
            state = content["data"]["state"]
            self.widgets[str(state["_model_name"])] = (content["comm_id"], state)

    def send(self, model: str, **data: object) -> None:
        """Does what a front end does when a widget is moved."""
        content = {"comm_id": self.widgets[model][0], "data": data}
        self._client.shell_channel.send(self._client.session.msg("comm_msg", content))

    @property
    def markdown(self) -> list[str]:
        return [data["text/markdown"] for data in self.shown]


ASK = f"import distlab as dl; guess = dl.predict({COPIES!r}, {CHOICES!r})"
REVEAL = f"guess.reveal({CHOICES[1]!r}, {WORDS!r})"
LISTED = "- outside 1, inside 1\n- outside 1, inside 2\n- outside 2, inside 2"
BOTH_WORDS = "\n".join(f"- *{choice}*: {word}" for choice, word in WORDS.items())


def test_where_no_person_answers_a_kernel_shows_markdown(kernel):
    asked = Cell(kernel, ASK, person=False)
    assert asked.markdown == [f"**Predict:** {COPIES}\n\n{LISTED}"]
    assert asked.widgets == {}
    folded = fold("Answer", f"**outside 1, inside 2**\n\n{BOTH_WORDS}")
    assert Cell(kernel, REVEAL, person=False).markdown == [folded]


def test_a_control_keeps_a_wrong_choice_until_the_answer(kernel):
    asked = Cell(kernel, ASK, person=True)
    assert asked.markdown == [f"**Predict:** {COPIES}", LISTED]
    assert "application/vnd.jupyter.widget-view+json" in asked.shown[1]
    asked.send("ToggleButtonsModel", method="update", state={"index": 2})  # a click is enough
    again = Cell(kernel, ASK, person=True)  # as Shift+Enter does after a click on a choice
    assert again.widgets["ToggleButtonsModel"][1]["index"] == 2
    revealed = Cell(kernel, REVEAL, person=True)
    others = f"- *{CHOICES[0]}*: {WORDS[CHOICES[0]]}"
    assert revealed.markdown == [
        "✗ You predicted *outside 2, inside 2*. It was **outside 1, inside 2**.\n\n"
        f"Outside it does nothing.\n\n{fold('About the other answers', others)}"
    ]
    (left,) = revealed.updates  # in the place of the control, which is locked
    assert left["text/markdown"] == "You predicted *outside 2, inside 2*."
    assert "application/vnd.jupyter.widget-view+json" not in left
    assert Cell(kernel, REVEAL, person=True).markdown == revealed.markdown


def test_a_prediction_in_the_cells_metadata_is_found_by_a_new_kernel(kernel):
    """As JupyterLab's extension writes it: the text of a button, or what was typed."""
    asked = "['`one`', 'two']"
    for number, (stored, choices, guess) in enumerate(
        [
            ({"guess": "one"}, asked, "'`one`'"),
            ({"guess": "three"}, asked, "None"),  # the lesson has other choices by now
            ({"guess": "90"}, "None", "90.0"),
            ({"guess": "ninety"}, "None", "None"),
            ({"guess": [1]}, "None", "None"),
            ("none of ours", "None", "None"),
        ]
    ):
        code = f"""import distlab as dl
get_ipython().get_parent()["metadata"]["distlab"] = {stored!r}
print(repr(dl.predict("Question {number}?", {choices}).guess))"""
        assert Cell(kernel, code, person=True).printed == f"{guess}\n", stored
        again = code.replace(f"Question {number}", f"Nobody {number}")
        assert Cell(kernel, again, person=False).printed == "None\n", stored


def test_without_ipywidgets_the_question_is_text_with_the_cure(kernel):
    hidden = "import sys; kept = sys.modules['ipywidgets']; sys.modules['ipywidgets'] = None"
    asked = Cell(kernel, f"{hidden}\n{ASK}\nsys.modules['ipywidgets'] = kept", person=True)
    cure = 'To answer here: pip install "distlab[lab]"'
    assert asked.markdown == [f"**Predict:** {COPIES}\n\n{LISTED}\n\n{cure}"]
