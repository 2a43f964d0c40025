"""A learner's path in a real browser: JupyterLab in a laid folder, a lesson run, a task answered.

JupyterLab listens on loopback; Chromium is the system's, and nothing else is reached.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat import NotebookNode, v4
from playwright.sync_api import Locator, Page, expect, sync_playwright

from distlab.course import without_outputs
from distlab.notebooks.prediction_cells import REVEAL_LINE, fold_answers
from tests.support.repository import ROOT

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

LESSON, EXERCISE = "notebooks/00_start_here.ipynb", "exercises/00_start_here.ipynb"
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"  # the notebook in front; others may be open
WAIT_MILLISECS = 60_000
RUN_MILLISECS = 120_000  # a whole notebook with TensorFlow, on a busy machine

WRONG = """# task: slices
def split(examples, replicas):
    whole, rest = divmod(examples, replicas)
    return [whole + (replica < rest) for replica in range(replicas)]"""
RIGHT = """# task: slices
def split(examples, replicas):
    piece = math.ceil(examples / replicas)
    return [max(0, min(piece, examples - piece * replica)) for replica in range(replicas)]"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The learner's folder."""
    return tmp_path_factory.mktemp("lab") / "mine"


@pytest.fixture(scope="module")
def lab(folder: Path) -> Iterator[str]:
    """The address, with its token, of a JupyterLab in a freshly laid folder."""
    base = folder.parent
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "distlab.cli", "lab", str(folder)),
            *("--no-browser", "--port", str(_free_port())),
        ],
        env=_own_settings(base),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield _address(process)
    finally:
        _end(process)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """A headless Chromium that calls nobody of its own accord."""
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
    quiet += ["--disable-component-update", "--no-first-run", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: object) -> Iterator[Page]:
    """An empty page; it also notes each address that is asked for."""
    context = browser.new_context()  # type: ignore[attr-defined]
    page = context.new_page()
    page.set_default_timeout(WAIT_MILLISECS)
    expect.set_options(timeout=WAIT_MILLISECS)
    yield page
    context.close()


def test_the_first_page_leads_to_lesson_00_and_it_runs(lab: str, page: Page):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(lab)
    page.locator(".jp-MarkdownViewer a", has_text="lesson 00").click()
    expect(_cells(page).first.locator("h1")).to_contain_text("Start here")
    _clear_all_outputs(page)
    _run_all(page, LESSON)
    picture = _cells(page).nth(_cell(LESSON, "draw_shares(images, seen)")).locator("img")
    expect(picture).to_be_visible()
    expect(picture).to_have_attribute("alt", re.compile("Batch 2: replicas 0 to 3 got 3, 3, 3, 1"))
    expect(_output(page, _cell(LESSON, '"digits seen"'))).to_contain_text(
        "digits seen: 42 = 42 expected"
    )
    expect(page.locator(f"{PANEL} [data-mime-type='application/vnd.jupyter.error']")).to_have_count(
        0
    )
    # What TensorFlow says while it loads is not what a reader came for.
    expect(
        page.locator(f"{PANEL} [data-mime-type='application/vnd.jupyter.stderr']")
    ).to_have_count(0)
    expect(page.get_by_text("Jupyter news")).to_have_count(0)
    outside = [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))]
    assert outside == []


def test_an_exercise_is_answered_wrongly_and_then_rightly(lab: str, page: Page):
    task, check = _cell(EXERCISE, "# task: slices"), _cell(EXERCISE, 'dl.check("slices")')
    page.goto(_at(lab, EXERCISE))
    expect(_cells(page).first.locator("h1")).to_contain_text("Exercise")
    _clear_all_outputs(page)
    _run_all(page, EXERCISE)
    expect(_output(page, check)).to_contain_text("slices: not started (0 of 2 points)")
    _answer(page, task, WRONG)
    _run(page, check)
    expect(_output(page, check)).to_contain_text("slices: not yet")
    expect(_output(page, check)).to_contain_text("What this looks like")
    _run(page, check)
    _run(page, check)
    _reads_again(page, _output(page, check))
    _answer(page, task, RIGHT)
    _run(page, check)
    expect(_output(page, check)).to_contain_text("slices: passed (2 of 2 points)")


