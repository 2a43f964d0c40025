"""A check of lesson 16: which strategy is worth it, by what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal

_STEPS, _BATCH, _WORTH = 7, 64, 1.1
_Row = dict[str, Any]
# Each table has one difficulty, on which one way to misread it comes to grief. Three of them have
# the same one, in another step, so that no step is right to look at alone.
_DIFFICULTIES = {
    "the fastest does not end with the right weights": slice(0, 1),
    "a step of one has more examples": slice(1, 2),
    "single measurements are far off, in three tables": slice(2, 5),
    "the fastest is hardly faster than one device": slice(5, 6),
}
_WEIGHTS, _EXAMPLES, _SINGLE, _NOISE = _DIFFICULTIES.values()


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
    return Verdict.of(
        *(
            expect_equal(what, yours=_one(outputs[tables]), expected=_one(right[tables]))
            for what, tables in _DIFFICULTIES.items()
        )
    )


def _one(names: list[Any]) -> Any:
    return names[0] if len(names) == 1 else names


def _reads(**habits: Any) -> Callable[[Inputs], Plain]:
    return lambda inputs: _names(inputs, **habits)


def _reads_there(tables: slice, **habits: Any) -> Callable[[Inputs, Plain], bool]:
    """Whether some tables are read with these habits, however the others are."""

    def when(inputs: Inputs, outputs: Plain) -> bool:
        return bool(outputs[tables] == _names(inputs, **habits)[tables] != _names(inputs)[tables])

    return when


def _weights_looked_at_last(inputs: Inputs, outputs: Plain) -> bool:
    """The fastest of all was chosen first, and then given up for its weights."""
    right = _names(inputs)
    return bool(outputs[1:] == right[1:] and outputs[0] == "one_device")


def _mean_of_some(inputs: Inputs, outputs: Plain) -> bool:
    """A mean of all steps, or of all but the first ones."""
    right, wrong = (_names(inputs, of_steps=of)[_SINGLE] for of in (np.median, np.mean))
    answered = zip(outputs[_SINGLE], right, wrong, strict=True)
    return bool(outputs[_SINGLE] != right and all(name in pair for name, *pair in answered))


def _one_step(inputs: Inputs, outputs: Plain) -> bool:
    def is_read(place: int) -> bool:
        return bool(outputs == _names(inputs, of_steps=lambda times: times[place]))

    return any(is_read(place) for place in range(_STEPS))


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
            when=_reads_there(_WEIGHTS, equal_only=False),
        ),
        Mistake(
            "equal_asked_last",
            "The fastest has wrong weights, and you go back to one device. Leave out what is not "
            "equal before you look for the fastest: the next one may be worth it.",
            when=_weights_looked_at_last,
        ),
        Mistake(
            "steps_for_examples",
            "Steps are compared, and one of them has four times as many examples as the other.",
            when=_reads_there(_EXAMPLES, by_examples=False),
        ),
        Mistake(
            "one_step",
            "One step of the seven decides, and they are in no order: which one it is hangs on "
            "chance. Sort them before you take the middle one.",
            when=_one_step,
        ),
        Mistake(
            "lucky_step",
            "One step decides: the quickest of seven. A clock is wrong for once, and a strategy "
            "wins.",
            when=_reads_there(slice(_SINGLE.start, None), of_steps=min),
        ),
        Mistake(
            "mean_of_steps",
            "One disturbed step decides: in a mean it counts for all others, and it is the "
            "largest. A step that took twelve times as long is no property of the strategy.",
            when=_mean_of_some,
        ),
        Mistake(
            "speedup_within_noise",
            "A few per cent more are taken for a reason. What is not at least 10 % faster is not "
            "worth the trouble.",
            when=_reads_there(_NOISE, worth=1.0),
        ),
    ),
)
