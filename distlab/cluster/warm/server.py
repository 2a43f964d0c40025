"""Runs inside the fork server and inside the processes that are forked from it.

The server is the standard library's. A fork of it becomes what a new Python would be: with the
caller's streams, environment and folder, a `sys.argv` and a `__main__` of its own, new random
seeds. A variable that is read only once, while Python starts or a module is imported, cannot be
changed in a fork. A task that wants such a variable to differ is replaced by a new Python.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import select
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1

# Read by the interpreter as it starts, by the dynamic linker, or by a module as it is imported.
_READ_ONCE = (
    *("KERAS_BACKEND", "KERAS_HOME", "TF_USE_LEGACY_KERAS"),
    *("TF_CPP_MIN_LOG_LEVEL", "TF_CPP_MAX_VLOG_LEVEL", "TF_CPP_VMODULE"),
    *("TF_ENABLE_ONEDNN_OPTS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "MATPLOTLIBRC", "MPLCONFIGDIR", "TFDS_DATA_DIR", "HOME"),
    *("PYTHONHASHSEED", "PYTHONHOME", "PYTHONPATH", "PYTHONWARNINGS", "PYTHONDEVMODE"),
    *("PYTHONOPTIMIZE", "PYTHONUTF8", "PYTHONTRACEMALLOC", "PYTHONMALLOC"),
)

# The read-once variables of a server that has imported its modules; None where it has not.
_warm_settings: dict[str, str] | None = None
_set_by_imports: dict[str, str] = {}


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of an environment that are read only once."""
    return {name: env[name] for name in _READ_ONCE if name in env}


class _CurrentStream:
    """Writes to whatever is `sys.stdout` or `sys.stderr` at the time.

    A logging handler keeps the stream that it was made with: of a module that the server imports,
    it must write to the task's stream, and in a kernel to the cell's output.
    """

    def __init__(self, name: str) -> None:
        self._name, self._first = name, getattr(sys, name)

    def __getattr__(self, attribute: str) -> Any:
        stream = getattr(sys, self._name)
        return getattr(self._first if stream is self else stream, attribute)

    def close(self) -> None:
        """Leaves the task's stream open when a handler is closed."""


def main() -> None:
    """Imports modules, then serves: arguments are a listener, a pipe, a folder and the modules."""
    listener, alive, folder, *modules = sys.argv[1:]
    if modules:
        _warm(modules, folder)
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    serve(int(listener), int(alive), folder)


def serve(listener: int, alive: int, folder: str) -> NoReturn:
    """Forks a task for each request until the pipe closes; then removes the folder and ends."""
    # Since Python 3.13 it drops, in each fork, what the imported modules do when Python ends;
    # without it HDF5, for one, crashes a task that has ended well.
    kept = SimpleNamespace(_clear=lambda: None, register=lambda function: None)
    vars(forkserver)["atexit"] = kept
    try:
        forkserver.main(listener, alive, [])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # nothing was used here, so nothing needs an orderly end


def _warm(modules: Sequence[str], folder: str) -> None:
    global _warm_settings
    before = dict(os.environ)
    tempfile.tempdir = folder  # where no home can be written, matplotlib makes a folder for all
    sys.stdout, sys.stderr = _CurrentStream("stdout"), _CurrentStream("stderr")
    for name in modules:
        with contextlib.suppress(Exception):  # a broken package must not cost the others
            importlib.import_module(name)
    tempfile.tempdir = None
    atexit.unregister(shutil.rmtree)  # the first task that ends would remove it
    gc.collect()
    gc.freeze()  # a collection in a task would copy the pages that all of them share
    _warm_settings = settings(before)
    _set_by_imports.update({k: v for k, v in os.environ.items() if before.get(k) != v})


@dataclass(frozen=True, kw_only=True)
class Task:
    """A forked process's command line, as of a Python, with its environment and folder."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    network_of: int | None

    def _bootstrap(self, parent_sentinel: int) -> NoReturn:
        """Turns a new fork into this task; called by multiprocessing in the child."""
        os.setsid()
        _end_with_owner(parent_sentinel)
        # A shell lets what it starts in the background ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # It has the owner's tracker of shared memory; a new Python starts its own.
        tracker: Any = resource_tracker._resource_tracker
        os.close(tracker._fd)
        tracker._fd = None
        fds = forkserver.get_inherited_fds() or []
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        for fd in fds:
            os.close(fd)
        if self.network_of is not None:
            _enter_network_of(self.network_of)
        os.environ.clear()
        os.environ.update(self.env)
        os.chdir(self.cwd)
        if settings(self.env) != _warm_settings:
            os.execv(sys.executable, [sys.executable, *self.argv])
        os.environ.update(_set_by_imports)
        _open_streams()
        # The module `random` draws a new seed after a fork by itself.
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()
        if matplotlib := sys.modules.get("matplotlib"):
            _choose_backend(matplotlib)
        importlib.invalidate_caches()
        ctypes.pythonapi.Py_Exit(self._exit_code())  # with atexit, as any Python ends
        os._exit(1)

    def _exit_code(self) -> int:
        """Runs the command and returns its exit code."""
        try:
            self._run()
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                return end.code or 0
            print(end.code, file=sys.stderr)  # noqa: T201
            return 1
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            if isinstance(error, KeyboardInterrupt):
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
            return 1
        return 0

    def _run(self) -> None:
        sys.path[0] = self.cwd
        first, *rest = self.argv
        if first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv = ["-c", *rest[1:]]
            sys.modules["__main__"] = main_module = ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), vars(main_module))
        else:
            sys.argv = list(self.argv)
            sys.path[0] = str(Path(first).resolve().parent)
            runpy.run_path(first, run_name="__main__")


def _end_with_owner(lifeline: int) -> None:
    """Has the kernel kill this group when the owner's end of a pipe closes, or the server ends."""
    if sys.platform != "linux":
        return
    import fcntl

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    os.set_inheritable(lifeline, True)  # so that it holds for a new Python, too
    if select.select([lifeline], [], [], 0)[0]:  # it closed before the lines above
        os._exit(1)


def _enter_network_of(pid: int) -> None:
    """Enters the network namespace of a process, and the user namespace that owns it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("user", "net"):
        path = f"/proc/{pid}/ns/{kind}"
        if Path(path).readlink() == Path(f"/proc/self/ns/{kind}").readlink():
            continue
        with Path(path).open() as namespace:
            if libc.setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter {path}")


def _open_streams() -> None:
    """Gives sys.stdin, stdout and stderr what Python gives them when it starts."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    stdout: Any = sys.__stdout__
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    stdout.reconfigure(line_buffering=os.isatty(1), write_through=is_unbuffered)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def _choose_backend(matplotlib: Any) -> None:
    """Lets matplotlib, which read MPLBACKEND in the server, read it in this process."""
    backend = os.environ.get("MPLBACKEND") or matplotlib.rcsetup._auto_backend_sentinel
    dict.__setitem__(matplotlib.rcParams, "backend", backend)
