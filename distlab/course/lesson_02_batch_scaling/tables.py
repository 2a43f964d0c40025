"""A table of a sweep: the accuracy of each batch size at each rate, as lesson 02 prints it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from distlab.course.lesson_02_batch_scaling.runs import Runs

# Below it, the rates above the best one no longer train, and rounding decides where they end.
_FAILS_BELOW = 75


def rates_table(
    sweep: Mapping[int, Runs], *, best: Callable[[int], int], rule: Callable[[int], int]
) -> str:
    """Returns the validation accuracies after 8 epochs, with a mark at two rates of each batch."""
    rates = next(iter(sweep.values())).rates
    lines = [
        "validation accuracy (%) by rate: * is the best rate, r the linear rule's",
        " ".join(["rate     ", *[f"{rate:>7}" for rate in rates]]),
    ]
    for batch, runs in sweep.items():
        by_rate = 100 * runs.accuracy_after(8, on="validation").mean(axis=1)
        line = f"batch {batch:3}"
        for index, accuracy in enumerate(by_rate):
            marks = ("*" if index == best(batch) else "") + ("r" if index == rule(batch) else "")
            fails = index > best(batch) and accuracy < _FAILS_BELOW
            line += ("fails".rjust(6) if fails else f"{accuracy:6.1f}") + f"{marks:2}"
        lines.append(line)
    return "\n".join(lines)
