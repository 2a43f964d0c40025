"""The checks of lesson 13: right answers pass, and each mistake is named."""

import statistics

import numpy as np
import pytest

from distlab.course.checks.registry import checks_of
from distlab.course.lesson_13_performance.recorded import recorded_scaling
from distlab.course.lesson_13_performance.runs import scale_recorded
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
)

STEM = "13_performance"
CHECKS = {check.name: check for check in checks_of(STEM)}
TIMER, EFFICIENCIES, ALPHA_BETA, KNEE = CHECKS.values()


# --- step_timer


def stopwatch(*, warm_up=1, waits_before=True, waits_after=True, divides=True):
    def secs_per_step(step, wait, clock, calls):
        for _ in range(warm_up):
            step()
        if waits_before:
            wait()
        start = clock()
        for _ in range(calls):
            step()
        if waits_after:
            wait()
        return (clock() - start) / (calls if divides else 1)

    return secs_per_step


def waits_for_each(step, wait, clock, calls):
    secs = []
    for _ in range(calls + 1):
        start = clock()
        step()
        wait()
        secs.append(clock() - start)
    return statistics.mean(secs[1:])


def test_other_right_stopwatches_pass():
    assert_right_answers_pass(TIMER, stopwatch(warm_up=3), waits_for_each)


def test_stopwatches_that_lie_are_named():
    wrong = {
        "includes_tracing": stopwatch(warm_up=0),
        "no_sync": stopwatch(waits_after=False),
        "counts_the_warm_up": stopwatch(waits_before=False),
        "total_for_mean": stopwatch(divides=False),
    }
    assert_mistakes_are_caught(TIMER, wrong, earned=0)
    assert_feedback_says(TIMER, {"is there a `return`?": lambda *_: None})


# --- efficiencies


def scaling(
    *,
    strong_batch=lambda b, k: b,
    weak_batch=lambda b, k: b * k,
    strong=lambda more, k: more / k,
    weak=lambda more, k: more / k,
    first=lambda replicas: replicas[0],
):
    """`k` is how many times the baseline's replicas there are, and `more` their throughput."""

    def efficiencies(examples_per_sec, batch, replicas):
        base = examples_per_sec(replicas[0], batch)

        def all_of(of, batch_of):
            found = []
            for n in replicas:
                k = n / first(replicas)
                found.append(of(examples_per_sec(n, batch_of(batch, k)) / base, k))
            return found

        return {"strong": all_of(strong, strong_batch), "weak": all_of(weak, weak_batch)}

    return efficiencies


def by_step_times(examples_per_sec, batch, replicas):
    """The lesson's formulas, which are about the time of a step."""

    def secs(n, global_batch):
        return global_batch / examples_per_sec(n, global_batch)

    first, each = replicas[0], batch // replicas[0]
    one = secs(first, batch)
    return {
        "weak": np.array([one / secs(n, n * each) for n in replicas]),
        "strong": np.array([first * one / (n * secs(n, batch)) for n in replicas]),
    }


def test_other_right_efficiencies_pass():
    assert_right_answers_pass(EFFICIENCIES, scaling(), by_step_times)


def test_wrong_efficiencies_are_named():
    wrong = {
        "weak_with_fixed_global": scaling(weak_batch=lambda b, k: b),
        "strong_with_growing_batch": scaling(strong_batch=lambda b, k: b * k),
        "speedup_for_efficiency": scaling(weak=lambda more, k: more),
        "baseline_of_one": scaling(first=lambda replicas: 1),
    }
    earned = {"speedup_for_efficiency": 1.5}  # each kind of scaling earns half
    assert_mistakes_are_caught(EFFICIENCIES, wrong, earned=earned)


# --- fit_link


def least_squares(known):
    sizes, times = np.array(known).T
    columns = np.stack([np.ones_like(sizes), sizes], axis=1)
    return np.linalg.lstsq(columns, times, rcond=None)[0]


def through_0(known):
    sizes, times = np.array(known).T
    return np.array([0.0, sizes @ times / (sizes @ sizes)])


