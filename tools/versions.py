"""Runs what must hold with every version of TensorFlow, Keras and Python that is supported.

    python tools/versions.py                       # `make versions`: every row, hours on two cores
    python tools/versions.py --only 2.19           # rows with this TensorFlow
    python tools/versions.py --only 2.20+3.15      # one row

Each row has an environment of its own under build/versions/, made once; delete it to make it
anew. What a row printed is kept beside it in log.txt. A row whose Python is not on PATH is told and
not run; with pyenv: PYENV_VERSION=3.11.7:3.12.1:3.13.0 make versions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tools.make_environment import Trouble, pick_python

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "versions"
REGRESSION = ["-p", "distlab.authoring.regression", "--nbval", "--other-versions"]
PARTS = {
    "parity": ["tests/training"],
    "zoo": ["tests/zoo"],
    "notebooks": [*REGRESSION, "notebooks", "exercises", "solutions"],
}
# With a Keras older than this, this notebook ends before the cell that holds this text: there its
# `ModelParallel` raises, and the lesson shows what it makes.
ENDS_EARLY, TEXT, NEEDED = "notebooks/16_choosing_a_strategy.ipynb", "ModelParallel(", (3, 15)
# Beside distlab with all that the notebooks use.
TOOLS = [
    "pytest",
    "pytest-xdist",
    "nbval==0.11.0",
    "nbclient",
    "jupytext",
    "pillow",
    "psutil",
    "pyyaml",
]


@dataclass(frozen=True)
class Row:
    """Versions that belong together: of Python, TensorFlow and Keras."""

    python: str
    tensorflow: str
    keras: str

    def __str__(self) -> str:
        return f"TensorFlow {self.tensorflow}, Keras {self.keras}, Python {self.python}"

    @property
    def name(self) -> str:
        """As `--only` takes it."""
        return f"{self.tensorflow}+{self.keras}"

    @property
    def needs(self) -> list[str]:
        """What pip is asked for."""
        pins = [f"tensorflow=={self.tensorflow}.*", f"tf-keras=={self.tensorflow}.*"]
        if self.tensorflow == "2.19":  # its protobuf is too old for what TFDS would bring
            pins.append("tensorflow-metadata<1.21")
        return [*pins, f"keras=={self.keras}.*", "--editable", f"{ROOT}[lab]", *TOOLS]


# An older Keras for each TensorFlow, and the newest. TensorFlow 2.19 has no build for Python 3.13.
ROWS = (
    Row("3.12", "2.19", "3.10"),
    Row("3.11", "2.19", "3.15"),
    Row("3.13", "2.20", "3.12"),
    Row("3.13", "2.20", "3.15"),
    Row("3.12", "2.21", "3.12"),
    Row("3.11", "2.21", "3.15"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool and returns its exit code: 1 where a row failed, or none was run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="ROW", help="2.19, or 2.19+3.15")
    rows = chosen(parser.parse_args(argv).only)
    if not rows:
        parser.error(f"no such row; there are {', '.join(row.name for row in ROWS)}")
    table = []
    for number, row in enumerate(rows, 1):
        print(f"\n== {number} of {len(rows)}: {row}", flush=True)
        table.append((row, run(row)))
    print()
    for row, results in table:
        print(f"{row!s:<48} {'; '.join(text for text, _ in results)}")
    ran = [good for _, results in table for _, good in results if good is not None]
    return 0 if ran and all(ran) else 1


def chosen(only: Sequence[str] | None) -> list[Row]:
    """Returns the rows that were asked for."""
    return [row for row in ROWS if not only or row.tensorflow in only or row.name in only]


def run(row: Row) -> list[tuple[str, bool | None]]:
    """Returns what came of each part, and whether it holds: None where it was not run."""
    try:
        python, _ = pick_python(f"python{row.python}")
    except Trouble:
        return [(f"not run: no Python {row.python} on PATH", None)]
    home = BUILD / f"{row.python}-{row.name}"
    home.mkdir(parents=True, exist_ok=True)
    own = str(home / "env" / "bin" / "python")
    with (home / "log.txt").open("w", encoding="utf-8") as log:
        if not (home / "made").exists():
            shutil.rmtree(home / "env", ignore_errors=True)
            make = [python, "-m", "venv", str(home / "env")]
            install = [own, "-m", "pip", "install", "--quiet", *row.needs]
            if any(shown(command, log)[0] for command in (make, install)):
                return [("its environment was not made", False)]
            (home / "made").touch()
        results: list[tuple[str, bool | None]] = []
        for part, arguments in PARTS.items():
            start = time.monotonic()
            options = ["-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
            left_out = cells_left_out(row) if part == "notebooks" else []
            code, last = shown([own, "-m", "pytest", *options, *left_out, *arguments], log)
            counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", last)
            says = ", ".join(counts) or last or "nothing printed"
            results.append((f"{part}: {says}, {time.monotonic() - start:.0f} s", code == 0))
            print(f"-- {results[-1][0]}", flush=True)
    return results


def cells_left_out(row: Row) -> list[str]:
    """Returns pytest's arguments that leave out what this Keras cannot run, and says so."""
    if tuple(map(int, row.keras.split("."))) >= NEEDED:
        return []
    cells = json.loads((ROOT / ENDS_EARLY).read_text(encoding="utf-8"))["cells"]
    sources = ["".join(one["source"]) for one in cells if one["cell_type"] == "code"]
    first = next(number for number, source in enumerate(sources) if TEXT in source)
    print(f"-- left out: {ENDS_EARLY} from cell {first} on ({TEXT[:-1]})", flush=True)
    return [f"--deselect={ENDS_EARLY}::Cell {number}" for number in range(first, len(sources))]


def shown(command: Sequence[str], log: TextIO) -> tuple[int, str]:
    """Runs a command, shows and keeps what it prints, and returns its code and its last line."""
    last = ""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(f"   {line.rstrip()}", flush=True)
        print(line.rstrip(), file=log, flush=True)
        last = line.strip() or last
    return process.wait(), last


if __name__ == "__main__":
    raise SystemExit(main())
