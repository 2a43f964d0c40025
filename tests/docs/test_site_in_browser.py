"""The built site: its pages in order, its links, and how it looks in a real browser."""

from __future__ import annotations

import base64
import io
import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import nbformat
import pytest
from PIL import Image
from playwright.sync_api import expect
from sphinx.cmd.build import build_main

import distlab
from distlab.course.course_map import in_minutes, read_map
from tests.support.browser import open_browser, open_page, violations
from tests.support.repository import ROOT


def notebook_with(alternative_text):
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    output = nbformat.v4.new_output(
        "execute_result",
        {"image/png": base64.b64encode(picture.getvalue()).decode()},
        execution_count=1,
        metadata={"image/png": {"alt": alternative_text}},
    )
    cell = nbformat.v4.new_code_cell("draw()", outputs=[output], execution_count=1)
    title = nbformat.v4.new_markdown_cell("# A page")
    python = {"orphan": True, "language_info": {"name": "python"}}
    return nbformat.v4.new_notebook(cells=[title, cell], metadata=python)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the site, built as `make docs` builds it, and two pages of the tests."""
    base = tmp_path_factory.mktemp("site")
    pages, built = base / "pages", base / "built"
    for folder in ("docs", "notebooks", "exercises"):
        shutil.copytree(ROOT / folder, pages / folder)
    equations = ["---", "orphan: true", "---", "# A page", "", "$$\\frac{1}{n} \\sum_i g_i$$", ""]
    (pages / "equations.md").write_text("\n".join([*equations, "and $x^2$", ""]))
    nbformat.write(notebook_with("Two bars, the first 3 high."), pages / "figure.ipynb")
    command = [sys.executable, ROOT / "tools" / "site_pages.py", pages]
    subprocess.run(command, check=True, cwd=ROOT)
    # In this process, which has imported what takes long.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SITE_URL", "https://distlab.test/")
        assert build_main(["-W", "-q", "-c", str(ROOT / "docs"), str(pages), str(built)]) == 0
    return built


@pytest.fixture(scope="module")
def texts(site):
    return {path.resolve(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


def test_next_leads_through_the_course_in_order(site, texts):
    page, visited = site / "index.html", []
    while link := re.search(r'class="right-next"\s+href="([^"]+)"', texts[page.resolve()]):
        page = page.parent / link[1]
        visited.append(page.resolve().relative_to(site.resolve()).with_suffix("").as_posix())
        assert len(visited) < 100
    course = [path for row in read_map(ROOT) for path in (row.lesson, row.exercise) if path]
    assert visited[: len(course)] == [path.removesuffix(".ipynb") for path in course]
    assert {"docs/glossary", "docs/reference", "docs/teaching", "CHANGELOG"} <= set(visited)


def test_every_link_leads_to_a_page_and_its_place_and_no_page_loads_from_another_host(texts):
    broken, foreign = [], []
    for path, text in texts.items():
        for link in re.findall(r'<a [^>]*href="([^"]+)"', text):
            where, place = urldefrag(link)
            if urlparse(where).scheme:
                continue
            target = (path.parent / unquote(where)).resolve() if where else path
            page = texts.get(target, "")
            if not target.exists() or (place and page and f'id="{unquote(place)}"' not in page):
                broken.append(f"{path.name}: {link}")
        loaded = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]+)"', text)
        loaded += re.findall(r'<link\b(?! rel="canonical")[^>]*\bhref="([^"]+)"', text)
        foreign += [f"{path.name}: {url}" for url in loaded if urlparse(url).netloc]
    assert len(texts) > 30
    assert (broken, foreign) == ([], [])


def test_equations_are_the_browsers_own_and_the_reference_has_every_public_name(site):
    text = (site / "equations.html").read_text(encoding="utf-8")
    assert text.count("<math") == 2 and "<mfrac>" in text
    assert re.findall(r"<script[^>]+mathjax", text.lower()) == []
    text = (site / "docs" / "reference.html").read_text(encoding="utf-8")
    names = [name for name in distlab.__all__ if name != "__version__"]
    assert [name for name in names if f'id="distlab.{name}"' not in text] == []


def test_a_page_has_an_icon_and_says_what_a_link_to_it_shows(site, texts):
    text = texts[(site / "docs" / "zoo.html").resolve()]
    (icon,) = re.findall(r'<link rel="icon" href="../([^"]+)"', text)
    (picture,) = re.findall(r'og:image" content="https://distlab.test/([^"]+)"', text)
    assert (site / icon).is_file()
    assert Image.open(site / picture).size == (1200, 630)
    assert 'og:title" content="The zoo"' in text and 'name="description" content="Learn' in text


def test_a_figure_keeps_its_alternative_text(site):
    assert 'alt="Two bars, the first 3 high."' in (site / "figure.html").read_text("utf-8")


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


def test_the_site_in_a_browser_shows_the_map_and_the_course(site, browser):
    rows = read_map(ROOT)
    with open_page(browser, offline=True) as page:
        page.goto((site / "index.html").as_uri())
        picture = page.locator("article img").first
        assert picture.evaluate("image => image.complete && image.naturalWidth > 300")
        assert "A moving picture" in (picture.get_attribute("alt") or "")
        assert page.locator("h1 ~ *").first.locator("p").first.inner_text().startswith("Which run")
        which_run_is_right(page)
        course = page.locator("article table", has_text="The question that it answers")
        shown = course.locator("tbody tr").all_inner_texts()
        assert sum("coming" in row for row in shown) == sum(not row.lesson for row in rows)
        page.locator("article table a").first.click()
        expect(page.locator("h1")).to_contain_text("Start here")

        six = next(row for row in rows if row.number == "06")
        page.goto((site / six.lesson).with_suffix(".html").as_uri())
        lessons = page.locator("nav.course .course-lesson").all_inner_texts()
        (words,) = [text.split() for text in lessons if text.startswith("06")]
        assert words[:2] == ["06", six.title] and "Exercise" in words
        assert " ".join(words[2:4]) == in_minutes(six.lesson_minutes).replace("\u00a0", " ")
        expect(page.locator("nav.course a[aria-current=page]")).to_have_text(six.title)
        assert sum("Exercise" in text for text in lessons) == 1
        page.goto((site / "docs" / "zoo.html").as_uri())  # the reader's place is far down
        expect(page.locator("nav.course a[aria-current=page]")).to_be_in_viewport()
        # The theme keeps a second copy for narrow screens.
        assert page.locator(".site-doors a:visible").count() == 5

        outside = [url for url in page.asked if not url.startswith(("file:", "data:"))]
        assert (outside, page.failed) == ([], [])

        with open_page(browser, java_script_enabled=False) as plain:
            plain.goto((site / "index.html").as_uri())
            expect(plain.locator(".which-run img")).to_be_visible()
            plain.locator(".which-run summary").click()
            expect(plain.locator(".which-run td").first).to_be_visible()
        with open_page(browser) as moving:
            moving.goto((site / "_static" / "all_reduce.svg").as_uri())
            for millisecs, shown in ((500, 0), (4000, 2), (14900, -1)):
                assert (
                    caption_at(moving, millisecs)
                    == moving.locator(".caption").nth(shown).inner_html()
                )


def which_run_is_right(page):
    """On a phone: picks a run by click and one by keyboard."""
    size = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    runs, answer = page.locator(".which-run button"), page.locator(".which-run [aria-live]")
    runs.nth(2).click()
    expect(answer).to_contain_text("Run C is wrong.")
    chart = answer.locator("figure svg")
    shown = chart.locator("text:is(.right, .wrong)")
    assert chart.locator("polyline").count() == 1 and shown.all_text_contents() == ["C"]
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(answer).to_contain_text("Run D is right.")
    assert runs.nth(3).get_attribute("aria-pressed") == "true"
    assert chart.locator("polyline").count() == runs.count() == 5
    letters = shown.evaluate_all(
        "names => names.map(name => name.getBoundingClientRect()).map(box => [box.top, box.height])"
    )
    assert all(height > 12 for _, height in letters)
    assert all(above[0] + 12 < below[0] for above, below in itertools.pairwise(letters))
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.set_viewport_size(size)


def caption_at(page, millisecs):
    """The text of the only caption that can be seen at a time of the loop."""
    script = """at => {
        document.getAnimations().forEach(each => { each.pause(); each.currentTime = at });
        const seen = caption => getComputedStyle(caption).opacity > 0.5;
        return [...document.querySelectorAll('.caption')].filter(seen).map(text => text.innerHTML);
    }"""
    (shown,) = page.evaluate(script, millisecs)
    return shown


# Pages of each kind, and not the longest ones: axe-core looks at every word.
LOOKED_AT = ("index", "notebooks/00_start_here", "exercises/01_mirrored_strategy", "docs/zoo")
LOOKED_AT += ("docs/support_matrix", "docs/benchmarks", "docs/own_model", "docs/decision_card")
LOOKED_AT += ("docs/install", "docs/two_machines", "docs/break_it")
# Code of cells and tables that are wider than their place; what is folded has no width.
CUT_OFF = """[...document.querySelectorAll("div.cell_input pre, .pst-scrollable-table-container")]
  .filter(part => part.checkVisibility() && part.scrollWidth > part.clientWidth)
  .map(part => part.innerText.slice(0, 80))"""

# Code in a sentence that ends beyond the edge of a phone.
CODE_CUT_OFF = """[...document.querySelectorAll(".bd-article :is(p, li, dt, dd, h1, h2, h3) code")]
  .filter(code => code.checkVisibility() && !code.closest("table")
    && [...code.getClientRects()].some(line => line.right > innerWidth))
  .map(code => code.innerText)"""


def test_pages_are_accessible_in_both_themes_and_cut_nothing_off(site, browser):
    wrong = []
    with open_page(browser, reduced_motion="reduce") as page:
        for name in LOOKED_AT:
            page.set_viewport_size({"width": 1440, "height": 900})
            page.goto((site / f"{name}.html").as_uri())
            wrong += [f"{name} cuts off: {text}" for text in page.evaluate(CUT_OFF)]
            wrong += violations(page)
            page.evaluate("document.documentElement.dataset.theme = 'dark'")
            wrong += violations(page, "color-contrast")
            page.set_viewport_size({"width": 390, "height": 844})
            width = page.evaluate("document.documentElement.scrollWidth")
            wrong += [f"{name} is {width} px wide on a phone"] * (width > 390)
            wrong += [f"{name} cuts off: {text}" for text in page.evaluate(CODE_CUT_OFF)]
        for name in ("pitfalls", "glossary", "reference"):  # long, so axe-core would look for long
            page.goto((site / "docs" / f"{name}.html").as_uri())
            wrong += [f"{name} cuts off: {text}" for text in page.evaluate(CODE_CUT_OFF)]
        page.goto((site / "index.html").as_uri())
        wrong += page.evaluate(CUT_OFF)  # on a phone, too: each lesson is a card
        page.goto((site / "docs" / "zoo.html").as_uri())
        table = (ROOT / "docs" / "zoo.md").read_text()
        for says, words in {"equal": r"\| equal(?= \|)", "stopped": r"\| stops: "}.items():
            assert page.locator(f"td.is-{says}").count() == len(re.findall(words, table)) > 0
        squares = page.locator(".measured a rect").evaluate_all(
            "all => all.map(square => square.getBoundingClientRect().width)"
        )
        assert len(squares) > 100 and min(squares) >= 16  # a finger hits it
    assert wrong == []


def test_on_a_small_laptop_the_course_folds_and_code_has_its_width(site, browser):
    with open_page(browser, offline=True, viewport={"width": 1024, "height": 768}) as page:
        for name in ("index", "notebooks/03_custom_training_loop", "notebooks/12_ring_all_reduce"):
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate(CUT_OFF) == []
            assert page.evaluate("document.documentElement.scrollWidth") == 1024
            assert page.locator("header").first.bounding_box()["height"] <= 80  # one row
        course = page.get_by_role("navigation", name="Course")
        expect(course).to_be_hidden()
        page.get_by_role("button", name="Site navigation").click()
        course.get_by_role("link", name="Start here").click()
        expect(page.locator("h1")).to_contain_text("Start here")


def test_a_square_of_a_measured_picture_leads_to_its_row_and_is_dark_in_the_dark(site, browser):
    with open_page(browser, offline=True) as page:
        for name in ("benchmarks", "zoo"):
            page.goto((site / "docs" / f"{name}.html").as_uri())
            rows = page.locator(".measured a").evaluate_all(
                """all => all.map(link => [link.querySelector("title").textContent,
                    document.querySelector(link.getAttribute("href")).innerText])"""
            )
            assert len(rows) > 10
            for words, row in rows:  # such as "deep_and_cross: off by 1e-02"
                row_name, _, cell = words.partition(": ")
                assert row_name.split(",")[0] in row and cell in row
            ground = page.locator(".measured > rect").first
            for theme, colour in {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 30)"}.items():
                page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
                expect(ground).to_have_css("fill", colour)
        links = page.get_by_role("group", name="A square for each").get_by_role("link")
        links.first.focus()
        page.keyboard.press("ArrowRight")
        expect(links.nth(1)).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("tr:target")).to_be_in_viewport()
        page.go_back()
        links.first.focus()
        page.keyboard.press("Tab")  # leaves the picture
        expect(page.locator(".measured :focus")).to_have_count(0)


def test_a_printed_page_has_the_article_alone(site, browser):
    with open_page(browser, offline=True, viewport={"width": 1440, "height": 900}) as page:
        page.goto((site / "docs" / "glossary.html").as_uri())
        around = ["#pst-header", ".course", ".page-toc", ".prev-next-footer", ".find"]
        for part in around:
            expect(page.locator(part).first).to_be_visible()
        page.emulate_media(media="print")
        for part in around:
            expect(page.locator(part).first).to_be_hidden()
        expect(page.locator("article")).to_be_visible()
        assert page.locator("article").bounding_box()["x"] < 100


def test_a_prediction_is_answered_on_the_page_and_hides_its_conclusion_until_then(site, browser):
    address = (site / "notebooks" / "00_start_here.html").as_uri()
    with open_page(browser, offline=True) as page:
        page.goto(address)
        conclusion = page.get_by_text("A replica can get nothing")
        expect(conclusion).to_be_hidden()
        expect(page.get_by_text("Show code cell")).to_have_count(0)
        cards = page.locator(".prediction fieldset")
        assert cards.count() == 4 and page.locator(".reveal:visible").count() == 0
        nine = page.locator(".prediction[data-name='00_start_here/nine_guess']")
        images = page.locator(".prediction[data-name='00_start_here/sum_guess']")
        nine.get_by_role("button", name="3, 3, 2, 1").focus()
        page.keyboard.press("Enter")
        expect(nine).to_contain_text("You predicted 3, 3, 2, 1. It was 3, 3, 3, 0.")
        expect(nine).to_contain_text("TensorFlow keeps none back")
        expect(conclusion).to_be_visible()
        images.get_by_role("textbox").fill("forty")
        page.keyboard.press("Enter")
        expect(images.get_by_text("It was 40")).to_have_count(0)
        images.get_by_role("textbox").fill("40")
        page.keyboard.press("Enter")
        expect(images).to_contain_text("You predicted it: 40 images.")
        page.reload()  # the answers stay
        expect(conclusion).to_be_visible()
        expect(page.locator(".recap")).to_contain_text("1 of 4 predictions came true.")
        page.get_by_role("button", name="Answer all again").click()
        expect(conclusion).to_be_hidden()
        cards.first.get_by_role("button", name="Show the answer").click()
        expect(page.locator(".prediction").first).to_contain_text("was given the whole batch")
    with open_page(browser, offline=True, java_script_enabled=False) as page:
        page.goto(address)
        expect(page.get_by_text("A replica can get nothing")).to_be_visible()
        expect(page.locator(".prediction > ul > li").first).to_be_visible()
        folds = page.locator(".reveal details")
        assert [fold.get_attribute("open") for fold in folds.all()] == [None] * 4


def test_the_views_move_on_the_page_and_the_address_keeps_their_place(site, browser):
    notebooks = site / "notebooks"
    with open_page(browser, offline=True) as page:
        page.goto((notebooks / "12_ring_all_reduce.html").as_uri() + "#explore_ring/ring/4/5")
        view = page.get_by_role("group", name="An all-reduce, step by step")
        words, step = view.locator(".view-words"), view.get_by_role("slider").last
        expect(words).to_contain_text("ring, step 5 of 6: rank 0 sends chunk 0 to rank 1")
        page.keyboard.press("Tab")
        step.focus()
        for _ in range(4):  # no step is after the last one
            page.keyboard.press("ArrowRight")
        expect(words).to_contain_text("ring, step 6 of 6")
        view.get_by_role("radio", name="tree").focus()
        page.keyboard.press("Space")
        expect(words).to_contain_text("tree, step 4 of 4: rank 0 sends the whole vector to rank 1")
        assert page.url.endswith("#explore_ring/tree/4/4")
        view.get_by_role("button", name="Play").click()
        expect(words).to_contain_text("tree, step 0 of 4: nothing has been sent yet")
        expect(words).to_contain_text("tree, step 4 of 4")
        expect(view.get_by_role("button", name="Play")).to_be_visible()  # it has stopped
        figure = page.get_by_alt_text(re.compile("An all-reduce of 4 ranks, ring, after step 1"))
        assert view.locator("svg").count() == 2 and not figure.is_visible()
        for name in ("02_batch_scaling", "14_scaling", "16_shard_everything"):
            page.goto((notebooks / f"{name}.html").as_uri())
            words = page.locator(".view-words")
            for slider in page.locator(".view").get_by_role("slider").all():
                before = words.inner_text()
                now, last = slider.input_value(), slider.get_attribute("max")
                slider.focus()
                page.keyboard.press("ArrowLeft" if now == last else "ArrowRight")
                assert words.inner_text() != before, f"{name} {slider}"
        assert page.failed == []
    with open_page(browser, offline=True, java_script_enabled=False) as page:
        page.goto((notebooks / "12_ring_all_reduce.html").as_uri())
        expect(page.get_by_alt_text(re.compile("An all-reduce of 4 ranks, ring"))).to_be_visible()
        expect(page.locator(".view")).to_be_hidden()


def test_a_long_page_filters_its_entries_by_keyboard_and_its_address_keeps_the_words(site, browser):
    places = {"pitfalls": "NaN", "reference": "partial batch", "teaching": "nbgrader"}
    with open_page(browser, offline=True, reduced_motion="reduce") as page:
        for name, phrase in {**places, "glossary": "all-reduce"}.items():
            page.goto((site / "docs" / f"{name}.html").as_uri())
            words = page.get_by_role("searchbox", name=re.compile(r"Filter \d+ \w+"))
            entries = page.locator("section:not(:has(section, dl.py)), dl.py:not(dl.py dl.py)")
            expect(words).to_be_visible()
            words.focus()
            page.keyboard.type(phrase)
            said = page.locator(".find").get_by_role("status").inner_text()
            shown, all_there = map(int, re.findall(r"^(\d+) of (\d+) ", said)[0])
            left = entries.filter(visible=True).all_inner_texts()
            assert 0 < shown == len(left) < all_there == entries.count(), (name, said)
            assert [text for text in left if not has_words(text, phrase)] == [], name
            assert violations(page) == []
            page.evaluate("document.documentElement.dataset.theme = 'dark'")
            assert violations(page, "color-contrast") == []
        page.reload()
        expect(words).to_have_value(phrase)
        hidden = entries.filter(visible=False)
        assert hidden.count() == all_there - shown
        expect(page.locator(".page-toc a").filter(visible=True).first).to_be_visible()
        page.evaluate("location.hash = 'heartbeat'")  # a link to what the filter hides ends it
        expect(page.locator("#heartbeat")).to_be_in_viewport()
        assert hidden.count() == 0 and "all-reduce" not in page.url
        words.fill("heartbeat")
        page.keyboard.press("Escape")
        assert hidden.count() == 0 and page.url.endswith("glossary.html#heartbeat")
    with open_page(browser, offline=True, java_script_enabled=False) as page:
        page.goto((site / "docs" / "glossary.html").as_uri() + "?filter=worker")
        expect(page.locator("#heartbeat")).to_be_visible()
        expect(page.get_by_role("searchbox")).to_have_count(0)


def has_words(text, phrase):
    """Whether a text has a phrase, or else each of its words."""
    return all(word.lower() in text.lower() for word in phrase.split())


def test_the_search_lists_sections_with_the_phrase_and_gives_no_answer_away(site, browser):
    with open_page(browser, offline=True) as page:
        page.goto((site / "docs" / "zoo.html").as_uri())
        page.keyboard.press("Control+k")
        page.keyboard.type("partial batch")
        page.keyboard.press("Enter")
        first = page.locator(".results li").first
        expect(first).to_contain_text("A partial batch in Write the training loop yourself")
        marks = page.locator(".results li").evaluate_all(
            "all => all.map(item => [...item.querySelectorAll('mark')].map(mark => mark.innerText))"
        )
        expect(page.get_by_role("status")).to_contain_text(f"{len(marks)} sections have")
        has_phrase = ["partial batch" in [*map(str.lower, words)] for words in marks]
        assert all(marks) and sum(has_phrase) > 9
        assert has_phrase == sorted(has_phrase, reverse=True)  # single words come last
        assert violations(page) == []
        first.get_by_role("link").click()
        expect(page.locator("#a-partial-batch h2, #a-partial-batch h3").first).to_be_in_viewport()
        page.go_back()
        page.get_by_role("searchbox").fill("TensorFlow keeps none back")  # an answer of lesson 00
        expect(page.get_by_role("status")).to_contain_text("sections have “TensorFlow keeps none")
        expect(page.locator(".results")).not_to_contain_text("keeps none back")
