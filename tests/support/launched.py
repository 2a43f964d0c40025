"""Runs `distlab launch` on scripts that a test writes: in this process, or in one of its own.

    run = launched(["--workers", 2, "train.py"], capfd, code=3)
    with Launch(["--workers", 2, "train.py"]) as run:
        run.wait_for("step 3")          # until a line of it says so
        run.signal(signal.SIGTERM)
    run.code, run.out, run.err

Its tasks are forked from the warm process of the tests, unless `own_keeper`.
"""

import os
import re
import subprocess
import sys
import threading
import time
import types

import psutil

from distlab import cli
from distlab.cluster.warm.process import ADDRESS_VARIABLE, shared_server
from tests.support.limits import HANG_SECS

# Started in the background, a process ignores SIGINT, and its children do.
_COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from distlab.cli import main
sys.exit(main())
"""


class Launch:
    """A running or ended `distlab launch`."""

    def __init__(self, args, *, env=None, own_keeper=False, stdout=None):
        environ = {**os.environ, **(env or {})}
        environ.pop(ADDRESS_VARIABLE, None)
        if not own_keeper:
            environ[ADDRESS_VARIABLE] = shared_server().address
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, "launch", *map(str, args)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self._said = {"out": bytearray(), "err": bytearray()}
        self._threads = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", self._process.stdout), ("err", self._process.stderr))
            if stream is not None
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, name, stream):
        while data := os.read(stream.fileno(), 1 << 16):
            self._said[name] += data
        stream.close()

    @property
    def out(self):
        return self._said["out"].decode(errors="surrogateescape")

    @property
    def err(self):
        return self._said["err"].decode(errors="surrogateescape")

    @property
    def code(self):
        return self._process.returncode

    def wait_for(self, pattern, timeout_secs=HANG_SECS):
        """Returns the match once the output has it."""
        deadline = time.monotonic() + timeout_secs
        while not (match := re.search(pattern, self.out + self.err)):
            assert self._process.poll() is None and time.monotonic() < deadline, self.all()
            time.sleep(0.01)
        return match

    def signal(self, number):
        self._process.send_signal(number)

    def wait(self, timeout_secs=HANG_SECS):
        self._process.wait(timeout_secs)
        for thread in self._threads:
            thread.join(HANG_SECS)
        return self

    def all(self):
        return f"--- stdout\n{self.out}\n--- stderr\n{self.err}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self.wait()


def launched(args, capfd, *, code=0):
    """Returns what a launch in this process printed, once it has ended as it should."""
    capfd.readouterr()
    ended = cli.main(["launch", "--timeout", str(HANG_SECS), *map(str, args)])
    out, err = capfd.readouterr()
    assert ended == code, f"{ended=}\n--- stdout\n{out}\n--- stderr\n{err}"
    return types.SimpleNamespace(out=out, err=err)


def said_by(name, text):
    """Returns the lines of a task, without its name."""
    return [line.partition(" | ")[2] for line in text.splitlines() if line.startswith(name)]


def own_lines(launch):
    """Returns what the launcher itself says, without what it says at the start."""
    mine = [line for line in launch.err.splitlines() if line.startswith("distlab launch: ")]
    return [
        line.removeprefix("distlab launch: ")
        for line in mine
        if "without authentication" not in line and not re.search(r"tasks share \d+ core", line)
    ]


def are_gone(pids, timeout_secs=HANG_SECS):
    """Whether processes end within a time."""
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return psutil.wait_procs(processes, timeout=timeout_secs)[1] == []
