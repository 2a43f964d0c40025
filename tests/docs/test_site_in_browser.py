"""A walk through the built site in a real browser: every page, and no request to another host."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from playwright.sync_api import Page, expect

from distlab.course_map import read_map
from tests.support.repository import ROOT
from tests.test_lab_in_browser import CHROMIUM, browser  # noqa: F401  # a fixture

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
SIDEBAR, NEXT = "nav.course", ".prev-next-footer a.right-next"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built as `make docs` builds it."""
    base = tmp_path_factory.mktemp("site")
    pages, built = base / "pages", base / "built"
    for folder in ("docs", "notebooks", "exercises"):
        shutil.copytree(ROOT / folder, pages / folder)
    commands = [
        [str(ROOT / "tools" / "site_pages.py"), str(pages)],
        ["-m", "sphinx", "-W", "-q", "-c", str(ROOT / "docs"), str(pages), str(built)],
    ]
    for command in commands:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
    return built


@pytest.fixture
def page(browser: object) -> Iterator[Page]:  # noqa: F811
    """An empty page, which can reach no host; each address that it asks for is in `page.asked`."""
    context = browser.new_context(offline=True)  # type: ignore[attr-defined]
    page = context.new_page()
    asked: list[str] = []
    failed: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.asked, page.failed = asked, failed  # type: ignore[attr-defined]
    yield page
    context.close()


def test_next_leads_through_the_course_in_order_and_asks_no_other_host(site: Path, page: Page):
    page.goto((site / "index.html").as_uri())
    titles = [page.title()]
    while page.locator(NEXT).count():
        page.locator(NEXT).click()
        page.wait_for_load_state()
        titles.append(page.url.split("/built/")[1].removesuffix(".html"))
        assert page.locator("h1").count() == 1
        assert len(titles) < 100
    course = [path for one in read_map(ROOT) for path in (one.lesson, one.exercise) if path]
    assert titles[1 : 1 + len(course)] == [path.removesuffix(".ipynb") for path in course]
    assert {"docs/glossary", "docs/reference", "docs/teaching", "CHANGELOG"} <= set(titles)
    outside = [url for url in page.asked if not url.startswith(("file:", "data:"))]  # type: ignore[attr-defined]
    assert outside == []
    assert page.failed == []  # type: ignore[attr-defined]


def test_every_link_within_the_site_leads_to_a_page_and_to_its_place(site: Path):
    texts = {path.resolve(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    broken = []
    for path, text in texts.items():
        for link in re.findall(r'<a [^>]*href="([^"]+)"', text):
            where, place = urldefrag(link)
            if urlparse(where).scheme:
                continue
            there = (path.parent / unquote(where)).resolve() if where else path
            found = texts.get(there, "")
            if not there.exists() or (place and found and f'id="{unquote(place)}"' not in found):
                broken.append(f"{path.name}: {link}")
    assert len(texts) > 30
    assert broken == []


def test_the_left_side_has_numbers_titles_and_minutes(site: Path, page: Page):
    page.goto((site / "notebooks" / "06_reproducibility.html").as_uri())
    six = next(one for one in read_map(ROOT) if one.number == "06")
    (row,) = [
        text
        for text in page.locator(f"{SIDEBAR} .course-lesson").all_inner_texts()
        if text.startswith("06")
    ]
    words = row.split()
    assert words[:2] == ["06", six.title]
    assert words[2:4] == [str(six.lesson_minutes), "min"] and "Exercise" in words
    here = page.locator(f"{SIDEBAR} a[aria-current=page]")
    expect(here).to_have_text(six.title)
    # The theme keeps a second copy for narrow screens.
    assert page.locator(".site-doors a:visible").count() == 5


def test_the_first_page_has_the_map_and_the_picture_with_its_text(site: Path, page: Page):
    page.goto((site / "index.html").as_uri())
    picture = page.locator("article img").first
    assert picture.evaluate("image => image.complete && image.naturalWidth > 300")
    assert "Two charts of training" in (picture.get_attribute("alt") or "")
    rows = page.locator("article table tbody tr").all_inner_texts()
    assert sum("coming" in row for row in rows) == sum(not one.lesson for one in read_map(ROOT))
    page.locator("article table a").first.click()
    expect(page.locator("h1")).to_contain_text("Start here")


def test_the_answers_to_predictions_are_folded(site: Path, page: Page):
    folded = [
        one.lesson
        for one in read_map(ROOT)
        if one.lesson and '"reveal"' in (ROOT / one.lesson).read_text(encoding="utf-8")
    ]
    for lesson in folded:
        page.goto((site / lesson).with_suffix(".html").as_uri())
        hidden = page.locator("details.hide, .cell.tag_reveal details")
        assert hidden.count() > 0, lesson
        assert all(one.get_attribute("open") is None for one in hidden.all()), lesson


def test_the_reference_has_every_public_name(site: Path):
    import distlab

    text = (site / "docs" / "reference.html").read_text(encoding="utf-8")
    names = [name for name in distlab.__all__ if name != "__version__"]
    assert [name for name in names if f'id="distlab.{name}"' not in text] == []


def test_an_equation_is_drawn_by_the_browser_itself(tmp_path: Path):
    (tmp_path / "index.md").write_text("# A page\n\n$$\\frac{1}{n} \\sum_i g_i$$\n\nand $x^2$\n")
    settings = [f"-D{name}={value}" for name, value in {"root_doc": "index"}.items()]
    command = ["-m", "sphinx", "-q", "-c", str(ROOT / "docs"), *settings]
    built = tmp_path / "built"
    subprocess.run([sys.executable, *command, str(tmp_path), str(built)], check=True, cwd=ROOT)
    text = (built / "index.html").read_text(encoding="utf-8")
    assert text.count("<math") == 2 and "<mfrac>" in text
    assert re.findall(r"<script[^>]+mathjax", text.lower()) == []
