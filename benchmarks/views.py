"""How long a figure takes to follow a slider: the time of each move of each view.

    python benchmarks/views.py [--rounds 3]

Every slider is moved to each of its values. A move is measured from the slider's new value until
the picture is ready to be sent to the browser; drawing it there comes on top.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import matplotlib

from distlab.course.lesson_02_batch_scaling.view import explore_batch_plan
from distlab.course.lesson_12_ring_all_reduce.view import explore_ring
from distlab.course.lesson_13_performance.view import explore_cost
from distlab.course.lesson_17_beyond_data_parallelism.view import explore_memory
from distlab.course.view import View, _Moved


def moves(view: View) -> Iterator[tuple[str, float]]:
    """Yields each move that changes the picture, and the milliseconds that it took."""
    moved = _Moved(view)
    for name, choices in view.choices.items():
        slider = moved._sliders[name]
        for value in [*choices.values, choices.first]:
            if value != slider.value:
                begun = time.perf_counter()
                slider.value = value
                yield f"{name}={value}", 1000 * (time.perf_counter() - begun)


def main() -> None:
    """Prints a line for each view."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    matplotlib.use("Agg")
    for explore in (explore_batch_plan, explore_ring, explore_cost, explore_memory):
        view = explore()
        list(moves(view))  # fonts and imports
        moved = [move for _ in range(asked.rounds) for move in moves(view)]
        taken = [ms for _, ms in moved]
        most = statistics.quantiles(taken, n=20)[-1]
        medians = {
            name: statistics.median(ms for other, ms in moved if other == name) for name, _ in moved
        }
        slowest = max(medians, key=lambda name: medians[name])
        print(
            f"{explore.__name__:<20} {len(taken):>4} moves: median "
            f"{statistics.median(taken):.0f} ms, 95 % under {most:.0f} ms, "
            f"slowest {slowest} with a median of {medians[slowest]:.0f} ms"
        )


if __name__ == "__main__":
    main()
