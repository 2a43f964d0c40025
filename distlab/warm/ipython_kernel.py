"""A Python kernel that shows what Python wrote, in a fork as in a fresh process.

Started like `ipykernel_launcher`: `python -m distlab.warm.ipython_kernel -f CONNECTION_FILE`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the kernel until it is shut down."""
    # IPython adds the folder again once all is loaded; a file in it must not shadow a package.
    if Path(sys.path[0]).resolve() == Path.cwd():
        del sys.path[0]
    _prepare_tensorflow_logger()
    arguments = sys.argv[1:] if arguments is None else arguments
    # What passes Python by (C++ logs, child processes) arrives at any time: it cannot be compared.
    _application().launch_instance([*arguments, "--IPKernelApp.capture_fd_output=False"])


def _application() -> Any:
    from ipykernel.kernelapp import IPKernelApp

    class KernelApplication(IPKernelApp):  # type: ignore[misc]
        def init_iopub(self, context: Any) -> None:
            """ZeroMQ throws away what waits beyond 1000 messages, the last one among them."""
            context.sndhwm = 0
            super().init_iopub(context)
            context.sndhwm = 1000

    return KernelApplication


def _prepare_tensorflow_logger() -> None:
    """Gives TensorFlow's logger its first message of this process to configure itself anew.

    Configured in an interactive process it writes INFO to standard output, device names and all,
    in another it does not. It configures itself while TensorFlow is imported: before the fork.
    """
    logger = logging.getLogger("tensorflow")
    logger.addFilter(lambda record: record.levelno > logging.INFO)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    if module := sys.modules.get("tensorflow.python.platform.tf_logging"):
        vars(module)["_logger"] = None


if __name__ == "__main__":
    main()
