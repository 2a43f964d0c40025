"""The checks of lesson 14: right answers pass, and each mistake is named."""

import functools
import statistics

import numpy as np
import pytest

from distlab.course.checks.registry import checks_of
from distlab.course.lesson_14_scaling.recorded import recorded_scaling
from distlab.course.lesson_14_scaling.runs import scale_recorded
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
)

STEM = "14_scaling"
CHECKS = {check.name: check for check in checks_of(STEM)}
TIMER, EFFICIENCIES, ALPHA_BETA, KNEE = CHECKS.values()
edited = functools.partial(edited_solution, STEM)


# --- step_timer


def waits_for_each(step, wait, clock, calls):
    secs = []
    for _ in range(calls + 1):
        start = clock()
        step()
        wait()
        secs.append(clock() - start)
    return statistics.mean(secs[1:])


def test_stopwatches_are_judged():
    assert_right_answers_pass(TIMER, waits_for_each)
    no_wait = edited("secs_per_step", {"wait()\n    return": "return"})
    assert_mistakes_are_caught(TIMER, {"no_sync": no_wait}, earned=0)
    assert_feedback_says(TIMER, {"is there a `return`?": lambda *_: None})


# --- efficiencies


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


def test_efficiencies_are_judged():
    """Each kind of scaling earns half."""
    assert_right_answers_pass(EFFICIENCIES, by_step_times)
    speedups = edited("efficiencies", {"first * n) / base": "first * n) / base * n / first"})
    assert_mistakes_are_caught(EFFICIENCIES, {"speedup_for_efficiency": speedups}, earned=1.5)


# --- fit_link


def with_bounds(known, unseen):
    """SciPy's least squares with bounds, as an engineer might do it."""
    from scipy.optimize import nnls

    sizes, times = np.array(known).T
    (alpha, beta), _ = nnls(np.stack([np.ones_like(sizes), sizes], axis=1), times)
    errors = [abs(1 - (alpha + beta * size) / time) for size, time in unseen]
    return {"latency_ms": alpha, "ms_per_mb": beta, "largest_error": max(errors), "more": 1}


def test_lines_are_judged():
    assert_right_answers_pass(ALPHA_BETA, with_bounds)
    wrong = {"negative_alpha": edited("fit_and_test", {"if alpha < 0:": "if False:"})}
    assert_mistakes_are_caught(ALPHA_BETA, wrong, earned=2, seeds=range(8))
    names = "latency_ms, ms_per_mb, largest_error"
    assert_feedback_says(ALPHA_BETA, {names: lambda known, unseen: (1.0, 2.0, 0.1)})


# --- predict_knee


def by_arrays(compute_ms, latency_ms, gradient_mb, mb_per_ms, counts):
    n = np.array(counts)
    ms = compute_ms / n + 2 * (n - 1) * (latency_ms + gradient_mb / (n * mb_per_ms))
    return [int(n[ms.argmin()]), float(ms.min())]


def test_knees_are_judged():
    assert_right_answers_pass(KNEE, by_arrays)
    no_latency = edited("fastest", {"latency_ms + gradient": "gradient"})
    assert_mistakes_are_caught(KNEE, {"latency_ignored": no_latency})


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
        return by_step_times(examples_per_sec, batch, replicas)

    scaled = scale_recorded(efficiencies)
    assert asked == [(64, [1, 2, 4], 256 / recording.step(4, 256).whole_secs)]
    assert [step.global_batch for step in scaled.steps["weak"]] == [64, 128, 256]
    one, four = recording.step(1, 64), recording.step(4, 64)
    assert scaled.efficiency["strong"][2] == pytest.approx(one.whole_secs / 4 / four.whole_secs)
