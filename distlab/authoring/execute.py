"""Runs a notebook the one way in which its outputs are made, to store them and to check them.

    from distlab.authoring.execute import execute
    fresh = execute(nbformat.read("notebooks/00_start_here.ipynb", as_version=4))

The kernel is this interpreter whatever kernelspecs the machine has, forked from the warm
process where there is one. It starts in an empty folder of its own: a notebook stands alone,
and what it writes does not end in the checkout. What is written past Python (C++ logs, output
of child processes) goes to a log that only a dead kernel's message shows, never to an output.
"""

from __future__ import annotations

import copy
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from traitlets import Type

from distlab.authoring.stored_form import settled
from distlab.errors import NotebookError

RAISES_TAGS = frozenset({"raises-exception", "nbval-raises-exception"})
_NOT_RUN_TAGS = frozenset({"skip-execution", "nbval-skip"})
_LOOK_AGAIN_SECS = 0.2
# After how long a cell, or a kernel that starts, is taken as hung: also on a machine that is slow
# and busy, where a cell of a few seconds takes minutes.
CELL_TIMEOUT_SECS = 900
_WIDGET_STATE = "application/vnd.jupyter.widget-state+json"

# What would let the machine, or the test run around a notebook, show in its outputs.
_REMOVED = frozenset(
    {
        *("FORCE_COLOR", "CLICOLOR_FORCE", "PYTHONWARNINGS", "PYTHONSTARTUP", "PYTHONUNBUFFERED"),
        *("TF_CONFIG", "TF_USE_LEGACY_KERAS", "IPYTHONDIR", "JUPYTER_CONFIG_DIR"),
    }
)
_REMOVED_PREFIXES = ("PYTEST_", "COV_CORE_", "SLURM_", "JPY_", "NBGRADER_")

_FIXED = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "NVIDIA_TF32_OVERRIDE": "0",
    "KERAS_BACKEND": "tensorflow",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "COLUMNS": "80",
    "LINES": "24",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PYTHONIOENCODING": "utf-8",
}


def execute(
    notebook: NotebookNode,
    *,
    cwd: Path | None = None,
    cell_timeout_secs: float = CELL_TIMEOUT_SECS,
    on_cell: Callable[[int, NotebookNode], None] | None = None,
) -> NotebookNode:
    """Returns a copy of a notebook with every code cell run and its outputs filled in.

    Cells tagged `raises-exception` must raise; cells tagged `skip-execution` or `nbval-skip`
    are not run. The state of widgets is kept, under ids that are the same each time.
    """
    with Session(notebook, cwd=cwd, cell_timeout_secs=cell_timeout_secs) as session:
        for index, cell in enumerate(session.notebook.cells):
            if cell.cell_type == "code" and not _NOT_RUN_TAGS & tags(cell):
                session.run_cell(index)
                if on_cell is not None:
                    on_cell(index, cell)
        return session.finished()


def tags(cell: NotebookNode) -> set[str]:
    """Returns the tags of a cell."""
    return set(cell.metadata.get("tags", ()))


