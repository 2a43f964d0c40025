"""What a reader's machine must have: seconds and memory of each notebook, and the disk.

    python benchmarks/lessons.py [--folder exercises] [STEM ...]

Each notebook runs in a kernel of its own, without a warm process that was there before: as for a
reader who opens it and runs all cells. The memory is the most that the kernel and all processes
below it had together; what they share counts once. JupyterLab itself comes on top.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
LOOK_SECS = 0.2
MIB = 2**20


def shared_out_bytes(processes: list[psutil.Process]) -> int:
    """Memory of processes, of which a page that several share counts once."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += process.memory_full_info().pss
    return total


def run(notebook: Path) -> tuple[float, int]:
    """Runs a notebook; returns seconds, and the most bytes that it had."""
    most = 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jupyter", "nbconvert", "--execute", "--to", "notebook"]
        command += ["--output-dir", folder, str(notebook)]
        began = time.perf_counter()
        runner = psutil.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while runner.poll() is None:
            most = max(most, shared_out_bytes(runner.children(recursive=True)))
            time.sleep(LOOK_SECS)
        if runner.returncode:
            raise SystemExit(f"{notebook} failed")
        return time.perf_counter() - began, most


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stems", nargs="*", metavar="STEM")
    parser.add_argument("--folder", default="notebooks")
    options = parser.parse_args()
    found = sorted((ROOT / options.folder).glob("*.ipynb"))
    for notebook in found:
        if not options.stems or notebook.stem in options.stems:
            secs, most = run(notebook)
            print(f"{notebook.stem:28} {secs:6.1f} s {most / MIB:7.0f} MiB", flush=True)
    packages = Path(sysconfig.get_path("purelib"))
    files = [path for path in packages.rglob("*") if path.is_file() and not path.is_symlink()]
    print(f"{'packages':28} {sum(f.stat().st_size for f in files) / MIB:18.0f} MiB on disk")


if __name__ == "__main__":
    main()
