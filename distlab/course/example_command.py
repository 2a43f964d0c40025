"""The command `distlab example`.

distlab example                   # which there are
distlab example train slurm       # write examples/train.py and examples/slurm/ into this folder
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.errors import InvalidArgument, did_you_mean
from distlab.shipped import shipped_root

_FOLDER = "examples"


def add_example(commands: Any) -> None:
    """Adds the command."""
    example = commands.add_parser(
        "example",
        help="write a training script, or how an engine starts it, into this folder",
        description="Write examples into ./examples: a training script, and the files with which "
        "Slurm, Kubernetes, Ray or SSH start it. Without a NAME, the command lists them. A file "
        "that is there and differs is never overwritten.",
        example=[
            "distlab example                   # lists them",
            "distlab example train slurm       # writes examples/train.py and examples/slurm/",
        ],
    )
    example.add_argument("names", nargs="*", metavar="NAME", help="such as train or slurm")
    example.set_defaults(run=_example)


def _example(options: argparse.Namespace) -> int:
    if not options.names:
        for name, files in examples().items():
            print(f"{name:12}{', '.join(files)}")
        print("to write one here: distlab example NAME")
        return 0
    for file in write_examples(options.names):
        print(f"{'new' if file.is_new else 'current':9}{file.path}")
    return 0


@dataclass(frozen=True)
class ExampleFile:
    """A file of an example, and whether it was written now or was there before."""

    path: Path
    is_new: bool


def examples() -> dict[str, list[str]]:
    """Returns the paths of each example's files by its name, which is a script's or a folder's."""
    found: dict[str, list[str]] = {}
    for path in sorted((shipped_root() / _FOLDER).rglob("*")):
        parts = path.relative_to(shipped_root()).parts
        if path.is_file() and not any(part.startswith((".", "__")) for part in parts):
            found.setdefault(Path(parts[1]).stem, []).append("/".join(parts))
    return found


def write_examples(names: Sequence[str], folder: Path = Path()) -> list[ExampleFile]:
    """Writes examples below a folder, all of them or, where a file differs, none."""
    known = examples()
    if unknown := [name for name in names if name not in known]:
        raise InvalidArgument(
            asked=f"distlab example {unknown[0]}",
            found=f"no example named {unknown[0]!r}",
            do=did_you_mean(unknown[0], known),
        )
    sources = {folder / file: shipped_root() / file for name in names for file in known[name]}
    for path, source in sources.items():
        if path.exists() and not _is_copy(path, source):
            raise InvalidArgument(
                asked=f"write {path}",
                found="a file or a folder of that name, which differs",
                do="rename yours, or run the command in another folder",
            )
    written = []
    for path, source in sources.items():
        written.append(ExampleFile(path, is_new=not path.exists()))
        if written[-1].is_new:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, path)  # with its mode: a script stays executable
    return written


def _is_copy(path: Path, source: Path) -> bool:
    return path.is_file() and path.read_bytes() == source.read_bytes()
