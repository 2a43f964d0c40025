"""Forks the tasks of an answer's cluster from a process that has imported TensorFlow.

    tasks = ForkServer(folder)            # before the answer is asked; nothing is started
    tasks.socket                          # readable when the answer asks for a task
    tasks.serve(listener_fd, owner_fd)    # in a fork, which then is a warm process

Without it, an answer with a cluster imports TensorFlow again, for several seconds. The tasks are
below the process that watches over the answer, so its limits hold for them.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NoReturn

from distlab.warm import server


class ForkServer:
    """A warm process that is not there before it is wanted.

    Args:
        folder: An empty folder of its own.

    Attributes:
        address: What `DISTLAB_WARM_ADDRESS` is to be.
        socket: Where it is asked.
        owner: What tells it that this process has ended.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = str(folder / "socket")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.address)
        self.socket.listen(128)
        self.owner, self._owned = os.pipe()

    def serve(self, listener: int, owner: int) -> NoReturn:
        """Makes this process a warm process."""
        server.serve(listener, owner, str(self._folder))
