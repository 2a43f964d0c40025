"""Runs the suite and the notebooks as other processors, and a busy machine, run them.

    python tools/portable.py                        # `make portable`: all settings, both stages
    python tools/portable.py --only SSE4.1 busy     # some settings

Another processor takes other kernels, which round differently: oneDNN can be held to older
instructions, or left out. In the last setting two busy loops run beside the tests. What each stage
printed is in build/portable/.

Where oneDNN is held to older instructions, what computes in bfloat16 is left out: TensorFlow asks
the processor whether it has bfloat16, and not oneDNN, so oneDNN stops the process. On a processor
that is really older, TensorFlow takes its own kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "portable"
SETTINGS = {
    "no oneDNN": {"TF_ENABLE_ONEDNN_OPTS": "0"},
    "SSE4.1": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "busy": {},
}
# By the stage, what is left out in these two settings.
HELD = ("SSE4.1", "AVX2")
WITHOUT_BFLOAT16 = {
    "tests": "-m 'not bfloat16'",
    "regression": " ".join(
        f"--ignore={folder}/07_mixed_precision.ipynb"
        for folder in ("notebooks", "exercises", "solutions")
    ),
}
# It ends with the process that started it, also if that one is killed.
BUSY_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keeps so many cores busy meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(setting: str, stage: str) -> tuple[bool, str]:
    """Runs one stage in one setting; returns whether it passed, and its row of the table."""
    log = LOGS / f"{setting.replace(' ', '_')}-{stage}.log"
    without = [f"TEST_ARGS={WITHOUT_BFLOAT16[stage]}"] if setting in HELD else []
    start = time.monotonic()
    with log.open("w") as file, busy_loops(2 if setting == "busy" else 0):
        code = subprocess.run(
            ["make", "--no-print-directory", stage, *without],
            cwd=ROOT,
            env=os.environ | SETTINGS[setting],
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    text = log.read_text(encoding="utf-8", errors="replace")
    counts = re.findall(r"^=* ?((?:\d+ \w+,? ?)+) in [\d.]+s", text, re.MULTILINE)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+(?: \d+)?)", text, re.MULTILINE)
    says = "; ".join([counts[-1].strip() if counts else f"exit code {code}", *failed])
    return code == 0, f"| {setting} | {stage} | {says} | {time.monotonic() - start:.0f} s |"


def main() -> int:
    """Reads the command line, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    asked = parser.parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    print("| setting | stage | result | time |\n|---|---|---|---|", flush=True)
    all_passed = True
    for setting in asked.only:
        for stage in ("tests", "regression"):
            passed, row = run(setting, stage)
            all_passed &= passed
            print(row, flush=True)
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
