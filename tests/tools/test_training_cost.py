"""docs/training_cost.md says how far the model is from published runs, and lists every miss."""

import re

import numpy as np
import pytest

from tests.support.repository import ROOT
from tools import training_cost_page
from tools.measured_pages import read_tables
from tools.published_runs import read_runs
from tools.training_cost import START, fit, step_parts, tokens_per_sec

PAGE = (ROOT / "docs" / "training_cost.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def measured():
    runs, left_out = read_runs()
    return runs, left_out, training_cost_page.measure(runs)


def numbers(cells):
    return [float(n) for n in re.findall(r"[-+]?\d+\.?\d*", " ".join(cells.values()))]


def test_the_page_says_what_the_model_misses_today(measured):
    runs, left_out, errors = measured
    teams, fitted, misses, reasons, _ = read_tables(PAGE)
    for team, row in training_cost_page.teams(runs, errors).items():
        assert numbers(teams[team]) == pytest.approx(numbers(row), abs=1.0), team
    assert {why: int(row["runs left out"]) for why, row in reasons.items()} == left_out
    assert sum(left_out.values()) + len(runs.id) == 746 and "746 runs" in PAGE
    # A run at the border may be listed on one processor and not on the next.
    near = {
        runs.id[row]
        for row in np.flatnonzero(abs(abs(errors.cold) - training_cost_page.MISS) < 0.01)
    }
    assert set(misses) ^ set(training_cost_page.misses(runs, errors)) <= near
    for name, value in fit(runs).items():
        assert float(fitted[name]["fitted to all runs"]) == pytest.approx(value, rel=0.03)


def test_it_is_as_good_as_the_page_claims_and_better_than_no_model(measured):
    _, _, errors = measured
    cold, calibrated, same_speed = (
        training_cost_page._median(each)
        for each in (errors.cold, errors.calibrated, errors.same_speed)
    )
    assert cold < 12 and calibrated < 5 < same_speed
    lines = (ROOT / "tools" / "training_cost.py").read_text(encoding="utf-8").count("\n")
    assert lines <= 150 and f"{lines} lines and four fitted numbers" in " ".join(PAGE.split())
    assert f"{cold:.0f} % off" in PAGE and f"{calibrated:.0f} % off" in PAGE


def test_one_device_sends_nothing_and_more_replicas_only_add_what_they_send():
    runs, _ = read_runs()
    alone = runs.pick(runs.devices == 1)
    assert len(alone.id)
    parts = step_parts(alone, START)
    for name in ("tensor", "bubble", "gathers", "gradients"):
        assert not parts[name].any(), name
    assert (tokens_per_sec(alone, START) > tokens_per_sec(alone, START, 2.0)).all()
