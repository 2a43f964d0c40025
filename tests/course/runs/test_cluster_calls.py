"""Learners' functions on real workers: results come back, and every way to fail is told kindly."""

import os
import sys
import threading

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf

from distlab.course.results import failures
from distlab.course.results.failures import FailureKind
from distlab.course.runs.cluster_calls import call_on_coordinator, call_on_workers
from distlab.errors import InvalidArgument

# A process that gets a function is spared the import of this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def job(strategy, function, *args):
    return function(strategy, *args)


def index_of(strategy):
    return strategy.cluster_resolver.task_id


def process_ids():
    return call_on_workers(job, lambda strategy: os.getpid())


def failure_of(function, *args, call=call_on_workers, job=job, **options):
    """What a check would say of a function that fails there."""
    with pytest.raises(Exception) as caught:  # of whatever name it has there
        call(job, function, *args, **options)
    return failures.failure_of(caught.value, function)


def test_each_worker_returns_plain_values_in_task_order_and_prints_under_its_name(capsys):
    def double(strategy, numbers):
        sys.stdout.write(f"I am {index_of(strategy)}\n")
        total = strategy.reduce("SUM", index_of(strategy) + 1.0, axis=None)
        return {"mine": tf.constant(numbers) * 2, "index": index_of(strategy), "sum": total}

    results = call_on_workers(job, double, np.arange(3))
    assert [(result["index"], float(result["sum"])) for result in results] == [(0, 3), (1, 3)]
    for result in results:
        np.testing.assert_array_equal(result["mine"], [0, 2, 4])
    assert capsys.readouterr().out == "worker:0: I am 0\nworker:1: I am 1\n"


def test_workers_are_kept_for_the_next_call_but_after_an_error_they_are_new_ones():
    def divide(strategy):
        """The other worker waits in a collective meanwhile, and is stopped."""
        strategy.reduce("SUM", 1.0 // (index_of(strategy) - 1), axis=None)

    def stub(strategy):
        raise NotImplementedError("your code here")

    before = process_ids()
    assert failure_of(stub).kind is FailureKind.NOT_STARTED
    assert process_ids() == before
    failure = failure_of(divide)
    assert failure.kind is FailureKind.ERROR
    assert failure.error.startswith("ZeroDivisionError: ")
    assert "in divide: strategy.reduce(" in failure.lines[-1]
    assert not set(before) & set(process_ids())


def test_what_cannot_be_sent_is_told_there_and_back():
    lock = threading.Lock()

    def locked(strategy):
        with lock:
            return 1

    with pytest.raises(InvalidArgument, match="lock"):  # before anything runs
        call_on_workers(job, locked)
    with pytest.raises(InvalidArgument, match="what it returned") as refused:
        call_on_workers(job, lambda strategy: object())
    assert refused.value.found == "a object"


def waits_alone(strategy):
    if index_of(strategy) == 1:
        strategy.reduce("SUM", 1.0, axis=None)


def test_a_hang_tells_who_waits_where_and_who_has_finished():
    failure = failure_of(waits_alone, timeout_secs=4)
    assert failure.error == "TimeoutError: worker:1 still waits here; worker:0 has finished"
    assert failure.lines[-1].endswith('in waits_alone: strategy.reduce("SUM", 1.0, axis=None)')


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


def scheduled(coordinator):
    results = [coordinator.schedule(tf.function(lambda: 2.0)) for _ in range(3)]
    coordinator.join()
    return coordinator.fetch(results)


def test_on_a_coordinator_a_worker_that_is_killed_is_back_for_the_next_call():
    before = process_ids()
    here = call_on_coordinator(on_stage, lambda coordinator: os.getpid())
    assert call_on_coordinator(count_with_a_kill, scheduled) == [2.0] * 3
    assert call_on_coordinator(workers_that_meet, scheduled) == [1, 1]
    assert call_on_coordinator(on_stage, lambda coordinator: os.getpid()) == here
    assert process_ids() == before  # both kinds of clusters are kept side by side


def test_a_coordinator_tells_an_error_in_a_step_by_the_line_that_waits_for_it_and_a_hang():
    def divide(coordinator):
        with coordinator.strategy.scope():
            zero = tf.Variable(0)
        coordinator.schedule(tf.function(lambda: 1 // zero))
        coordinator.join()

    def never(coordinator):
        threading.Event().wait()

    failure = failure_of(divide, call=call_on_coordinator, job=on_stage)
    assert "divi" in failure.error
    assert failure.lines[-1].endswith("in divide: coordinator.join()")
    failure = failure_of(never, call=call_on_coordinator, job=on_stage, timeout_secs=4)
    assert failure.error == "TimeoutError: chief:0 still waits here"
    assert "in never" in failure.lines[-1]
    assert call_on_coordinator(on_stage, scheduled) == [2.0] * 3  # of new tasks