ASK = """import distlab as dl
copies = dl.predict("How many copies?", ["one", "two", "four"])"""
REVEAL = 'copies.reveal("two", {"one": "Then it is shared.", "four": "Then each worker has two."})'
ASK_NUMBER = 'steps = dl.predict("How many steps?", unit="steps")'
RECAP = "from distlab.predictions import recap\nrecap()"


@pytest.fixture
def prediction(lab: str, folder: Path) -> str:
    """A notebook as the builder makes it: what answers a question is folded."""
    cells = [
        v4.new_markdown_cell("# Copies"),
        v4.new_code_cell(ASK, metadata={"tags": ["predict"]}),
        v4.new_code_cell("made = 2"),
        v4.new_code_cell(REVEAL, metadata={"tags": ["reveal"]}),
        v4.new_code_cell(ASK_NUMBER, metadata={"tags": ["predict"]}),
        v4.new_code_cell("steps.reveal(90)", metadata={"tags": ["reveal"]}),
        v4.new_code_cell(RECAP),
    ]
    fold_answers(cells)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook = v4.new_notebook(cells=cells, metadata=kernel)
    (folder / "notebooks" / "copies.ipynb").write_bytes(
        without_outputs(nbformat.writes(notebook).encode())
    )
    return "notebooks/copies.ipynb"


def test_a_wrong_prediction_and_a_right_one_are_answered(lab: str, page: Page, prediction: str):
    page.goto(_at(lab, prediction))
    _wait_for_kernel(page)
    ask, _, reveal, ask_number, reveal_number, recap = range(1, 7)
    expect(_cells(page).nth(reveal).locator(".jp-InputPlaceholder")).to_have_text(
        re.compile(REVEAL_LINE)
    )
    _run(page, ask)
    control = _cells(page).nth(ask).locator(".widget-vbox")
    control.get_by_role("button", name="four").click()
    control.get_by_role("button", name="Keep my prediction").click()
    expect(control).to_contain_text("Kept: four.")
    _run(page, ask + 1)
    _run_hidden(page, reveal)
    answer = _cells(page).nth(reveal).locator(".jp-OutputArea-output").first
    expect(answer).to_contain_text("You predicted four. It was two.")
    expect(answer).to_contain_text("Then each worker has two.")
    expect(answer.get_by_text("Then it is shared.")).not_to_be_visible()
    answer.get_by_text("About the other answers").click()
    expect(answer.get_by_text("Then it is shared.")).to_be_visible()
    expect(control).to_have_count(0)  # nothing more can be kept
    expect(_cells(page).nth(ask)).to_contain_text("You predicted four.")

    _run(page, ask_number)
    number = _cells(page).nth(ask_number).locator(".widget-vbox")
    _tab_to(page, number.get_by_role("textbox"))
    page.keyboard.type("90")
    _tab_to(page, number.get_by_role("button"))
    page.keyboard.press("Enter")
    expect(number).to_contain_text("Kept: 90 steps.")
    _run_hidden(page, reveal_number)
    expect(_output(page, reveal_number)).to_contain_text("You predicted it: 90 steps.")
    _run(page, recap)
    expect(_output(page, recap)).to_contain_text("1 of 2 predictions came true.")
    expect(_output(page, recap)).to_contain_text("How many copies? You predicted four. It was two.")


def test_a_keyboard_is_enough_to_choose(lab: str, page: Page, prediction: str):
    page.goto(_at(lab, prediction))
    _wait_for_kernel(page)
    _run(page, 1)
    control = _cells(page).nth(1).locator(".widget-vbox")
    _tab_to(page, control.get_by_role("button", name="two"))
    page.keyboard.press("Space")
    _tab_to(page, control.get_by_role("button", name="Keep my prediction"))
    page.keyboard.press("Enter")
    expect(control).to_contain_text("Kept: two.")
    _run(page, 2)
    _run_hidden(page, 3)
    expect(_output(page, 3)).to_contain_text("You predicted it: two.")


def test_without_its_token_the_server_lets_nobody_in(lab: str, page: Page):
    page.goto(lab.split("?")[0])
    expect(page).to_have_url(re.compile("/login"))


def _cells(page: Page) -> Locator:
    return page.locator(f"{PANEL} .jp-Notebook .jp-Cell")


def _output(page: Page, cell: int) -> Locator:
    return _cells(page).nth(cell).locator(".jp-OutputArea-output").first


