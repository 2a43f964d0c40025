"""The checks of lesson 13: right answers pass, and each mistake is named."""

import functools
import statistics

import numpy as np
import pytest

from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from distlab.coursework.performance_runs import scale_recorded
from distlab.measure.recorded import recorded_scaling
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
    problems_of,
)

STEM = "13_performance"
CHECKS = {check.name: check for check in checks_of(STEM)}
TIMER, EFFICIENCIES, ALPHA_BETA, KNEE = CHECKS.values()
solution = functools.cache(functools.partial(load_solution, STEM))
SEEDS = range(8)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_solution_passes_and_the_stub_earns_nothing(check):
    function = check.function or check.name
    assert_solution_passes(check, solution()[function])
    status = "not yet" if check is TIMER else "not started"
    assert_stub_earns_nothing(check, load_stub(STEM)[function], status=status)
    assert problems_of(check) == []


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


@pytest.mark.parametrize("right", [stopwatch(warm_up=3), waits_for_each])
def test_other_right_stopwatches_pass(right):
    assert_solution_passes(TIMER, right, seeds=SEEDS)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        ({"warm_up": 0}, "includes_tracing"),
        ({"warm_up": 0, "waits_after": False}, "includes_tracing"),
        ({"warm_up": 0, "divides": False}, "includes_tracing"),
        ({"waits_after": False}, "no_sync"),
        ({"waits_before": False, "waits_after": False}, "no_sync"),
        ({"waits_before": False}, "counts_the_warm_up"),
        ({"waits_before": False, "warm_up": 2}, "counts_the_warm_up"),
        ({"divides": False}, "total_for_mean"),
    ],
    ids=str,
)
def test_stopwatches_that_lie_are_named(wrong, mistake):
    report = assert_mistake_is_caught(TIMER, stopwatch(**wrong), mistake, seeds=SEEDS)
    assert report.earned == 0


def test_a_stopwatch_without_a_result_is_told_so():
    assert "is there a `return`?" in repr(run_check(TIMER, lambda *_: None))


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


def upside_down(examples_per_sec, batch, replicas):
    right = scaling()(examples_per_sec, batch, replicas)
    return {kind: [1 / part for part in parts] for kind, parts in right.items()}


@pytest.mark.parametrize("right", [scaling(), by_step_times])
def test_other_right_efficiencies_pass(right):
    assert_solution_passes(EFFICIENCIES, right, seeds=SEEDS)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (scaling(weak_batch=lambda b, k: b), "weak_with_fixed_global"),
        (scaling(strong_batch=lambda b, k: b * k), "strong_with_growing_batch"),
        (scaling(strong=lambda more, k: more), "speedup_for_efficiency"),
        (scaling(weak=lambda more, k: more), "speedup_for_efficiency"),
        (
            scaling(strong=lambda more, k: more, weak=lambda more, k: more),
            "speedup_for_efficiency",
        ),
        (scaling(first=lambda replicas: 1), "baseline_of_one"),
        (upside_down, "upside_down"),
        (
            scaling(strong=lambda more, k: 1 / k / more, weak=lambda more, k: 1 / more),
            "upside_down",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_efficiencies_are_named(wrong, mistake):
    assert_mistake_is_caught(EFFICIENCIES, wrong, mistake, seeds=SEEDS)


def test_each_kind_of_scaling_earns_half():
    assert run_check(EFFICIENCIES, scaling(weak=lambda more, k: more)).earned == 1.5


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
    of_all=max,
):
    def fit_and_test(known, unseen):
        points = fitted(known, unseen)
        alpha, beta = least_squares(points)
        if alpha < 0:
            alpha, beta = below_0(points)
        errors = [error(alpha + beta * size, time) for size, time in tested(known, unseen)]
        return {"latency_ms": alpha, "ms_per_mb": beta, "largest_error": of_all(errors)}

    return fit_and_test


def by_the_models_own_search(known, unseen):
    """SciPy's least squares with bounds, as an engineer might do it."""
    from scipy.optimize import nnls

    sizes, times = np.array(known).T
    (alpha, beta), _ = nnls(np.stack([np.ones_like(sizes), sizes], axis=1), times)
    errors = [abs(1 - (alpha + beta * size) / time) for size, time in unseen]
    return {"latency_ms": alpha, "ms_per_mb": beta, "largest_error": max(errors), "more": 1}


def cut_off(points):
    return np.maximum(least_squares(points), 0)


@pytest.mark.parametrize("right", [line(), by_the_models_own_search])
def test_other_right_lines_pass(right):
    assert_solution_passes(ALPHA_BETA, right, seeds=SEEDS)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (line(tested=lambda known, unseen: known), "tested_on_fitted_points"),
        (line(fitted=lambda known, unseen: known + unseen), "fitted_to_all_points"),
        (line(below_0=least_squares), "negative_alpha"),
        (line(below_0=cut_off), "alpha_cut_off"),
        (line(error=lambda said, measured: said / measured - 1), "signed_error"),
        (line(error=lambda said, measured: 1 - said / measured), "signed_error"),
        (line(of_all=statistics.mean), "mean_error"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_lines_are_named(wrong, mistake):
    assert_mistake_is_caught(ALPHA_BETA, wrong, mistake, seeds=SEEDS)


def test_a_line_below_0_costs_one_point_of_three():
    assert run_check(ALPHA_BETA, line(below_0=least_squares)).earned == 2


def test_an_answer_without_its_names_is_shown_what_was_asked_for():
    report = run_check(ALPHA_BETA, lambda known, unseen: (1.0, 2.0, 0.1))
    assert "latency_ms, ms_per_mb, largest_error" in repr(report)


# --- predict_knee


def ring(*, rounds=lambda n: 2 * (n - 1), moved=lambda n, mb: 2 * (n - 1) / n * mb, shared=True):
    def fastest(compute_ms, latency_ms, gradient_mb, mb_per_ms, counts):
        def step_ms(n):
            compute = compute_ms / n if shared else compute_ms
            return compute + rounds(n) * latency_ms + moved(n, gradient_mb) / mb_per_ms

        return min((step_ms(n), n) for n in counts)[::-1]

    return fastest


def by_arrays(compute_ms, latency_ms, gradient_mb, mb_per_ms, counts):
    n = np.array(counts)
    ms = compute_ms / n + 2 * (n - 1) * (latency_ms + gradient_mb / (n * mb_per_ms))
    return [int(n[ms.argmin()]), float(ms.min())]


@pytest.mark.parametrize("right", [ring(), by_arrays])
def test_other_right_knees_pass(right):
    assert_solution_passes(KNEE, right, seeds=SEEDS)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        ({"rounds": lambda n: 0}, "latency_ignored"),
        ({"moved": lambda n, mb: n * mb}, "n_times_bytes"),
        ({"moved": lambda n, mb: (n - 1) * mb}, "n_times_bytes"),
        ({"moved": lambda n, mb: 2 * (n - 1) * mb}, "n_times_bytes"),
        ({"rounds": lambda n: n - 1, "moved": lambda n, mb: (n - 1) / n * mb}, "half_of_the_ring"),
        ({"rounds": lambda n: min(1, n - 1)}, "one_latency"),
        ({"rounds": lambda n: 2 * min(1, n - 1)}, "one_latency"),
        ({"shared": False}, "compute_not_shared"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_knees_are_named(wrong, mistake):
    assert_mistake_is_caught(KNEE, ring(**wrong), mistake, seeds=SEEDS)


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
