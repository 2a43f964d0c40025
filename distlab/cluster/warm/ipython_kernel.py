"""A Python kernel that shows what Python wrote, in a fork as in a fresh process.

Started like `ipykernel_launcher`: `python -m distlab.cluster.warm.ipython_kernel -f FILE`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ipykernel.kernelapp import IPKernelApp


class KernelApplication(IPKernelApp):  # type: ignore[misc]
    """ipykernel's application, which drops no output."""

    def init_iopub(self, context: Any) -> None:
        """Keeps ZeroMQ from dropping what waits beyond 1000 messages, the last one among them."""
        context.sndhwm = 0
        super().init_iopub(context)
        context.sndhwm = 1000


def main(arguments: Sequence[str] | None = None, **traits: Any) -> None:
    """Runs the kernel until it is shut down; its application gets `traits`."""
    # IPython adds the folder again once all is loaded; a file in it must not shadow a package.
    if Path(sys.path[0]).resolve() == Path.cwd():
        del sys.path[0]
    # TensorFlow's logger configures itself with its first message, before the fork: to standard
    # error, where in an interactive process INFO goes to standard output. It has to do so again.
    logger = logging.getLogger("tensorflow")
    logger.addFilter(lambda record: record.levelno > logging.INFO)
    logger.handlers.clear()
    if module := sys.modules.get("tensorflow.python.platform.tf_logging"):
        vars(module)["_logger"] = None
    arguments = sys.argv[1:] if arguments is None else arguments
    # What passes Python by (C++ logs, child processes) arrives at any time: it cannot be compared.
    arguments = [*arguments, "--IPKernelApp.capture_fd_output=False"]
    KernelApplication.launch_instance(arguments, **traits)


if __name__ == "__main__":
    main()
