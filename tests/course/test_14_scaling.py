"""The checks of lesson 14: right answers pass, and each mistake is named."""

import functools
import json
import os
import socket
import statistics
import threading
import time

import numpy as np
import pytest

from distlab.course.checks.registry import checks_of
from distlab.course.lesson_14_scaling.overlap import StepTimes, recorded_overlap
from distlab.course.lesson_14_scaling.published import (
    H200_BUS_GB_PER_SEC,
    NVLINK_GB_PER_SEC,
    TOKENS_PER_SEC,
    TOKENS_PER_STEP,
    TWO_SERVERS_MICROS,
    bus_gb_per_sec,
    curve,
    sending_secs,
    step_secs,
    step_secs_measured,
)
from distlab.course.lesson_14_scaling.recorded import recorded_scaling
from distlab.course.lesson_14_scaling.relay import slow_peers
from distlab.course.lesson_14_scaling.runs import scale_recorded
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
)

STEM = "14_scaling"
CHECKS = {check.name: check for check in checks_of(STEM)}
TIMER, ALPHA_BETA, BUCKETS, KNEE = CHECKS.values()
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


# --- bucket_overlap


def by_two_passes(layers, bucket_mb, latency_ms, mb_per_ms):
    """First who travels together, and then when."""
    buckets, now = [[0.0, 0.0]], 0.0
    for ms, mb in layers[::-1]:
        if buckets[-1][1] >= bucket_mb:
            buckets.append([0.0, 0.0])
        now += ms
        buckets[-1] = [now, buckets[-1][1] + mb]
    free = 0.0
    for ready, mb in buckets:
        free = np.maximum(free, ready) + latency_ms + mb / mb_per_ms
    return float(free)


def test_buckets_are_judged():
    assert_right_answers_pass(BUCKETS, by_two_passes)
    late = edited("last_arrival", {"now += ms\n": "now = sum(ms for ms, _ in layers)\n"})
    assert_mistakes_are_caught(BUCKETS, {"nothing_overlaps": late})
    assert_feedback_says(BUCKETS, {"is there a `return`?": lambda **_: None})


def test_the_sizes_that_the_exercise_compares():
    """The numbers of its answer: many small layers, and a large first one."""
    network = {"latency_ms": 2, "mb_per_ms": 5}
    layers = [(4, 10)] * 24
    took = {mb: by_two_passes(layers, mb, **network) for mb in (1, 10, 25, 60, 1000)}
    assert took[1] == took[10] == 100 and took[25] == 104 and took[1000] == 146
    layers[0] = (4, 200)
    took = {mb: by_two_passes(layers, mb, **network) for mb in (1, 10, 25, 60, 1000)}
    *others, one = took.values()
    assert max(others) < 1.1 * min(others) and one > 1.2 * min(others)


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


# --- the steps of the report


def test_the_report_shows_the_efficiencies_of_the_recorded_steps():
    recording = recorded_scaling()
    scaled = scale_recorded()
    assert [step.global_batch for step in scaled.steps["weak"]] == [64, 128, 256]
    one, four = recording.step(1, 64), recording.step(4, 64)
    assert scaled.efficiency["strong"][2] == pytest.approx(one.whole_secs / 4 / four.whole_secs)
    weak = one.whole_secs / recording.step(4, 256).whole_secs
    assert scaled.efficiency["weak"][2] == pytest.approx(weak)


# --- what the lesson says of the published runs


def test_both_curves_promise_too_much_and_the_model_is_near():
    assert round(curve("line")[256]) == 19_371
    assert round(curve("logarithm")[256]) == 25_410
    tokens = {gpus: TOKENS_PER_STEP / gpus / step_secs(gpus) for gpus in TOKENS_PER_SEC}
    errors = {gpus: tokens[gpus] / TOKENS_PER_SEC[gpus] - 1 for gpus in TOKENS_PER_SEC}
    assert -0.03 < errors[256] < 0
    assert max(map(abs, errors.values())) < 0.06
    assert errors[16] > 0 > errors[128]  # in both directions


def test_the_last_doubling_saves_a_sixth_and_sending_passes_computing():
    assert 1 - step_secs_measured(256) / step_secs_measured(128) == pytest.approx(1 / 6, abs=0.02)
    computes = {n: step_secs(n) - sending_secs(n) for n in (128, 256)}
    assert sending_secs(128) < computes[128] and sending_secs(256) > computes[256]
    assert round(TOKENS_PER_SEC[256] / TOKENS_PER_SEC[8], 2) == 0.39


def test_a_switch_that_sums_beats_the_bound_of_a_ring():
    assert bus_gb_per_sec(2**34, 62.239e-3, gpus=8) > NVLINK_GB_PER_SEC
    assert H200_BUS_GB_PER_SEC["NVLS"] > NVLINK_GB_PER_SEC > H200_BUS_GB_PER_SEC["ring"]


def test_64_buckets_take_four_times_as_long_as_one():
    together = {mib: 1024 / mib * TWO_SERVERS_MICROS[mib] for mib in (1024, 64, 16)}
    assert together[16] / together[1024] == pytest.approx(4, abs=0.3)
    assert together[64] / together[1024] == pytest.approx(2, abs=0.3)


# --- the recorded timeline


def test_a_bucket_leaves_when_it_is_full_and_the_network_is_free():
    step = StepTimes(1.0, (2.0, 3.0, 4.0, 5.0), (9.0, 12.0))
    assert step.first_sent_ms == 3 and step.sent_ms == (3, 9)
    assert step.backward_ms == 5 and step.step_ms == 12


def test_in_the_recording_four_buckets_overlap_and_are_fastest():
    one, four, sixteen = recorded_overlap().values()
    assert one.first_sent_ms == one.backward_ms
    assert four.first_sent_ms < four.backward_ms and sixteen.first_sent_ms < four.first_sent_ms
    assert four.step_ms < one.step_ms < sixteen.step_ms


# --- the slow network


def test_a_relay_carries_every_byte_slowly_and_ends_when_its_pipe_closes(monkeypatch):
    sent = os.urandom(1_000_000)
    peer = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = peer.accept()
        with connection:
            connection.sendall(sent)

    threading.Thread(target=answer, daemon=True).start()
    own = "127.0.0.1:1"
    addresses = [own, f"127.0.0.1:{peer.getsockname()[1]}"]
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    (relay,) = slow_peers(megabytes_per_sec=5, delay_ms=1)
    try:
        changed = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
        assert changed[0] == own and changed[1] != addresses[1]
        host, port = changed[1].split(":")
        start, received = time.perf_counter(), b""
        with socket.create_connection((host, int(port)), timeout=60) as near:
            while data := near.recv(65536):
                received += data
        assert received == sent
        assert time.perf_counter() - start > 0.9 * len(sent) / 5e6
    finally:
        relay.stdin.close()
        assert relay.wait(timeout=60) == 0
        relay.stdout.close()
        peer.close()
