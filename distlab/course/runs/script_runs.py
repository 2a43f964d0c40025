"""Runs a script as `distlab launch` does in a terminal, from a notebook.

launched = launch_here("--workers", "2", "train.py", folder=folder)
launched.exit_code                                # 0
launched.lines_with("loss")                       # what the workers printed, sorted by worker
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from distlab.cluster.warm.process import ADDRESS_VARIABLE, shared_server


@dataclass(frozen=True)
class Launched:
    """How a launched script ended.

    Attributes:
        exit_code: That of `distlab launch`.
        printed: The lines that the tasks printed, each behind its task's name.
        errors: What the tasks and the launcher wrote to standard error.
    """

    exit_code: int
    printed: tuple[str, ...]
    errors: str

    def lines_with(self, text: str) -> list[str]:
        """Returns the printed lines that contain a text, sorted: tasks print in any order."""
        return sorted(line for line in self.printed if text in line)


def launch_here(*arguments: str, folder: Path) -> Launched:
    """Runs `distlab launch` with some arguments, and waits for its end.

    The processes are forked from the one that this notebook has prepared already.
    """
    done = subprocess.run(
        [sys.executable, "-m", "distlab.cli", "launch", *arguments],
        cwd=folder,
        env=os.environ | {ADDRESS_VARIABLE: shared_server().address},
        capture_output=True,
        text=True,
    )
    return Launched(done.returncode, tuple(done.stdout.splitlines()), done.stderr)
