"""Runs what must hold with every version of TensorFlow, Keras and Python that is supported.

    python tools/versions.py                       # `make versions`: each pair, hours on two cores
    python tools/versions.py --only 2.19           # the pairs with this TensorFlow
    python tools/versions.py --only 2.20+3.15      # one pair
    python tools/versions.py --only newest         # `make newest`: all packages as pip takes them
    python tools/versions.py --only oldest         # `make oldest`: the lowest of pyproject.toml

Needs uv, which brings the Pythons. Each row has an environment of its own in build/versions/.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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
    """Versions that belong together: of Python, TensorFlow and Keras, and of all other packages.

    Attributes:
        python: Its version.
        tensorflow: Its version.
        keras: Its version.
        end: "newest" or "oldest", where all packages are of that end of pyproject.toml's bounds,
            and the whole suite runs; else they are as pip takes them beside this pair.
    """

    python: str
    tensorflow: str
    keras: str
    end: str = ""

    @property
    def name(self) -> str:
        """As `--only` takes it."""
        return self.end or f"{self.tensorflow}+{self.keras}"

    @property
    def requirements(self) -> list[str]:
        """What is installed: distlab, and what its tests and notebooks use."""
        # The protobuf of TensorFlow 2.19 is too old for what TFDS would bring.
        pins = ["tensorflow-metadata>=1.17,<1.21"] if self.tensorflow == "2.19" else []
        if self.end:
            resolution = "lowest-direct" if self.end == "oldest" else "highest"
            extras = f"{ROOT}[test,docs,legacy]"
            return [*pins, "--upgrade", "--resolution", resolution, "--editable", extras]
        pins += [f"tensorflow=={self.tensorflow}.*", f"tf-keras=={self.tensorflow}.*"]
        return [*pins, f"keras=={self.keras}.*", "--editable", f"{ROOT}[lab]", *TOOLS]


# An older Keras for each TensorFlow, and the newest. TensorFlow 2.19 has no build for Python 3.13.
ROWS = (
    Row("3.12", "2.19", "3.10"),
    Row("3.11", "2.19", "3.15"),
    Row("3.13", "2.20", "3.12"),
    Row("3.13", "2.20", "3.15"),
    Row("3.12", "2.21", "3.12"),
    Row("3.11", "2.21", "3.15"),
    Row("3.11", "2.19", "3.10", "oldest"),
    Row("3.13", "2.21", "3.15", "newest"),
)


def chosen(only: Sequence[str]) -> list[Row]:
    """Returns the rows of some names or versions of TensorFlow; of none, all pairs."""
    return [
        row
        for row in ROWS
        if row.name in only or (not row.end and (not only or row.tensorflow in only))
    ]


def commands(row: Row) -> dict[str, list[str]]:
    """Returns what makes the row's environment, and what runs in it."""
    home = ROOT / "build" / "versions" / f"{row.python}-{row.name}"
    python = str(home / "bin" / "python")
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist=loadfile"]
    regression = ["-p", "distlab.authoring.regression", "--nbval", "--other-versions"]
    notebooks = ["notebooks", "exercises", "solutions"]
    tests = {"suite": "tests"} if row.end else {"parity": "tests/training", "zoo": "tests/zoo"}
    return {
        "Python": ["uv", "venv", "--allow-existing", "--python", row.python, str(home)],
        "packages": ["uv", "pip", "install", "--python", python, *row.requirements],
        **{part: [*pytest, folder] for part, folder in tests.items()},
        "notebooks": [*pytest, *regression, *notebooks],
    }


def main() -> int:
    """Runs the rows, prints a table, and returns 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="ROW", help="2.19, or 2.19+3.15, newest, oldest"
    )
    rows = chosen(parser.parse_args().only)
    if not rows:
        parser.error(f"no such row; there are {', '.join(row.name for row in ROWS)}")
    table, failed = [], False
    for row in rows:
        for part, command in commands(row).items():
            print(f"\n== {row}: {part}", flush=True)
            start = time.monotonic()
            code = subprocess.run(command, cwd=ROOT, check=False).returncode
            failed |= code != 0
            says = "holds" if code == 0 else f"failed with {code}"
            table.append(f"{row!s:64} {part:10} {says}, {time.monotonic() - start:.0f} s")
            if code and part == "packages":
                break
    print("", *table, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
