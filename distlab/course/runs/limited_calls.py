"""Calls a function in a process with little memory, and lets it run out there and not here.

    call_with_limit(train, 16, megabytes=64)            # train(16), what it returns
    call_together(train, 16, processes=2, megabytes=64) # train(0, 16) and train(1, 16), at once

Each process is forked from one that has imported TensorFlow, and has a limit of its own. Near the
limit, one of several processes may fail while the others wait for it, so there's a limit of time.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.cluster.deadline import Deadline
from distlab.cluster.warm.process import ForkedProcess, shared_server, task_environment
from distlab.course.results.plain_values import Plain, decode, encode, to_plain
from distlab.course.results.tracebacks import PackedError, pack_error, pack_text, raise_packed
from distlab.errors import ProcessError, UnsupportedEnvironment
from distlab.memory import ALLOCATOR_VARIABLE, LIMIT_VARIABLE, memory_limit

TIMEOUT_SECS = 60.0
_LOOK_SECS = 0.02
_SERVE = f"{__name__}:serve"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a function ended in one of several processes.

    Attributes:
        result: What it returned, made plain; None where it raised or was ended.
        error: The error's kind and text, such as "ResourceExhaustedError: ..."; "" if there's none.
    """

    result: Plain
    error: str


def call_with_limit(
    function: Callable[..., Any],
    *args: Plain,
    megabytes: int,
    timeout_secs: float = TIMEOUT_SECS,
) -> Plain:
    """Returns what a function returns in a process whose tensors have so many MB.

    Raises:
        Exception: What the function raised there, by its name: `ResourceExhaustedError` for a
            tensor that didn't fit, `TimeoutError` after `timeout_secs` seconds.
    """
    (ended,) = _ends(function, [args], megabytes, timeout_secs)
    if isinstance(ended, dict):
        raise_packed(ended, function)
    return decode(ended)


def call_together(
    function: Callable[..., Any],
    *args: Plain,
    processes: int,
    megabytes: int,
    timeout_secs: float = TIMEOUT_SECS,
) -> list[Outcome]:
    """Returns how `function(index, *args)` ended in each process; all run at the same time.

    They begin at once and share the time: what still runs after `timeout_secs` seconds is ended.
    """
    orders = [(index, *args) for index in range(processes)]
    return [
        Outcome(result=None, error=f"{ended['error']}: {ended['text']}")
        if isinstance(ended, dict)
        else Outcome(result=decode(ended), error="")
        for ended in _ends(function, orders, megabytes, timeout_secs)
    ]


def _ends(
    function: Callable[..., Any], orders: list[tuple[Any, ...]], megabytes: int, secs: float
) -> list[PackedError | bytes]:
    """Returns for each process its result's bytes, or its error."""
    from distlab.cluster.local.remote_calls import pack_call  # of an extra

    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, str(number)) for number in range(len(orders))]
        for folder, order in zip(folders, orders, strict=True):
            folder.mkdir()
            (folder / "call").write_bytes(pack_call(function, order))
        codes = _run(folders, megabytes, secs)
        for folder in folders:
            print((folder / "printed").read_text(), end="")  # noqa: T201
        return [_end_of(function, *each, secs) for each in zip(folders, codes, strict=True)]


def _run(folders: list[Path], megabytes: int, secs: float) -> list[int | None]:
    """Runs a process for each folder; returns their exit codes, None for one without an end."""
    with contextlib.ExitStack() as stack:
        tasks = [stack.enter_context(_task(folder, megabytes)) for folder in folders]
        deadline = Deadline(secs, lambda: [task.pid for task in tasks])
        while any(task.poll() is None for task in tasks) and not deadline.has_passed():
            time.sleep(_LOOK_SECS)
        return [task.poll() for task in tasks]


@contextlib.contextmanager
def _task(folder: Path, megabytes: int) -> Iterator[ForkedProcess]:
    # What this process has set holds for its own tensors; a GPU would have a memory of its own.
    changes = {ALLOCATOR_VARIABLE: None, LIMIT_VARIABLE: None, "CUDA_VISIBLE_DEVICES": "-1"}
    with (folder / "printed").open("wb") as printed, (folder / "log").open("wb") as log:
        task = shared_server().spawn(
            call=_SERVE,
            args=[str(folder), megabytes],
            env=task_environment(changes),
            stdout=printed,
            stderr=log,
        )
    try:
        yield task
    finally:
        task.kill()
        task.wait()


def _end_of(
    function: Callable[..., Any], folder: Path, code: int | None, secs: float
) -> PackedError | bytes:
    if (error_file := folder / "error").exists():
        packed: PackedError = pickle.loads(error_file.read_bytes())
        if "unlimited" in packed:
            raise UnsupportedEnvironment(**packed["unlimited"])
        return packed
    if (result_file := folder / "result").exists():
        return result_file.read_bytes()
    if code is None:
        late = (
            f"it has not come to an end after {secs:g} seconds; near the limit of its memory, a "
            "replica may have failed for which the others wait"
        )
        return pack_text("TimeoutError", late, function)
    last = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
    raise ProcessError(
        asked=f"call {function.__name__} in a process with little memory",
        found=f"it ended by itself with code {code}" + "".join(f": {line}" for line in last),
        do="free memory on this machine, and try again",
    )


def serve(folder: str, megabytes: int) -> None:
    """Does the call that a folder holds; runs in the process of its own."""
    from distlab.cluster.local.remote_calls import unpack_call  # of an extra

    function, args = unpack_call(Path(folder, "call").read_bytes())
    packed: PackedError | None = None
    memory_limit(megabytes)
    try:
        payload = encode(to_plain(function(*args), at="what it returned"))
        packed = _without_a_limit(megabytes)
    except Exception as error:
        packed = pack_error(error, function)
    sys.stdout.flush()
    if packed is not None:
        Path(folder, "error").write_bytes(pickle.dumps(packed))
    else:
        Path(folder, "result").write_bytes(payload)


def _without_a_limit(megabytes: int) -> PackedError | None:
    """Returns the error for a system whose TensorFlow doesn't keep to the limit, or None.

    To run out would take 10 seconds, in which TensorFlow waits for memory. But the allocator that
    has a limit counts no tensor for less than 256 bytes.
    """
    import tensorflow as tf

    with tf.device("CPU:0"):
        before = _held()
        kept = tf.identity(tf.zeros([1], tf.int8))
        if _held() - before >= 256 * len(kept):
            return None
    return {
        "unlimited": {
            "asked": f"a process with {megabytes} MB for its tensors",
            "found": f"TensorFlow {tf.__version__} on {sys.platform}, which gives it more",
            "do": "run it on Linux; memory limits were tried there only",
        }
    }


def _held() -> int:
    import tensorflow as tf

    return int(tf.config.experimental.get_memory_info("CPU:0")["current"])
