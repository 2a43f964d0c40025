"""The comparison by which tests and tools judge trainings finds each way to differ."""

from types import SimpleNamespace

import numpy as np

from tests.support.parity import differences, too_far, unlike

WEIGHTS = [np.array([1.0, 2.0], "float32"), np.array(100.0)]
RUN = {"loss": [1.5, 200.0]}, WEIGHTS
NAN = {"loss": [1.5, np.nan]}, [np.array([np.nan, np.inf]), np.array(100.0)]


def mirrored(*copies):
    return SimpleNamespace(path="dense/kernel", value=SimpleNamespace(values=copies))


def test_equal_runs_differ_by_nothing():
    assert differences(RUN, RUN) == {"log loss": 0.0, "0 weight": 0.0, "1 weight": 0.0}
    assert unlike(RUN, RUN, atol=0, logs=0) == {}
    assert unlike(NAN, NAN, equal_nan=True) == {}


def test_each_difference_is_found_under_its_name():
    moved = {"loss": [1.5, 200.0]}, [WEIGHTS[0], WEIGHTS[1] + 1e-5]
    assert list(unlike(RUN, moved)) == ["1 weight"], "weights are compared absolutely"
    logged = {"loss": [1.5, 200.004]}, WEIGHTS
    assert list(unlike(RUN, logged)) == ["log loss"]
    assert unlike(RUN, logged, logs=3e-5) == {}, "logs are compared relatively"
    small = [({"rate": [rate]}, ()) for rate in (1e-2, 1.0001e-2)]
    assert unlike(*small) == {} and list(unlike(*small, floor=1e-3)) == ["log rate"]


def test_what_cannot_be_compared_is_infinitely_far():
    shorter = {"loss": [1.5]}, [WEIGHTS[0][:1], WEIGHTS[1]]
    assert differences(RUN, shorter) == {"log loss": np.inf, "0 weight": np.inf, "1 weight": 0.0}
    for logs in ({}, {"loss": RUN[0]["loss"], "mae": [0.5]}):
        assert max(differences(RUN, (logs, WEIGHTS)).values()) == np.inf
    for run in (RUN, NAN):
        assert too_far(differences(run, NAN)).keys() == {"log loss", "0 weight"}


def test_every_copy_of_a_variable_counts():
    expected, wrong = np.zeros(2), np.array([0.0, 0.5])
    run = {}, [mirrored(expected)]
    assert differences(run, ({}, [mirrored(expected, wrong)])) == {"0 dense/kernel": 0.5}
