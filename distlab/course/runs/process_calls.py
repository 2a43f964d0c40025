"""Calls a function in a new Python process, which may be killed or end by itself.

    ended = call_in_process(save, path, data)
    ended.code, ended.result                          # 0 and what it returned
    call_in_process(save, path, data, most_bytes=10)  # killed as a file gets longer
    call_in_process(train, 5, job=_job)               # _job(train, 5), a function of a check

Nothing of TensorFlow is there unless the function asks for it, so a call takes a fraction of a
second. What it prints is printed here, and what it raises is raised here, at its own lines.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.cluster.deadline import Deadline
from distlab.course.results.plain_values import Plain, decode, encode, to_plain
from distlab.course.results.tracebacks import PackedError, pack_error, pack_text, raise_packed
from distlab.errors import UnsupportedEnvironment

TIMEOUT_SECS = 15.0
_LOOK_SECS = 0.02

_START = "import sys; from distlab.course.runs.process_calls import serve; serve(*sys.argv[1:])"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended.

    Attributes:
        code: Its exit code; negative: the signal that ended it.
        result: What the function returned, made plain; None where it did not return.
    """

    code: int
    result: Plain


def call_in_process(
    function: Callable[..., Any],
    *args: Plain,
    job: Callable[..., Any] | None = None,
    most_bytes: int | None = None,
    timeout_secs: float = TIMEOUT_SECS,
) -> Ended:
    """Calls a function in a new process, and waits for its end."""
    if most_bytes is not None and not hasattr(signal, "SIGXFSZ"):
        raise UnsupportedEnvironment(
            asked="kill a process in the middle of a write",
            found="a system without such a limit",
            do="run it on Linux, macOS or WSL2",
        )
    from distlab.cluster.local.remote_calls import pack_call  # of an extra

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "call").write_bytes(pack_call(function, (job, args)))
        command = [sys.executable, "-c", _START, name, str(most_bytes or 0)]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with (folder / "printed").open("wb") as printed:
            process = subprocess.Popen(command, env=env, stdout=printed)
        try:
            code = _wait(process, timeout_secs)
        finally:
            process.kill()
            process.wait()
        if code is None:
            late = f"it has not come to an end after {timeout_secs:g} seconds"
            raise_packed(pack_text("TimeoutError", late, function), function)
        print((folder / "printed").read_text(), end="")  # noqa: T201
        if (error_file := folder / "error").exists():
            raise_packed(pickle.loads(error_file.read_bytes()), function)
        result = folder / "result"
        return Ended(code=code, result=decode(result.read_bytes()) if result.exists() else None)


def _wait(process: subprocess.Popen[bytes], secs: float) -> int | None:
    """Returns the exit code, or None for a process that has had its time."""
    deadline = Deadline(secs, lambda: [process.pid])
    while (code := process.poll()) is None and not deadline.has_passed():
        time.sleep(_LOOK_SECS)
    return code


def serve(folder: str, most_bytes: str) -> None:
    """Does the call that a folder holds; runs in the process of its own."""
    from distlab.cluster.local.remote_calls import unpack_call  # of an extra

    function, (job, args) = unpack_call(Path(folder, "call").read_bytes())
    packed_error: PackedError | None = None
    _limit(int(most_bytes))
    try:
        result = job(function, *args) if job else function(*args)
        payload = encode(to_plain(result, at="what it returned"))
    except Exception as error:
        packed_error = pack_error(error, function)
    _limit(0)
    if packed_error is not None:
        Path(folder, "error").write_bytes(pickle.dumps(packed_error))
    else:
        Path(folder, "result").write_bytes(payload)


def _limit(most_bytes: int) -> None:
    """From here on this process is ended where a file of it becomes longer; 0: it is not."""
    if not hasattr(signal, "SIGXFSZ"):
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes or most, most))
    # Python ignores it, and raises an error in its place; a kill leaves no time for one.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
