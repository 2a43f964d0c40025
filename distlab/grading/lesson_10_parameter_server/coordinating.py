"""A check of lesson 10: a coordinator's loop, with real workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.clusters import WORKERS, Stage, call_on_coordinator
from distlab.grading.comparing import expect_equal, expect_true

_MADE_HERE = (
    "The data set was made in the coordinator's process: workers cannot use it there, or all "
    "examples go through the coordinator. Give `make_data` itself to create_per_worker_dataset: "
    "each worker calls it."
)
# Looks at a variable of the server, some milliseconds each.
_LONGEST_LOOKS, _LOOKS = 400, 15


def _loop_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {"steps": int(draw.integers(6, 10)), "first": int(draw.integers(100, 900))}


def _loop_call(train: Callable[..., Any], inputs: Inputs) -> Plain:
    return call_on_coordinator(_train_here, train, inputs)


def _train_here(stage: Stage, train: Callable[..., Any], inputs: Inputs) -> Plain:
    """Trains with steps that note who else is in one, and which examples they were given."""
    import tensorflow as tf

    coordinator, steps = stage.coordinator, inputs["steps"]
    examples = 4 * steps  # enough for wrong answers too
    with coordinator.strategy.scope():
        inside, most, taken, sent = (tf.Variable(0) for _ in range(4))
        seen = tf.Variable(tf.zeros([examples], tf.int32))

    @tf.function  # type: ignore[untyped-decorator]
    def step(data: Any) -> Any:
        example = next(data)
        inside.assign_add(1)
        looks = tf.constant(0)
        # The first ones wait for company, as long as it takes where a second step was sent.
        while looks < _LOOKS or (
            most < WORKERS and taken < 1 and (sent > 1 or looks < _LONGEST_LOOKS)
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

    try:
        losses = train(_Counting(coordinator, sent), step, make_data, steps)
        at_return = int(taken)
    finally:
        quiet_join(coordinator)
    return {
        "losses": plain_losses(losses),
        "sent": int(sent),
        "taken at return": at_return,
        "taken": int(taken),
        "at once": int(most),
        "seen": seen.numpy(),
        "made here": any(made_here),
    }


class _Counting:
    """A coordinator that counts the steps it is asked to schedule."""

    def __init__(self, coordinator: Any, sent: Any) -> None:
        self._coordinator, self._sent = coordinator, sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    def schedule(self, fn: Any, args: Any = None, kwargs: Any = None) -> Any:
        self._sent.assign_add(1)
        return self._coordinator.schedule(fn, args=args, kwargs=kwargs)


def quiet_join(coordinator: Any) -> None:
    """Leaves nothing under way for the next check; errors of steps were told already.

    Args:
        coordinator: Whose steps are waited for.
    """
    try:
        coordinator.join()
    except Exception:
        if not coordinator.done():
            raise


def plain_losses(losses: Any) -> Plain:
    """Returns what a function returned, with a text for each promise; tensors as what they hold.

    Args:
        losses: Numbers, promises or lists of them, or anything else.
    """
    if hasattr(losses, "fetch"):
        return "a promise"
    if hasattr(losses, "numpy"):
        losses = losses.numpy()
    if isinstance(losses, list | tuple):
        return [plain_losses(loss) for loss in losses]
    is_plain = losses is None or isinstance(losses, str | int | float | np.ndarray | np.generic)
    return losses if is_plain else repr(losses)[:80]


def _are_numbers(losses: Plain) -> bool:
    return np.ndim(losses) == 1 and np.asarray(losses).dtype.kind in "iuf"


def _loop_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    steps, losses = inputs["steps"], outputs["losses"]
    return Verdict.of(
        expect_equal("steps that were taken", yours=outputs["taken"], expected=steps),
        expect_equal(
            "steps that were done when your function returned",
            yours=outputs["taken at return"],
            expected=steps,
        ),
        expect_equal("workers in a step at once", yours=outputs["at once"], expected=WORKERS),
        expect_true(
            "the data set is made on the workers",
            outputs["sent"] > 0 and not outputs["made here"],
            message="`make_data` was called on the coordinator"
            if outputs["made here"]
            else "no worker took a step",
        ),
        expect_true(
            "each worker goes on in its data",
            outputs["sent"] > 0 and max(outputs["seen"]) <= WORKERS,
            message=f"one example was taken {max(outputs['seen'])} times",
        ),
        expect_equal(
            "the losses, as numbers, smallest first",
            yours=sorted(losses) if _are_numbers(losses) else losses,
            expected=[number / 4 for number in range(1, steps + 1)],
        ),
    )


def _all_promises(outputs: Plain) -> bool:
    losses = outputs["losses"]
    return isinstance(losses, list) and bool(losses) and set(map(str, losses)) == {"a promise"}


COORDINATE = Check(
    name="coordinate",
    function="train",
    title="A coordinator's loop",
    points=5,
    inputs=_loop_inputs,
    call=_loop_call,
    judge=_loop_judge,
    hint="`coordinator.create_per_worker_dataset(make_data)`, one `iter` of it, a loop that "
    "only schedules, one `join`, and then `coordinator.fetch` of the list.",
    revisit="The loop",
    mistakes=(
        Mistake(
            "no_iterator",
            "A step takes an iterator: make one of the data set, by `iter`, before the loop.",
            error=r"PerWorkerDataset\w*' object is not an iterator",
        ),
        Mistake(
            "step_called_here",
            "The step was called on the coordinator, and its iterator is on the workers. Give "
            "`schedule` the function and what it takes: schedule(step, args=(data,)).",
            error="IteratorSpec' object has no attribute",
        ),
        Mistake(
            "args_is_no_tuple",
            "`args` is a tuple of all that the step takes, also where it is one thing: (data,).",
            error=r"argument after \* must be an iterable",
        ),
        Mistake(
            "dataset_on_coordinator",
            _MADE_HERE,
            error=r"Unable to parse tensor proto|Expects 1 arguments|Tensor'? .*not an iterator"
            r"|create_per_worker_dataset",
        ),
        Mistake(
            "nothing_sent",
            "No step was scheduled: all ran in the coordinator's own process, one after the "
            "other. `coordinator.schedule(step, args=(data,))` sends one to a worker.",
            when=lambda _, out: out["sent"] == 0,
        ),
        Mistake("data_through_coordinator", _MADE_HERE, when=lambda _, out: out["made here"]),
        Mistake(
            "fetch_each_step",
            "Only one worker was in a step at any time: the loop waits for a result before it "
            "sends the next step. Send all of them, then join, then fetch.",
            when=lambda inputs, out: out["at once"] == 1 and out["taken"] == inputs["steps"],
        ),
        Mistake(
            "no_join",
            "Your function returned while steps were under way. `coordinator.join()` waits "
            "for all of them.",
            when=lambda inputs, out: out["taken at return"] < out["taken"] == inputs["steps"],
        ),
        Mistake(
            "not_fetched",
            "What `schedule` returns is a promise. `coordinator.fetch` makes numbers of a list "
            "of them.",
            when=lambda _, out: _all_promises(out),
        ),
        Mistake(
            "new_iterator_each_step",
            "Each step has an iterator of its own, so all see the first batch. Make one before "
            "the loop.",
            when=lambda _, out: out["seen"][0] == out["taken"],
        ),
        Mistake(
            "steps_for_each_worker",
            "There are as many steps for each worker as were asked for in all.",
            when=lambda inputs, out: out["taken"] == WORKERS * inputs["steps"],
        ),
    ),
)
