"""A view in JupyterLab: a slider moved by mouse or by keyboard, and the picture follows."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import v4
from playwright.sync_api import Page, expect

import distlab
from tests.test_lab_in_browser import (  # noqa: F401  # fixtures
    _at,
    _cells,
    _run,
    _tab_to,
    _wait_for_kernel,
    browser,
    folder,
    lab,
    page,
    pytestmark,
)

VIEWS = Path(distlab.__file__).parent / "views"
VIEW = """import matplotlib.pyplot as plt
from distlab.pictures.palette import finish
from distlab.views.view import Choices, View
def draw(replicas):
    figure, axes = plt.subplots(figsize=(3, 2))
    axes.bar(range(replicas), 12 / replicas)
    return finish(figure, alt=f"12 examples on {replicas} replicas")
View("Shares", {"replicas": Choices("replicas", [1, 2, 3, 4], start=2)}, draw)"""


EXPLORED = {
    "batch_plan": "explore_batch_plan",
    "ring": "explore_ring",
    "scaling_cost": "explore_cost",
    "memory": "explore_memory",
}


def written(folder: Path, name: str, sources: list[str]) -> str:  # noqa: F811
    """Writes a notebook of these code cells, and returns its place in the lab."""
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    cells = [v4.new_markdown_cell("# Views"), *map(v4.new_code_cell, sources)]
    path = f"notebooks/{name}.ipynb"
    nbformat.write(v4.new_notebook(cells=cells, metadata=kernel), folder / path)
    return path


@pytest.fixture
def notebook(folder: Path) -> str:  # noqa: F811
    return written(folder, "view", [VIEW])


def test_every_slider_of_the_courses_views_moves_its_picture(
    lab: str,  # noqa: F811
    page: Page,  # noqa: F811
    folder: Path,  # noqa: F811
):
    assert {path.stem for path in VIEWS.glob("*.py")} == {"__init__", "view", *EXPLORED}
    cells = [
        f"from distlab.views.{room} import {name}\n{name}()" for room, name in EXPLORED.items()
    ]
    page.goto(_at(lab, written(folder, "views", cells)))
    _wait_for_kernel(page)
    for cell in range(1, len(cells) + 1):
        _run(page, cell)
        picture = _cells(page).nth(cell).locator("img")
        expect(picture).to_have_attribute("alt", re.compile("."))
        for handle in _cells(page).nth(cell).get_by_role("slider").all():
            _tab_to(page, handle)
            now, last = (handle.get_attribute(f"aria-value{one}") for one in ("now", "max"))
            before = picture.get_attribute("alt") or ""
            page.keyboard.press("ArrowLeft" if now == last else "ArrowRight")
            expect(picture).not_to_have_attribute("alt", before)


def test_the_arrow_keys_move_a_view(lab: str, page: Page, notebook: str):  # noqa: F811
    page.goto(_at(lab, notebook))
    _wait_for_kernel(page)
    _run(page, 1)
    picture = _cells(page).nth(1).locator("img")
    expect(picture).to_have_attribute("alt", "12 examples on 2 replicas")
    handle = _cells(page).nth(1).get_by_role("slider")
    _tab_to(page, handle)
    page.keyboard.press("ArrowRight")
    expect(picture).to_have_attribute("alt", "12 examples on 3 replicas")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(picture).to_have_attribute("alt", "12 examples on 1 replicas")


def test_the_mouse_drags_a_view(lab: str, page: Page, notebook: str):  # noqa: F811
    page.goto(_at(lab, notebook))
    _wait_for_kernel(page)
    _run(page, 1)
    picture = _cells(page).nth(1).locator("img")
    expect(picture).to_have_attribute("alt", re.compile("on 2 replicas"))
    track = _cells(page).nth(1).locator(".noUi-target").bounding_box()
    handle = _cells(page).nth(1).locator(".noUi-handle").bounding_box()
    assert track is not None and handle is not None
    middle = handle["y"] + handle["height"] / 2
    page.mouse.move(handle["x"] + handle["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(track["x"] + track["width"], middle, steps=5)
    page.mouse.up()
    expect(picture).to_have_attribute("alt", "12 examples on 4 replicas")
