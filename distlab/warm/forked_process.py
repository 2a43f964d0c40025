"""Makes a forked process look like a fresh Python, and runs its task.

What a fresh Python would have of its own is given anew: the three standard streams, the
environment, the folder, `sys.argv`, `sys.path[0]`, `__main__`, signals and random seeds. What is
read once, while modules are imported or the interpreter starts, cannot be: a task that wants such
a variable otherwise is refused (see `differing_settings`) and must be started in the usual way.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1

# Read by the interpreter as it starts, by the dynamic linker, or by a module as it is imported.
_READ_ONCE = (
    *("KERAS_BACKEND", "KERAS_HOME", "TF_USE_LEGACY_KERAS"),
    *("TF_CPP_MIN_LOG_LEVEL", "TF_CPP_MAX_VLOG_LEVEL", "TF_CPP_VMODULE"),
    *("TF_ENABLE_ONEDNN_OPTS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "MATPLOTLIBRC", "MPLCONFIGDIR"),
    *("PYTHONHASHSEED", "PYTHONHOME", "PYTHONPATH", "PYTHONWARNINGS", "PYTHONDEVMODE"),
    *("PYTHONOPTIMIZE", "PYTHONUTF8", "PYTHONTRACEMALLOC", "PYTHONMALLOC"),
)


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of an environment that are read only once."""
    return {name: env[name] for name in _READ_ONCE if name in env}


def differing_settings(ours: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    """Returns the names of the variables that a fork could no longer honour."""
    wanted = settings(env)
    return sorted(name for name in _READ_ONCE if ours.get(name) != wanted.get(name))


def become(request: Mapping[str, Any], fds: Sequence[int], *, parent_pid: int) -> None:
    """Turns this forked process into the one that a request describes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the line above
        os._exit(1)
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    for fd in fds:
        os.close(fd)
    if (pid := request.get("network_of")) is not None:
        _enter_network_of(pid)
    # Limits (the `resource` module) belong here: after the streams, before anything of the task.
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    _open_streams()
    # The module `random` draws a new seed after a fork by itself.
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if matplotlib := sys.modules.get("matplotlib"):
        _choose_backend(matplotlib)
    importlib.invalidate_caches()


def run(request: Mapping[str, Any]) -> None:
    """Runs a task: `call`, a function by its name, or `argv`, as the command line of a Python."""
    if request.get("fresh"):
        _start_anew(request)
    sys.path[0] = request["cwd"]
    if "call" in request:
        sys.argv = [request["call"]]
        _fresh_main()
        module, _, name = request["call"].partition(":")
        getattr(importlib.import_module(module), name)(*request["args"])
        return
    argv = request["argv"]
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        exec(compile(argv[1], "<string>", "exec"), vars(_fresh_main()))
    else:
        sys.argv = list(argv)
        sys.path[0] = str(Path(argv[0]).resolve().parent)
        runpy.run_path(argv[0], run_name="__main__")


def _start_anew(request: Mapping[str, Any]) -> NoReturn:
    """Replaces this process by a new Python with the same task."""
    argv = request.get("argv")
    if argv is None:
        call = {"call": request["call"], "args": request["args"], "cwd": request["cwd"]}
        argv = ["-c", f"from distlab.warm import forked_process; forked_process.run({call!r})"]
    os.execv(sys.executable, [sys.executable, *argv])


def _enter_network_of(pid: int) -> None:
    """Enters the network namespace of a process, and the user namespace that owns it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("user", "net"):
        there, here = f"/proc/{pid}/ns/{kind}", f"/proc/self/ns/{kind}"
        if Path(there).readlink() == Path(here).readlink():
            continue
        fd = os.open(there, os.O_RDONLY)
        try:
            if libc.setns(fd, 0):
                raise OSError(ctypes.get_errno(), f"cannot enter {there}")
        finally:
            os.close(fd)


def _fresh_main() -> ModuleType:
    sys.modules["__main__"] = main = ModuleType("__main__")
    return main


def _open_streams() -> None:
    """Makes sys.stdin, stdout and stderr anew, as Python does when it starts."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = open(  # noqa: SIM115
            fd,
            mode,
            buffering=1 if name == "stderr" or os.isatty(fd) else -1,
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "surrogateescape",
            closefd=False,
        )
        if mode == "w" and unbuffered:
            stream.reconfigure(write_through=True)  # type: ignore[attr-defined]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _choose_backend(matplotlib: Any) -> None:
    """Matplotlib reads MPLBACKEND while it is imported, which was in the warm process."""
    wanted = os.environ.get("MPLBACKEND")
    if wanted:
        matplotlib.rcParams["backend"] = wanted
    else:
        dict.__setitem__(matplotlib.rcParams, "backend", matplotlib.rcsetup._auto_backend_sentinel)
