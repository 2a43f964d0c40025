"""Changes one thing in each exercise's solution, and holds that the check notices.

    python tools/mutate_solutions.py                           # checks that train nothing
    python tools/mutate_solutions.py --only pack_gradients --verbose
    python tools/mutate_solutions.py --cost cluster --most 4   # of each check, evenly chosen

`make mutants` takes all of those that train, too, and some of those that start processes.

A mutant that earns all points shows an answer that the check should have refused. Give its inputs
a case in which the two differ, such as a sum that fits exactly, or NaN. If no input can tell them
apart, add a row to `equivalent_mutants.md`. A row whose mutant is gone, or is noticed, is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import distlab as dl
from distlab.authoring.edition_loader import load_edition
from distlab.authoring.source import Page, draft_page
from distlab.course.checks.check import Check, Cost
from distlab.course.checks.registry import checks_of, stems
from distlab.course.checks.run_check import run_check
from distlab.course.markup import CODE, TASK
from distlab.source_lines import keep_lines
from tools.mutants import Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.md")
_ROW = re.compile(r"^\| `(\w+)` \| `(.+)` \| `(.+)` \| \S.+ \|$", re.MULTILINE)
# Seconds of processor time for a mutant: one that never ends is noticed, too.
CPU_SECS = {Cost.PURE: 1, Cost.TENSORFLOW: 120, Cost.CLUSTER: 120}
# One that waits for ever takes no processor time.
WALL_SECS = 300
_MOST_MEMORY = 2 << 30  # bytes that a mutant may add


class Key(NamedTuple):
    """A mutant as the table names it."""

    check: str
    line: str
    changed: str


def equivalents(table: Path) -> set[Key]:
    """Returns the mutants that a table lists, each of which has a reason there."""
    rows = _ROW.findall(table.read_text(encoding="utf-8"))
    return {Key(*(text.replace(r"\|", "|") for text in row)) for row in rows}


def row_of(key: Key) -> str:
    """Returns the row for a mutant, but for its reason."""
    line, changed = (text.replace("|", r"\|") for text in (key.line, key.changed))
    return f"| `{key.check}` | `{line}` | `{changed}` | |"


def cell_of(stem: str, check: Check) -> str:
    """Returns the source of the cell in which the solution of a task is."""
    for cell in draft_page(Page(ROOT, stem, "solution")).notebook.cells:
        if (task := TASK.match(cell.source)) and task[1] == check.name:
            return str(cell.source)
    raise LookupError(f"no cell of the task {check.name} in exercise {stem}")


def given_lines(stem: str, check: Check) -> set[str]:
    """Returns the lines of a task's cell that are no part of the answer."""
    text = (ROOT / f"distlab/course/lesson_{stem}/exercise.py").read_text(encoding="utf-8")
    cell = text.partition(f"# task: {check.name}\n")[2].partition("\n# %%")[0]
    given = re.sub(f"{CODE.begin}.*?{CODE.end}", "", cell, flags=re.DOTALL)
    return {line.strip() for line in given.splitlines()}


def survives(check: Check, mutant: Mutant, names: dict[str, Any]) -> bool:
    """Returns whether a mutant earns all points, with the draws of the notebook."""
    file = f"<mutant of {check.name}>"
    keep_lines({file: mutant.source.splitlines(keepends=True)})
    here = {**names, "__name__": "mutant"}
    try:
        exec(compile(mutant.source, file, "exec"), here)
    except Exception:
        return False
    function = here[check.function]
    return all(run_check(check, function, seeds=(seed,)).passed for seed in check.cost.seeds)


def outcomes(check: Check, mutants: list[Mutant], names: dict[str, Any]) -> Iterator[bool]:
    """Yields for each mutant whether it survives; after one that ends the fork, in a new fork."""
    context = multiprocessing.get_context("fork")
    done = 0
    while done < len(mutants):
        ours, theirs = context.Pipe(duplex=False)
        task = context.Process(target=_judge, args=(theirs, check, mutants[done:], names))
        task.start()
        theirs.close()
        with contextlib.suppress(EOFError):
            while done < len(mutants) and ours.poll(WALL_SECS):
                yield ours.recv()
                done += 1
        if done < len(mutants):  # the one that was under way
            task.kill()
            yield False
            done += 1
        task.join()


def _judge(results: Connection, check: Check, mutants: list[Mutant], names: dict[str, Any]) -> None:
    if check.cost is Cost.PURE:
        _limit_memory()
    else:
        dl.split_devices(1 if check.cost is Cost.CLUSTER else 4)
    for mutant in mutants:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECS[check.cost])  # its signal ends the process
        results.send(survives(check, mutant, names))
    os._exit(0)  # nothing that a mutant left behind may hold up the end


def _limit_memory() -> None:
    """Lets what a mutant adds to the memory of this process be an error, where Linux counts it."""
    counted = Path("/proc/self/statm")
    if counted.exists():
        held = int(counted.read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (held + _MOST_MEMORY, hard))


def chosen(mutants: list[Mutant], most: int) -> list[Mutant]:
    """Returns at most so many mutants, evenly from first to last."""
    if not most or len(mutants) <= most:
        return mutants
    return [mutants[place * len(mutants) // most] for place in range(most)]


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if every mutant is noticed, or stands in the table for a reason."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--cost", nargs="+", default=["pure"], choices=[cost.value for cost in Cost]
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="CHECK", help="of any cost")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="of each check (all)")
    parser.add_argument("--verbose", action="store_true", help="a line for each check")
    parser.add_argument("--equivalent", type=Path, default=EQUIVALENT, help="the table")
    options = parser.parse_args(arguments)
    known, made, survivors = equivalents(options.equivalent), dict[str, int](), list[Key]()
    met = set[Key]()
    for stem in stems():
        checks = [check for check in checks_of(stem) if _is_asked(check, options)]
        names = load_edition(Page(ROOT, stem, "solution")) if checks else {}
        for check in checks:
            start = time.monotonic()
            made_of = mutants_of(cell_of(stem, check), kept=given_lines(stem, check))
            mutants = chosen(made_of, options.most)
            made[check.name], alive = len(mutants), 0
            solution = Mutant("", "", cell_of(stem, check))
            passed, *results = outcomes(check, [solution, *mutants], names)
            if not passed:  # then nothing is shown by mutants that do not
                print(f"{check.name}: the solution itself does not earn all points")
                return 1
            for mutant, lives in zip(mutants, results, strict=True):
                key = Key(check.name, mutant.line, mutant.changed)
                if lives and key in known:
                    met.add(key)
                elif lives:
                    survivors.append(key)
                    print(f"earns all points: {row_of(key)}", flush=True)
                alive += lives
            if options.verbose:
                seconds = time.monotonic() - start
                print(
                    f"{stem} {check.name}: {len(mutants)}, {alive} alive, {seconds:.1f} s",
                    flush=True,
                )
    # Where only some mutants are made, nothing is said of the others' rows.
    stale = sorted(key for key in known - met if key.check in made and not options.most)
    for key in stale:
        print(f"gone, or noticed now, so remove its row: {row_of(key)}")
    total = sum(made.values())
    print(
        f"{len(made)} checks, {total} mutants: {total - len(survivors) - len(met)} noticed, "
        f"{len(met)} equivalent, {len(survivors)} earn all points, {len(stale)} rows to remove"
    )
    return int(bool(survivors or stale))


def _is_asked(check: Check, options: argparse.Namespace) -> bool:
    return check.name in options.only if options.only else check.cost.value in options.cost


if __name__ == "__main__":
    sys.exit(main())
