"""Runs what must hold with every version of TensorFlow, Keras and Python that is supported.

    python tools/versions.py                       # `make versions`: every row, hours on two cores
    python tools/versions.py --only 2.19           # rows with this TensorFlow
    python tools/versions.py --only 2.20+3.15      # one row
    python tools/versions.py --what parity zoo     # without the notebooks

Each row has an environment of its own under build/versions/, made once; delete it to make it
anew. What a row printed is kept beside it in log.txt. A row whose Python is not on this machine
is told and not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "versions"

PARITY = ["tests/parity", "tests/training"]
NOTEBOOKS = ["notebooks", "exercises", "solutions"]
REGRESSION = ["-p", "distlab.notebooks.regression", "--nbval", "--other-versions"]
WHAT = ("parity", "zoo", "notebooks")

# A notebook ends before the cell that holds this text where Keras is older than this: there its
# `ModelParallel` raises, and the lesson shows what it makes.
ENDS_EARLY = {("notebooks/16_choosing_a_strategy.ipynb", "ModelParallel("): (3, 15)}

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
    parser.add_argument("--what", nargs="+", choices=WHAT, default=WHAT, help="default: all")
    parser.add_argument("--jobs", default="2", help="processes of pytest (default: 2)")
    asked = parser.parse_args(argv)
    rows = [row for row in ROWS if chosen(row, asked.only)]
    if not rows:
        parser.error(f"no such row; there are {', '.join(row.name for row in ROWS)}")
    table = []
    for number, row in enumerate(rows, 1):
        print(f"\n== {number} of {len(rows)}: {described(row)}", flush=True)
        table.append((row, run(row, asked.what, asked.jobs)))
    print()
    for row, results in table:
        print(f"{described(row):<48} {'; '.join(text for text, _ in results)}")
    ran = [good for _, results in table for _, good in results if good is not None]
    return 0 if ran and all(ran) else 1


def chosen(row: Row, only: Sequence[str] | None) -> bool:
    """Returns whether a row was asked for."""
    return not only or row.tensorflow in only or row.name in only


def described(row: Row) -> str:
    """Returns a row as it is printed."""
    return f"TensorFlow {row.tensorflow}, Keras {row.keras}, Python {row.python}"


def run(row: Row, what: Sequence[str], jobs: str) -> list[tuple[str, bool | None]]:
    """Returns what came of each part, and whether it holds: None where it was not run."""
    python = find_python(row.python)
    if python is None:
        return [(f"not run: no Python {row.python} on this machine", None)]
    home = BUILD / f"{row.python}-{row.name}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "log.txt").open("w", encoding="utf-8") as log:
        own = home / "env" / "bin" / "python"
        if not (home / "made").exists():
            shutil.rmtree(home / "env", ignore_errors=True)
            make = [python, "-m", "venv", str(home / "env")]
            install = [str(own), "-m", "pip", "install", "--quiet", *row.needs]
            if any(shown(command, log)[0] for command in (make, install)):
                return [("its environment was not made", False)]
            (home / "made").touch()
        results: list[tuple[str, bool | None]] = []
        for part, arguments in parts(row, what).items():
            began = time.monotonic()
            options = ["-q", "-p", "no:cacheprovider", "-n", jobs, "--dist", "loadfile"]
            code, last = shown([str(own), "-m", "pytest", *options, *arguments], log)
            secs = time.monotonic() - began
            results.append((f"{part}: {counted(last)}, {secs:.0f} s", code == 0))
            print(f"-- {results[-1][0]}", flush=True)
    return results


def parts(row: Row, what: Sequence[str]) -> dict[str, list[str]]:
    """Returns pytest's arguments for each part that there is."""
    arguments = {
        "parity": PARITY,
        "zoo": ["tests/zoo"],
        "notebooks": [*REGRESSION, *left_out(row), *NOTEBOOKS],
    }
    return {part: arguments[part] for part in WHAT if part in what}


def left_out(row: Row) -> list[str]:
    """Returns pytest's arguments that leave out what this Keras cannot run, and says so."""
    arguments = []
    for (notebook, text), needed in ENDS_EARLY.items():
        if tuple(map(int, row.keras.split("."))) < needed:
            cells = json.loads((ROOT / notebook).read_text(encoding="utf-8"))["cells"]
            sources = ["".join(one["source"]) for one in cells if one["cell_type"] == "code"]
            first = next(number for number, source in enumerate(sources) if text in source)
            left = range(first, len(sources))
            arguments += [f"--deselect={notebook}::Cell {number}" for number in left]
            print(f"-- left out: {notebook} from cell {first} on ({text[:-1]})", flush=True)
    return arguments


def counted(last: str) -> str:
    """Returns "353 passed" from pytest's last line."""
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", last)
    return ", ".join(counts) or last or "nothing printed"


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


def find_python(version: str) -> str | None:
    """Returns a Python of this version that runs: on PATH, this one, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    own = sorted(str(path) for path in pyenv.glob(f"{version}.*/bin/python"))
    code = "import sys, venv; print(*sys.version_info[:2], sep='.')"
    for python in (shutil.which(f"python{version}"), sys.executable, *own):
        if python is not None:
            answer = subprocess.run([python, "-c", code], capture_output=True, text=True)
            if answer.stdout.strip() == version:
                return python
    return None


if __name__ == "__main__":
    raise SystemExit(main())
