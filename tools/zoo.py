"""The zoo: every model family on one device and on replicas, compared, in a table.

    python tools/zoo.py                    # measures and prints
    python tools/zoo.py --write            # and writes docs/zoo.md
    python tools/zoo.py --check            # and fails where the page says something else in words
    python tools/zoo.py --only vae gan     # some of them

Families are measured in processes of their own, two at a time. The words around the table are the
page's own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
from pathlib import Path
from typing import Any

from tools.support_matrix import Cells, changes, read_tables, table, with_tables

PAGE = Path(__file__).resolve().parent.parent / "docs" / "zoo.md"
LIKE = "in the manner of"
COLUMNS = {
    "`distribute`, 3 replicas": (3, "distribute", None),
    "Keras's own `fit`, 2 replicas": (2, "keras", 10),
}
FAMILIES_OF_A_PROCESS = 13  # TensorFlow's memory grows with each
TIMEOUT_SECS = 900


def families() -> dict[str, Any]:
    """Returns all families, by name; TensorFlow is imported with them."""
    from tests.zoo import harness

    return harness.families()


def measure(name: str) -> dict[str, str]:
    """Measures a family in this process, and returns its cells."""
    import distlab as dl

    dl.split_devices(4, kind="cpu")
    from tests.zoo.harness import beyond_rounding, differences, too_far

    family, row = families()[name], {}
    for column, (replicas, train, batch) in COLUMNS.items():
        try:
            found = differences(family, replicas, train=train, batch=batch)
            ours = train == "distribute"
            far = beyond_rounding(family, found, replicas) if ours else too_far(family, found)
            row[column] = _cell(found, far)
        except Exception as error:
            row[column] = f"stops: {type(error).__name__}"
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"{name}: {', '.join(row.values())}", flush=True)
    return row


def _cell(found: dict[str, float], wrong: dict[str, float]) -> str:
    weights = [far for name, far in found.items() if not name.startswith("log ")]
    if not wrong:
        return "equal"
    if all(name.startswith("log ") for name in wrong):
        return f"weights equal, log off by {max(wrong.values()):.0e}"
    return f"off by {max(weights, default=0):.0e}"


def measure_all(names: list[str]) -> Cells:
    """Measures families in processes of their own, and returns the cells of each."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(2, maxtasksperchild=FAMILIES_OF_A_PROCESS) as pool:
        rows = pool.imap(measure, names)
        return {name: rows.next(TIMEOUT_SECS) for name in names}


def page(rows: Cells) -> str:
    """Returns docs/zoo.md with these rows."""
    every = families()
    cells = {name: {LIKE: every[name].like} | row for name, row in rows.items()}
    equal = [
        f"{sum(row[column] == 'equal' for row in rows.values())} ({column})" for column in COLUMNS
    ]
    counted = f"Equal to one device, of {len(rows)} models: {', '.join(equal)}."
    text = with_tables(PAGE.read_text(encoding="utf-8"), table(cells, "family"))
    return re.sub(r"^Equal to one device, of .*", counted, text, flags=re.MULTILINE)


def in_words(rows: Cells) -> Cells:
    """Returns the cells without their digits, which another processor changes."""
    return {
        name: {column: re.sub(r"(?<=off by) \S+$", "", row[column]) for column in COLUMNS}
        for name, row in rows.items()
    }


def main(argv: list[str] | None = None) -> int:
    """Measures; prints, writes or compares. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="write docs/zoo.md")
    action.add_argument("--check", action="store_true", help="fail where docs/zoo.md says other")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names")
    arguments = parser.parse_args(argv)
    every = families()
    names = [name for name in every if any(part in name for part in arguments.only)]
    found = measure_all(names)
    if arguments.check:
        (stored,) = read_tables(PAGE.read_text(encoding="utf-8"))
        # A row of a family that is no more is wrong, whatever was asked for.
        asked = {name: row for name, row in stored.items() if name in names or name not in every}
        changed = changes(in_words(asked), in_words(found))
        print("\n".join(changed) or f"all {len(names)} families are as docs/zoo.md says in words")
        return int(bool(changed))
    if arguments.write:
        PAGE.write_text(page(found), encoding="utf-8")
    print(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
