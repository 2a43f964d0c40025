"""One task's Jupyter kernel, as its cluster sees it: connected to, sent code, listened to.

    kernel = TaskKernel(TaskName("worker", 0), folder=private_folder, context=zmq.Context())
    start(kernel.arguments())       # python -m distlab.cluster.local.task_process -- ARGUMENTS
    while not kernel.is_ready(): ...
    kernel.send("1 + 1")
    for message in kernel.messages(): ...

Kernels are spoken to over files in a folder that only this user can enter, never over the network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

from distlab.cluster.spec import TaskName

_ASK_AGAIN_SECS = 0.2
_AT_ONCE = 100


class TaskKernel:
    """The kernel of one task; a task that is started again gets a new one under the same name."""

    def __init__(self, task: TaskName, *, folder: Path, context: zmq.Context[Any], number: int):
        self.task = task
        self.reply: dict[str, Any] | None = None  # to the last code that was sent, once it came
        self.asked = ""  # the id of the request that is being answered
        self._stem = folder / f"{task.job}-{task.index}.{number}"
        self._client = BlockingKernelClient(context=context)
        self._asked_at, self._is_idle, self._is_connected = 0.0, False, False

    def arguments(self) -> list[str]:
        """Returns what the kernel is to be told on its command line."""
        key = os.urandom(16).hex().encode()
        path, _ = write_connection_file(
            f"{self._stem}.json", ip=str(self._stem), transport="ipc", key=key
        )
        self._client.load_connection_file(path)
        return ["-f", path]

    @property
    def stacks(self) -> Path:
        """The file in which the task tells where its threads are."""
        return Path(f"{self._stem}.stacks")

    @property
    def is_busy(self) -> bool:
        """Whether it has not answered the last code that it was sent."""
        return bool(self.asked) and not (self.reply and self._is_idle)

    def is_ready(self) -> bool:
        """Whether it has answered a first question; asks it."""
        if not self._is_connected:
            ports = (self._client.shell_port, self._client.iopub_port)
            if not all(Path(f"{self._stem}-{port}").exists() for port in ports):
                return False  # ZeroMQ would try again, but only after a while
            self._client.start_channels(stdin=False, hb=False, control=False)
            self._is_connected = True
        if time.monotonic() - self._asked_at > _ASK_AGAIN_SECS:
            # Again, for until the subscription has arrived there the kernel tells nobody.
            self._begin(self._client.kernel_info())
        for _ in self.messages():
            pass
        return self.reply is not None and self._is_idle

    def send(self, code: str, *, store_history: bool = True) -> None:
        """Sends code to run."""
        content = {
            "code": code,
            "silent": not store_history,
            "store_history": store_history,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        message = self._client.session.msg("execute_request", content)
        self._begin(message["header"]["msg_id"])  # first: an interrupt may come while it is sent
        self._client.shell_channel.send(message)

    def _begin(self, asked: str) -> None:
        self.asked, self.reply, self._is_idle = asked, None, False
        self._asked_at = time.monotonic()

    def sockets(self) -> list[zmq.Socket[Any]]:
        """Returns what to poll for messages."""
        return [self._client.shell_channel.socket, self._client.iopub_channel.socket]

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields what has arrived for the last code that it was sent; of a flood, a part."""
        while self._client.shell_channel.msg_ready():
            message = self._client.shell_channel.get_msg()
            if self._is_answer(message):
                self.reply = message["content"]
        for _ in range(_AT_ONCE):
            if not self._client.iopub_channel.msg_ready():
                break
            message = self._client.iopub_channel.get_msg()
            if not self._is_answer(message):
                continue
            if message["msg_type"] == "status":
                self._is_idle = message["content"]["execution_state"] == "idle"
            else:
                yield message

    def _is_answer(self, message: dict[str, Any]) -> bool:
        return bool(message["parent_header"].get("msg_id") == self.asked)

    def close(self) -> None:
        """Closes the connection; the kernel itself is ended by its `TaskGroup`."""
        if self._is_connected:
            self._client.shell_channel.stop()
            self._client.iopub_channel.stop()
            self._is_connected = False
        for path in self._stem.parent.glob(f"{self._stem.name}*"):
            path.unlink(missing_ok=True)
