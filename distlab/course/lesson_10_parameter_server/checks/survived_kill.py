"""A check of lesson 10: a sum that is right although a worker is killed in the middle."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Gate, Holds, Inputs, Plain
from distlab.course.checks.mistakes import Fault, Observed, Raises
from distlab.course.lesson_10_parameter_server.checks.coordinator_loop import (
    plain_losses,
    quiet_join,
)
from distlab.course.runs.cluster_calls import WORKERS, Stage, call_on_coordinator


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    numbers = draw.integers(1, 90, size=int(draw.integers(4, 8))).astype("float32")
    # Either of the first steps may be the killed worker's: what it spoils is the same.
    numbers[:WORKERS] = numbers[0]
    # Two more are equal: a sum that merges equal numbers differs from one that lacks a step.
    numbers[-1] = numbers[-2]
    return {"numbers": numbers}


def _call(add_up: Callable[..., Any], inputs: Inputs) -> Plain:
    return call_on_coordinator(_add_up_here, add_up, inputs)


def _add_up_here(stage: Stage, add_up: Callable[..., Any], inputs: Inputs) -> Plain:
    """Kills a worker when both have done what the learner's step says, and not yet answered."""
    import tensorflow as tf

    held = _Held(stage.coordinator)
    traced_in: list[bool] = []

    def work(number: Any) -> Any:
        traced_in.append(tf.inside_function())
        return 2.0 * tf.cast(number, tf.float32)

    killing = threading.Thread(target=held.kill_one, args=(stage,), daemon=True)
    killing.start()
    try:
        result = add_up(held, work, inputs["numbers"].tolist())
        at_work = not stage.coordinator.done()
    finally:
        held.end()
        killing.join()
        quiet_join(stage.coordinator)
    return {
        "sum": plain_losses(result),
        "under way at return": at_work,
        "killed": held.killed,
        "on workers": bool(traced_in) and all(traced_in),
    }


class _Held:
    """A coordinator whose workers, at the end of their first steps, wait for a kill."""

    def __init__(self, coordinator: Any) -> None:
        import tensorflow as tf

        self.killed = False
        self._coordinator, self._ended = coordinator, threading.Event()
        with coordinator.strategy.scope():
            self._waiting, self._open = tf.Variable(0), tf.Variable(0)
        self._holding = functools.cache(self._with_wait)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    def schedule(self, fn: Any, args: Any = None, kwargs: Any = None) -> Any:
        """Schedules a function that waits at its end until the gate is open."""
        return self._coordinator.schedule(self._holding(fn), args=args, kwargs=kwargs)

    def _with_wait(self, fn: Any) -> Any:
        import tensorflow as tf

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def held(*args: Any, **kwargs: Any) -> Any:
            result = fn(*args, **kwargs)
            before = tf.compat.v1.get_default_graph().get_operations()
            with tf.control_dependencies(before):
                self._waiting.assign_add(1)
                tf.while_loop(lambda opened: opened < 1, lambda _: [self._look()], [self._look()])
            return result

        return held

    def _look(self) -> Any:
        return self._open.read_value()

    def kill_one(self, stage: Stage) -> None:
        """Waits until all workers wait, kills one, and lets the others go on."""
        try:
            while not self._ended.is_set() and int(self._waiting) < WORKERS:
                time.sleep(0.01)  # between looks at the server
            if int(self._waiting) >= WORKERS:
                stage.kill(f"worker:{WORKERS - 1}")
                self.killed = True
        finally:
            self._open.assign(1)

    def end(self) -> None:
        """Ends the wait for a kill."""
        self._ended.set()


def _reference(given: Inputs, *, added: Callable[[Any], Any] = lambda numbers: numbers) -> Plain:
    """The sum of the results of those numbers that are `added`."""
    return {
        "sum": np.sum(2 * np.asarray(added(given["numbers"]))),
        "under way at return": False,
        "killed": True,
        "on workers": True,
    }


def _results(given: Inputs) -> str:
    """Every result of `work`, so that the difference can be found among them."""
    return f"`work` returned {', '.join(f'{2 * number:g}' for number in given['numbers'])}"


def _lacks_some(given: Inputs, out: Plain) -> bool:
    return bool(out["sum"] < 2 * given["numbers"].sum())


SURVIVE_KILL = Check(
    name="survive_kill",
    function="add_up",
    title="A sum that survives a kill",
    question="What happens to a total on the worker if a step is done twice?",
    direction=(
        "Look at what a step changes besides its result. A step that may run twice must not change "
        "anything for good."
    ),
    cost=Cost.CLUSTER,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Gate(
            Holds(
                "the work is done in steps on the workers",
                # A sum that no kill could disturb says nothing.
                lambda given, out: out["on workers"] and out["killed"],
                "`work` did not run in a step on a worker, or no two steps were under way at once",
            )
        ),
        Close(
            "sum",
            "the sum, with a worker killed in the middle",
            atol=1e-3,
            points=4,
            asked=_results,
        ),
    ),
    hint="Let the step return its result instead of adding it to a variable. Keep all promises, "
    "join, fetch them, and add up on the coordinator.",
    revisit="A worker dies",
    mistakes=(
        Raises("one_at_a_time", "chief:0 still waits here").feedback(
            "You waited for each step before you sent the next one. The check kills a worker when "
            "two steps are under way, and that moment never came. When can you send a step for "
            "each number?"
        ),
        Fault("assumes_exactly_once", added=lambda numbers: [*numbers, numbers[0]]).feedback(
            "Your step adds its result to a variable. The killed worker had added its result, and "
            "then its step was done again: the result is in the sum twice. How often does "
            "`schedule` promise to do a step?"
        ),
        Fault("equal_numbers_merged", added=np.unique).feedback(
            "You kept the results under their numbers. Two of the numbers are equal, so one result "
            "replaced the other one. What tells two steps apart, if not their numbers?"
        ),
        Observed(
            "no_join",
            lambda given, out: out["under way at return"] and _lacks_some(given, out),
        ).feedback(
            "You read the sum while steps were under way. Their results are not in it. What waits "
            "until all steps are done?"
        ),
    ),
)
