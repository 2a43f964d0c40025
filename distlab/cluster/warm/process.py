"""Starts fork servers and spawns processes from them, which end with their owner.

    task = shared_server().spawn(["train.py"], env=task_environment({}), stdout=log)
    task.poll()                       # None while it runs
    task.wait(timeout_secs=60)        # its exit code; negative: the signal that ended it

`DISTLAB_WARM=0` turns forking off everywhere: each task is then a new Python.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from distlab import environment
from distlab.cluster.warm.server import Task
from distlab.errors import ProcessError, UnsupportedEnvironment

ADDRESS_VARIABLE = "DISTLAB_WARM_ADDRESS"
SWITCH_VARIABLE = "DISTLAB_WARM"

# What every task of a cluster needs. Nothing that asks get_ipython() while it is imported
# (ipywidgets, matplotlib_inline): in a kernel it must find the kernel's.
PRELOAD = (
    "tensorflow",
    "keras",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.zmqshell",
)

_STEP_SECS = 0.5

_Stream = int | IO[Any] | None
_servers: dict[int, WarmServer] = {}  # by process: a fork makes its own
_making = threading.Lock()


def can_fork() -> bool:
    """Whether tasks may be forked here: on Linux, unless `DISTLAB_WARM=0`.

    On macOS system libraries may not be used after a fork; Windows has none.
    """
    return sys.platform == "linux" and os.environ.get(SWITCH_VARIABLE, "1") != "0"


class ForkedProcess:
    """A spawned process, with what jupyter_client and others use of `subprocess.Popen`.

    The process that spawned it owns it: it ends, and its process group, with the owner.
    """

    stdin = stdout = stderr = None  # the caller's own files; there are no pipes to close

    def __init__(self, status: int, lifeline: int, task: Task) -> None:
        self._status = Connection(status, writable=False)
        self._lifeline = Connection(lifeline, readable=False)
        self._lock = threading.Lock()
        self._code: int | None = None
        with open(lifeline, "wb", closefd=False) as pipe:
            pickle.dump({}, pipe)  # multiprocessing's own preparations: none
            pickle.dump(task, pipe)
        # However long its imports take: a server that has ended is seen at once.
        self.pid: int = forkserver.read_signed(status)

    def poll(self) -> int | None:
        """Returns the exit code, or None while the process runs."""
        with self._lock:
            if self._code is None and self._status.poll(0):
                try:
                    self._code = forkserver.read_signed(self._status.fileno())
                except EOFError:  # the server has ended
                    self._code = -signal.SIGKILL
                self._kill_group(signal.SIGKILL)  # what it has left behind
                self._status.close()
                self._lifeline.close()
            return self._code

    def wait(self, timeout_secs: float | None = None) -> int:
        """Returns the exit code once the process has ended."""
        deadline = time.monotonic() + (float("inf") if timeout_secs is None else timeout_secs)
        while (code := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"task {self.pid} still runs after {timeout_secs} s")
            # In steps, for another thread may read the end, and close the connection, meanwhile.
            with contextlib.suppress(OSError):
                self._status.poll(min(left, _STEP_SECS))
        return code

    def send_signal(self, number: int, *, to_group: bool = True) -> None:
        """Sends a signal to the process, or to all of its group; nothing if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._kill_group(number) if to_group else os.kill(self.pid, number)

    def _kill_group(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            if self._code is None:  # it has not become a group's leader yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Asks the process to end (SIGTERM)."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process at once (SIGKILL)."""
        self.send_signal(signal.SIGKILL)


class WarmServer(forkserver.ForkServer):
    """A fork server with modules and an environment of its own, for this process and others.

    `start` starts it, and it ends with this process. With an `address`, it is another process's.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str] = PRELOAD,
        env: Mapping[str, str] | None = None,
        address: str | None = None,
    ) -> None:
        super().__init__()
        self._preload = tuple(preload) if can_fork() else ()
        self._env = dict(os.environ if env is None else env)
        self._process: subprocess.Popen[bytes] | None = None
        self._forkserver_address = address
        # Forks inherit this one; with the server's own pipe they would keep it alive.
        self._null = Connection(os.open(os.devnull, os.O_RDWR))
        self._forkserver_alive_fd = self._null.fileno()

    @property
    def address(self) -> str:
        """The server's address for other processes of this user, as in `DISTLAB_WARM_ADDRESS`."""
        return str(self._forkserver_address)

    @property
    def folder(self) -> Path:
        """A private folder that is removed when the server ends."""
        return Path(self.address).parent

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself, as for want of memory; of another's nothing is known."""
        return self._process is not None and self._process.poll() is not None

    def ensure_running(self) -> None:
        """Does nothing: `start` has, or another process."""

    def start(self) -> WarmServer:
        """Starts it and returns at once; it imports in the background."""
        if not hasattr(os, "fork"):
            raise UnsupportedEnvironment(
                asked="a process that starts tasks",
                found=f"{sys.platform}, where no process can be forked",
                do="on Windows run this under WSL2",
            )
        # A socket's path has room for 107 bytes, and those of clusters are longer.
        short = None if len(tempfile.gettempdir()) < 60 else "/tmp"
        self._forkserver_address = f"{tempfile.mkdtemp(prefix='distlab-', dir=short)}/socket"
        alive, self._alive = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener, (self.folder / "log").open("wb") as log:
            listener.bind(self.address)
            listener.listen(128)
            command = [sys.executable, "-c", "from distlab.cluster.warm.server import main; main()"]
            self._process = subprocess.Popen(
                [*command, str(listener.fileno()), str(alive), str(self.folder), *self._preload],
                pass_fds=(listener.fileno(), alive),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        os.close(alive)
        return self

    def spawn(
        self,
        argv: Sequence[str] = (),
        *,
        call: str = "",
        args: Sequence[Any] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: _Stream = subprocess.DEVNULL,
        stdout: _Stream = None,
        stderr: _Stream = None,
        network_of: int | None = None,
    ) -> ForkedProcess:
        """Starts a task: forked where that is the same as a new Python, else a new Python.

        It returns once the server has imported its modules.
        """
        if call:
            module, _, name = call.partition(":")
            argv = ["-c", f"from {module} import {name}; {name}(*{list(args)!r})"]
        fds = [self._fd(stream, number) for number, stream in enumerate((stdin, stdout, stderr))]
        task = Task(
            argv=list(argv),
            env=dict(os.environ if env is None else env),
            cwd=str(Path(cwd or ".").resolve()),
            network_of=network_of,
        )
        try:
            status, lifeline = self.connect_to_new_process(fds)
            return ForkedProcess(status, lifeline, task)
        except (OSError, EOFError) as problem:
            raise ProcessError(
                asked=f"a process for {task.argv} from {self.address}",
                found=str(problem) or "the server has ended",
                do="free memory or processes, and start another server",
            ) from problem

    def _fd(self, stream: _Stream, own: int) -> int:
        """Returns the descriptor of a stream in the terms of `subprocess`; None is our own."""
        if stream is None:
            return own
        if isinstance(stream, int):
            return self._null.fileno() if stream == subprocess.DEVNULL else stream
        return stream.fileno()

    def close(self) -> None:
        """Ends it and every task."""
        process, self._process = self._process, None
        if process is None:
            return
        os.close(self._alive)
        process.kill()  # its tasks end with it: each has asked the kernel for that
        process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> WarmServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def shared_server() -> WarmServer:
    """Returns this process's server; started with the first call, it answers once it is warm.

    One that was named to this process by `DISTLAB_WARM_ADDRESS` is taken, if it answers.
    """
    owner = os.getpid()
    with _making:
        if owner not in _servers or _servers[owner].has_ended:
            _servers[owner] = _named() or WarmServer(env=task_environment({})).start()
            atexit.register(_close_shared, owner)
        return _servers[owner]


def _close_shared(owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of the process whose server it is
        _servers[owner].close()


def task_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the environment for a task: this process's, with some variables changed."""
    env = dict(os.environ)
    environment.prepare(env)
    return {name: value for name, value in {**env, **changes}.items() if value is not None}


def _named() -> WarmServer | None:
    """Returns the server whose address this process was given, if it answers."""
    if (address := os.environ.get(ADDRESS_VARIABLE)) and can_fork():
        with contextlib.suppress(ProcessError):
            server = WarmServer(address=address)
            server.spawn(["-c", ""])
            return server
    return None
