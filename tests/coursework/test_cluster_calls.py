"""Learners' functions on real workers: results come back, and every way to fail is told kindly."""

import os
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from distlab.checks.check import Check, Mistake, Verdict
from distlab.checks.matchers import expect_equal
from distlab.checks.run_check import run_check
from distlab.coursework.cluster_calls import call_on_coordinator, call_on_workers
from distlab.errors import InvalidArgument
from distlab.results import failures
from distlab.results.failures import FailureKind


def job(strategy, function, *args):
    return function(strategy, *args)


def index_of(strategy):
    return strategy.cluster_resolver.task_id


def process_ids():
    return call_on_workers(job, lambda strategy: os.getpid())


def failure_of(function, **options):
    """What a check would say of a function that fails on the workers."""
    with pytest.raises(Exception) as caught:  # of whatever name it has there
        call_on_workers(job, function, **options)
    return failures.failure_of(caught.value, function)


def test_each_worker_returns_plain_values_in_task_order():
    def double(strategy, numbers):
        return {"mine": tf.constant(numbers) * 2, "index": index_of(strategy)}

    results = call_on_workers(job, double, np.arange(3))
    assert [result["index"] for result in results] == [0, 1]
    for result in results:
        np.testing.assert_array_equal(result["mine"], [0, 2, 4])


def test_the_workers_belong_together():
    def total(strategy):
        return float(strategy.reduce("SUM", index_of(strategy) + 1.0, axis=None))

    assert call_on_workers(job, total) == [3, 3]


def test_the_workers_are_kept_for_the_next_call():
    assert process_ids() == process_ids()


def test_what_a_function_prints_is_printed_here_with_the_workers_name(capsys):
    call_on_workers(job, lambda strategy: sys.stdout.write(f"I am {index_of(strategy)}\n"))
    assert capsys.readouterr().out == "worker:0: I am 0\nworker:1: I am 1\n"


def test_unseeded_numbers_differ_between_workers_also_after_a_seed():
    call_on_workers(job, lambda strategy: tf.random.set_seed(1))
    first, second = call_on_workers(job, lambda strategy: tf.random.normal([3]))
    assert not np.array_equal(first, second)


def test_an_error_comes_with_the_learners_line():
    def divide(strategy):
        return 1 // index_of(strategy)

    failure = failure_of(divide)
    assert failure.kind is FailureKind.ERROR
    assert failure.error == "ZeroDivisionError: integer division or modulo by zero"
    assert failure.lines[-1].endswith("in divide: return 1 // index_of(strategy)")


