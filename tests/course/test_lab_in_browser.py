"""A learner's path in a real browser: the course in JupyterLab, an exercise, predictions, views."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbformat import v4
from playwright.sync_api import expect

from distlab.authoring.prediction_cells import REVEAL_LINE, fold_cells
from distlab.course.course_map import read_map
from distlab.course.learner_folder import without_outputs
from tests.support.browser import LIMIT_MILLISECS, open_browser, open_lab, open_page
from tests.support.notebook_page import (
    PANEL,
    answer,
    cells,
    choose,
    has_run,
    open_alone,
    open_notebook,
    output_of,
    predict,
    press,
    run,
    run_hidden,
    source_of,
)
from tests.support.repository import ROOT

EXERCISE = "exercises/00_start_here.ipynb"
COURSE, LESSON = ".distlab-course", ".distlab-course .distlab-lesson"
VIEWER = ".jp-MarkdownViewer:visible"

WRONG = """# task: slices
def split(examples, replicas):
    whole, rest = divmod(examples, replicas)
    return [whole + (replica < rest) for replica in range(replicas)]"""
RIGHT = """# task: slices
def split(examples, replicas):
    piece = math.ceil(examples / replicas)
    return [max(0, min(piece, examples - piece * replica)) for replica in range(replicas)]"""
ENDLESS = """# task: slices
def split(examples, replicas):
    while True:
        pass"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The learner's folder, the address of a JupyterLab in it, and a browser."""
    folder = tmp_path_factory.mktemp("lab") / "mine"
    with open_browser() as browser, open_lab(folder) as address:
        yield folder, address, browser


@pytest.fixture
def page(lab):
    with open_page(lab[2]) as page:
        yield page
        outside = ("http://127.0.0.1:", "data:", "blob:")
        assert [url for url in page.asked if not url.startswith(outside)] == []


