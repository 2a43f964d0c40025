"""docs/fit_check.md: its card says for some answers what a run of TensorFlow gives today."""

import json
import re
import shutil
import subprocess
import sys
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect
from sphinx.cmd.build import build_main

from tests.support.browser import open_browser, open_page, violations
from tests.support.repository import ROOT
from tools import fit_check
from tools.fit_questions import (
    CRASHES,
    DATA,
    PAGE,
    PLAIN,
    QUESTIONS,
    START,
    combinations,
    key,
    page_data,
    page_table,
)
from tools.measured_pages import measure_rows

STORED = json.loads(DATA.read_text(encoding="utf-8"))
MEASURED = STORED["measured"]
OWN_STEPS = ("step", "raw_step")  # parameter servers do not run them
HEADLINES = {
    "equal": "Your weights are those of one device.",
    "weights equal, log off by": "Your weights are right, and your log is wrong.",
    "off by": "Your weights differ from one device.",
    "crashes": "fit stops with an error.",
}
# Each verdict is among them: these answers with each way to clip, where that was measured.
ROWS = ("mirrored full  {} none none no", "mirrored uneven  keras none none no")
ROWS = (*(ROWS[0].format(loss) for loss in ("keras", "step")), ROWS[1])
ROWS += ("central_storage full  keras none none yes",)


def headline(cell):
    return next(words for begin, words in HEADLINES.items() if cell.startswith(begin))


def test_what_is_stored_is_what_the_page_asks_and_the_page_has_its_table():
    assert page_data(MEASURED, STORED["versions"]) == STORED
    assert page_table(MEASURED) in PAGE.read_text(encoding="utf-8")
    assert list(MEASURED) == [key(answers) for answers in combinations()]
    crashes = {cell.removeprefix("crashes: ") for cell, _ in MEASURED.values() if ":" in cell}
    assert crashes == set(CRASHES)
    for name, question in QUESTIONS.items():
        for each, answer in question.answers.items():
            cell, ours = MEASURED[key(PLAIN | {name: each})]  # each answer alone
            assert ours == "equal"
            assert answer.why or cell == "equal" or cell.startswith("crashes"), each
    refused = [name for name, (_, ours) in MEASURED.items() if ours != "equal"]
    assert refused == [f"parameter_server full none {own} none none no" for own in OWN_STEPS]


def test_the_check_names_the_cell_that_changed(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["", "--check"])
    name = key(START)
    for cell, code in {MEASURED[name][0]: 0, "off by 9e-01": 0, "equal": 1}.items():
        changed = MEASURED | {name: [cell, "equal"]}
        monkeypatch.setattr(fit_check, "measure", lambda changed=changed: changed)
        assert fit_check.main() == code
        assert (f"{name}: " in capsys.readouterr().out) == bool(code)


@pytest.fixture(scope="module")
def measured_now():
    """By key, the cells of some combinations, measured in processes of their own."""
    rows = measure_rows(fit_check.measure_here, ROWS).values()
    cells = {name: cell for row in rows for name, cell in row.items()}
    keys = dict.fromkeys(name.split(" | ")[0] for name in cells)
    return {each: [cells[f"{each} | {way}"] for way in ("fit", "distribute")] for each in keys}