class Session:
    """A copy of a notebook and the kernel that runs its cells, one at a time."""

    def __init__(
        self,
        notebook: NotebookNode,
        *,
        cwd: Path | None = None,
        cell_timeout_secs: float = CELL_TIMEOUT_SECS,
    ) -> None:
        self.notebook = copy.deepcopy(notebook)
        # Not in the kernel's reach by accident: the folder it starts in is one level further in.
        self._folder = tempfile.TemporaryDirectory(prefix="distlab-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._cwd = cwd or folder / "empty"
        self._cwd.mkdir(exist_ok=True)
        self._log = folder / "kernel.log"
        self._env = kernel_environment() | {"IPYTHONDIR": str(folder / "ipython")}
        manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=_ThisInterpreter(),
            client_factory=_Client,
            connection_file=str(folder / "kernel.json"),
            # Files instead of ports: nobody else can connect, and no two kernels can collide.
            transport="tcp" if sys.platform == "win32" or len(str(folder)) > 80 else "ipc",
        )
        self._client = NotebookClient(
            self.notebook,
            km=manager,
            timeout=round(cell_timeout_secs),
            startup_timeout=CELL_TIMEOUT_SECS,
            iopub_timeout=CELL_TIMEOUT_SECS,
            raise_on_iopub_timeout=True,
            force_raise_errors=True,
            record_timing=False,
            # Colours and the paths in a traceback differ between machines.
            extra_arguments=[
                "--InteractiveShell.colors=nocolor",
                "--InteractiveShell.xmode=Minimal",
            ],
        )
        self._context: Any = None

    def __enter__(self) -> Session:
        with self._log.open("wb") as log:
            self._context = self._client.setup_kernel(
                cwd=str(self._cwd), env=self._env, stdout=log, stderr=log, cleanup_kc=True
            )
            try:
                self._context.__enter__()
            except RuntimeError as problem:  # it ended, or did not answer in time
                last_words = self._last_words()
                self._folder.cleanup()
                raise NotebookError(
                    asked="a kernel to run a notebook",
                    found=f"{problem}\n{last_words}",
                    do=f"try `{sys.executable} -m ipykernel --version`",
                ) from problem
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._context.__exit__(None, None, None)
        finally:
            self._folder.cleanup()

    def run_cell(self, index: int, *, raises: bool | None = None) -> NotebookNode:
        """Runs one cell and returns it with its outputs."""
        cell: NotebookNode = self.notebook.cells[index]
        must_raise = bool(RAISES_TAGS & tags(cell)) if raises is None else raises
        asked, do = f"cell {index} to run:\n{_indent(cell.source)}", "repair the cell"
        try:
            self._client.execute_cell(cell, index)
        except CellExecutionError as problem:
            if not must_raise:
                found = f"it raised {problem.ename}: {problem.evalue}"
                raise NotebookError(asked=asked, found=found, do=do) from problem
        except CellTimeoutError as problem:
            found = f"it still ran after {self._client.timeout} s"
            raise NotebookError(asked=asked, found=found, do=do) from problem
        except DeadKernelError as problem:
            found = f"it ended the kernel, whose last words were:\n{self._last_words()}"
            raise NotebookError(asked=asked, found=found, do=do) from problem
        else:
            if must_raise:
                found = "it raised nothing, and is tagged raises-exception"
                raise NotebookError(asked=asked, found=found, do="remove the tag, or make it raise")
        return cell

    def can_be_updated(self, index: int) -> bool:
        """Tells whether later cells may change this cell's outputs (`display(...).update`)."""
        return any(cells.get(index) for cells in self._client._display_id_map.values())

    def finished(self) -> NotebookNode:
        """Returns the notebook with the widgets' state, which a page needs to show them."""
        self._client.set_widgets_metadata()
        # Only now, for nbclient counts outputs to find the one that is updated.
        for cell in self.notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = settled(cell.outputs)
        return _with_fixed_ids(self.notebook)

    def _last_words(self) -> str:
        return _indent("\n".join(self._log.read_text(errors="replace").splitlines()[-20:]))


def kernel_environment() -> dict[str, str]:
    """Returns this process's environment, the same on every machine in what outputs could show."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _REMOVED and not name.startswith(_REMOVED_PREFIXES)
    }
    env |= _FIXED
    matplotlib = find_spec("matplotlib")
    if matplotlib and matplotlib.origin:  # its own defaults, not the user's
        env["MATPLOTLIBRC"] = str(Path(matplotlib.origin).parent / "mpl-data" / "matplotlibrc")
    return env


class _ThisInterpreter(KernelSpecManager):
    """Knows one kernel: this interpreter, from the warm process where there is one."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(
            argv=[
                sys.executable,
                "-m",
                "distlab.cluster.warm.ipython_kernel",
                "-f",
                "{connection_file}",
            ],
            display_name=kernel_name,
            language="python",
            metadata={"kernel_provisioner": {"provisioner_name": "distlab-warm"}},
        )


class _ShellChannel(AsyncZMQSocketChannel):
    """A channel that looks again.

    ZeroMQ tells once that messages wait. An Output widget's reply, sent by nbclient on this very
    channel, can take that notice, and a reply that is there is then waited for until the timeout.
    """

    async def get_msg(  # type: ignore[override]
        self, timeout: float | None = None
    ) -> dict[str, Any]:
        """Returns the next message, waiting for it in short steps."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return await super().get_msg(timeout=min(left, _LOOK_AGAIN_SECS))
            except Empty:
                if left <= _LOOK_AGAIN_SECS:
                    raise


class _Client(AsyncKernelClient):
    shell_channel_class = Type(_ShellChannel)


def _with_fixed_ids(notebook: NotebookNode) -> NotebookNode:
    """Renames widgets, which get random ids, by the order in which they were made."""
    state: Mapping[str, Any] = notebook.metadata.get("widgets", {}).get(_WIDGET_STATE, {})
    text = json.dumps(notebook)
    for number, model_id in enumerate(state.get("state", ())):
        text = text.replace(model_id, f"{number:032x}")
    renamed: NotebookNode = nbformat.from_dict(json.loads(text))  # type: ignore[no-untyped-call]
    return renamed


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
