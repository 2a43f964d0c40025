"""Every prediction of the course, answered in a real browser by a reader without a mouse."""

from __future__ import annotations

import nbformat
import pytest
from nbformat import v4
from playwright.sync_api import TimeoutError, expect

from distlab.authoring.notebook_text import tags_of
from distlab.authoring.prediction_cells import between, fold_cells, pairs
from distlab.course.predictions.question import agree
from tests.support.browser import open_browser, open_lab, open_page
from tests.support.notebook_page import PANEL, cells, open_alone, open_notebook
from tests.support.repository import ROOT
from tools.site_notebooks import read_back, stored, tolerance_of


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The learner's folder, the address of a JupyterLab in it, and a browser."""
    folder = tmp_path_factory.mktemp("lab") / "mine"
    with open_browser() as browser, open_lab(folder) as address:
        yield folder, address, browser


def predictions_of(lesson):
    """Yields a lesson's predictions: the question, and cells that need nothing of the lesson.

    Instead of its experiment there is a comment, and the answer is the one that is stored.
    """
    shown = nbformat.read(lesson, as_version=4).cells
    for asked, answered in pairs(shown):
        question, answer, words = read_back(stored(shown[asked.cell]), stored(shown[answered.cell]))
        within = tolerance_of(answered)
        made = [v4.new_code_cell(shown[asked.cell].source, metadata={"tags": ["predict"]})]
        for _, cell in between(shown, asked, answered):
            is_code = cell.cell_type == "code"
            new = v4.new_code_cell if is_code else v4.new_markdown_cell
            made.append(new("# the experiment" if is_code else cell.source))
        reveal = f"{asked.name}.reveal({answer!r}, {words!r}, within={within!r})"
        made.append(v4.new_code_cell(reveal, metadata={"tags": ["reveal"]}))
        after = shown[answered.cell + 1 :]
        for cell in after:
            if "after-reveal" not in tags_of(cell):
                break
            made.append(v4.new_markdown_cell(cell.source, metadata={"tags": ["after-reveal"]}))
        yield question, answer, within, made


def write_predictions(path, lessons):
    """Writes a notebook of the predictions of these lessons, and returns them with their places."""
    written = [v4.new_code_cell("import distlab as dl")]
    asked = []
    for lesson in lessons:
        for question, answer, within, made in predictions_of(lesson):
            reveal = next(at for at, cell in enumerate(made) if "reveal" in tags_of(cell))
            place = len(written)
            written += made
            asked.append((question, answer, within, place, place + reveal, len(written)))
    fold_cells(written)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(v4.new_notebook(cells=written, metadata=kernel), path)
    return asked


# The page looks at each frame, whereas `expect` looks once a second, twice for each question.
HAS_KEYBOARD = """([panel, place]) => {
    const cell = document.querySelectorAll(`${panel} .jp-Cell`)[place];
    return cell.querySelector('.widget-vbox :is(button, input)')?.matches(':focus');
}"""
IN_SIGHT = """([panel, place, said]) => {
    const cell = document.querySelectorAll(`${panel} .jp-Cell`)[place];
    const text = cell.querySelector('.jp-OutputArea-output p');
    if (!text?.textContent.startsWith(said)) return false;
    const [part, whole] = [text, cell.closest('.jp-Notebook')].map(
        node => node.getBoundingClientRect());
    return part.top >= whole.top && part.bottom <= whole.bottom;
}"""


def wait_until(page, condition, place, *further):
    try:
        page.wait_for_function(condition, arg=[PANEL, place, *further])
    except TimeoutError as error:
        raise AssertionError(f"{condition}: {cells(page).nth(place).inner_text()}") from error


def answer_by_keyboard(page, asked, number):
    """Answers a question whose cell is selected, and goes on to the next question."""
    question, answer, within, place, reveal, following = asked
    page.keyboard.press("Shift+Enter")
    wait_until(page, HAS_KEYBOARD, place)
    if question.choices:
        chosen = number % len(question.choices)  # a different one from question to question
        guess = question.choices[chosen]
        for _ in range(chosen):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
    else:
        guess = answer + number % 2
        page.keyboard.type(f"{guess:g}")
    for _ in range(place, reveal + 1):
        page.keyboard.press("Shift+Enter")
    mark = "✓" if agree(guess, answer, within) else "✗"
    wait_until(page, IN_SIGHT, reveal, f"{mark} You predicted ")
    for conclusion in range(reveal + 1, following):
        expect(cells(page).nth(conclusion)).to_be_visible()
        page.keyboard.press("Shift+Enter")


def test_every_prediction_of_the_course_is_answered_by_keyboard_alone(lab):
    folder, address, browser = lab
    lessons = sorted((ROOT / "notebooks").glob("*.ipynb"))
    count = 0
    for half, part in enumerate((lessons[:9], lessons[9:])):
        name = f"notebooks/predictions-{half}.ipynb"
        asked = write_predictions(folder / name, part)
        with open_page(browser) as page:
            open_notebook(page, address, name)
            page.keyboard.press("Shift+Enter")
            for number, each in enumerate(asked):
                answer_by_keyboard(page, each, number)
        count += len(asked)
    assert count == 91


def test_predictions_are_answered_by_keyboard_in_notebook_7_too(lab):
    folder, address, browser = lab
    name = "notebooks/predictions-alone.ipynb"
    asked = write_predictions(folder / name, [ROOT / "notebooks/00_start_here.ipynb"])
    with open_page(browser) as page:
        open_alone(page, address, name)
        page.keyboard.press("Shift+Enter")
        for number, each in enumerate(asked):
            answer_by_keyboard(page, each, number)
