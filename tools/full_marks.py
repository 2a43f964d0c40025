"""Holds that each solution earns full marks on many seeds, and what does nothing earns none.

    python tools/full_marks.py                     # `make full-marks`: all checks, 20 seeds
    python tools/full_marks.py 16 --seeds 100      # those of one lesson, on more seeds

tests/course/checks/test_exercises.py does this where nothing is trained, on a few seeds. A check
that runs clusters stops after `--secs`: how many seeds each one had stands in its line.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distlab.authoring.edition_loader import load_edition
from distlab.authoring.source import Page
from distlab.course.checks.check import Check
from distlab.course.checks.registry import checks_of, stems
from distlab.course.checks.run_check import run_check
from distlab.devices import split_devices

ROOT = Path(__file__).resolve().parents[1]


def main(argv: list[str] | None = None) -> int:
    """Runs the tool and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lessons", nargs="*", help="numbers of lessons, as 07 (default: all)")
    parser.add_argument("--seeds", type=int, default=20, help="seeds of each check (default: 20)")
    parser.add_argument("--secs", type=float, default=30, help="most seconds of each (default: 30)")
    asked = parser.parse_args(argv)
    split_devices(4)
    start, wrong = time.monotonic(), 0
    for check, solution, stub in _answers(asked.lessons):
        began = time.monotonic()
        done, found = _judged(check, solution, seeds=asked.seeds, most_secs=asked.secs)
        idle = {"the exercise as handed out": stub, "an answer that does nothing": _do_nothing}
        for name, answer in idle.items():
            if (earned := run_check(check, answer, seeds=(1,)).earned) != 0:
                found.append(f"{name} earns {earned:g}")
        wrong += bool(found)
        took = time.monotonic() - began
        says = "; ".join(found) or "full marks"
        print(f"{check.name:24}{done:4} seeds {took:7.1f} s  {says}", flush=True)
    print(f"{wrong} checks with findings, in {time.monotonic() - start:.0f} s")
    return int(wrong > 0)


def _do_nothing(*given: Any) -> None:
    pass


def _answers(lessons: list[str]) -> Iterator[tuple[Check, Callable[..., Any], Callable[..., Any]]]:
    """For each check the solution's function and the exercise's."""
    for stem in stems():
        if lessons and stem[:2] not in lessons:
            continue
        solution = load_edition(Page(ROOT, stem, "solution"))
        stub = load_edition(Page(ROOT, stem, "exercise"))
        for check in checks_of(stem):
            yield check, solution[check.function], stub[check.function]


def _judged(
    check: Check, function: Callable[..., Any], *, seeds: int, most_secs: float
) -> tuple[int, list[str]]:
    """Returns how many seeds were judged, and on which one did not earn all points."""
    end, found = time.monotonic() + most_secs, list[str]()
    for seed in range(seeds):
        report = run_check(check, function, seeds=(seed,))
        if report.earned != check.points:
            found.append(f"seed {seed} earns {report.earned:g} of {check.points:g}")
        if time.monotonic() > end:
            return seed + 1, found
    return seeds, found


if __name__ == "__main__":
    sys.exit(main())