def line(
    *,
    fitted=lambda known, unseen: known,
    tested=lambda known, unseen: unseen,
    below_0=through_0,
    error=lambda said, measured: abs(said - measured) / measured,
):
    def fit_and_test(known, unseen):
        points = fitted(known, unseen)
        alpha, beta = least_squares(points)
        if alpha < 0:
            alpha, beta = below_0(points)
        errors = [error(alpha + beta * size, time) for size, time in tested(known, unseen)]
        return {"latency_ms": alpha, "ms_per_mb": beta, "largest_error": max(errors)}

    return fit_and_test


def by_the_models_own_search(known, unseen):
    """SciPy's least squares with bounds, as an engineer might do it."""
    from scipy.optimize import nnls

    sizes, times = np.array(known).T
    (alpha, beta), _ = nnls(np.stack([np.ones_like(sizes), sizes], axis=1), times)
    errors = [abs(1 - (alpha + beta * size) / time) for size, time in unseen]
    return {"latency_ms": alpha, "ms_per_mb": beta, "largest_error": max(errors), "more": 1}


def test_other_right_lines_pass():
    assert_right_answers_pass(ALPHA_BETA, line(), by_the_models_own_search)


def test_wrong_lines_are_named():
    def cut_off(points):
        return np.maximum(least_squares(points), 0)

    wrong = {
        "tested_on_fitted_points": line(tested=lambda known, unseen: known),
        "fitted_to_all_points": line(fitted=lambda known, unseen: known + unseen),
        "negative_alpha": line(below_0=least_squares),
        "alpha_cut_off": line(below_0=cut_off),
        "signed_error": line(error=lambda said, measured: said / measured - 1),
    }
    earned = {"negative_alpha": 2}
    assert_mistakes_are_caught(ALPHA_BETA, wrong, earned=earned, seeds=range(8))
    names = "latency_ms, ms_per_mb, largest_error"
    assert_feedback_says(ALPHA_BETA, {names: lambda known, unseen: (1.0, 2.0, 0.1)})


# --- predict_knee


def ring(*, rounds=lambda n: 2 * (n - 1), moved=lambda n, mb: 2 * (n - 1) / n * mb):
    def fastest(compute_ms, latency_ms, gradient_mb, mb_per_ms, counts):
        def step_ms(n):
            return compute_ms / n + rounds(n) * latency_ms + moved(n, gradient_mb) / mb_per_ms

        return min((step_ms(n), n) for n in counts)[::-1]

    return fastest


def by_arrays(compute_ms, latency_ms, gradient_mb, mb_per_ms, counts):
    n = np.array(counts)
    ms = compute_ms / n + 2 * (n - 1) * (latency_ms + gradient_mb / (n * mb_per_ms))
    return [int(n[ms.argmin()]), float(ms.min())]


def test_other_right_knees_pass():
    assert_right_answers_pass(KNEE, ring(), by_arrays)


def test_wrong_knees_are_named():
    wrong = {
        "latency_ignored": ring(rounds=lambda n: 0),
        "n_times_bytes": ring(moved=lambda n, mb: n * mb),
        "half_of_the_ring": ring(rounds=lambda n: n - 1, moved=lambda n, mb: (n - 1) / n * mb),
        "one_latency": ring(rounds=lambda n: min(1, n - 1)),
    }
    assert_mistakes_are_caught(KNEE, wrong)


def test_the_knee_is_inside_and_large_gradients_leave_one_replica():
    for seed in range(30):
        right = KNEE.expected(KNEE.inputs(seed))
        assert 8 < right["replicas usual"] < 1024
        assert right["replicas large"] == 1


# --- the run of the report


def test_the_report_gives_the_recorded_steps_to_the_learners_function():
    recording = recorded_scaling()
    asked = []

    def efficiencies(examples_per_sec, batch, replicas):
        asked.append((batch, replicas, examples_per_sec(4, 256)))
        return scaling()(examples_per_sec, batch, replicas)

    scaled = scale_recorded(efficiencies)
    assert asked == [(64, [1, 2, 4], 256 / recording.step(4, 256).whole_secs)]
    assert [step.global_batch for step in scaled.steps["weak"]] == [64, 128, 256]
    one, four = recording.step(1, 64), recording.step(4, 64)
    assert scaled.efficiency["strong"][2] == pytest.approx(one.whole_secs / 4 / four.whole_secs)
