"""A check of lesson 16: which strategy is worth it, by what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Inputs, Plain, Then

_STEPS, _BATCH, _WORTH = 7, 64, 1.1
_Row = dict[str, Any]
# Each table has one difficulty, on which one way to misread it comes to grief. Three of them have
# the same one in different steps, so that no step is right to look at alone.
_TABLES = {
    "weights": slice(0, 1),
    "examples": slice(1, 2),
    "single": slice(2, 5),
    "noise": slice(5, 6),
}


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    alone_ms = float(draw.uniform(8, 30))

    def row(speed: float, *, batch: int = _BATCH, equal: bool = True) -> _Row:
        """Measured where so many times the examples of one device are done in a second."""
        around = alone_ms * (batch / _BATCH) / speed
        measured = around * draw.uniform(0.985, 1.015, size=_STEPS)
        return {"equal": equal, "global_batch": batch, "step_ms": measured.round(2).tolist()}

    def disturbed(row: _Row, factor: float, place: int) -> _Row:
        times = [ms * factor if n == place else ms for n, ms in enumerate(row["step_ms"])]
        return {**row, "step_ms": [round(ms, 2) for ms in times]}

    fast, slow = float(draw.uniform(1.6, 1.9)), float(draw.uniform(1.2, 1.3))
    places = [int(place) for place in draw.permutation([0, _STEPS // 2, _STEPS - 1])]
    pairs = (
        (row(slow), row(fast, equal=False)),
        (row(fast, batch=4 * _BATCH), row(slow)),
        *((disturbed(row(fast), 12, n), disturbed(row(slow), 0.3, n)) for n in places),
        (row(0.9), disturbed(row(1.03), 0.7, places[0])),
    )
    return {"tables": [_table(draw, row(1.0), *pair) for pair in pairs]}


def _table(draw: Any, alone: _Row, *others: _Row) -> dict[str, _Row]:
    """A table in an order, and under names, that tell nothing."""
    names = draw.permutation(["mirrored", "central_storage", "multi_worker"]).tolist()
    rows = {"one_device": alone, **dict(zip(names, others, strict=False))}
    return {name: rows[name] for name in draw.permutation(sorted(rows)).tolist()}


def _call(worth_it: Callable[..., Any], inputs: Inputs) -> Plain:
    return [worth_it(table) for table in inputs["tables"]]


def _read(given: Inputs, outputs: Plain) -> Plain:
    """The names by the difficulty of their tables."""
    found = {key: outputs[tables] for key, tables in _TABLES.items()}
    return {key: names[0] if len(names) == 1 else names for key, names in found.items()}


def _reference(
    given: Inputs,
    *,
    equal_only: bool = True,
    by_examples: bool = True,
    of_steps: Callable[[Any], Any] = np.median,
    worth: float = _WORTH,
) -> Plain:
    """What is chosen from each table by a reader with these habits."""

    def best_of(table: dict[str, _Row]) -> str:
        def speed(name: str) -> float:
            examples = table[name]["global_batch"] if by_examples else 1
            return float(examples / of_steps(table[name]["step_ms"]))

        best = max((n for n, row in table.items() if row["equal"] or not equal_only), key=speed)
        return best if speed(best) >= worth * speed("one_device") else "one_device"

    return _read(given, [best_of(table) for table in given["tables"]])


WORTH_IT = Check(
    name="worth_it",
    title="Is it worth it?",
    question="Would the fastest strategy of your answer still win in a second measurement?",
    direction=(
        "A fair comparison asks three things of each row: are the weights right, how many examples "
        "has a step, and how is the time measured?"
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Equal("weights", "a table where the fastest ends with wrong weights"),
        Equal("examples", "a table where the steps of one strategy have more examples"),
        Equal("single", "three tables where single measurements are far off"),
        # Here one device is right, as it is for a reader that always takes one device.
        Then(
            Equal("noise", "a table where the fastest is hardly faster than one device"), after=any
        ),
    ),
    hint="Leave out the rows that are not equal. The speed of the others is global_batch / "
    "np.median(step_ms), so that no single step decides.",
    revisit="Your model under each strategy",
    mistakes=(
        Fault("wrong_weights_win", equal_only=False).feedback(
            "You chose the fastest, although its weights are wrong. It may be fast because it does "
            "less than it should. Which column says whether a strategy may win at all?"
        ),
        Fault("steps_for_examples", by_examples=False).feedback(
            "You compared steps per second. One strategy has four times as many examples in each "
            "step, so it looks slower than it is. What should be counted for each second?"
        ),
        Fault("lucky_step", of_steps=min).feedback(
            "You let the quickest of seven steps decide. If the clock is wrong once, that strategy "
            "wins. Which number does one wrong value not change?"
        ),
        Fault("mean_of_steps", sees=("single", "noise"), of_steps=np.mean)
        .or_with(of_steps=lambda times: np.mean(times[1:]))
        .feedback(
            "You let one disturbed step decide. It took twelve times as long, so it dominates a "
            "mean or a maximum, and it is no property of the strategy. Which number of the seven "
            "ignores it?"
        ),
        Fault("speedup_within_noise", sees=("single", "noise"), worth=1.0).feedback(
            "You chose a strategy that is a few per cent faster. Such a difference is within the "
            "noise of these measurements. How much faster must it be, by the task?"
        ),
    ),
)
