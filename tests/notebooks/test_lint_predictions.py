"""Each rule of predictions: a good notebook passes, one that breaks just this rule does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import NotebookNode, v4

from distlab.notebooks.lint import lint_notebook
from distlab.notebooks.prediction_cells import REVEAL_LINE, fold_answers
from distlab.notebooks.source import Page, draft_page

ASK = 'guess = dl.predict("How many copies?", ["one copy", "two copies"])'
RUN = "copies = count()"
REVEAL = 'guess.reveal("two copies", {"one copy": "Then it would be shared."})'
ANSWER = v4.new_output("display_data", data={"text/plain": "Answer: two copies\n  one copy: ..."})


def text(source: str) -> NotebookNode:
    return v4.new_markdown_cell(source)


def code(source: str, *tags: str) -> NotebookNode:
    cell = v4.new_code_cell(source, metadata={"tags": list(tags)} if tags else {})
    if "reveal" in tags:
        cell.outputs = [ANSWER]
    return cell


def built(*cells: NotebookNode) -> NotebookNode:
    """A lesson of these cells, as the builder folds and runs it."""
    fold_answers(cells)
    opening = [text("# Copies"), text("## Overview")]
    notebook = v4.new_notebook(cells=[*opening, *cells, text("## Check yourself\n## Next steps")])
    for count, cell in enumerate([c for c in notebook.cells if c.cell_type == "code"], 1):
        cell.execution_count = count
    return notebook


def findings(*cells: NotebookNode) -> list[str]:
    notebook = built(*cells)
    return [str(found) for found in lint_notebook(notebook, edition="lesson", root=Path())]


def prediction(
    *middle: NotebookNode, ask: str = ASK, reveal: str = REVEAL, end: str = "recap()"
) -> list[NotebookNode]:
    experiment = middle or (code(RUN),)
    return [code(ask, "predict"), *experiment, code(reveal, "reveal"), code(end)]


def test_a_good_prediction_passes():
    comparison = code('dl.show("copies", copies, expected=2)')
    assert findings(*prediction(), comparison, text("Two copies, then.")) == []
    assert findings(*prediction(code("%%workers\ncopies = 2"), code("files = !ls"))) == []


def test_an_answer_that_is_computed_passes():
    computed = 'guess.reveal(f"{copies} copies", {"one copy": f"Then {copies} would be 1."})'
    assert findings(*prediction(reveal=computed)) == []
    number = prediction(
        ask='guess = dl.predict("How many?", unit="steps")', reveal="guess.reveal(n)"
    )
    assert findings(*number) == []


def test_experiments_and_answers_are_folded():
    ask, run, reveal, _ = cells = prediction()
    fold_answers(cells)
    assert ask.metadata == {"tags": ["predict", "hide-input"]}
    assert run.metadata == {"tags": ["hide-output"], "jupyter": {"outputs_hidden": True}}
    folded = {"tags": ["reveal", "hide-input"], "jupyter": {"source_hidden": True}}
    assert (reveal.metadata, reveal.source) == (folded, f"{REVEAL_LINE}\n{REVEAL}")
    assert cells[-1].metadata == {}


def test_questions_that_overlap_stay_to_be_seen():
    cells = [
        *(code(ASK, "predict"), code(ASK.replace("guess", "other"), "predict"), code(RUN)),
        *(code(REVEAL, "reveal"), code(REVEAL.replace("guess", "other"), "reveal")),
    ]
    fold_answers(cells)
    assert [("outputs_hidden" in c.metadata.get("jupyter", {})) for c in cells] == [
        *(False, False, True, False, False)
    ]


@pytest.mark.parametrize("edition", ["lesson", "exercise", "solution"])
def test_the_builder_folds_in_each_edition(tmp_path: Path, edition: str):
    folder = tmp_path / "lessons" / "00_a"
    folder.mkdir(parents=True)
    source = f'# %% tags=["predict"]\n{ASK}\n\n# %%\n{RUN}\n\n# %% tags=["reveal"]\n{REVEAL}\n'
    for name in ("lesson.py", "exercise.py"):
        (folder / name).write_text(source)
    ask, run, reveal = draft_page(Page(tmp_path, "00_a", edition)).notebook.cells
    assert ask.metadata.tags == ["predict", "hide-input"]
    assert run.metadata == {"tags": ["hide-output"], "jupyter": {"outputs_hidden": True}}
    assert reveal.source.startswith(REVEAL_LINE)


# Each rule, broken once


def test_a_prediction_in_a_text_is_found():
    assert findings(text("**Predict:** how many?"), text("We predict **it**.")) == [
        "cell 3: '**Predict' in a text; ask with dl.predict, which keeps the answer"
    ]


def test_a_question_without_its_tag_is_found():
    cells = prediction()
    cells[0].metadata = {}
    assert findings(*cells) == ["cell 3: calls predict and is not tagged 'predict'"]


def test_an_answer_without_its_tag_is_found():
    cells = prediction()
    cells[2].metadata = {}
    (found,) = findings(*cells)
    assert found == "cell 5: calls reveal and is not tagged 'reveal'"


@pytest.mark.parametrize("tag", ["predict", "reveal"])
def test_a_tag_without_its_call_is_found(tag: str):
    assert findings(code(RUN, tag)) == [f"cell 3: is tagged {tag!r} and calls none"]


def test_a_question_without_a_name_is_found():
    cells = [code(ASK.removeprefix("guess = "), "predict")]
    assert findings(*cells) == ["cell 3: assigns its question to no name"]


def test_two_questions_of_one_name_are_found():
    assert findings(code(ASK, "predict"), *prediction()) == [
        f"cell {number}: 'guess' is the name of two questions" for number in (3, 4)
    ]


def test_a_question_that_is_revealed_never_or_twice_is_found():
    never = "'guess' is revealed 0 times; a later cell must, once"
    assert findings(code(ASK, "predict")) == [f"cell 3: {never}"]
    twice = [*prediction(), code(REVEAL, "reveal"), code("recap()")]
    assert findings(*twice) == [f"cell 3: {never.replace('0', '2')}"]


def test_an_answer_before_its_question_is_found():
    assert "cell 4: 'guess' is revealed before; a later cell must, once" in findings(
        code(REVEAL, "reveal"), code(ASK, "predict"), code("recap()")
    )


@pytest.mark.parametrize("word", ["expected", "below"])
def test_a_comparison_before_the_answer_is_found(word: str):
    assert findings(*prediction(code(f"dl.show('copies', 2, {word}=2)"))) == [
        f"cell 4: '{word}=' answers 'guess' too early"
    ]


def test_a_text_that_says_the_answer_is_found():
    assert findings(*prediction(text("There are Two copies."))) == [
        "cell 4: says the answer of 'guess' too early"
    ]


def test_a_heading_that_says_the_answer_is_found_wherever_it_stands():
    assert findings(text("## Why two copies"), *prediction()) == [
        "cell 3: its heading says the answer of 'guess'"
    ]


def test_an_output_that_is_not_folded_is_found():
    notebook = built(*prediction())
    notebook.cells[3].metadata = {}
    (found,) = lint_notebook(notebook, edition="lesson", root=Path())
    assert str(found) == "cell 4: shows the outputs that answer 'guess'"


@pytest.mark.parametrize("reveal", ['guess.reveal("two copies")', "guess.reveal(found, {})"])
def test_a_wrong_choice_without_a_word_is_found(reveal: str):
    (found,) = findings(*prediction(reveal=reveal))
    assert found.startswith("cell 5: no word to 'one copy'")


def test_a_lesson_that_counts_nothing_is_found():
    assert findings(*prediction(end="copies")) == [
        "cell 5: no cell behind it calls recap(), from distlab.predictions"
    ]
