"""One step in slow motion: its numbers are those of real steps, and its figure shows them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect
from sphinx.cmd.build import build_main

from tests.support.browser import open_browser, open_page, violations
from tests.support.repository import ROOT
from tools import one_step

STORED = json.loads(one_step.DATA.read_text(encoding="utf-8"))
TEXT = one_step.PAGE.read_text(encoding="utf-8")
ANSWERS = json.dumps({"one_step/weight": "1/9", "one_step/empty": "zeros"})
ANSWERED = f"localStorage.setItem('distlab-predictions', {ANSWERS!r})"
STEPS = re.findall(r'class="step" id="([\w-]+)"', TEXT)
NAMES = dict(re.findall(r'data-replay="([\w-]+)">([^<]+)', TEXT))
# The numbers below a gradient of replicas 0 to 3: each own one, and what the ring has summed.
CARRIED = {
    "gradients": ("gradient0", "gradient1", "gradient2", "gradient3"),
    "hop-1": ("gradient0", "sum1", "gradient2", "gradient3"),
    "hop-2": ("gradient0", "sum1", "sum2", "gradient3"),
    "hop-3": ("gradient0", "sum1", "sum2", "sum3"),
    "hop-4": ("sum3", "sum1", "sum2", "sum3"),
    "hop-5": ("sum3", "sum3", "sum2", "sum3"),
    "hop-6": ("sum3",) * 4,
    "update": ("sum3",) * 4,
}


def read(number):
    return float(number.replace("\N{MINUS SIGN}", "-").removeprefix("up to "))


def test_the_stored_numbers_are_those_of_a_new_run_and_the_page_says_them():
    measured = one_step.measure()
    assert STORED["digits"] == one_step.numbers(measured)["digits"]
    one = measured.steps[one_step.RIGHT].copies[0]
    for name, step in measured.steps.items():
        stored = STORED["runs"][name]
        assert (step.copies == step.copies[0]).all(), name  # in every run
        # Half a thousandth is from writing them down, and rounding is far below the rest.
        near = {"atol": 6e-4, "rtol": 0, "err_msg": name}
        np.testing.assert_allclose(np.array(stored["gradients"]) / 1000, step.gradients, **near)
        np.testing.assert_allclose(np.array(stored["after"]) / 1000, step.copies[0], **near)
        reference = np.array(stored.get("one", STORED["runs"][one_step.RIGHT]["after"])) / 1000
        np.testing.assert_allclose(reference, step.reference, **near)
        sure = 1 / (1 + np.exp(-measured.images @ step.copies[0]))
        np.testing.assert_allclose([float(says) for says in stored["says"]], sure, atol=6e-3)
        losses = [read(stored["values"][f"loss{replica}"]) for replica in range(4)]
        np.testing.assert_allclose(losses, step.losses, **near)  # NaN, too
        length = np.linalg.norm(step.copies[0] - measured.start)
        length /= np.linalg.norm(step.reference - measured.start)
        np.testing.assert_allclose(read(stored["values"]["length"]), length, rtol=0.05)
        if name == one_step.RIGHT:
            assert np.abs(step.off).max() < 1e-6
            assert stored["values"]["off"] == "nothing but rounding"
        else:
            off = np.abs(step.off).max()
            np.testing.assert_allclose(read(stored["values"]["off"]), off, rtol=0.05)
        # Of the weight with numbers, what a reader can add up does add up.
        marked = [row[one_step.MARKED] for row in stored["gradients"]]
        after = STORED["start"][one_step.MARKED] - sum(marked)
        assert after == stored["after"][one_step.MARKED], name
    steps = measured.steps
    for name, counts in {"mean-of-means": 9 / 12, "full-batch": 9 / 16, "not-divided": 3}.items():
        moved, whole = steps[name].copies[0] - measured.start, one - measured.start
        np.testing.assert_allclose(moved, counts * whole, atol=1e-5)
    assert one_step.with_values(TEXT, STORED["runs"]) == TEXT
    assert [one_step.RIGHT, *NAMES] == list(STORED["runs"])
    assert one_step.DATA.stat().st_size < 12_000


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    """The page on a site of its own."""
    base = tmp_path_factory.mktemp("one_step")
    shutil.copytree(ROOT / "docs" / "_static", base / "pages" / "docs" / "_static")
    shutil.copyfile(one_step.PAGE, base / "pages" / "docs" / one_step.PAGE.name)
    first = "# A site\n\n```{toctree}\ndocs/one_step\n```\n"
    (base / "pages" / "index.md").write_text(first, encoding="utf-8")
    where = [str(base / "pages"), str(base / "site")]
    assert build_main(["-Q", "-c", str(ROOT / "docs"), *where]) == 0
    page: Path = base / "site" / "docs" / "one_step.html"
    return page.as_uri()


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


def texts(page, kind):
    """The words of a kind that the figure shows; what is faded out has the class `off`."""
    return page.locator(f".one-step svg .{kind}:not(.off):not(.off *)").all_text_contents()


def test_the_figure_shows_the_stored_numbers_at_each_step_of_each_run(address, browser):
    with open_page(browser, offline=True, reduced_motion="reduce") as page:
        page.add_init_script(ANSWERED)
        page.goto(address)
        for name, run in STORED["runs"].items():
            values = run["values"]
            for at, step in enumerate(STEPS):
                page.evaluate(f"location.hash = '{step}/{name}'")
                expect(page.locator(".one-step .now")).to_have_id(step)
                here = f"{name}, {step}"
                one = read(values["one"]) * 1000
                off = (run["after"][one_step.MARKED] - round(one)) / 1000
                gradients = [values[key] for key in CARRIED.get(step, ())]
                if step == "equal":
                    gradients = [f"{off:.3f}".replace("-", "\N{MINUS SIGN}") if off else "0"] * 4
                assert texts(page, "gradient") == gradients, here
                updated = step in ("update", "equal")
                weight = values["after" if updated else "before"]
                assert texts(page, "weight") == [weight] * 4, here
                says = [] if at < 2 else (run if updated else STORED)["says"]
                assert texts(page, "says") == says, here
                losses = [values[f"loss{replica}"] for replica in range(4)]
                shown = at >= STEPS.index("losses") and not updated
                assert texts(page, "loss") == losses * shown, here
                assert texts(page, "each") == STORED["losses"] * shown, here
                mistake = [f"with a mistake: {NAMES[name]}"] if name in NAMES else [""]
                assert texts(page, "kind") == mistake, here
                words = page.locator(f"#{step} .shown")
                for value in words.locator("[data-value]").all():
                    key = value.get_attribute("data-value")
                    assert value.text_content() == values[key], (here, key)
                if step == "losses":
                    (lane,) = texts(page, "lane")
                    assert values["weight"] in lane and values["logged"] in lane, here
        # What no mistake changes is in the page's words as it is.
        said = page.locator("#forward .shown").text_content()
        assert [says for says in STORED["says"] if says not in said] == []
        digits = page.locator("#batch .shown").text_content()
        assert ", ".join(map(str, STORED["labels"][:-1])) in digits


def test_two_predictions_stop_the_story_and_the_address_keeps_step_and_mistake(address, browser):
    with open_page(browser, offline=True, reduced_motion="reduce") as page:
        page.goto(f"{address}#update/not-divided")  # nobody may skip the questions
        now, cards = page.locator(".one-step .now"), page.locator(".prediction")
        expect(now).to_have_id("forward")
        follow = page.get_by_role("button", name="Next")
        counter = page.locator(".one-step-controls > span")
        expect(counter).to_have_text("Answer first, or show the answer")
        follow.focus()
        page.keyboard.press("Enter")
        expect(cards.first.get_by_role("button").first).to_be_focused()
        page.keyboard.press("Enter")
        expect(cards.first).to_contain_text("You predicted 1/3. It was 1/9.")
        expect(counter).to_have_text("3 of 13")
        for step in ("losses", "losses"):
            follow.click()
            expect(now).to_have_id(step)
        expect(cards.last.get_by_role("button").first).to_be_focused()
        cards.last.get_by_role("button", name="64 zeros").click()
        expect(cards.last).to_contain_text("You predicted it: 64 zeros.")
        for step in STEPS[STEPS.index("gradients") :]:
            follow.click()
            expect(now).to_have_id(step)
            assert page.url.endswith(f"#{step}/not-divided")
            expect(page.locator(f"#{step}")).to_be_in_viewport()
        expect(counter).to_have_text("13 of 13")
        expect(follow).to_be_disabled()
        expect(page.get_by_role("button", name="Back")).to_be_focused()
        expect(page.locator(".one-step [role=status]")).to_contain_text("Two promises. In place")
        page.get_by_role("button", name="Back").click()
        expect(now).to_have_id("update")
        page.evaluate("document.getElementById('hop-2').scrollIntoView()")
        expect(now).to_have_id("hop-2")
        page.reload()
        expect(now).to_have_id("hop-2")
        choice = page.get_by_role("combobox", name="Take this step")
        expect(choice).to_have_value("not-divided")
        choice.select_option("right")
        assert page.url.endswith("#hop-2")
        page.evaluate("document.getElementById('break-it').scrollIntoView()")  # far at once
        expect(now).to_have_id("equal")
        page.get_by_role("button", name="penalty unscaled").click()
        expect(now).to_have_id("losses")
        expect(page.locator("#losses .shown")).to_contain_text("plus the whole penalty")
        assert page.url.endswith("#losses/penalty-unscaled")


# Clicks Next five times at once, and notes in `shown` which steps the figure shows.
QUICK_CLICKS = """() => {
  window.shown = [];
  const look = () => {
    const { id } = document.querySelector('.one-step .now');
    if (id !== shown.at(-1)) shown.push(id);
  };
  new MutationObserver(look).observe(document.querySelector('.one-step-story'),
    { subtree: true, attributes: true, attributeFilter: ['class'] });
  const next = [...document.querySelectorAll('.one-step-controls button')][1];
  for (let click = 0; click < 5; click += 1) { next.click(); look(); }
}"""
ARRIVED = "document.querySelector('.one-step .now').getBoundingClientRect().top < 0.4 * innerHeight"


def test_quick_clicks_never_take_the_figure_back(address, browser):
    with open_page(browser, offline=True) as page:
        page.add_init_script(ANSWERED)
        page.goto(address)
        expect(page.locator(".one-step .now")).to_have_id("batch")
        expect(page.get_by_role("button", name="Back")).to_be_disabled()
        page.evaluate(QUICK_CLICKS)
        page.wait_for_function(ARRIVED)
        assert page.evaluate("shown") == STEPS[1:6]
        page.keyboard.press("Home")  # and then the figure follows the reader's own scroll
        expect(page.locator(".one-step .now")).to_have_id("batch")


def test_chunks_fly_unless_the_reader_wants_no_motion(address, browser):
    for motion, flying in (("no-preference", 4), ("reduce", 0)):
        with open_page(browser, offline=True, reduced_motion=motion) as page:
            page.add_init_script(ANSWERED)
            page.goto(f"{address}#hop-1")
            expect(page.locator(".one-step .now")).to_have_id("hop-1")
            flown = page.evaluate(
                """() => {
                    [...document.querySelectorAll(".one-step-controls button")][1].click();
                    return document.getAnimations().filter(({ transitionProperty, effect }) =>
                        transitionProperty === "transform" && effect.target.tagName === "g").length;
                }"""
            )
            assert flown == flying, motion


# The height of the figure's smallest letters on the screen.
SMALLEST = """() => {
  const svg = document.querySelector('.one-step svg');
  const sizes = [...svg.querySelectorAll('text')].map(text => getComputedStyle(text).fontSize);
  return Math.min(...sizes.map(parseFloat)) * svg.clientWidth / svg.viewBox.baseVal.width;
}"""


def test_the_page_is_accessible_pinned_on_a_phone_and_whole_without_a_script(address, browser):
    with open_page(browser, offline=True, reduced_motion="reduce") as page:
        page.add_init_script(ANSWERED)
        wrong = []
        for width, height in ((1440, 900), (1024, 768), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            for place in ("batch", "hop-3/penalty-unscaled", "equal/not-divided"):
                page.goto("about:blank")
                page.goto(f"{address}#{place}")
                step = place.split("/")[0]
                expect(page.locator(".one-step .now")).to_have_id(step)
                expect(page.locator(".one-step svg")).to_be_in_viewport(ratio=0.99)
                heading = page.locator(f"#{step} h2")
                expect(heading).to_be_in_viewport()
                figure = page.locator(".one-step-figure").bounding_box()
                if width == 390:  # its words are below the figure, not under it
                    assert heading.bounding_box()["y"] > figure["y"] + figure["height"]
                    assert figure["height"] < height / 2
                    expect(page.locator(".one-step-controls > span")).to_be_visible()
                    assert page.evaluate(SMALLEST) >= 11
                assert page.evaluate("document.documentElement.scrollWidth") == width
                for theme in ("light", "dark"):
                    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
                    wrong += violations(page)
        assert wrong == []
        assert [url for url in page.asked if not url.startswith(("file:", "data:", "about:"))] == []
    with open_page(browser, offline=True, java_script_enabled=False) as page:
        page.goto(address)
        for step in STEPS:
            expect(page.locator(f"#{step} .shown")).to_be_visible()
        expect(page.locator("#break-it td").last).to_have_text(
            STORED["runs"][one_step.PENALTY]["values"]["length"]
        )
        assert page.locator(".one-step svg").count() == 0
