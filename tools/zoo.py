"""The zoo: every model family on one device and on replicas, compared, in a table.

    python tools/zoo.py --write       # measures, and writes docs/zoo.md with its picture
    python tools/zoo.py --check       # and fails where the page says something else in words

The words around the table are the page's own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools.measured_pages import (
    Cells,
    asked_to_write,
    changes,
    measure_rows,
    read_tables,
    report,
    table,
    write_page,
)
from tools.page_pictures import zoo_picture

PAGE = Path(__file__).resolve().parent.parent / "docs" / "zoo.md"
PICTURE = PAGE.parent / "_static" / "zoo.svg"
OURS, THEIRS = COLUMNS = "`distribute`, 3 replicas", "Keras's own `fit`, 2 replicas"


def measure(name: str) -> dict[str, str]:
    """Measures a family in this process, and returns its cells."""
    import distlab as dl

    dl.split_devices(4, kind="cpu")
    from tests.zoo.harness import beyond_rounding, differences, families, too_far

    family = families()[name]

    def by_distribute() -> str:
        far = differences(family, 3)
        return in_words(far, beyond_rounding(family, far, 3))

    def by_keras() -> str:
        far = differences(family, 2, train="keras", batch=10)
        return in_words(far, too_far(family, far))

    row = {"in the manner of": family.like}
    for column, train in zip(COLUMNS, (by_distribute, by_keras), strict=True):
        try:
            row[column] = train()
        except Exception as error:
            row[column] = f"stops: {type(error).__name__}"
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"{name}: {row[OURS]}, {row[THEIRS]}", flush=True)
    return row


def in_words(differences: dict[str, float], wrong: dict[str, float]) -> str:
    """Returns a cell: how far a training ended from one device's."""
    weights = [far for name, far in differences.items() if not name.startswith("log ")]
    if not wrong:
        return "equal"
    if all(name.startswith("log ") for name in wrong):
        return f"weights equal, log off by {max(wrong.values()):.0e}"
    return f"off by {max(weights, default=0):.0e}"


def without_digits(rows: Cells) -> Cells:
    """Returns the cells without their digits, which another processor changes."""
    return {
        name: {column: re.sub(r"(?<=off by) \S+$", "", text) for column, text in row.items()}
        for name, row in rows.items()
    }


def main() -> int:
    """Measures, and writes or compares; returns the exit code."""
    writes = asked_to_write(__doc__)
    from tests.zoo.harness import families

    rows = measure_rows(measure, families())
    if not writes:
        stored, _ = read_tables(PAGE.read_text(encoding="utf-8"))
        return report(changes(without_digits(stored), without_digits(rows)))
    equal = [f"{sum(row[name] == 'equal' for row in rows.values())} ({name})" for name in COLUMNS]
    begin = "Equal to one device, of "
    counted = f"{begin}{len(rows)} models: {', '.join(equal)}."
    write_page(PAGE, [table("family", rows)], {begin: counted})
    PICTURE.write_text(zoo_picture(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
