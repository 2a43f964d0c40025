"""Runs the script of one task of `distlab launch`, as `python script.py` would.

    python -m distlab.cluster.launch.script 2 train.py --epochs 3      # 2 logical devices first
    python -m distlab.cluster.launch.script 0 -m package.train         # none of them

The process may be a fork of one that has imported TensorFlow. A script that sets a variable which
is read by that import (TF_USE_LEGACY_KERAS) then starts over in a new Python, where it is heeded.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import importlib.machinery
import io
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from distlab.cluster import heartbeat
from distlab.cluster.warm.server import settings
from distlab.devices import split_devices

# What a task answers by writing the stacks of its threads to its stderr.
STACKS_SIGNAL = signal.SIGUSR1

# Read by the interpreter or the linker alone: to set them in a running Python changes nothing.
_OF_THE_INTERPRETER = ("PYTHON", "LD_")


def main() -> None:
    """Runs what this process's arguments say: the number of logical devices, and a command."""
    devices, command = int(sys.argv[1]), sys.argv[2:]
    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)
    # Into a pipe Python writes in blocks: late, and what it still has is lost by a kill.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if devices:
        split_devices(devices)
    if "tensorflow" in sys.modules:
        heartbeat.lengthen()
        _start_over_where_set_too_late(sys.argv[1:])
    try:
        run(command)
    except (Exception, KeyboardInterrupt) as error:
        _show(error)
        sys.exit(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)


def run(command: Sequence[str]) -> None:
    """Runs a script or a module as `__main__`, in this process."""
    sys.modules["__main__"] = main = ModuleType("__main__")
    if command[0] == "-m":
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    sys.argv, path = list(command), command[0]
    if not Path(path).is_absolute():
        path = f"{Path.cwd()}/{path}"  # as Python writes it, a leading ./ and all
    sys.path[0] = str(Path(path).resolve().parent)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __cached__=None, __loader__=loader, __builtins__=builtins)
    with io.open_code(path) as source:
        code = compile(source.read(), path, "exec", dont_inherit=True)
    exec(code, vars(main))


def _show(error: BaseException) -> None:
    """Shows an error as Python would: from the script's own first frame on, and at once.

    Python writes a traceback line by line. The launcher may end this task meanwhile, since another
    one failed; then nothing is seen, rather than a traceback without its message.
    """
    rest = error.__traceback__
    while rest is not None and rest.tb_frame.f_code.co_filename == __file__:
        rest = rest.tb_next
    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") as whole:
        with contextlib.redirect_stderr(whole):
            sys.excepthook(type(error), error.with_traceback(rest), rest)
        whole.flush()
        text = whole.buffer.getvalue().decode()
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _start_over_where_set_too_late(argv: list[str]) -> None:
    """Starts this process over as a new Python when it sets what was read before.

    Not once TensorFlow is in use: in a new Python too that would then have been too late.
    """
    read, own_pid = settings(os.environ), os.getpid()

    def look(event: str, args: tuple[Any, ...]) -> None:
        if event not in ("os.putenv", "os.unsetenv") or os.getpid() != own_pid:
            return
        name, *value = map(os.fsdecode, args)
        given = {name: value[0]} if value else {}
        differs = settings(given).get(name) != read.get(name)
        if not differs or name.startswith(_OF_THE_INTERPRETER) or _in_use():
            return
        print(
            f"distlab: the script sets {name}, which is read while TensorFlow is imported: this "
            "task imports it anew, which takes seconds. Set outside of the script it does not.",
            file=sys.__stderr__,
        )
        others = {key: text for key, text in os.environ.items() if key != name}
        command = [sys.executable, "-m", "distlab.cluster.launch.script", *argv]
        os.execve(sys.executable, command, others | given)

    sys.addaudithook(look)


def _in_use() -> bool:
    context = sys.modules["tensorflow.python.eager.context"]
    return bool(context.context()._initialized)


if __name__ == "__main__":
    main()
