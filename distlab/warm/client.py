"""Asks a warm process for tasks; each is a process of its own, like one of `subprocess`.

    task = WarmClient(address).spawn(["-m", "my_module"], stdout=log)
    task.poll()                       # None while it runs
    task.wait(timeout_secs=60)        # its exit code; negative: the signal that ended it

The process that holds a `ForkedProcess` owns it: the fork and its whole process group end when
the owner ends or calls `kill`. (A process that leaves the group, by setsid, is not followed.)
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from distlab.errors import InvalidArgument, ProcessError
from distlab.warm import wire
from distlab.warm.forked_process import differing_settings

_STEP_SECS = 0.5
_Stream = int | IO[Any] | None


class ForkRefused(ProcessError):
    """A task wants a setting that was read before the fork: start it as a fresh process."""


class ForkedProcess:
    """A forked process. It has what jupyter_client and others use of `subprocess.Popen`."""

    stdin = stdout = stderr = None  # the caller's own files; there are no pipes to close

    def __init__(self, connection: socket.socket, inbox: wire.Inbox, pid: int) -> None:
        self.pid = pid
        self._connection, self._inbox = connection, inbox
        self._lock = threading.Lock()
        self._code: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, or None while the task runs."""
        with self._lock:
            # What arrived together with the answer to the spawn is in the inbox already.
            while self._code is None:
                if (message := self._inbox.pop()) is not None:
                    self._code = message["exit"]
                elif not select.select([self._connection], [], [], 0)[0]:
                    return None
                elif not self._inbox.read(self._connection):
                    self._code = -signal.SIGKILL  # the warm process has ended, its tasks with it
            self._connection.close()
            return self._code

    def wait(self, timeout_secs: float | None = None) -> int:
        """Returns the exit code once the task has ended."""
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        while (code := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"task {self.pid} still runs after {timeout_secs} s")
            # In steps, for another thread may read the end, and close the connection, meanwhile.
            with contextlib.suppress(OSError, ValueError):
                step = _STEP_SECS if left is None else min(left, _STEP_SECS)
                select.select([self._connection], [], [], step)
        return code

    def send_signal(self, number: int, *, to_group: bool = True) -> None:
        """Sends a signal to the task; nothing if it has ended."""
        if self.poll() is None:
            try:
                wire.send(self._connection, {"signal": int(number), "to_group": to_group})
            except OSError:
                self.poll()

    def terminate(self) -> None:
        """Asks the task to end (SIGTERM)."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the task at once (SIGKILL)."""
        self.send_signal(signal.SIGKILL)


class WarmClient:
    """Spawns tasks from the warm process at an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def spawn(
        self,
        argv: Sequence[str] | None = None,
        *,
        call: str | None = None,
        args: Sequence[Any] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: _Stream = subprocess.DEVNULL,
        stdout: _Stream = None,
        stderr: _Stream = None,
        fresh: bool = False,
        network_of: int | None = None,
        timeout_secs: float = 120,
    ) -> ForkedProcess:
        """Forks a task and returns it once it runs."""
        asked = f"a task {call or argv!r} from the warm process"
        folder = Path(cwd or ".").resolve()
        if (argv is None) == (call is None) or (argv is not None and not _known(argv)):
            raise InvalidArgument(
                asked=asked,
                found="it is not one command line or one function",
                do="give argv as ['-m', module], ['-c', code] or [script], or call='module:name'",
            )
        if not folder.is_dir():
            raise InvalidArgument(
                asked=asked, found=f"cwd={folder} is no folder", do="create it first"
            )
        env = dict(os.environ if env is None else env)
        request: dict[str, Any] = {"env": env, "cwd": str(folder)}
        request |= {"argv": list(argv)} if argv else {"call": call, "args": list(args)}
        request |= {"fresh": fresh, "network_of": network_of}
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_secs)
        try:
            connection.connect(self.address)
            inbox = wire.Inbox()
            differing = differing_settings(_next(connection, inbox)["settings"], env)
            if differing and not fresh:
                raise ForkRefused(
                    asked=asked,
                    found=f"{', '.join(differing)} differ from the warm process's own",
                    do="ask for fresh=True, or a warm process with these settings",
                )
            with _Streams(stdin, stdout, stderr) as fds:
                wire.send(connection, request, fds=fds)
            reply = _next(connection, inbox)
        except OSError as problem:
            connection.close()
            raise ProcessError(
                asked=asked,
                found=f"{self.address}: {problem}",
                do="start a fresh process, or a new WarmProcess",
            ) from problem
        except ForkRefused:
            connection.close()
            raise
        if "error" in reply:
            connection.close()
            raise ProcessError(asked=asked, found=reply["error"], do="free memory or processes")
        connection.settimeout(None)
        return ForkedProcess(connection, inbox, reply["pid"])


def _known(argv: Sequence[str]) -> bool:
    if argv and argv[0] in {"-m", "-c"}:
        return len(argv) > 1
    return bool(argv) and not argv[0].startswith("-")


def _next(connection: socket.socket, inbox: wire.Inbox) -> dict[str, Any]:
    while (message := inbox.pop()) is None:
        # Waits here: the timeout of a socket does not hold for recvmsg on every platform.
        if not select.select([connection], [], [], connection.gettimeout())[0]:
            raise TimeoutError(f"no answer in {connection.gettimeout():g} s")
        if not inbox.read(connection) and (message := inbox.pop()) is None:
            raise ConnectionError("it has ended")
    return message


class _Streams:
    """The three descriptors to send, from what the caller gave in the terms of `subprocess`."""

    def __init__(self, *streams: _Stream) -> None:
        self._streams, self._null = streams, -1

    def __enter__(self) -> list[int]:
        self._null = os.open(os.devnull, os.O_RDWR)
        fds: list[int] = []
        for number, stream in enumerate(self._streams):
            if stream is None:
                fds.append(number)
            elif stream == subprocess.STDOUT:
                fds.append(fds[1])
            elif stream == subprocess.DEVNULL:
                fds.append(self._null)
            else:
                fds.append(stream if isinstance(stream, int) else stream.fileno())
        return fds

    def __exit__(self, *_: object) -> None:
        os.close(self._null)
