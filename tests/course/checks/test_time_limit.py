"""`dl.check` ends what never ends, in real kernels and in a script, as the grader does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

from distlab.cluster.warm.process import can_fork
from distlab.course.checks.notebook_check import check
from distlab.course.checks.progress import progress
from distlab.course.checks.report import Ending, Report
from distlab.errors import InvalidArgument
from tests.support.limits import HANG_SECS
from tests.support.local_tasks import wait_until

START = """
import os, signal, threading, time
import distlab as dl
dl.split_devices(4)
import tensorflow as tf
from distlab.course.runs.replicas import mirrored
"""
LOOP = "def split(e, r):\n    while True: pass"
RIGHT = """def split(e, r):
    piece = -(-e // r)
    return [max(0, min(piece, e - piece * i)) for i in range(r)]"""
LATE = "slices: ran out of time (0 of 2 points)"


@dataclass
class Ran:
    """What a front end gets of one cell."""

    status: str = ""
    shown: list[str] = field(default_factory=list)  # outputs as text; "" for one without data
    error: str = ""

    @property
    def card(self) -> str:
        return self.shown[-1]


class Kernel:
    """A real kernel, whose front end may have a person in front of it."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def run(self, code, *, person=False, interrupt_at=None):
        """Runs a cell, and interrupts it when an output begins with a text."""
        ran = Ran()

        def note(message):
            kind, content = message["msg_type"], message["content"]
            if kind == "error":
                ran.error = content["ename"]
            if kind in ("display_data", "update_display_data", "execute_result"):
                ran.shown.append(content["data"].get("text/plain", ""))
                if interrupt_at and ran.shown[-1].startswith(interrupt_at):
                    self.manager.interrupt_kernel()

        options = {"allow_stdin": person, "output_hook": note, "timeout": HANG_SECS}
        ran.status = self.client.execute_interactive(code, **options)["content"]["status"]
        return ran

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    assert kernel.run(START).status == "ok"
    yield kernel
    kernel.end()


# What never ends, and the line at which it is.
ENDLESS = {
    "a loop": (LOOP, "line 2 in split: while True: pass"),
    "sleep": ("def split(e, r):\n    time.sleep(10**9)", "line 2 in split: time.sleep(10**9)"),
    "a lock": (
        "lock = threading.Lock()\nlock.acquire()\ndef split(e, r):\n    lock.acquire()",
        "line 4 in split: lock.acquire()",
    ),
    "except Exception": (
        "def split(e, r):\n    while True:\n        try:\n            time.sleep(1)\n"
        "        except Exception:\n            pass",
        "line 4 in split: time.sleep(1)",
    ),
    "two bare excepts": (
        "def wait():\n    try:\n        time.sleep(1)\n    except BaseException as e:\n"
        "        repr(e)\n"
        "def split(e, r):\n    while True:\n        try:\n            wait()\n"
        "        except:\n            repr(e)",
        "line 3 in wait: time.sleep(1)",
    ),
    "a loop of TensorFlow": (
        "@tf.function\ndef count():\n    i = tf.constant(0)\n    while i >= 0:\n"
        "        i = (i + 1) % 9\n    return i\ndef split(e, r):\n    return count()",
        "line 8 in split: return count()",
    ),
    "on replicas": (
        "def step():\n    while True: pass\ndef split(e, r):\n    return mirrored(2).run(step)",
        "line 2 in step: while True: pass",
    ),
}
STATE = "signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1), threading.active_count()"


def test_what_never_ends_is_stopped_at_its_line_and_leaves_the_kernel_as_it_was(kernel):
    wrong = {}
    (before,) = kernel.run(STATE).shown
    for name, (source, line) in ENDLESS.items():
        kernel.run(source)
        ran = kernel.run('dl.check("slices", secs=1)')
        if ran.card.splitlines()[:1] != [LATE] or f"\n    {line}" not in ran.card:
            wrong[name] = ran
        elif (state := kernel.run(STATE).shown) != [before]:
            wrong[name] = state
    assert wrong == {}


def test_a_line_says_what_still_runs_and_an_interrupt_gives_a_card_and_costs_no_try(kernel):
    kernel.run(RIGHT + '\ndl.check("slices")')
    for name in ("a loop", "a loop of TensorFlow"):
        source, line = ENDLESS[name]
        number, code = re.fullmatch(r"line (\d+) in split: (.*)", line).groups()
        kernel.run(source)
        ran = kernel.run('dl.check("slices")', person=True, interrupt_at="Still running")
        assert ran.shown == [
            f"Still running, at line {number}: `{code}` (it's stopped after 60 seconds; "
            "to stop it now, choose Kernel, Interrupt)",
            "",  # gone
            "slices: interrupted (0 of 2 points)\n"
            "  Your code was still running. You stopped it. It was at this line:\n"
            f"    {line}",
        ]
        # No traceback, yet a front end knows not to go on with the cells below.
        assert (ran.status, ran.error) == ("error", "")
    kernel.run("def split(e, r):\n    return [e]")
    assert "Hint:" not in kernel.run('dl.check("slices")').card
    assert kernel.run("1 / 0").error == "ZeroDivisionError"  # errors are shown again


ON_WORKERS = "def train(*args, **kwargs):\n    import time\n    while True: time.sleep(1)"


@pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")
def test_what_runs_on_workers_ends_with_its_processes(kernel):
    def processes():
        children = psutil.Process(kernel.manager.provisioner.pid).children(recursive=True)
        return [c for c in children if not any("resource_tracker" in a for a in c.cmdline())]

    kernel.run(ON_WORKERS)
    cell = 'dl.check("train_on_two_workers")'
    interrupted = kernel.run(cell, person=True, interrupt_at="Still running")
    assert interrupted.card.startswith("train_on_two_workers: interrupted")
    wait_until(lambda: len(processes()) <= 1)  # the one that others are forked from
    late = kernel.run(cell.replace(")", ", secs=1)"))
    assert late.card.startswith("train_on_two_workers: ran out of time")
    wait_until(lambda: len(processes()) <= 1)


def test_a_function_from_before_a_failed_run_is_called_that_and_costs_no_try(kernel):
    older = (
        "slices: {status} points)\n  Your last run of the cell with `split` ended in {error}, "
        "so this judges the `split` from before it. {opening}"
    )
    passed = {"status": "passed (2 of 2", "opening": "Well done."}
    not_yet = "Each row says what is right, and what is not yet."
    failed = {"status": "not yet (0 of 2", "opening": not_yet}
    cell = 'dl.check("slices")'
    kernel.run(f"{RIGHT}\n{cell}")
    for source, error in {
        "def split(e, r):\n    return [e": "SyntaxError",
        "# task: slices\ndfe split(e, r):": "SyntaxError",
        "  def split(e, r):\n return": "IndentationError",
        "# task: slices\n1 / 0\ndef split(e, r): ...": "ZeroDivisionError",
    }.items():
        assert kernel.run(source).error == error
        assert kernel.run(cell).card.startswith(older.format(error=error, **passed)), source
    kernel.run("def split(e, r):\n    return [e]")
    assert "Your last run" not in kernel.run(cell).card
    for _ in range(3):
        kernel.run("def split(e, r)")
        card = kernel.run(cell).card
        assert card.startswith(older.format(error="SyntaxError", **failed))
        assert "Hint:" not in card
    # Bound before the error: this is the function of that run.
    kernel.run("def split(e, r):\n    return [e]\n1 / 0")
    card = kernel.run(cell).card
    assert "Your last run" not in card
    assert "Hint:" in card
    kernel.run("def split(e, r)")
    assert "Your last run" not in kernel.run(f"{RIGHT}\n{cell}").card


def test_a_kernel_that_dies_in_a_check_leaves_what_was_saved(tmp_path):
    saved = tmp_path / "mine.ipynb"
    report = Report("slices", "split", "", Ending.PASSED, 2.0, 2.0)
    output = {"data": {"text/plain": repr(report)}}
    saved.write_text(json.dumps({"cells": [{"outputs": [output]}]}))
    before = saved.read_bytes()
    kernel = Kernel()
    here = f"import os, distlab as dl; os.chdir({str(tmp_path)!r})"
    kernel.run(here)
    kernel.run("def split(e, r):\n    os.kill(os.getpid(), 9)")
    kernel.client.execute('dl.check("slices")')
    wait_until(lambda: not kernel.manager.is_alive())
    assert saved.read_bytes() == before
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=HANG_SECS)
    assert kernel.run(f"{here}; dl.check()").card == repr(progress(tmp_path))
    assert progress(tmp_path).lessons[0].passed == ("slices",)
    kernel.end()