def test_a_run_of_tensorflow_gives_what_is_stored(measured_now):
    assert fit_check.changed({name: MEASURED[name] for name in measured_now}, measured_now) == []
    assert {headline(cell) for cell, _ in measured_now.values()} == set(HEADLINES.values())


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site with the pages of docs/ and the notebook that cards name."""
    base = tmp_path_factory.mktemp("site")
    pages, built = base / "pages", base / "built"
    shutil.copytree(ROOT / "docs", pages / "docs")
    (pages / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / "03_custom_training_loop.ipynb", pages / "notebooks")
    command = [sys.executable, ROOT / "tools" / "site_pages.py", pages]
    subprocess.run(command, check=True, cwd=ROOT)
    assert build_main(["-Q", "-c", str(ROOT / "docs"), str(pages), str(built)]) == 0
    return built


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


def address(site, **answers):
    place = (site / "docs" / "fit_check.html").as_uri()
    return f"{place}#{urlencode(answers)}" if answers else place


def test_the_card_says_what_was_measured_and_leads_to_what_explains_it(site, browser, measured_now):
    with open_page(browser, offline=True) as page:
        card, links = page.get_by_role("region", name="The card"), set()
        for name, (cell, _) in measured_now.items():
            page.goto(address(site, **dict(zip(QUESTIONS, name.split(), strict=True))))
            expect(card.locator(".fit-verdict")).to_contain_text(headline(cell))
            versions = STORED["versions"]
            measured_with = f"TensorFlow {versions['TensorFlow']} and Keras {versions['Keras']}"
            expect(card).to_contain_text(f"Measured with {measured_with}")
        # All verdicts at once: each card has an anchor that exists, and no word of a missing value.
        for answers in combinations():
            page.evaluate("answers => { location.hash = answers }", urlencode(answers))
            chosen = page.locator("input:checked").evaluate_all(
                "all => all.map(each => each.value)"
            )
            assert " ".join(chosen) == key(answers)
            expect(card.locator(".fit-verdict")).to_contain_text(
                headline(MEASURED[key(answers)][0])
            )
            text = card.inner_text()
            assert "undefined" not in text and "NaN" not in text, answers
            links |= set(card.locator("a").evaluate_all("all => all.map(link => link.href)"))
        assert len(links) > 15
        for link in sorted(links):
            page.goto(link)
            assert page.evaluate(
                "!location.hash || document.querySelector(location.hash) !== null"
            ), link


def test_a_combination_that_nobody_measured_shows_the_nearest_that_was(site, browser):
    answers = {"norm": "plain", "clip": "clipnorm", "dropout": "yes"}
    assert key(START | answers) not in MEASURED
    cell, _ = MEASURED[key(START | answers | {"dropout": "no"})]
    with open_page(browser, offline=True) as page:
        page.goto(address(site, **answers))
        card = page.get_by_role("region", name="The card")
        expect(card.locator(".fit-verdict")).to_contain_text("This combination was not measured.")
        expect(card).to_contain_text(f"Without dropout, it was: {headline(cell)}")
        page.goto("about:blank")
        page.goto(address(site, clip="clipping", batches="full"))
        expect(card).to_contain_text("The link says clip=clipping, which this page doesn't know")


def test_the_address_keeps_the_answers_which_a_keyboard_gives_and_a_link_carries(site, browser):
    with open_page(browser, offline=True) as page:
        page.goto(address(site))
        card = page.get_by_role("region", name="The card")
        verdict = card.locator(".fit-verdict")
        expect(verdict).to_contain_text(headline(MEASURED[key(START)][0]))
        page.get_by_role("radio", name="the last one is partial").focus()
        page.keyboard.press("ArrowLeft")
        expect(verdict).to_contain_text("Your weights are those of one device.")
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        expect(verdict).to_contain_text("Your weights differ from one device.")
        assert "batches=full" in page.url and "clip=clipnorm" in page.url
        page.go_back()
        expect(verdict).to_contain_text("Your weights are those of one device.")
        expect(
            page.get_by_role("group", name="clip").get_by_label("no", exact=True)
        ).to_be_checked()
        page.go_forward()

        said = card.inner_text()
        page.evaluate("void (navigator.clipboard.writeText = text => { window.copied = text })")
        card.get_by_role("button", name="Copy link").press("Enter")
        expect(card).to_contain_text("Copied.")
        link = page.evaluate("window.copied")
        page.evaluate("void (navigator.clipboard.writeText = undefined)")
        card.get_by_role("button", name="Copy link").click()
        expect(card.get_by_label("Copy it from here")).to_have_value(link)
        with open_page(browser, viewport={"width": 390, "height": 844}) as phone:
            phone.goto(link)
            sent = phone.get_by_role("region", name="The card")
            assert sent.inner_text() == said
            expect(sent.locator(".fit-verdict")).to_be_in_viewport()  # before the questions
            assert phone.evaluate("document.documentElement.scrollWidth") == 390


def test_the_page_is_accessible_in_both_themes_and_whole_without_javascript(site, browser):
    wrong = []
    with open_page(browser, offline=True, reduced_motion="reduce") as page:
        for width in (1440, 1024, 390):
            page.set_viewport_size({"width": width, "height": 900})
            for answers in ({"batches": "full"}, {"clip": "clipnorm", "norm": "plain"}):
                page.goto("about:blank")
                page.goto(address(site, **answers))
                wrong += violations(page) if width == 1440 else []
                page.evaluate("document.documentElement.dataset.theme = 'dark'")
                wrong += violations(page, "color-contrast")
                assert page.evaluate("document.documentElement.scrollWidth") == width
        assert wrong == []
    with open_page(browser, offline=True, java_script_enabled=False) as page:
        page.goto(address(site))
        expect(page.get_by_text("The questions need JavaScript.")).to_be_visible()
        cells = page.locator("#every-combination td").all_inner_texts()
        fits = [cell for cell, _ in MEASURED.values()]
        assert sorted(
            cell for cell in cells if re.match("equal|off|weights equal|crashes", cell)
        ) == sorted(fits)
