"""The zoo: every model family on one device and on replicas, compared, in a table.

    python tools/zoo.py                    # measures and prints
    python tools/zoo.py --write            # and writes docs/zoo.md
    python tools/zoo.py --check            # and fails where the page says something else in words
    python tools/zoo.py --only vae gan     # some of them

Families are measured in processes of their own, two at a time.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.support_matrix import Cells, changes, read_tables

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "zoo.md"
COLUMNS = ("`distribute`, 3 replicas", "Keras's own `fit`, 2 replicas")
RUNS = ((3, "distribute", None), (2, "keras", 10))
A_PROCESS = 13  # families; TensorFlow's memory grows with each

PAGE_TEXT = """# The zoo

Most models on this page follow a guide or an example of keras.io or tensorflow.org. The second
column names it, by its title or in fewer words. The other models were written for one feature, such
as a loss that is a sum, and the column describes them. Each one is written again here, small and
with synthetic data. `python tools/zoo.py --write` trains each model for two epochs: on one device
with plain Keras, and on replicas of `MirroredStrategy`, which are logical CPUs. The
batches have 11, 11 and 5 examples, so the replicas' shares are unequal and the last batch is
partial. Both sides have the same initial weights, seeds and order of examples. For `distribute`
nothing is switched off: dropout drops, and random layers draw. Keras's own `fit` is measured in its
favour: there random layers of Keras are off on both sides, and BatchNormalization is synchronised.
Where a model draws by itself (`vae_by_add_loss`, `two_updates_in_a_step`,
`words_hidden_in_the_step`), that is a part of its difference.

Each cell compares with one device after two epochs:

- **equal**: no weight differs by more than 2e-6, and no log by more than 2e-5 (of its size, if it
  is above 1). `half_the_bits` is the exception: bfloat16 rounds what is computed, so replicas are
  equal if they are no further from float32 than one device in bfloat16 is.
- **off by**: the largest difference of a weight. **weights equal, log off by**: the weights are
  equal, and the number is the largest difference of a log.
- **stops**: training raised this error. Each `RuntimeError` is Keras's "Unable to automatically
  build the model": under a strategy, `fit` calls the model once before it trains. The
  `InvalidArgumentError`s are of batches of 11, which Keras cannot share, and of parts of a batch
  that are strings or booleans, which it cannot add up.

Another processor changes the digits and not the words: each night `python tools/zoo.py --check`
measures all cells again, and fails where the words differ.

A weight whose true gradient is zero, such as a key's bias in attention, moves by rounding alone.
Such weights are not counted: each family names its own in `noisy=`, in `tests/zoo/`.

Keras's own `fit` stops if the replicas cannot share the first batch equally. So in its column the
batches have 10, 10 and 7 examples, on the replicas and on the one device. Validation data are in
batches of 10, too. The PyDataset and the generator keep their batches of 11. The batch of 7 is
shared unequally, which alone can make weights differ ([measured](support_matrix.md)).
"""


def measure(names: list[str], path: str) -> None:
    """Measures families one after another, in this process, and writes cells to a file."""
    import distlab as dl

    dl.split_devices(4, kind="cpu")
    from tests.zoo.harness import differences, too_far

    cells = {}
    for name in names:
        family = families()[name]
        row = []
        for replicas, train, batch in RUNS:
            try:
                found = differences(family, replicas, train=train, batch=batch)
            except Exception as error:
                row.append(f"stops: {type(error).__name__}")
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            row.append(_cell(family, found, too_far(family, found)))
        cells[name] = row
        print(f"{name}: {', '.join(row)}", flush=True)
        Path(path).write_text(json.dumps(cells), encoding="utf-8")


def _cell(family: Any, found: dict[str, float], wrong: dict[str, float]) -> str:
    left_out = ("log ", *family.noisy)
    weights = [far for name, far in found.items() if not any(part in name for part in left_out)]
    if not wrong:
        return "equal"
    if all(name.startswith("log ") for name in wrong):
        return f"weights equal, log off by {max(wrong.values()):.0e}"
    return f"off by {max(weights, default=0):.0e}"


def words(cell: str) -> str:
    """Returns a cell without its digits, which another processor changes."""
    return re.sub(r"(?<=off by) \S+$", "", cell)


def in_words(page: str, names: list[str]) -> Cells:
    """Returns what a page says in words of some families, and of those that are no more."""
    (table,) = read_tables(page)
    every = families()
    return {
        name: {column: words(row[column]) for column in COLUMNS}
        for name, row in table.items()
        if name in names or name not in every
    }


def families() -> dict[str, Any]:
    """Returns all families, by name; TensorFlow is imported with them."""
    from tests.zoo import harness

    return harness.families()


def measure_all(names: list[str]) -> dict[str, list[str]]:
    """Measures families in processes of their own, and returns the cells of each."""
    parts = [names[at : at + A_PROCESS] for at in range(0, len(names), A_PROCESS)]
    folder = ROOT / "build" / "zoo"
    folder.mkdir(parents=True, exist_ok=True)

    def part(index: int) -> dict[str, list[str]]:
        path = folder / f"{index}.json"
        command = [sys.executable, "-m", "tools.zoo", "--to", str(path), "--measure"]
        with (folder / f"{index}.log").open("w") as log:
            subprocess.run([*command, *parts[index]], cwd=ROOT, stderr=log, check=True)
        cells: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))
        return cells

    with ThreadPoolExecutor(2) as pool:
        return {
            name: row for cells in pool.map(part, range(len(parts))) for name, row in cells.items()
        }


def page(rows: dict[str, list[str]]) -> str:
    """Returns docs/zoo.md."""
    every = families()
    equal = [sum(row[i].startswith("equal") for row in rows.values()) for i in range(len(RUNS))]
    lines = [
        "| family | in the manner of | " + " | ".join(COLUMNS) + " |",
        "|---" * (2 + len(COLUMNS)) + "|",
    ]
    lines += [f"| {name} | {every[name].like} | {' | '.join(row)} |" for name, row in rows.items()]
    counts = ", ".join(f"{n} ({column})" for column, n in zip(COLUMNS, equal, strict=True))
    counted = f"Equal to one device, of {len(rows)} models: {counts}."
    return f"{PAGE_TEXT}\n{counted}\n\n" + "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Measures; prints, writes or compares. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="write docs/zoo.md")
    action.add_argument("--check", action="store_true", help="fail where docs/zoo.md says other")
    parser.add_argument("--only", nargs="+", default=[], help="parts of names")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--to", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.measure:
        measure(arguments.measure, arguments.to)
        return 0
    only = arguments.only
    names = [name for name in families() if not only or any(part in name for part in only)]
    text = page(measure_all(names))
    if arguments.check:
        stored = in_words(PAGE.read_text(encoding="utf-8"), names)
        changed = changes([stored], [in_words(text, names)])
        print("\n".join(changed) or f"all {len(names)} families are as docs/zoo.md says in words")
        return int(bool(changed))
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
