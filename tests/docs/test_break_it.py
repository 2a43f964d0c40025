"""The page "Break it yourself": it trains as TensorFlow does, and its switches keep their word."""

import base64
import json
import re
import shutil

import numpy as np
import pytest
from playwright.sync_api import expect
from sphinx.cmd.build import build_main

import distlab as dl
from tests.support.browser import open_browser, open_page, violations
from tests.support.repository import ROOT
from tools import break_it, pictures

MISTAKES = {
    "no-seed": pictures.NO_SEED,
    "same-shard": pictures.SAME_SHARD,
    "mean-of-means": pictures.MEAN_OF_MEANS,
    "whole-penalty": pictures.PENALTY,
    "lost-replica": pictures.LOST,
}
# The losses of all steps, each replica's weights after each epoch, and the accuracy at the end.
TRAIN = """([file, replicas, mistakes]) => {
  const training = new Training(readDigits(file), replicas, mistakes), weights = [];
  while (!training.done) {
    training.step();
    if (training.losses.length % training.stepsOfEpoch) continue;
    weights.push(training.copies.map(copy => [...copy]));
  }
  return [training.losses, weights, training.accuracy()];
}"""
# How often the first chart is drawn while the network trains again.
DRAWINGS = """() => new Promise(finish => {
  const words = document.querySelector('.break-it-said p');
  const chart = document.querySelector('.break-it-chart');
  let drawings = 0;
  new MutationObserver(() => drawings++).observe(chart, { childList: true });
  const end = () => words.className === '' && finish(drawings);
  new MutationObserver(end).observe(words, { attributes: true });
  document.querySelector('.break-it-said button').click();
})"""


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


def test_the_page_takes_the_steps_of_tensorflow_with_no_mistake_with_each_and_with_all(browser):
    data = json.loads(break_it.DATA.read_text(encoding="utf-8"))
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(pictures.REPLICAS))
    train, test = pictures.digits()
    one_device = pictures.by_fit(pictures.build(), train, pictures.EPOCHS)
    steps_of_epoch = (len(one_device) - 1) // pictures.EPOCHS
    with open_page(browser, offline=True) as page:
        page.add_script_tag(path=pictures.STATIC / "digits_network.js")
        _, weights, accuracy = page.evaluate(TRAIN, [data, 1, []])
        # Rounding differs between processors, and grows a little in 69 steps.
        np.testing.assert_allclose(weights[-1], one_device[-1:], atol=1e-5)
        named = pictures.scores(one_device[-1], test[0]).argmax(axis=1)
        assert accuracy == pytest.approx(np.mean(named == test[1]), abs=1 / len(named))
        for mistakes in ([], *([mistake] for mistake in MISTAKES), list(MISTAKES)):
            losses, weights, _ = page.evaluate(TRAIN, [data, pictures.REPLICAS, mistakes])
            kinds = {MISTAKES[mistake] for mistake in mistakes}
            path, reported = pictures.by_hand(strategy, kinds, train, pictures.EPOCHS)
            np.testing.assert_allclose(losses, reported, atol=1e-5, err_msg=f"{mistakes}")
            after_epochs = path[steps_of_epoch::steps_of_epoch]
            np.testing.assert_allclose(weights, after_epochs, atol=1e-5, err_msg=f"{mistakes}")
            far = np.abs(path[-1] - one_device[-1]).max()
            assert far > 1e-3 if mistakes else far < 1e-5, mistakes


def test_the_stored_data_are_what_the_script_writes():
    assert break_it.DATA.stat().st_size < 200_000
    stored, written = json.loads(break_it.DATA.read_text(encoding="utf-8")), break_it.page_data()
    for kept, made in zip(stored.pop("weights"), written.pop("weights"), strict=True):
        ours, theirs = (np.frombuffer(base64.b64decode(text), "<f4") for text in (kept, made))
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert stored == written


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page in the site's look, built alone: its links lead nowhere."""
    base = tmp_path_factory.mktemp("site")
    pages, built = base / "pages", base / "built"
    (pages / "docs" / "_static").mkdir(parents=True)
    (pages / "index.md").write_text("# Home\n\n```{toctree}\ndocs/break_it\n```\n")
    for name in ("break_it.md", "_static/break_it.json", "_static/which_run.svg"):
        shutil.copyfile(ROOT / "docs" / name, pages / "docs" / name)
    assert build_main(["-Q", "-c", str(ROOT / "docs"), str(pages), str(built)]) == 0
    return (built / "docs" / "break_it.html").as_uri()


def test_a_reader_breaks_it_by_keyboard_and_the_address_keeps_the_switches(address, browser):
    errors = []
    with open_page(browser, offline=True, reduced_motion="reduce") as page:
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}#lost-replica")
        words, found = page.locator(".break-it-said p"), page.locator(".break-it-goals .found")
        lost = page.get_by_role("checkbox", name="Lost replica")
        expect(words).to_contain_text("Another model. After 69 steps")
        expect(lost).to_be_checked()
        expect(lost).to_have_accessible_description(
            "sums = all_reduce([gradient, loss] if rank < 3 else 0)"
        )
        expect(found).to_have_text(
            [re.compile("better loss .*: found"), re.compile("more .*: found")]
        )
        assert violations(page) == []
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        assert violations(page, "color-contrast") == []

        lost.focus()
        page.keyboard.press("Space")
        expect(words).to_contain_text("which is rounding")
        assert page.url == address
        means = page.get_by_role("checkbox", name="Mean of means")
        means.focus()
        page.keyboard.press("Space")
        expect(found).to_have_count(3)
        expect(page.get_by_text("the five count too much")).to_be_visible()
        assert page.url == f"{address}#mean-of-means"
        page.go_back()
        expect(means).not_to_be_checked()
        page.go_back()
        expect(words).to_contain_text("Another model.")
        expect(lost).to_be_checked()
        page.evaluate("location.hash = 'is-this-real'")  # another place on the page
        expect(lost).to_be_checked()
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        charts, header = page.locator(".break-it-charts"), page.locator(".bd-header")
        for mistake in (lost, page.get_by_role("checkbox", name="No seed")):
            mistake.focus()  # by keyboard a switch comes into sight, and the charts stay there
            expect(mistake).to_be_in_viewport(ratio=1)
            expect(charts).to_be_in_viewport(ratio=1)
            top, bottom = (part.bounding_box() for part in (charts, mistake))
            assert top["y"] >= header.bounding_box()["height"]
            assert bottom["y"] > top["y"] + top["height"] and top["height"] < 844 / 3
        assert page.evaluate(DRAWINGS) == 1
    with open_page(browser, offline=True) as page:
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        expect(page.locator(".break-it-said p")).to_contain_text("is rounding")
        assert page.evaluate(DRAWINGS) > 1
    assert errors == []
    with open_page(browser, offline=True, java_script_enabled=False) as page:
        page.goto(address)
        expect(page.get_by_alt_text("Five curves of the training loss")).to_be_visible()
        expect(page.get_by_text("the five count too much")).to_be_visible()
        expect(page.get_by_text("Can you find")).to_be_hidden()
