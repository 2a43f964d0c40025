"""A check of lesson 16: which strategy is worth it, by what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal

_STEPS, _BATCH, _WORTH = 7, 64, 1.1
_Row = dict[str, Any]
# Each table has one difficulty, on which one way to misread it comes to grief.
_TABLES = (
    "the fastest does not end with the right weights",
    "a step of one has more examples",
    "single measurements are far off",
    "the fastest is hardly faster than one device",
)


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    alone_ms = float(draw.uniform(8, 30))

    def row(speed: float, *, batch: int = _BATCH, equal: bool = True) -> _Row:
        """Measured where so many times the examples of one device are done in a second."""
        around = alone_ms * (batch / _BATCH) / speed
        measured = around * draw.uniform(0.985, 1.015, size=_STEPS)
        return {"equal": equal, "global_batch": batch, "step_ms": measured.round(2).tolist()}

    def disturbed(row: _Row, factor: float) -> _Row:
        place = int(draw.integers(_STEPS))
        times = [ms * factor if n == place else ms for n, ms in enumerate(row["step_ms"])]
        return {**row, "step_ms": [round(ms, 2) for ms in times]}

    fast, slow = float(draw.uniform(1.5, 1.9)), float(draw.uniform(1.2, 1.3))
    pairs = (
        (row(slow), row(fast, equal=False)),
        (row(fast, batch=4 * _BATCH), row(slow)),
        (disturbed(row(fast), 12), disturbed(row(slow), 0.3)),
        (row(0.9), disturbed(row(1.04), 0.7)),
    )
    return {"tables": [_table(draw, row(1.0), *pair) for pair in pairs]}


def _table(draw: Any, alone: _Row, *others: _Row) -> dict[str, _Row]:
    """A table in an order, and under names, that tell nothing."""
    names = draw.permutation(["mirrored", "central_storage", "multi_worker"]).tolist()
    rows = {"one_device": alone, **dict(zip(names, others, strict=False))}
    return {name: rows[name] for name in draw.permutation(sorted(rows)).tolist()}


def _call(worth_it: Callable[..., Any], inputs: Inputs) -> Plain:
    return [worth_it(table) for table in inputs["tables"]]


def _names(
    inputs: Inputs,
    *,
    equal_only: bool = True,
    by_examples: bool = True,
    of_steps: Callable[[Any], Any] = np.median,
    worth: float = _WORTH,
) -> list[str]:
    """What is chosen from each table by a reader with these habits."""

    def best_of(table: dict[str, _Row]) -> str:
        def speed(name: str) -> float:
            examples = table[name]["global_batch"] if by_examples else 1
            return float(examples / of_steps(table[name]["step_ms"]))

        best = max((n for n, row in table.items() if row["equal"] or not equal_only), key=speed)
        return best if speed(best) >= worth * speed("one_device") else "one_device"

    return [best_of(table) for table in inputs["tables"]]


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    right = _names(inputs)
    rows = zip(_TABLES, outputs, right, strict=True)
    return Verdict.of(*(expect_equal(what, yours=yours, expected=e) for what, yours, e in rows))


def _reads(**habits: Any) -> Callable[[Inputs], Plain]:
    return lambda inputs: _names(inputs, **habits)


WORTH_IT = Check(
    name="worth_it",
    function="worth_it",
    title="Is it worth it?",
    points=4,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="Leave out what is not equal. The speed of the others is global_batch / np.median(step_ms)"
    ": examples in a time, and a time that no single step decides.",
    revisit="Your model under each strategy",
    mistakes=(
        Mistake(
            "as_handed_out",
            "All tables are read wrongly, as before. Look at one of them after the other: the "
            "weights, the examples in a step, the single measurements.",
            yields=_reads(equal_only=False, by_examples=False, of_steps=min),
        ),
        Mistake(
            "wrong_weights_win",
            "The fastest may be fast because it does less than it should. Whoever does not end "
            "with the weights of one device is out, whatever its speed.",
            yields=_reads(equal_only=False),
        ),
        Mistake(
            "steps_for_examples",
            "Steps are compared, and one of them has four times as many examples as the other.",
            yields=_reads(by_examples=False),
        ),
        Mistake(
            "lucky_step",
            "One step decides: the quickest of seven. A clock is wrong for once, and a strategy "
            "wins.",
            yields=_reads(of_steps=min),
        ),
        Mistake(
            "mean_of_steps",
            "In a mean one disturbed step counts for all others: a step that took twelve times as "
            "long is no property of the strategy.",
            yields=_reads(of_steps=np.mean),
        ),
        Mistake(
            "speedup_within_noise",
            "A few per cent more are taken for a reason. What is not at least 10 % faster is not "
            "worth the trouble.",
            yields=_reads(worth=1.0),
        ),
    ),
)
