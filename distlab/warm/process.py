"""Starts a warm process, and says where one can be used.

    with WarmProcess() as warm:                    # answers once warm; asking may begin at once
        task = warm.spawn(call="my_module:train", args=[3])
        os.environ[ADDRESS_VARIABLE] = warm.address      # for other processes of this user

`DISTLAB_WARM=0` is the one switch that turns warm processes off everywhere.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distlab.errors import UnsupportedEnvironment
from distlab.warm.client import ForkedProcess, WarmClient

ADDRESS_VARIABLE = "DISTLAB_WARM_ADDRESS"
SWITCH_VARIABLE = "DISTLAB_WARM"

# Nothing that asks get_ipython() while it is imported (ipywidgets, matplotlib_inline's backend):
# in a kernel it must find the kernel's.
PRELOAD = (
    "tensorflow",
    "keras",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.zmqshell",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "PIL.PngImagePlugin",
    "tensorflow_datasets",
    "sklearn.datasets",
)


def can_fork() -> bool:
    """Tells whether tasks may be forked here: on Linux, unless `DISTLAB_WARM=0`.

    On macOS system libraries may not be used after a fork; Windows has none.
    """
    return sys.platform == "linux" and os.environ.get(SWITCH_VARIABLE, "1") != "0"


class WarmProcess:
    """A process that has imported what tasks need; it ends with its owner, and all tasks too."""

    def __init__(
        self, *, preload: Sequence[str] = PRELOAD, env: Mapping[str, str] | None = None
    ) -> None:
        self._preload = tuple(preload)
        self._env = dict(os.environ if env is None else env)
        self._folder: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def start(self) -> WarmProcess:
        """Starts it and returns at once; it warms in the background."""
        if self._preload and not can_fork():
            raise UnsupportedEnvironment(
                asked="a warm process",
                found=f"{SWITCH_VARIABLE}={os.environ.get(SWITCH_VARIABLE)} on {sys.platform}",
                do="start one without preload, as a keeper, and ask it for tasks with fresh=True",
            )
        if not hasattr(os, "fork"):
            raise UnsupportedEnvironment(
                asked="a process that keeps tasks",
                found=f"{sys.platform}, where no process can be forked",
                do="on Windows run this under WSL2",
            )
        self._folder = _private_folder()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(128)
            pipe, self._pipe = os.pipe()
            command = [sys.executable, "-m", "distlab.warm.server", str(listener.fileno())]
            with Path(self._folder, "log").open("wb") as log:
                self._process = subprocess.Popen(
                    [*command, str(pipe), self._folder, *self._preload],
                    pass_fds=(listener.fileno(), pipe),
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            os.close(pipe)
        return self

    @property
    def address(self) -> str:
        """The path of its socket, for `WarmClient` in this process or another."""
        return f"{self._folder}/socket"

    @property
    def pid(self) -> int | None:
        """Its process id, once started."""
        return self._process.pid if self._process else None

    def spawn(self, argv: Sequence[str] | None = None, **options: Any) -> ForkedProcess:
        """Forks a task; see `WarmClient.spawn`."""
        return WarmClient(self.address).spawn(argv, **options)

    def close(self) -> None:
        """Ends it and every task."""
        process, self._process = self._process, None
        if process is None:
            return
        os.close(self._pipe)
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()  # its tasks end with it: each has asked the kernel for that
            process.wait()
        shutil.rmtree(str(self._folder), ignore_errors=True)

    def __enter__(self) -> WarmProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _private_folder() -> str:
    folder = tempfile.mkdtemp(prefix="distlab-")
    if len(folder) > 75:  # a socket's path has room for 107 bytes, and clusters have theirs below
        Path(folder).rmdir()
        folder = tempfile.mkdtemp(prefix="distlab-", dir="/tmp")
    return folder
