"""Every prediction of the course, answered by keyboard in a real browser, and answered badly."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbformat import v4
from playwright.sync_api import TimeoutError, expect

from distlab.authoring.notebook_text import tags_of
from distlab.authoring.prediction_cells import between, fold_cells, pairs
from distlab.course.predictions.question import agree
from tests.support.browser import LIMIT_MILLISECS, open_browser, open_lab, open_page
from tests.support.notebook_page import (
    PANEL,
    cells,
    choose,
    open_alone,
    open_notebook,
    run,
    source_of,
)
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
    write_notebook(path, written)
    return asked


def write_notebook(path, written):
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(v4.new_notebook(cells=written, metadata=kernel), path)


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
    for third, part in enumerate((lessons[:8], lessons[8:15], lessons[15:])):
        name = f"notebooks/predictions-{third}.ipynb"
        asked = write_predictions(folder / name, part)
        with open_page(browser) as page:
            thrown = []
            page.on("pageerror", lambda error, thrown=thrown: thrown.append(error.stack))
            open_notebook(page, address, name)
            page.keyboard.press("Shift+Enter")
            for number, each in enumerate(asked):
                answer_by_keyboard(page, each, number)
        assert thrown == []
        count += len(asked)
    assert count == 103


def test_predictions_are_answered_by_keyboard_in_notebook_7_too(lab):
    folder, address, browser = lab
    name = "notebooks/predictions-alone.ipynb"
    asked = write_predictions(folder / name, [ROOT / "notebooks/00_start_here.ipynb"])
    with open_page(browser) as page:
        open_alone(page, address, name)
        page.keyboard.press("Shift+Enter")
        for number, each in enumerate(asked):
            answer_by_keyboard(page, each, number)


# As the course wrote notebooks before their cells had tags.
OLDER = [
    'import distlab as dl\ncopies = dl.predict("How many copies?", ["one", "two"])',
    'copies.reveal("two")',
    'steps = dl.predict("How many steps?", unit="steps")',
    "steps.reveal(90)",
    "import os\nos._exit(1)",
]

# From the first of two choices: none of them leaves the question, at its ends either.
ARROWS = [("ArrowUp", "one"), ("ArrowRight", "two"), ("ArrowDown", "two"), ("ArrowLeft", "one")]
ARROWS += [("ArrowDown", "two")]


def test_no_key_too_early_too_long_or_wrong_loses_a_prediction(lab):
    folder, address, browser = lab
    name = "notebooks/older.ipynb"
    write_notebook(folder / name, [v4.new_code_cell(source) for source in OLDER])
    ask, reveal, ask_number, reveal_number, crash = range(5)
    with open_page(browser) as page:
        held = []

        def hold_the_kernel(route):
            if route.request.method == "POST":
                held.append(route)
            else:
                route.continue_()

        page.route("**/api/sessions?*", hold_the_kernel)
        page.goto(re.sub(r"/lab(/tree/[^?]*)?\?", f"/lab/tree/{name}?reset&", address))
        source_of(page, ask).click()
        for _ in range(3):  # there is no kernel yet
            page.keyboard.press("Shift+Enter")
        expect(cells(page).nth(ask)).to_contain_text("Python starts, and then runs this cell.")
        for _ in range(LIMIT_MILLISECS // 50):
            if not held:
                page.wait_for_timeout(50)  # in which the browser's requests are looked at
        (kernel,) = held
        kernel.continue_()
        wait_until(page, HAS_KEYBOARD, ask)
        expect(page.locator(".jp-Dialog")).to_have_count(0)
        control = cells(page).nth(ask).locator(".widget-vbox")
        page.keyboard.down("Shift")
        page.keyboard.press("Enter")
        for _ in range(20):
            page.keyboard.down("Enter")  # and never up: the key repeats
        page.keyboard.up("Enter")
        page.keyboard.up("Shift")
        expect(control).to_contain_text("Not yet answered.")
        expect(cells(page).nth(reveal).locator(".jp-OutputArea-output")).to_have_count(0)
        one, two = (control.get_by_role("button", name=name) for name in ("one", "two"))
        one.focus()
        for key, focused in ARROWS:
            page.keyboard.press(key)
            expect({"one": one, "two": two}[focused]).to_be_focused()
        page.keyboard.press("Enter")
        for _ in (ask, reveal):
            page.keyboard.press("Shift+Enter")
        wait_until(page, IN_SIGHT, reveal, "✓ You predicted it")

        page.keyboard.press("Shift+Enter")
        wait_until(page, HAS_KEYBOARD, ask_number)
        control = cells(page).nth(ask_number).locator(".widget-vbox")
        for typed in ("0,5", "1e400", "many"):
            control.get_by_role("textbox").click()  # nothing lies on it
            page.keyboard.press("Control+A")
            page.keyboard.type(typed)
            page.keyboard.press("Shift+Enter")
            expect(control).to_contain_text(f"'{typed}' is not a number: write digits only")
            expect(control.get_by_role("alert")).to_contain_text("Not yet answered.")
            wait_until(page, HAS_KEYBOARD, ask_number)
        page.keyboard.type("abc")  # in place of what was wrong, which is selected
        page.keyboard.press("Enter")
        expect(control).to_contain_text("'abc' is not a number: write digits only")
        page.keyboard.type("45")
        page.keyboard.press("Enter")
        expect(control).to_contain_text("Your prediction: 45 steps.")
        expect(control.get_by_role("textbox")).not_to_be_focused()

        run(page, crash, waits=False)
        page.locator(".jp-Dialog .jp-mod-accept").click()  # it says that the kernel has died
        source_of(page, reveal_number).click()
        choose(page, "Run", "Run All Above Selected Cell")
        expect(control).to_contain_text("Your prediction: 45 steps.")
        source_of(page, reveal_number).click()
        page.keyboard.press("Shift+Enter")
        wait_until(page, IN_SIGHT, reveal_number, "✗ You predicted 45 steps. It was 90 steps.")


def test_on_a_phone_the_panel_leaves_the_page_to_the_reader(lab):
    _, address, browser = lab
    with open_page(browser, viewport={"width": 390, "height": 844}) as page:
        page.goto(address)
        start = page.locator(".jp-MarkdownViewer .distlab-start")
        expect(page.locator(".distlab-course")).to_be_hidden()
        expect(start).to_be_in_viewport(ratio=1)
        start.click()
        expect(page.locator(f"{PANEL} .jp-Notebook p").first).to_be_in_viewport()
        overflow = "node => node.scrollWidth - node.clientWidth"
        assert page.locator(f"{PANEL} .jp-Notebook p").first.evaluate(overflow) <= 0
