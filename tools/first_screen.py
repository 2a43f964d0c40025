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
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def commands() -> list[str]:
    """Returns the commands of the first block of README, without their comments."""
    block = re.search(
        r"^```\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    return [line.partition("#")[0].strip() for line in block[1].splitlines()] if block else []


def run(command: str, clone: Path) -> bool:
    """Runs a command in a clone, shows what it prints, and returns whether it worked."""
    process = subprocess.Popen(
        command.split(),
        cwd=clone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    is_served = False
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if command == "make lab" and re.search(r"http://\S+", line) and not is_served:
            is_served = True
            os.killpg(process.pid, signal.SIGTERM)
    return process.wait() == 0 or is_served


def main() -> int:
    """Runs them all, and says how long each took."""
    rows, passed = [], True
    with tempfile.TemporaryDirectory(prefix="distlab-first-screen-") as folder:
        clone = Path(folder) / "distlab"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        for command in commands():
            start = time.monotonic()
            is_right = run(command, clone)
            passed &= is_right
            says = "worked" if is_right else "failed"
            rows.append(f"{command}: {says} after {time.monotonic() - start:.0f} s")
    print("\n".join(rows))
    return 0 if passed and rows else 1


if __name__ == "__main__":
    sys.exit(main())
