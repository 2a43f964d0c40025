"""A notebook in a browser: its cells by their place, and what a reader does to them.

open_notebook(page, address, "notebooks/00_start_here.ipynb")
run(page, 3)
expect(output_of(page, 3)).to_contain_text("expected")
"""

from __future__ import annotations

import re

from playwright.sync_api import expect

PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"  # the notebook in front; others may be open


def cells(page):
    return page.locator(f"{PANEL} .jp-Notebook .jp-Cell")


def source_of(page, cell):
    return cells(page).nth(cell).locator(".cm-content")


def output_of(page, cell):
    return cells(page).nth(cell).locator(".jp-OutputArea-output").first


def has_run(page, cell):
    prompt = cells(page).nth(cell).locator(".jp-InputPrompt")
    expect(prompt).to_have_text(re.compile(r"\[\d+\]:"))


def choose(page, menu, item):
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.get_by_role("menuitem", name=item, exact=True).click()


def open_notebook(page, address, path):
    """Opens a notebook of the learner's folder in JupyterLab, and waits for its kernel."""
    # Reset: JupyterLab would open again, beside it, what an earlier test had open.
    page.goto(re.sub(r"/lab(/tree/[^?]*)?\?", f"/lab/tree/{path}?reset&", address))
    # JupyterLab drops a cell that is run before its kernel is there; the status bar knows.
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle")


def open_alone(page, address, path):
    """Opens a notebook in Notebook 7, and waits for its kernel."""
    page.goto(re.sub(r"/lab(/tree/[^?]*)?\?", f"/notebooks/{path}?", address))
    # It drops a cell that is run before its kernel is there; until then, it calls itself idle.
    expect(page.locator(".jp-Toolbar-kernelName").first).to_contain_text("Python 3")
    kernel = page.locator(".jp-Notebook-ExecutionIndicator")
    expect(kernel).to_have_attribute("data-status", "idle")


def run(page, cell, *, waits=True):
    prompt = cells(page).nth(cell).locator(".jp-InputPrompt")
    before = prompt.inner_text()
    cells(page).nth(cell).locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    expect(prompt).not_to_have_text(before)
    if waits:
        has_run(page, cell)


def predict(page, cell):
    """Runs the cell of a question, whose source folds: the output says the same."""
    source_of(page, cell).click()
    page.keyboard.press("Control+Enter")
    expect(source_of(page, cell)).to_have_count(0)


def run_hidden(page, cell, keys="Control+Enter"):
    """Runs a cell whose code is hidden: its first line is shown, and a click selects it."""
    cells(page).nth(cell).locator(".jp-InputPlaceholder").click()
    page.keyboard.press(keys)


def answer(page, cell, source):
    cells(page).nth(cell).locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(source)
    run(page, cell)


def press(page, target, *keys):
    """Presses Tab until the target has the keyboard, and then other keys."""
    expect(target).to_be_visible()
    page.keyboard.press("Escape")
    for _ in range(60):
        if target.evaluate("node => node === document.activeElement"):
            break
        page.keyboard.press("Tab")
    else:
        raise AssertionError(f"Tab does not lead to {target}")
    for key in keys:
        page.keyboard.press(key)
