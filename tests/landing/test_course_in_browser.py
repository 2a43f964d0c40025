"""What a learner sees first in JupyterLab: the map, the panel on the left, the glossary's place."""

from __future__ import annotations

import re

import pytest
from nbformat.v4 import new_markdown_cell, new_notebook
from playwright.sync_api import Page, expect

from tests.test_lab_in_browser import (  # noqa: F401  # fixtures
    PANEL,
    _at,
    browser,
    folder,
    lab,
    page,
    pytestmark,
)

COURSE, LESSON = ".distlab-course", ".distlab-course .distlab-lesson"
VIEWER = ".jp-MarkdownViewer:visible"


def test_the_course_opens_with_titles_on_the_left_and_leads_to_a_lesson(lab: str, page: Page):  # noqa: F811
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(lab)
    expect(page.locator(f"{VIEWER} h1")).to_contain_text("Your course")
    expect(page.locator(LESSON)).to_have_count(18)
    first = page.locator(LESSON).first
    expect(first).to_contain_text("Start here")
    expect(first).to_contain_text(re.compile(r"exercise, \d+ min"))
    expect(page.locator(f"{LESSON}.distlab-next")).to_contain_text("Start here")
    first.locator(".distlab-title").click()
    expect(page.locator(f"{PANEL} .jp-Notebook h1").first).to_contain_text("Start here")
    outside = [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))]
    assert outside == []


def test_the_page_leads_to_the_next_lesson_and_to_the_glossary(lab: str, page: Page):  # noqa: F811
    page.goto(_at(lab, "course.md"))
    page.locator(f"{VIEWER} a", has_text="The glossary").click()
    expect(page.locator(f"{VIEWER} h1")).to_contain_text("Glossary")
    page.goto(_at(lab, "course.md"))
    page.locator(f"{VIEWER} a", has_text="lesson 00").first.click()
    expect(page.locator(f"{PANEL} .jp-Notebook h1").first).to_contain_text("Start here")


def test_the_courses_data_are_given_only_with_the_token(lab: str, page: Page):  # noqa: F811
    address = lab.split("/lab")[0] + "/distlab/course"
    assert page.request.get(address).status == 403
    page.goto(lab)
    expect(page.locator(LESSON)).to_have_count(18)
    assert page.request.get(address).json()["next"] == "notebooks/00_start_here.ipynb"


@pytest.mark.parametrize("term", ["all-reduce", "tf_config", "perreplica", "process-id"])
def test_a_lessons_link_to_a_term_opens_the_glossary_at_that_term(lab: str, page: Page, term: str):  # noqa: F811
    server, token = re.fullmatch(r"(.*)/lab.*?(token=\w+)", lab).groups()  # type: ignore[union-attr]
    link = new_markdown_cell(f"# A lesson\n\n[its term](../docs/glossary.md#{term})")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=[link], metadata={"kernelspec": kernel})
    address = f"{server}/api/contents/notebooks/{term}.ipynb?{token}"
    kept = page.request.put(address, data={"type": "notebook", "content": notebook})
    assert kept.ok, kept.text()
    page.goto(_at(lab, f"notebooks/{term}.ipynb"))
    page.locator(f"{PANEL} a", has_text="its term").click()
    words = re.compile(rf"^{re.sub('[-_]', '[-_ ]', term)}\W*$", re.IGNORECASE)
    expect(page.locator(f"{VIEWER} h3", has_text=words)).to_be_in_viewport()
