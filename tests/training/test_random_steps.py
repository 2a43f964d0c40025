"""A tenth of `make random-steps`: drawn steps end as on one device, or are refused by name."""

import keras
import pytest

from tools import random_steps
from tools.random_steps import EQUAL, FEATURES, NOT_COUNTED

pytestmark = pytest.mark.usefixtures("graphs_that_run_a_few_times", "in_float64")
SEEDS = range(30)


@pytest.fixture(scope="module")
def in_float64():
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx(before)
    keras.backend.clear_session()  # it keeps layers' default


@pytest.fixture(scope="module")
def kinds():
    """How the steps of this process have ended."""
    return []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_takes_that_of_one_device_or_is_refused_by_name(seed, kinds):
    outcome = random_steps.judge(seed)
    kinds.append(outcome.kind)
    assert not outcome.is_failure, outcome
    assert not outcome.is_unnamed, outcome


def test_most_steps_count(kinds):
    if len(kinds) < len(SEEDS):
        pytest.skip("judged where all of them have run in one process")
    assert kinds.count(EQUAL) > len(SEEDS) / 2
    assert kinds.count(NOT_COUNTED) < len(SEEDS) / 6


def test_as_many_seeds_as_there_are_features_draw_each_of_them():
    first = [random_steps.features_of(seed)[0] for seed in range(len(FEATURES))]
    assert sorted(first) == sorted(FEATURES)
