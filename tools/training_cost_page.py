"""Prints how far a cost model is from published runs, and writes docs/training_cost.md.

    python tools/training_cost_page.py [--write]

Each team's runs are predicted by numbers that were fitted without them. Then the smallest run of
each curve calibrates the compute, and the rest of the curve is predicted again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.measured_pages import Cells, table, write_page
from tools.page_pictures import strips_picture
from tools.published_runs import Runs, read_runs
from tools.training_cost import fit, smallest_first, step_parts, tokens_per_sec

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, PICTURE = DOCS / "training_cost.md", DOCS / "_static" / "training_cost.svg"
MISS = 0.25  # an error from which a run is listed


@dataclass(frozen=True)
class Errors:
    """Relative errors, a row for each run; NaN where a run has no other one on its curve.

    Attributes:
        cold: By numbers that were fitted without this team.
        calibrated: The same, after the smallest run of the curve has calibrated the compute.
        same_speed: Without a model: each device is as fast as in the curve's smallest run.
    """

    cold: np.ndarray
    calibrated: np.ndarray
    same_speed: np.ndarray


def measure(runs: Runs) -> Errors:
    """Returns how far each run is from its prediction."""
    errors = Errors(*(np.full(len(runs.id), np.nan) for _ in range(3)))
    for team in sorted(set(runs.team)):
        own = np.flatnonzero(runs.team == team)
        numbers = fit(runs.pick(runs.team != team))
        errors.cold[own] = _error(runs.pick(own), numbers)
        for curve in sorted(set(runs.curve[own]) - {""}):
            _follow(curve, runs, numbers, errors)
    return errors


def _error(runs: Runs, numbers: Mapping[str, float], calibration: float = 1.0) -> np.ndarray:
    return tokens_per_sec(runs, numbers, calibration) / runs.tokens - 1


def _follow(curve: str, runs: Runs, numbers: Mapping[str, float], errors: Errors) -> None:
    """Predicts a curve from its smallest run."""
    order = smallest_first(runs)
    first, *later = order[runs.curve[order] == curve]
    start, rest = runs.pick(np.array([first])), runs.pick(np.array(later, int))
    parts = step_parts(start, numbers)
    secs = start.batch * start.length / start.devices / start.tokens
    missing = (secs - sum(parts.values())) / (parts["products"] + parts["other"])
    errors.calibrated[later] = _error(rest, numbers, max(0.2, float(1 + missing[0])))
    speed = start.tokens * _operations(start) / _operations(rest)
    errors.same_speed[later] = speed / rest.tokens - 1


def _operations(runs: Runs) -> np.ndarray:
    attention = 6 * runs.layers * runs.hidden * runs.length
    return (6 * runs.used + attention) * (1 + runs.recompute / 3)


def teams(runs: Runs, errors: Errors) -> Cells:
    """The errors of each team, and of all runs, as the page has them."""
    groups = {team: runs.team == team for team in sorted(set(runs.team))}
    groups["all"] = np.full(len(runs.id), True)
    return {
        team: {
            "runs": str(int(rows.sum())),
            "no run of it seen, median": f"{_median(errors.cold[rows]):.1f} %",
            "nine of ten within": f"{100 * np.percentile(np.abs(errors.cold[rows]), 90):.0f} %",
            "bias": f"{100 * np.median(errors.cold[rows]):+.1f} %",
            "runs after a first": str(int(np.isfinite(errors.calibrated[rows]).sum())),
            "calibrated, median": _median_cell(errors.calibrated[rows]),
            "same speed, median": _median_cell(errors.same_speed[rows]),
        }
        for team, rows in groups.items()
    }


def _median(errors: np.ndarray) -> float:
    return 100 * float(np.median(np.abs(errors[np.isfinite(errors)])))


def _median_cell(errors: np.ndarray) -> str:
    return f"{_median(errors):.1f} %" if np.isfinite(errors).any() else "none"


def misses(runs: Runs, errors: Errors) -> Cells:
    """Each run whose speed is missed by more than `MISS`, the farthest first."""
    far = [row for row in np.argsort(-np.abs(errors.cold)) if abs(errors.cold[row]) > MISS]
    return {
        str(runs.id[row]): {
            "devices": f"{runs.devices[row]:.0f}",
            "parameters": f"{runs.params[row] / 1e9:.1f} billion",
            "layout": _layout(runs, row),
            "tokens a micro-batch": f"{_micro_batch(runs, row):,.0f}",
            "measured, tokens/s": f"{runs.tokens[row]:,.0f}",
            "predicted": f"{runs.tokens[row] * (1 + errors.cold[row]):,.0f}",
            "error": f"{100 * errors.cold[row]:+.0f} %",
        }
        for row in far
    }


def _layout(runs: Runs, row: int) -> str:
    sizes = {
        name: int(getattr(runs, name)[row]) for name in ("dp", "shard", "tp", "pp", "vp", "cp")
    }
    return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one device"


def _micro_batch(runs: Runs, row: int) -> float:
    return float(runs.batch[row] * runs.length[row] / runs.dp[row] / runs.micro_batches[row])


def main() -> None:
    """Prints the tables, and writes the page and its picture if asked."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--write", action="store_true", help="write the page and its picture")
    write = options.parse_args().write
    runs, left_out = read_runs()
    errors = measure(runs)
    reasons: Cells = {why: {"runs left out": str(count)} for why, count in left_out.most_common()}
    numbers = {name: {"fitted to all runs": f"{value:.3g}"} for name, value in fit(runs).items()}
    tables = [
        table("whose software ran", teams(runs, errors)),
        table("why", reasons),
        table("number", numbers),
        table("run", misses(runs, errors)),
    ]
    print("\n".join(tables))
    if write:
        by_team = {team: list(errors.cold[runs.team == team]) for team in sorted(set(runs.team))}
        PICTURE.write_text(strips_picture(by_team), encoding="utf-8")
        write_page(PAGE, tables, {})


if __name__ == "__main__":
    main()
