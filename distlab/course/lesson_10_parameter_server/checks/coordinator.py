"""Checks of lesson 10 on real workers: a coordinator's loop, and a sum that survives a kill."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Raises,
    Then,
)
from distlab.course.runs.cluster_calls import WORKERS, Stage, call_on_coordinator

# --- coordinate: a coordinator's loop that limits what is under way, on real workers

# Looks at a variable of the server, some milliseconds each: at least so many in a step; as many as
# this while a loop that keeps to its limit sends no more; and for a second step to be sent.
_LOOKS, _PATIENCE, _LONGEST_LOOKS = 15, 40, 400


def _coordinate_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "steps": int(draw.integers(7, 11)),
        "ahead": 2 + seed % 2,
        "first": int(draw.integers(100, 900)),
    }


def _coordinate_call(train: Callable[..., Any], inputs: Inputs) -> Plain:
    return call_on_coordinator(_train_here, train, inputs)


def _train_here(stage: Stage, train: Callable[..., Any], inputs: Inputs) -> Plain:
    """Trains with steps that note how many are in one, and which examples they were given."""
    import tensorflow as tf

    coordinator, steps, ahead = stage.coordinator, inputs["steps"], inputs["ahead"]
    examples = 4 * steps  # enough for wrong answers too
    with coordinator.strategy.scope():
        inside, most, taken, sent, awaited, alone = (tf.Variable(0) for _ in range(6))
        seen = tf.Variable(tf.zeros([examples], tf.int32))

    @tf.function  # type: ignore[untyped-decorator]
    def step(data: Any) -> Any:
        example = next(data)
        inside.assign_add(1)
        looks = tf.constant(0)
        # The first steps wait for company, as long as it takes if a second step was sent, and not
        # where none can come: the first one is waited for alone, or is called without a send. They
        # also wait for one step more than may be under way, so that a loop that sends it is seen.
        # The last ones wait until they are waited for, so that a loop that does not is seen.
        while (
            looks < _LOOKS
            or (awaited < 1 and sent >= steps and looks < _LONGEST_LOOKS)
            or (taken < 1 and sent <= ahead and looks < _PATIENCE)
            or (
                most < WORKERS
                and taken < 1
                and alone < 1
                and (sent > 1 or (sent > 0 and looks < _LONGEST_LOOKS))
            )
        ):
            now = inside.read_value()
            if now > most:
                most.assign(now)
            looks += 1
        seen.scatter_nd_add([[example - inputs["first"]]], [1])
        inside.assign_sub(1)
        return tf.cast(taken.assign_add(1).read_value(), tf.float32) / 4.0

    made_here: list[bool] = []

    def make_data() -> Any:
        made_here.append(not tf.inside_function())
        return tf.data.Dataset.range(inputs["first"], inputs["first"] + examples)

    counting = _Counting(coordinator, steps, sent, taken, awaited, alone)
    try:
        losses = train(counting, step, make_data, steps, ahead)
        at_return = int(taken)
    finally:
        awaited.assign(1)
        _quiet_join(coordinator)
    return {
        "losses": _plain_losses(losses),
        "taken at return": at_return,
        "taken": int(taken),
        "under way": counting.under_way,
        "at once": int(most),
        "seen": seen.numpy(),
        "made here": any(made_here),
    }


class _Counting:
    """A coordinator that counts the steps it sends, and how many of them are under way at once.

    It also tells the last steps that they are waited for, and the first that it stays alone.
    """

    def __init__(
        self, coordinator: Any, steps: int, sent: Any, taken: Any, awaited: Any, alone: Any
    ) -> None:
        self._coordinator, self._steps = coordinator, steps
        self._sent, self._taken, self._awaited, self._alone = sent, taken, awaited, alone
        self.under_way = 0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._coordinator, name)
        return self._noted(attribute) if name in ("join", "done", "fetch") else attribute

    def schedule(self, fn: Any, args: Any = None, kwargs: Any = None) -> Any:
        self._sent.assign_add(1)
        self.under_way = max(self.under_way, int(self._sent) - int(self._taken))
        promise = self._coordinator.schedule(fn, args=args, kwargs=kwargs)
        promise.fetch = self._noted(promise.fetch)
        return promise

    def _noted(self, waits: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            sent = int(self._sent)
            if sent >= self._steps:
                self._awaited.assign(1)
            elif sent == 1 and waits.__name__ != "done":  # which waits for nothing
                self._alone.assign(1)
            return waits(*args, **kwargs)

        return noted


def _quiet_join(coordinator: Any) -> None:
    """Leaves nothing under way for the next check; errors of steps were reported already."""
    try:
        coordinator.join()
    except Exception:
        if not coordinator.done():
            raise


def _plain_losses(losses: Any) -> Plain:
    """Returns what a function returned, with a text for each promise; tensors as what they hold."""
    if hasattr(losses, "fetch"):
        return "a promise"
    if hasattr(losses, "numpy"):
        losses = losses.numpy()
    if isinstance(losses, list | tuple):
        return [_plain_losses(loss) for loss in losses]
    is_plain = losses is None or isinstance(losses, str | int | float | np.ndarray | np.generic)
    return losses if is_plain else repr(losses)[:80]


def _are_numbers(losses: Plain) -> bool:
    return np.ndim(losses) == 1 and np.asarray(losses).dtype.kind in "iuf"


def _coordinate_read(given: Inputs, outputs: Plain) -> Plain:
    losses = outputs["losses"]
    return {**outputs, "losses": sorted(losses) if _are_numbers(losses) else losses}


def _coordinate_reference(given: Inputs) -> Plain:
    steps = given["steps"]
    return {
        "losses": [number / 4 for number in range(1, steps + 1)],
        "taken at return": steps,
        "taken": steps,
        "under way": given["ahead"],
        "at once": WORKERS,
        "seen": [1] * steps,
        "made here": False,
    }


def _is_too_far_ahead(given: Inputs, out: Plain) -> bool:
    return bool(out["under way"] > given["ahead"])


COORDINATE = Check(
    name="coordinate",
    function="train",
    title="A coordinator's loop with a limit",
    question="How many steps are under way when you send the next one, and how many may be?",
    direction=(
        "Keep the promises in the order in which you sent them. Before you send one more, one "
        "particular promise of that list must be done."
    ),
    cost=Cost.CLUSTER,
    inputs=_coordinate_inputs,
    call=_coordinate_call,
    read=_coordinate_read,
    reference=_coordinate_reference,
    criteria=(
        Equal("at once", "workers in a step at once", points=1.5),
        Then(
            Holds(
                "no more than `ahead` steps under way",
                lambda given, out: not _is_too_far_ahead(given, out),
                lambda given, out: (
                    f"{out['under way']} steps were sent and not yet done; ahead={given['ahead']}"
                ),
                points=2,
            ),
        ),
        Then(
            Equal("taken", "steps that were taken", points=0.5),
            Equal(
                "taken at return", "steps that were done when your function returned", points=0.5
            ),
            Holds(
                "each worker makes its data set once and goes through it",
                lambda given, out: not out["made here"] and max(out["seen"]) <= WORKERS,
                lambda given, out: (
                    "`make_data` was called on the coordinator"
                    if out["made here"]
                    else f"one example was taken {max(out['seen'])} times"
                ),
            ),
            Equal("losses", "the losses, as numbers, smallest first", points=0.5),
        ),
    ),
    hint="Make one `iter` of `coordinator.create_per_worker_dataset(make_data)`. In the loop, from "
    "step number `ahead` on, first call `fetch()` of the promise that is `ahead` places back, then "
    "`schedule`. After the loop, fetch the promises that are left.",
    revisit="Your script runs once",
    mistakes=(
        Raises("step_called_here", "IteratorSpec' object has no attribute").feedback(
            "You called the step in the coordinator's process. Its iterator is on the workers, so "
            "the call cannot read from it. Which two things does `schedule` need, so that a worker "
            "makes the call?"
        ),
        Raises(
            "dataset_on_coordinator",
            r"Unable to parse tensor proto|Expects 1 arguments|Tensor'? .*not an iterator"
            r"|create_per_worker_dataset",
        ).feedback(
            "You made the data set in the coordinator's process. A worker cannot read from that "
            "process's memory, and if the coordinator sent the batches, it would read all data "
            "alone. What does `create_per_worker_dataset` take, and where is that called?"
        ),
        Observed(
            "fetch_each_step", lambda given, out: out["at once"] == 1 and not out["made here"]
        ).feedback(
            "You waited for each step before you sent the next one. So one worker had a step, and "
            "the other one had none. How many steps may be under way while you wait?"
        ),
        Observed("too_far_ahead", _is_too_far_ahead).feedback(
            "You sent more steps than may be under way. The queue grows, and you learn of a bad "
            "loss too late. Before you send one more, which step must be done?"
        ),
        Observed(
            "no_join",
            lambda given, out: out["taken at return"] < out["taken"] == given["steps"],
        ).feedback(
            "Your function returned while steps were under way. Their losses do not exist yet. "
            "What must happen after the last `schedule`?"
        ),
    ),
)


# --- survive_kill: a sum that is right although a worker is killed in the middle


def _kill_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    numbers = draw.integers(1, 90, size=int(draw.integers(4, 8))).astype("float32")
    # Either of the first steps may be the killed worker's: what it spoils is the same.
    numbers[:WORKERS] = numbers[0]
    # Two more are equal: a sum that merges equal numbers is wrong.
    numbers[-1] = numbers[-2]
    return {"numbers": numbers}


def _kill_call(add_up: Callable[..., Any], inputs: Inputs) -> Plain:
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
        _quiet_join(stage.coordinator)
    return {
        "sum": _plain_losses(result),
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


def _kill_reference(given: Inputs, *, counts_twice: bool = False) -> Plain:
    """The sum of the results, in which the killed worker's may count twice."""
    numbers = given["numbers"]
    return {
        "sum": 2 * numbers.sum() + 2 * numbers[0] * counts_twice,
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
    inputs=_kill_inputs,
    call=_kill_call,
    reference=_kill_reference,
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
    revisit="Which process can you lose?",
    mistakes=(
        Raises("one_at_a_time", "chief:0 still waits here").feedback(
            "You waited for each step before you sent the next one. The check kills a worker when "
            "two steps are under way, and that moment never came. When can you send a step for "
            "each number?"
        ),
        Fault("assumes_exactly_once", counts_twice=True).feedback(
            "Your step adds its result to a variable. The killed worker had added its result, and "
            "then its step was done again: the result is in the sum twice. How often does "
            "`schedule` promise to do a step?"
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
