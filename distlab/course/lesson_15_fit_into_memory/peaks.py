"""Prints what lesson 15 measures: peaks of a step, its products, and whether gradients agree.

python -m distlab.course.lesson_15_fit_into_memory.peaks            # a table, 1 to 2 minutes
python -m distlab.course.lesson_15_fit_into_memory.peaks --record   # the points of the figure
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import distlab as dl
from distlab.course.lesson_15_fit_into_memory.figures import RECORDED
from distlab.course.lesson_15_fit_into_memory.runs import (
    WAYS,
    build,
    count_products,
    largest_difference,
    make_step,
    windows,
)
from distlab.course.measure.peak import peak_bytes

# Enough for all of them: what's wanted here is the allocator that counts.
LIMIT_MB = 1024
GROUPS = {f"recomputed by {layers}": (1, layers) for layers in (1, 2, 4, 8)}
CUTS = {"plain": (1, 0), "4 micro-batches": (4, 0), **GROUPS}
POINTS = {
    "plain": (4, 12),
    "4 micro-batches": (16, 48),
    "recomputed": (16, 48),
    "both": (64, 128),
}


def main(arguments: Sequence[str]) -> None:
    """Prints the table, or records the figure's points."""
    dl.memory_limit(LIMIT_MB)
    model = build()
    if "--record" in arguments:
        held = 4 * model.count_params()
        recorded = {
            way: {
                rows: round((held + _peak(model, WAYS[way], rows)) / 2**20, 1) for rows in batches
            }
            for way, batches in POINTS.items()
        }
        RECORDED.write_text(json.dumps({"peaks_mb": recorded}, indent=1) + "\n", encoding="utf-8")
        return
    batch = windows(8)
    plain = make_step(model)
    gradients = plain(*batch)
    print(f"{'8 rows':18} {'peak, MB':>9} {'products':>9} {'gradients apart':>16}")  # noqa: T201
    for way, cut in CUTS.items():
        step = make_step(model, *cut)
        peak = peak_bytes(lambda step=step: step(*batch)) / 2**20  # type: ignore[misc]
        apart = largest_difference(step(*batch), gradients)
        products = "in a loop" if cut[0] > 1 else count_products(step, *batch)
        print(f"{way:18} {peak:9.1f} {products:>9} {apart:16.1e}")  # noqa: T201


def _peak(model: object, cut: tuple[int, int], rows: int) -> int:
    step, batch = make_step(model, *cut), windows(rows)
    return peak_bytes(lambda: step(*batch))


if __name__ == "__main__":
    main(sys.argv[1:])