SCRIPT = """
import pathlib
import distlab as dl

def split(e, r):
    pathlib.Path("is inside").touch()
    while True: pass

print(dl.check("slices", secs={secs}))
print("and goes on")
"""


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_script_has_the_same_limit_and_card(tmp_path, interrupted):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(secs=100_000 if interrupted else 1))
    command, pipes = [sys.executable, str(script)], {"stdout": -1, "stderr": -1, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        if interrupted:
            wait_until((tmp_path / "is inside").exists)
            os.kill(process.pid, signal.SIGINT)
        printed, errors = process.communicate(timeout=HANG_SECS)
    line = "line 7 in split: while True: pass"
    if interrupted:
        says = "interrupted", "Your code was still running. You stopped it."
    else:
        says = (
            "ran out of time",
            ("Your code was still running at the time limit. It was stopped after 1 seconds."),
        )
    card = "slices: {} (0 of 2 points)\n  {} It was at this line:\n    " + line
    assert printed.startswith(card.format(*says))
    assert printed.endswith("and goes on\n") != interrupted
    assert (process.returncode, errors) == (130 if interrupted else 0, "")


def test_a_limit_that_stops_everything_is_refused():
    with pytest.raises(InvalidArgument) as caught:
        check("slices", lambda e, r: [], secs=0)
    assert str(caught.value) == ("check(secs=0)\n  found: secs=0\n  to do: allow more than 0 s")