def _reads_again(page: Page, answer: Locator):
    """Follows the link of the third failed try into the lesson, and comes back.

    JupyterLab opens the lesson at its top; if the lesson is open, it goes to the section.
    """
    link = answer.get_by_role("link")
    section = (link.text_content() or "").partition('" in lesson')[0].strip('"')
    heading = _cells(page).get_by_role("heading", name=section)
    for expects in (expect(heading).to_be_attached, expect(heading).to_be_in_viewport):
        link.click()
        expects()
        page.get_by_role("tab", name=Path(EXERCISE).name).first.click()
        expect(answer).to_be_visible()


def _ran(page: Page, cell: int) -> None:
    prompt = _cells(page).nth(cell).locator(".jp-InputPrompt")
    expect(prompt).to_have_text(re.compile(r"\[\d+\]:"), timeout=RUN_MILLISECS)


def _wait_for_kernel(page: Page) -> None:
    """JupyterLab drops a cell that is run before its kernel is there; the status bar knows."""
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle")


def _run_all(page: Page, notebook: str) -> None:
    """Waits for the kernel, then chooses Run > Run All Cells, and waits for the last code cell."""
    idle = page.locator(f"{PANEL} .jp-Notebook-ExecutionIndicator[data-status=idle]")
    expect(idle).to_be_visible()
    _choose(page, "Run", "Run All Cells")
    _ran(page, max(index for index, cell in enumerate(_read(notebook)) if cell.cell_type == "code"))


def _clear_all_outputs(page: Page) -> None:
    """So that nothing which is seen later was stored before."""
    _choose(page, "Edit", "Clear Outputs of All Cells")
    expect(page.locator(f"{PANEL} .jp-OutputArea-output")).to_have_count(0)


def _choose(page: Page, menu: str, item: str) -> None:
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.get_by_role("menuitem", name=item, exact=True).click()


def _read(notebook: str) -> list[NotebookNode]:
    return list(nbformat.read(ROOT / notebook, as_version=4).cells)


def _cell(notebook: str, source: str) -> int:
    """The place of the one code cell with this in its source."""
    (found,) = [
        index
        for index, cell in enumerate(_read(notebook))
        if cell.cell_type == "code" and source in cell.source
    ]
    return found


def _run(page: Page, cell: int) -> None:
    prompt = _cells(page).nth(cell).locator(".jp-InputPrompt")
    before = prompt.inner_text()
    _cells(page).nth(cell).locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    expect(prompt).not_to_have_text(before)
    _ran(page, cell)


def _run_hidden(page: Page, cell: int) -> None:
    """Runs a cell whose code is hidden: its first line is shown, and a click selects it."""
    _cells(page).nth(cell).locator(".jp-InputPlaceholder").click()
    page.keyboard.press("Control+Enter")


def _tab_to(page: Page, target: Locator) -> None:
    """Presses Tab until the target has the keyboard."""
    expect(target).to_be_visible()
    page.keyboard.press("Escape")
    for _ in range(40):
        if target.evaluate("node => node === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to {target}")


def _answer(page: Page, cell: int, source: str) -> None:
    _cells(page).nth(cell).locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(source)
    _run(page, cell)


def _at(lab: str, notebook: str) -> str:
    # Reset: JupyterLab would open again, beside it, what an earlier test had open.
    return re.sub(r"/lab(/tree/[^?]*)?\?", f"/lab/tree/{notebook}?reset&", lab)


def _own_settings(base: Path) -> dict[str, str]:
    """JupyterLab with no settings but ours: not those of whoever runs the tests."""
    places = ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"]
    places += ["JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"]
    # All cells stay in the page, so that each can be asked for by its place.
    tracker = base / "JUPYTERLAB_SETTINGS_DIR" / "@jupyterlab" / "notebook-extension"
    tracker.mkdir(parents=True)
    (tracker / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')
    return {**os.environ, **{place: str(base / place) for place in places}}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _address(process: subprocess.Popen[str]) -> str:
    """Reads what JupyterLab says until it names its address, then keeps its pipe empty."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+/\S*token=\w+", line):
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return found[0]
    raise AssertionError("JupyterLab ended: " + "".join(said))


def _end(process: subprocess.Popen[str]) -> None:
    """Ends JupyterLab kindly, so that it ends its kernels, and then whatever is left."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    left = [child for child in started if child.is_running()]
    for child in left:
        child.kill()
    psutil.wait_procs(left, timeout=10)
