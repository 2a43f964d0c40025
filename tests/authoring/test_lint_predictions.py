"""Each rule of predictions: a good notebook passes, one that breaks just this rule does not."""

from pathlib import Path

from nbformat import v4

from distlab.authoring.lint.lint import lint_notebook
from distlab.authoring.prediction_cells import REVEAL_LINE, fold_cells
from distlab.authoring.source import Page, draft_page

ASK = 'guess = dl.predict("How many copies?", ["one copy", "two copies"])'
RUN = "copies = count()"
REVEAL = 'guess.reveal("two copies", {"one copy": "Then it would be shared."})'
ANSWER = v4.new_output("display_data", data={"text/plain": "Answer: two copies\n  one copy: ..."})


def text(source):
    return v4.new_markdown_cell(source)


def code(source, *tags):
    cell = v4.new_code_cell(source, metadata={"tags": list(tags)} if tags else {})
    if "reveal" in tags:
        cell.outputs = [ANSWER]
    return cell


def findings(*cells, fold=True):
    """What is found in a lesson of these cells, as the builder folds and runs it."""
    if fold:
        fold_cells(cells)
    opening = text("# Copies\n\nSoon you can\n\n- count.\n\nYou need 5 to 10 minutes.")
    closing = text("## Check yourself\n## Next steps")
    notebook = v4.new_notebook(
        cells=[opening, text("## One"), *cells, closing],
        metadata={"distlab": {"minutes": [5, 10]}},
    )
    for count, cell in enumerate([c for c in notebook.cells if c.cell_type == "code"], 1):
        cell.execution_count = count
    return [str(each) for each in lint_notebook(notebook, edition="lesson", root=Path())]


def prediction(*middle, ask=ASK, reveal=REVEAL, end="recap()"):
    experiment = middle or (code(RUN),)
    return [code(ask, "predict"), *experiment, code(reveal, "reveal"), code(end)]


def without_tag(index):
    cells = prediction()
    cells[index].metadata = {}
    return cells


def test_good_predictions_pass():
    computed = 'guess.reveal(f"{copies} copies", {"one copy": f"Then {copies} would be 1."})'
    number = 'guess = dl.predict("How many?", unit="steps")'
    comparison = code('dl.show("copies", copies, expected=2)')
    for cells in (
        [*prediction(), comparison, text("Two copies, then.")],
        prediction(code("%%workers\ncopies = 2"), code("files = !ls")),
        prediction(reveal=computed),
        prediction(ask=number, reveal="guess.reveal(n)"),
    ):
        assert findings(*cells) == []


def test_the_builder_folds_experiments_answers_and_side_issues_in_each_edition(tmp_path):
    folder = tmp_path / "distlab/course/lesson_00_a"
    folder.mkdir(parents=True)
    source = (
        f'# %% tags=["predict"]\n{ASK}\n\n# %%\n{RUN}\n\n# %% tags=["reveal"]\n{REVEAL}\n'
        '\n# %%\nrecap()\n\n# %% tags=["hide-input"]\naside = 1\n'
    )
    for name in ("lesson.py", "exercise.py"):
        (folder / name).write_text(source)
    for edition in ("lesson", "exercise", "solution"):
        ask, run, reveal, end, aside = draft_page(Page(tmp_path, "00_a", edition)).notebook.cells
        assert ask.metadata == {"tags": ["predict", "hide-input"]}
        assert run.metadata == {"tags": ["hide-output"], "jupyter": {"outputs_hidden": True}}
        folded = {"tags": ["reveal", "hide-input"], "jupyter": {"source_hidden": True}}
        assert (reveal.metadata, reveal.source) == (folded, f"{REVEAL_LINE}\n{REVEAL}")
        assert end.metadata == {}
        assert aside.metadata == {"tags": ["hide-input"], "jupyter": {"source_hidden": True}}


def test_questions_that_overlap_stay_to_be_seen():
    cells = [
        *(code(ASK, "predict"), code(ASK.replace("guess", "other"), "predict"), code(RUN)),
        *(code(REVEAL, "reveal"), code(REVEAL.replace("guess", "other"), "reveal")),
    ]
    fold_cells(cells)
    folded = [("outputs_hidden" in cell.metadata.get("jupyter", {})) for cell in cells]
    assert folded == [False, False, True, False, False]


NEVER = "'guess' is revealed {} times; a later cell must, once"
BROKEN = (
    (without_tag(0), "3: calls predict and is not tagged 'predict'"),
    (without_tag(2), "5: calls reveal and is not tagged 'reveal'"),
    ([code(RUN, "predict")], "3: is tagged 'predict' and calls none"),
    ([code(ASK.removeprefix("guess = "), "predict")], "3: assigns its question to no name"),
    ([code(ASK, "predict"), *prediction()], "3: 'guess' is the name of two questions"),
    ([code(ASK, "predict")], f"3: {NEVER.format(0)}"),
    ([*prediction(), code(REVEAL, "reveal"), code("recap()")], f"3: {NEVER.format(2)}"),
    ([code(REVEAL, "reveal"), code(ASK, "predict"), code("recap()")], "4: 'guess' is revealed bef"),
    (prediction(code("dl.show('copies', 2, below=2)")), "4: 'below=' answers 'guess' too early"),
    (prediction(text("There are Two copies.")), "4: says the answer of 'guess' too early"),
    ([text("## Why two copies"), *prediction()], "3: its heading says the answer of 'guess'"),
    (prediction(reveal='guess.reveal("two copies")'), "5: no word to 'one copy' of 'guess'"),
    (
        prediction(end="copies"),
        "5: no cell behind it calls recap(), from distlab.course.predictions",
    ),
    (
        [code(RUN, "after-reveal"), *prediction()],
        "3: is tagged 'after-reveal', and no cell before it reveals an answer",
    ),
)


def test_each_rule_that_is_broken_is_named():
    wrong = []
    for cells, expected in BROKEN:
        first, *_ = findings(*cells) or [""]
        wrong += [] if first.startswith(f"cell {expected}") else [(expected, first)]
    assert wrong == []
    assert findings(*prediction(), fold=False) == ["cell 4: shows the outputs that answer 'guess'"]