def test_the_course_leads_to_a_lesson_and_to_an_exercise_which_is_answered(lab, page):
    folder, address, _ = lab
    data = address.split("/lab")[0] + "/distlab/course"
    assert page.request.get(data).status == 403
    page.goto(address.split("?")[0])  # without its token the server lets nobody in
    expect(page).to_have_url(re.compile("/login"))
    page.goto(address)
    start = page.locator(f"{VIEWER} .distlab-start")
    expect(start).to_have_text("Start lesson 00")
    expect(page.locator(LESSON)).to_have_count(len(read_map(ROOT)))
    assert page.request.get(data).json()["next"] == "notebooks/00_start_here.ipynb"
    first = page.locator(LESSON).first
    expect(first).to_contain_text(re.compile(r"\d+\u2013\d+ min · exercise \d+ min"))
    expect(page.locator(f"{LESSON}.distlab-next")).to_contain_text("Start here")
    page.locator(f"{COURSE} a", has_text="Glossary").click()
    expect(page.locator(f"{VIEWER} h1")).to_contain_text("Glossary")
    page.get_by_role("tab", name="Start").click()
    start.click()
    expect(page.locator(f"{PANEL} .jp-Notebook h1").first).to_contain_text("Start here")
    expect(page.locator(f"{LESSON}.distlab-open")).to_contain_text("Start here")
    expect(page.get_by_text("Jupyter news")).to_have_count(0)
    width_em = "node => node.clientWidth / parseFloat(getComputedStyle(node).fontSize)"
    assert cells(page).locator("p").first.evaluate(width_em) < 45  # about 90 letters in a line

    # The lesson's end leads to the exercise, in the place of "Click to add a cell".
    page.locator(f"{PANEL} .distlab-end a", has_text=re.compile("Exercise 00, \\d+ min")).click()
    expect(cells(page).first.locator("h1")).to_contain_text("Exercise")
    expect(page.locator(f"{PANEL} .distlab-end")).to_have_text(re.compile("Lesson 01"))
    expect(page.locator(".jp-Notebook-footer")).to_have_count(0)
    expect(page.locator(f"{COURSE} [aria-current]")).to_contain_text("exercise")
    expect(page.get_by_role("tab", name="Lesson 00")).to_be_visible()
    expect(page.get_by_role("tab", name="Exercise 00")).to_be_visible()
    task, check = place_of("# task: slices"), place_of('dl.check("slices")')
    try_next = cells(page).nth(check + 1)
    expect(try_next).to_be_hidden()  # it may tell of a solution
    choose(page, "Edit", "Clear Outputs of All Cells")
    expect(page.locator(f"{PANEL} .jp-OutputArea-output")).to_have_count(0)
    idle = page.locator(f"{PANEL} .jp-Notebook-ExecutionIndicator[data-status=idle]")
    expect(idle).to_be_visible()
    run(page, check)  # as after a restart
    note = cells(page).nth(check).get_by_role("status")
    expect(note).to_contain_text("dl is made in a cell above. Choose Run, then Run All Above")
    first_cell = place_of("import tensorflow as tf")
    source_of(page, first_cell).click()
    page.keyboard.press("Control+Enter")
    loading = cells(page).nth(first_cell).get_by_role("status")
    expect(loading).to_contain_text("TensorFlow loads")
    has_run(page, first_cell)
    expect(loading).to_have_count(0)
    for cell in (task, check):
        run(page, cell)
    expect(output_of(page, check)).to_contain_text("slices: not started (0 of 2 points)")
    # What TensorFlow says while it loads is not what a reader came for.
    for kind in ("error", "stderr"):
        kinds = f"{PANEL} [data-mime-type='application/vnd.jupyter.{kind}']"
        expect(page.locator(kinds)).to_have_count(0)
    answer(page, task, WRONG)
    run(page, check)
    expect(output_of(page, check)).to_contain_text("slices: not yet")
    expect(output_of(page, check)).to_contain_text("What this looks like")
    # A save that is slow to answer, while the next check asks for another: nobody else has saved.
    held = []

    def hold_the_first(route):
        if route.request.method == "PUT" and not held:
            held.append((route, route.fetch()))
        else:
            route.continue_()

    page.route("**/api/contents/exercises/*", hold_the_first)
    run(page, check)
    for _ in range(LIMIT_MILLISECS // 50):
        if not held:
            page.wait_for_timeout(50)  # in which the browser's requests are looked at
    run(page, check)
    ((route, written),) = held
    route.fulfill(response=written)
    # The third failed try links to a section of the lesson, which is open.
    link = output_of(page, check).get_by_role("link")
    section = (link.text_content() or "").partition('" in lesson')[0].strip('"')
    link.click()
    expect(cells(page).get_by_role("heading", name=section)).to_be_in_viewport()
    page.get_by_role("tab", name="Exercise 00").click()
    below = cells(page).nth(check).locator(".jp-Cell-outputArea")
    answer(page, task, "def split(examples, replicas")
    run(page, check)
    expect(below).to_contain_text("ended in SyntaxError, so this judges the split from before it.")
    answer(page, task, ENDLESS)
    source_of(page, check).click()
    page.keyboard.press("Control+Enter")
    expect(below).to_contain_text("Still running, at line 3: while True:")
    page.keyboard.press("Escape")
    for _ in range(2):
        page.keyboard.press("i")  # Kernel, Interrupt
    expect(below).to_contain_text("slices: interrupted (0 of 2 points)")
    expect(below).to_contain_text("line 3 in split: while True:")
    expect(below).not_to_contain_text("Still running")
    expect(below).not_to_contain_text("Traceback")
    expect(below.locator(".jp-OutputArea-output")).to_have_count(1)
    has_run(page, check)
    answer(page, task, RIGHT)
    run(page, check)
    expect(output_of(page, check)).to_contain_text("slices: passed (2 of 2 points)")
    expect(first).to_contain_text("1 of 4 passed")  # nobody has saved
    expect(try_next).to_contain_text("Try next")
    expect(try_next).to_be_visible()
    page.get_by_role("tab", name="Start").click()
    expect(start).to_have_text("Go on with exercise 00")
    expect(page.locator(f"{VIEWER} .distlab-tile").first).to_contain_text("1 of 4 tasks")
    page.get_by_role("tab", name="Exercise 00").click()
    page.reload()
    expect(page.get_by_role("tab", name="Exercise 00")).to_be_visible()
    expect(first).to_be_visible()
    assert (folder / EXERCISE).is_file()  # a tab of another name renames no file


TERMS = ("all-reduce", "tf_config")
ASK = """import distlab as dl
copies = dl.predict("How many copies?", ["one", "two", "four"])"""
REVEAL = 'copies.reveal("two", {"one": "Then it is shared.", "four": "Then each worker has two."})'
LONG = "\n\n".join(["A long way down from the notebook's title."] * 60)
CONCLUSION = "Each replica has a copy of its own."
ASK_NUMBER = 'steps = dl.predict("How many steps?", unit="steps")'
ASK_LAST = 'wide = dl.predict("How wide?", ["one", "two"])'
RECAP = "from distlab.course.predictions import recap\nrecap()"
VIEW = """import matplotlib.pyplot as plt
from distlab.course.palette import finish
from distlab.course.view import Choices, View
def shares(replicas):
    return {"shares": [12 / replicas] * replicas}
def draw(numbers, *, replicas):
    figure, axes = plt.subplots(figsize=(3, 2))
    axes.bar(range(replicas), numbers["shares"])
    return finish(figure, alt=f"12 examples on {replicas} replicas")
View("Shares", {"replicas": Choices("replicas", [1, 2, 3, 4], start=2)}, shares, draw)"""
RING = "from distlab.course.lesson_12_ring_all_reduce.view import explore_ring\nexplore_ring()"
TOO_LATE = 'copies.keep("one")'


def write_notebook(folder, name):
    """A notebook as the builder makes it: what answers a question is folded."""
    links = [f"[{term}](../docs/glossary.md#{term})" for term in TERMS]
    made = [
        v4.new_markdown_cell("# Copies\n\n" + "\n\n".join(links) + "\n\n" + LONG),
        v4.new_code_cell(ASK, metadata={"tags": ["predict"]}),
        v4.new_code_cell(REVEAL, metadata={"tags": ["reveal"]}),
        v4.new_markdown_cell(CONCLUSION, metadata={"tags": ["after-reveal"]}),
        v4.new_code_cell(ASK_NUMBER, metadata={"tags": ["predict"]}),
        v4.new_code_cell("steps.reveal(90)", metadata={"tags": ["reveal"]}),
        v4.new_code_cell(ASK_LAST, metadata={"tags": ["predict"]}),
        v4.new_code_cell('wide.reveal("two")', metadata={"tags": ["reveal"]}),
        v4.new_markdown_cell(CONCLUSION, metadata={"tags": ["after-reveal"]}),
        *map(v4.new_code_cell, (RECAP, VIEW)),
        v4.new_code_cell(RING, metadata={"tags": ["hide-input"]}),
        v4.new_code_cell(TOO_LATE),
        v4.new_markdown_cell(LONG),
    ]
    fold_cells(made)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook = v4.new_notebook(cells=made, metadata=kernel)
    path = folder / "notebooks" / name
    path.write_bytes(without_outputs(nbformat.writes(notebook).encode()))


def test_predictions_views_and_terms_answer_to_mouse_and_keyboard(lab, page):
    folder, address, _ = lab
    write_notebook(folder, "copies.ipynb")
    open_notebook(page, address, "notebooks/copies.ipynb")
    ask, reveal, conclusion, ask_number, reveal_number = range(1, 6)
    ask_last, reveal_last, conclusion_last, recap, view, ring, error = range(6, 13)
    expect(cells(page).nth(reveal).locator(".jp-InputPlaceholder")).to_have_text(
        re.compile(REVEAL_LINE)
    )
    predict(page, ask)
    control = cells(page).nth(ask).locator(".widget-vbox")
    # As a reader does: a click, and Shift+Enter leads on.
    control.get_by_role("button", name="four").click()
    expect(control).to_contain_text("Your prediction: four.")
    expect(cells(page).nth(conclusion)).to_be_hidden()
    for _ in (ask, reveal):
        page.keyboard.press("Shift+Enter")
    answered = output_of(page, reveal)
    expect(answered).to_contain_text("✗ You predicted four. It was two.")
    expect(answered).to_be_in_viewport(ratio=1)
    expect(answered).to_contain_text("Then each worker has two.")
    expect(cells(page).nth(conclusion)).to_contain_text(CONCLUSION)
    expect(cells(page).nth(conclusion)).to_be_visible()
    expect(answered.get_by_text("Then it is shared.")).not_to_be_visible()
    answered.get_by_text("About the other answers").click()
    expect(answered.get_by_text("Then it is shared.")).to_be_visible()
    expect(control).to_have_count(0)  # nothing more can be kept
    expect(cells(page).nth(ask)).to_contain_text("You predicted four.")

    predict(page, ask_number)
    cells(page).nth(ask_number).locator(".jp-InputPlaceholder").click()
    run(page, ask_number)
    number = cells(page).nth(ask_number).locator(".widget-vbox")
    # By keyboard alone, and the keyboard comes back to the notebook.
    expect(number.get_by_role("textbox")).to_be_focused()
    page.keyboard.press("Shift+Enter")
    expect(number.get_by_role("alert")).to_contain_text("Not yet answered.")
    page.keyboard.type("45")
    page.keyboard.press("Enter")
    expect(number).to_contain_text("Your prediction: 45 steps.")
    expect(number.get_by_role("alert")).to_have_count(0)
    prompt = cells(page).nth(ask_number).locator(".jp-InputPrompt")
    before = prompt.inner_text()
    page.keyboard.press("Shift+Enter")  # in the notebook: the question is asked again
    expect(prompt).not_to_have_text(before)
    expect(number).to_contain_text("Your prediction: 45 steps.")
    number.get_by_role("textbox").fill("90")
    for _ in (ask_number, reveal_number):
        page.keyboard.press("Shift+Enter")
    expect(output_of(page, reveal_number)).to_contain_text("✓ You predicted it: 90 steps.")
    expect(output_of(page, reveal_number)).to_be_in_viewport(ratio=1)
    expect(source_of(page, ask_number)).to_be_visible()  # a reader opened it
    run(page, recap)
    expect(output_of(page, recap)).to_contain_text("1 of 2 predictions came true.")

    # A card, as on the site: in the column, tinted by how it came out, without a bar of source.
    left = "node => Math.round(node.getBoundingClientRect().left)"
    column = cells(page).nth(conclusion).locator("p").evaluate(left)
    tint = "node => getComputedStyle(node).backgroundColor"
    cards = [cells(page).nth(cell) for cell in (ask, reveal, reveal_number)]
    for card in cards:
        assert card.locator(".jp-OutputArea-output p").first.evaluate(left) == column
        expect(card.locator(".jp-PlaceholderText")).to_be_hidden()
    assert len({card.locator(".jp-Cell-outputArea").evaluate(tint) for card in cards}) == 3

    # What was predicted is in the notebook, and stays when it is opened again with a new kernel.
    stored = nbformat.read(folder / "notebooks/copies.ipynb", as_version=4)
    nbformat.validate(stored)
    assert [stored.cells[cell].metadata.get("distlab") for cell in (ask, ask_number, ask_last)] == [
        {"guess": "four"},
        {"guess": "90"},
        None,
    ]
    page.reload()
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle")
    choose(page, "Run", "Restart Kernel and Run All Cells…")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    expect(output_of(page, error)).to_contain_text("the answer has been shown already")
    expect(output_of(page, reveal)).to_contain_text("✗ You predicted four. It was two.")
    expect(output_of(page, reveal_number)).to_contain_text("✓ You predicted it: 90 steps.")
    expect(output_of(page, reveal_last)).to_contain_text("Not yet answered.")
    expect(cells(page).nth(conclusion_last)).to_be_hidden()
    output_of(page, reveal_last).get_by_text("Answer", exact=True).click()
    expect(cells(page).nth(conclusion_last)).to_be_visible()
    output_of(page, ask_last).click()
    expect(output_of(page, recap)).to_contain_text("1 of 2 predictions came true.")
    expect(output_of(page, recap)).to_contain_text("Not yet answered: 1.")
    last = cells(page).nth(ask_last).locator(".widget-vbox")
    press(page, last.get_by_role("button", name="two"), "Enter")
    expect(last).to_contain_text("Your prediction: two. Run the cell with the answer again.")
    run_hidden(page, reveal_last)
    expect(output_of(page, reveal_last)).to_contain_text("✓ You predicted it: two.")

    run(page, view)
    picture = cells(page).nth(view).locator("img")
    expect(picture).to_have_attribute("alt", "12 examples on 2 replicas")
    press(page, cells(page).nth(view).get_by_role("slider"), "ArrowRight")
    expect(picture).to_have_attribute("alt", "12 examples on 3 replicas")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(picture).to_have_attribute("alt", "12 examples on 1 replicas")
    track = cells(page).nth(view).locator(".noUi-target").bounding_box()
    handle = cells(page).nth(view).locator(".noUi-handle").bounding_box()
    middle = handle["y"] + handle["height"] / 2
    page.mouse.move(handle["x"] + handle["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(track["x"] + track["width"], middle, steps=5)
    page.mouse.up()
    expect(picture).to_have_attribute("alt", "12 examples on 4 replicas")

    expect(source_of(page, ring)).to_have_count(0)
    run_hidden(page, ring, "Shift+Enter")
    picture = cells(page).nth(ring).locator("img")
    expect(picture).to_have_attribute("alt", re.compile("."))
    # The view opens whole, although the next cell is the one that JupyterLab brings into sight.
    for part in ("strong", "img"):
        expect(cells(page).nth(ring).locator(f".distlab-view {part}")).to_be_in_viewport(ratio=0.99)
    text_left = """label => {
        const range = document.createRange();
        range.selectNodeContents(label);
        return Math.round(range.getBoundingClientRect().left);
    }"""
    labels = cells(page).nth(ring).locator(".widget-label:visible").all()
    assert len({label.evaluate(text_left) for label in labels}) == 1 < len(labels)
    cells(page).nth(ring).locator("strong").click()
    for slider in cells(page).nth(ring).get_by_role("slider").all():
        now, last = (slider.get_attribute(f"aria-value{end}") for end in ("now", "max"))
        before = picture.get_attribute("alt") or ""
        press(page, slider, "ArrowLeft" if now == last else "ArrowRight")
        expect(picture).not_to_have_attribute("alt", before)
    cells(page).nth(ring).get_by_role("button", name="tree").click()
    expect(picture).to_have_attribute("alt", re.compile("ranks, tree, after step"))
    cells(page).nth(ring).locator(".widget-play button").first.click()
    expect(picture).to_have_attribute("alt", re.compile(r"after step (\d+) of \1\."))

    run(page, error)
    expect(output_of(page, error)).to_contain_text("the answer has been shown already")
    expect(output_of(page, error).locator("pre")).to_have_css("word-break", "normal")

    for term in TERMS:
        page.locator(f"{PANEL} a", has_text=term).click()
        words = re.compile(rf"^{re.sub('[-_]', '[-_ ]', term)}\W*$", re.IGNORECASE)
        expect(page.locator(f"{VIEWER} h3", has_text=words)).to_be_in_viewport()
        page.get_by_role("tab", name="copies.ipynb").last.click()


def test_a_prediction_is_kept_in_notebook_7_too(lab, page):
    folder, address, _ = lab
    write_notebook(folder, "alone.ipynb")
    failed = []
    page.on("console", lambda said: failed.append(said.text) if "distlab" in said.text else None)
    open_alone(page, address, "notebooks/alone.ipynb")
    ask, reveal, conclusion = 1, 2, 3
    expect(cells(page).nth(conclusion)).to_be_hidden()
    predict(page, ask)
    control = cells(page).nth(ask).locator(".widget-vbox")
    control.get_by_role("button", name="four").click()
    expect(control).to_contain_text("Your prediction: four.")
    for _ in (ask, reveal):
        page.keyboard.press("Shift+Enter")
    expect(output_of(page, reveal)).to_contain_text("✗ You predicted four. It was two.")
    expect(output_of(page, reveal)).to_be_in_viewport(ratio=1)
    expect(cells(page).nth(conclusion)).to_be_visible()
    assert failed == []


def read(notebook):
    return list(nbformat.read(ROOT / notebook, as_version=4).cells)


def place_of(source):
    """The place of the one code cell of the exercise with this in its source."""
    (place,) = [
        place
        for place, cell in enumerate(read(EXERCISE))
        if cell.cell_type == "code" and source in cell.source
    ]
    return place
