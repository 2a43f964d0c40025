"""Runs the commands of README's first screen, as a new user does: in a fresh clone, nothing else.

    python tools/first_screen.py

`make lab` serves until it is ended, which happens here once it has said where. Standard library
only: this runs before anything is installed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def commands() -> list[str]:
    """Returns the commands of the first block of README, without their comments."""
    _, block, *_ = re.split(r"^```\n", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    return [line.partition("#")[0].strip() for line in block.splitlines()]


def run(command: str, clone: str) -> bool:
    """Runs a command in a clone, shows what it prints, and returns whether it worked."""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command.split(), cwd=clone, start_new_session=True, **pipe)
    is_served = False
    for line in process.stdout:
        print(line, end="", flush=True)
        if command == "make lab" and "http://" in line and not is_served:
            is_served = True
            os.killpg(process.pid, signal.SIGTERM)
    return process.wait() == 0 or is_served


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="distlab-first-screen-") as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        failed = [command for command in commands() if not run(command, folder)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
