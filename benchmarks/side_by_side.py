"""Times several ways to do the same, in turns, and says which differences are real.

Times drift with whatever else a machine does; the ratio of two that ran one after the other does
not. The first way is run twice a round: its ratio to itself, the control, shows what chance does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable


def compare(ways: dict[str, Callable[[], float]], *, rounds: int, unit: str) -> dict[str, float]:
    """Runs each way once a round and prints medians and ratios.

    Args:
        ways: Each returns what it took. The first is what the others are compared with.
        rounds: How often each is run, after one run that does not count.
        unit: Of what they return, for the table.

    Returns:
        The median ratio of the first way to each: above 1 is faster than the first.
    """
    reference = next(iter(ways))
    control = f"{reference} (again)"
    in_turn = {reference: ways[reference], control: ways[reference], **ways}
    for way in ways.values():
        way()
    taken: dict[str, list[float]] = {name: [] for name in in_turn}
    for round_ in range(rounds):
        # Every other round backwards, so that none always follows the same one.
        for name in list(in_turn)[:: 1 if round_ % 2 else -1]:
            taken[name].append(in_turn[name]())
    ratios = {
        name: sorted(a / b for a, b in zip(taken[reference], times, strict=True))
        for name, times in taken.items()
        if name != reference
    }
    spread = _quartiles(ratios[control])
    print(f"{'':<44}{unit:>10}  times as fast   middle half")
    print(f"{reference:<44}{statistics.median(taken[reference]):>10.2f}")
    for name, values in ratios.items():
        low, high = _quartiles(values)
        differs = "" if high < spread[0] or low > spread[1] else "  (not told from chance)"
        print(
            f"{name:<44}{statistics.median(taken[name]):>10.2f}"
            f"{statistics.median(values):>10.2f}      {low:.2f} to {high:.2f}"
            f"{'' if name == control else differs}"
        )
    return {name: statistics.median(values) for name, values in ratios.items()}


def _quartiles(values: list[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return low, high