def test_after_an_error_the_workers_are_new_ones():
    before = process_ids()
    failure_of(lambda strategy: 1 // index_of(strategy))
    assert not set(before) & set(process_ids())


def test_a_stub_is_not_started_and_costs_no_new_workers():
    def stub(strategy):
        raise NotImplementedError("your code here")

    before = process_ids()
    assert failure_of(stub).kind is FailureKind.NOT_STARTED
    assert process_ids() == before


def test_a_process_that_ends_itself_is_told():
    failure = failure_of(lambda strategy: os._exit(3))
    assert failure.kind is FailureKind.ERROR
    assert "ended with exit code 3" in failure.error


def test_a_result_that_is_not_plain_is_refused():
    with pytest.raises(InvalidArgument, match="what it returned") as refused:
        call_on_workers(job, lambda strategy: object())
    assert refused.value.found == "a object"


def waits_alone(strategy):
    if index_of(strategy) == 1:
        strategy.reduce("SUM", 1.0, axis=None)


def test_a_hang_tells_who_waits_and_who_has_finished():
    failure = failure_of(waits_alone, timeout_secs=3)
    assert failure.error == "TimeoutError: worker:1 still waits here; worker:0 has finished"
    assert failure.lines[-1].endswith('in waits_alone: strategy.reduce("SUM", 1.0, axis=None)')


def test_when_both_hang_both_are_told():
    def never(strategy):
        threading.Event().wait()

    failure = failure_of(never, timeout_secs=2)
    first, second = failure.error.splitlines()
    assert first == "TimeoutError: worker:0 and worker:1 still wait here"
    assert second.startswith("worker:1 waits in never, line ")
    assert second.endswith(", inside wait: threading.Event().wait()")


def test_what_cannot_be_sent_is_told_before_anything_runs():
    lock = threading.Lock()

    def locked(strategy):
        with lock:
            return 1

    with pytest.raises(InvalidArgument, match="lock"):
        call_on_workers(job, locked)


CHECK = Check(
    name="reduce_all",
    function="reduce_all",
    title="A sum",
    points=1,
    inputs=lambda seed: {},
    call=lambda function, inputs: call_on_workers(job, function, timeout_secs=3),
    judge=lambda inputs, outputs: Verdict.of(
        expect_equal("the sums", yours=outputs, expected=[3, 3])
    ),
    hint="",
    revisit="",
    mistakes=(Mistake("alone", "All take part.", error="worker:1 still waits"),),
)


def test_a_hang_is_a_report_that_can_be_read():
    report = run_check(CHECK, waits_alone)
    assert repr(report) == (
        "reduce_all: error in your code (0 of 1 point)\n"
        "  Your code stopped with an error.\n"
        f"    {report.failure.lines[0]}\n"
        "    TimeoutError: worker:1 still waits here; worker:0 has finished\n"
        "  What this looks like: All take part."
    )


def test_an_error_that_is_no_consequence_of_the_others_is_told():
    """The other worker waits in a collective meanwhile, and is stopped."""

    def one_fails(strategy):
        if index_of(strategy) == 1:
            raise KeyError("missing")
        return strategy.reduce("SUM", 1.0, axis=None)

    assert failure_of(one_fails).error == "KeyError: 'missing'"


def test_workers_may_start_again_when_one_dies(capsys, tmp_path):
    def dies_once(strategy, folder):
        import signal
        from pathlib import Path

        first = not Path(folder, "died").exists()
        if first and index_of(strategy) == 1:
            Path(folder, "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return float(strategy.reduce("SUM", 1.0, axis=None))

    assert call_on_workers(job, dies_once, str(tmp_path), restarts=1) == [2, 2]
    assert capsys.readouterr().out == "worker:1 was ended by SIGKILL: started again (1 of 1)\n"


def test_an_error_in_the_second_life_is_told_as_in_the_first(tmp_path):
    def dies_then_fails(strategy, folder):
        import signal
        from pathlib import Path

        if Path(folder, "died").exists():
            raise KeyError("second life")
        strategy.reduce("SUM", 1.0, axis=None)
        if index_of(strategy) == 0:
            Path(folder, "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        strategy.reduce("SUM", 1.0, axis=None)

    with pytest.raises(Exception) as caught:
        call_on_workers(job, dies_then_fails, str(tmp_path), restarts=1)
    failure = failures.failure_of(caught.value, dies_then_fails)
    assert failure.error == "KeyError: 'second life'"


# On a coordinator


def on_stage(stage, function, *args):
    return function(stage.coordinator, *args)


def workers_that_meet(stage, function):
    """The result of a step for each worker, which waits until all are in one."""
    with stage.coordinator.strategy.scope():
        inside = tf.Variable(0)

    @tf.function
    def step():
        inside.assign_add(1)
        while inside < 2:
            pass
        return 1

    results = [stage.coordinator.schedule(step) for _ in range(2)]
    stage.coordinator.join()
    return stage.coordinator.fetch(results)


def count_with_a_kill(stage, function):
    stage.kill("worker:1")
    return function(stage.coordinator)


def scheduled(coordinator, times=3):
    results = [coordinator.schedule(tf.function(lambda: 2.0)) for _ in range(times)]
    coordinator.join()
    return coordinator.fetch(results)


def test_a_function_runs_on_a_coordinator_with_all_workers():
    assert call_on_coordinator(on_stage, scheduled, 4) == [2.0] * 4
    assert call_on_coordinator(workers_that_meet, scheduled) == [1, 1]


def test_a_worker_that_is_killed_is_back_for_the_next_call():
    here = call_on_coordinator(on_stage, lambda coordinator: os.getpid())
    assert call_on_coordinator(count_with_a_kill, scheduled) == [2.0] * 3
    assert call_on_coordinator(workers_that_meet, scheduled) == [1, 1]
    assert call_on_coordinator(on_stage, lambda coordinator: os.getpid()) == here


def test_a_coordinator_that_hangs_is_told_by_its_line():
    def never_opened(coordinator):
        with coordinator.strategy.scope():
            gate = tf.Variable(0)

        @tf.function
        def step():
            while gate < 1:
                pass

        coordinator.schedule(step)
        coordinator.join()

    with pytest.raises(Exception) as caught:
        call_on_coordinator(on_stage, never_opened, timeout_secs=2)
    failure = failures.failure_of(caught.value, never_opened)
    assert failure.error == "TimeoutError: chief:0 still waits here"
    assert failure.lines[-1].endswith("in never_opened: coordinator.join()")
    assert call_on_coordinator(on_stage, scheduled) == [2.0] * 3  # of new tasks


def test_an_error_in_a_step_comes_with_the_line_that_waits_for_it():
    def divide(coordinator):
        with coordinator.strategy.scope():
            zero = tf.Variable(0)
        coordinator.schedule(tf.function(lambda: 1 // zero))
        coordinator.join()

    with pytest.raises(Exception, match="divi") as caught:
        call_on_coordinator(on_stage, divide)
    failure = failures.failure_of(caught.value, divide)
    assert failure.lines[-1].endswith("in divide: coordinator.join()")


def test_both_kinds_of_clusters_are_kept_side_by_side():
    before = process_ids()
    call_on_coordinator(on_stage, scheduled)
    assert process_ids() == before
