"""The cell magic `%%workers`, which runs a cell on the tasks of a cluster.

    %load_ext distlab

    %%workers worker:0 --timeout 60
    import tensorflow as tf

What tasks show stands under their names: side by side, and once where several show the same. Tab
completes the names that the tasks hold.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import threading
from typing import Any, NoReturn

from distlab.cluster.local import completion
from distlab.cluster.local.cluster import LocalCluster, kernels_of, newest_open
from distlab.cluster.warm.process import shared_server
from distlab.errors import DistlabError, InvalidArgument, ProcessError

_USAGE = "%%workers [TASK ...] [--timeout SECS]"


def register(shell: Any) -> None:
    """Gives an IPython shell the magic and its completion, and warms what tasks are forked from."""

    def workers(line: str, cell: str) -> None:
        """Runs the cell on tasks of a `LocalCluster`: %%workers [TASK ...] [--timeout SECS].

        It runs on the cluster that was made last of those that are open: on all tasks, or on
        those that `worker:0` and `ps` name.
        """
        try:
            options = _parse(line)
            _cluster().execute(
                cell, tasks=options.tasks or None, timeout_secs=options.timeout, show=True
            )
        except DistlabError as problem:
            # The frames of this function would hide what the task said.
            text = f"{type(problem).__name__}: {problem}"
            problem._render_traceback_ = lambda: text.splitlines()  # type: ignore[method-assign]
            raise

    shell.register_magic_function(workers, "cell", "workers")
    completion.register(shell, lambda line: kernels_of(_cluster(), _parse(line).tasks or None))
    threading.Thread(target=_warm, daemon=True).start()


def _warm() -> None:
    with contextlib.suppress(DistlabError):  # the first cluster says what does not work here
        shared_server()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(asked=self.prog, found=message, do=f"write {_USAGE}")


def _parse(line: str) -> argparse.Namespace:
    parser = _Parser(prog=f"%%workers {line}".rstrip(), add_help=False, allow_abbrev=False)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--timeout", type=float, default=600)
    return parser.parse_args(shlex.split(line.replace(",", " ")))


def _cluster() -> LocalCluster:
    cluster = newest_open()
    if cluster is None:
        raise ProcessError(
            asked="%%workers",
            found="no cluster is open",
            do="make one in a cell before: cluster = dl.LocalCluster(workers=2)",
        )
    return cluster
