"""The kernels of a `LocalCluster` and their processes: started, started again and ended together.

kernels = KernelGroup(Layout(workers=2), ...)
kernels.start()                      # all of them, until each answers
kernels.by_task[TaskName("worker", 0)].send("1 + 1")
kernels.close()

Kernels are spoken to over files in a folder that only this user can enter, never over the network.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

from distlab.cluster.deadline import Deadline
from distlab.cluster.exit_status import how_it_ended
from distlab.cluster.gpus import share_gpus, visible_gpus
from distlab.cluster.group import Start, TaskGroup
from distlab.cluster.local.begin_kernel import BEGUN
from distlab.cluster.local.outputs import shell
from distlab.cluster.ports import is_free, reserved_ports
from distlab.cluster.probe import unanswering
from distlab.cluster.spec import ClusterSpec, Layout, TaskName
from distlab.cluster.warm.process import shared_server
from distlab.environment import is_noise
from distlab.errors import TaskFailed, TaskTimeout

_POLL_SECS = 0.005
_REQUEST_AGAIN_SECS = 0.2
_MESSAGES_AT_ONCE = 100
_LOG_LINES = 8
_CLOSING_SECS = 2.0
_STACKS_SECS, _STACKS_QUIET_SECS = 1.0, 0.05
_ANSWER_SECS = 1.0


class TaskKernel:
    """The kernel of one task: connected to, sent code, listened to.

    A task that is started again gets a new one under the same name.
    """

    def __init__(self, task: TaskName, *, folder: Path, context: zmq.Context[Any], number: int):
        self.reply: dict[str, Any] | None = None  # to the last code that was sent, once it came
        # Of the code that runs, or ran last; before any code, of the first questions.
        self._request_ids: set[str] = set()
        self.has_begun = False  # with the last code that it was sent
        self.last_line = ""  # that it printed
        self.answers: dict[str, str] = {}  # the last ones, by what it was asked
        self._stem = folder / f"{task.job}-{task.index}.{number}"
        self.stacks = Path(f"{self._stem}.stacks")
        self._client = BlockingKernelClient(context=context)
        self._sent_at = self._replied_at = time.monotonic()
        self.is_idle = False  # after the last code that it was sent, whether it replied or not
        self._is_connected = False

    def connection_file(self) -> str:
        """Writes the file that tells the kernel where to listen, and returns its path."""
        key = os.urandom(16).hex().encode()
        path, _ = write_connection_file(
            f"{self._stem}.json", ip=str(self._stem), transport="ipc", key=key
        )
        self._client.load_connection_file(path)
        return path

    @property
    def is_busy(self) -> bool:
        """Whether it has not answered the last code that it was sent."""
        return bool(self._request_ids) and not (self.reply and self.is_idle)

    @property
    def since(self) -> float:
        """When it was sent the code that it runs, or answered what it ran last (monotonic)."""
        return self._sent_at if self.is_busy else self._replied_at

    def is_ready(self) -> bool:
        """Whether it has answered a first question, and told that it is idle; asks it."""
        if not self._is_connected:
            ports = (self._client.shell_port, self._client.iopub_port)
            if not all(Path(f"{self._stem}-{port}").exists() for port in ports):
                return False  # ZeroMQ would try again, but only after a while
            self._client.start_channels(stdin=False, hb=False, control=False)
            self._is_connected = True
        # Again after a reply, for until the subscription has arrived the kernel tells nobody that
        # it is idle. A word on any of the questions will do, however late it comes.
        waited = time.monotonic() - self._replied_at
        if not self._request_ids or (self.reply and waited > _REQUEST_AGAIN_SECS):
            self.reply = None
            self._request_ids.add(self._client.kernel_info())
        for _ in self.messages():
            pass
        return self.reply is not None and self.is_idle

    def send(self, code: str, *, store_history: bool = True) -> None:
        """Sends code to run."""
        message = self._request(code, is_silent=not store_history)
        self._begin(message["header"]["msg_id"])  # first: an interrupt may come while it is sent
        self._client.shell_channel.send(message)

    def ask(self, expression: str) -> str:
        """Asks for the text of an expression while it is idle, and returns the question's id."""
        message = self._request("", is_silent=True, expression=expression)
        self._client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def answer(self, question_id: str) -> str | None:
        """Returns the answer to a question of `ask`: "" if it raised, None if none has come."""
        while self._client.shell_channel.msg_ready():
            message = self._client.shell_channel.get_msg()
            if message["parent_header"].get("msg_id") == question_id:
                value = message["content"].get("user_expressions", {}).get("asked", {})
                return str(ast.literal_eval(value["data"]["text/plain"])) if "data" in value else ""
        return None

    def _request(self, code: str, *, is_silent: bool, expression: str = "") -> dict[str, Any]:
        content = {
            "code": code,
            "silent": is_silent,
            "store_history": not is_silent,
            "user_expressions": {"asked": expression} if expression else {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        message: dict[str, Any] = self._client.session.msg("execute_request", content)
        return message

    def _begin(self, request_id: str) -> None:
        self._request_ids, self.reply, self.is_idle = {request_id}, None, False
        self._sent_at, self.has_begun = time.monotonic(), False

    def forgo_reply(self) -> None:
        """Takes its code as ended; ipykernel does not reply if SIGINT meets its own lines."""
        self.reply, self._replied_at = self.reply or {"status": "aborted"}, time.monotonic()

    def sockets(self) -> list[zmq.Socket[Any]]:
        """Returns what to poll for messages."""
        return [self._client.shell_channel.socket, self._client.iopub_channel.socket]

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields what has arrived for the last code that it was sent; of a flood, a part."""
        while self._client.shell_channel.msg_ready():
            message = self._client.shell_channel.get_msg()
            if message["parent_header"].get("msg_id") in self._request_ids:
                self.reply, self._replied_at = message["content"], time.monotonic()
        for _ in range(_MESSAGES_AT_ONCE):
            if not self._client.iopub_channel.msg_ready():
                break
            message = self._client.iopub_channel.get_msg()
            if message["parent_header"].get("msg_id") not in self._request_ids:
                continue
            if message["msg_type"] == "status":
                self.is_idle = message["content"]["execution_state"] == "idle"
            elif message["msg_type"] == BEGUN:
                self.has_begun = True
            else:
                yield message

    def close(self) -> None:
        """Closes the connection; the kernel itself is ended by its `TaskGroup`."""
        if self._is_connected:
            self._client.shell_channel.stop()
            self._client.iopub_channel.stop()
            self._is_connected = False
        for path in self._stem.parent.glob(f"{self._stem.name}*"):
            path.unlink(missing_ok=True)


class KernelGroup:
    """The kernels of a cluster."""

    def __init__(
        self,
        layout: Layout,
        *,
        devices_per_worker: int,
        env: Mapping[str, str | None],
        network_of: int | None,
        start_timeout_secs: float,
    ) -> None:
        self._layout = layout
        self._devices, self._env, self._network_of = devices_per_worker, env, network_of
        self._start_timeout_secs = start_timeout_secs
        self.by_task: dict[TaskName, TaskKernel] = {}
        self.sending = threading.Lock()
        self._kernels_made, self._starting = 0, threading.Lock()
        self._listeners_changed, self._listeners = threading.Condition(), 0
        self._ports = contextlib.ExitStack()
        spec = self._spec_on_new_ports()  # may fail: nothing was made yet
        # There it does not outlive a process that is killed.
        self.folder = Path(tempfile.mkdtemp(prefix="c-", dir=shared_server().folder))
        self._context: zmq.Context[Any] = zmq.Context()
        self.group = self._group(spec)
        self.gpus = share_gpus(spec, visible_gpus())
        if self.gpus.note:  # it tells of this machine: to the terminal, not to a cell's output
            print(self.gpus.note, file=sys.__stderr__)

    @property
    def spec(self) -> ClusterSpec:
        """The tasks and their addresses."""
        return self.group.spec

    def _spec_on_new_ports(self) -> ClusterSpec:
        previous, self._ports = self._ports, contextlib.ExitStack()
        ports = self._ports.enter_context(reserved_ports(self._layout.ports))
        previous.close()  # only now, so that the new ones are others
        return self._layout.on(ports)

    def _group(self, spec: ClusterSpec) -> TaskGroup:
        return TaskGroup(spec, how=self._start_of, folder=self.folder)

    def ports_are_free(self) -> bool:
        """Whether no process listens at any task's address."""
        addresses = [text for texts in self.spec.addresses.values() for text in texts]
        return all(is_free(int(text.rpartition(":")[2])) for text in addresses)

    def take_other_ports(self) -> None:
        """Ends all tasks; those that are started from now on listen elsewhere."""
        self.group.stop(grace_secs=0)
        self.group = self._group(self._spec_on_new_ports())

    def start(self, tasks: Iterable[TaskName] | None = None) -> None:
        """Starts tasks that do not run, and returns when each of their kernels answers."""
        with self._starting:
            self._start(tasks)

    def _start(self, tasks: Iterable[TaskName] | None) -> None:
        running, in_order = self.group.running(), self.spec.tasks_in_order()
        starting = [task for task in tasks or in_order if task not in running]
        for task in starting:
            if previous := self.by_task.get(task):
                previous.close()
            self._kernels_made += 1
            self.by_task[task] = TaskKernel(
                task, folder=self.folder, context=self._context, number=self._kernels_made
            )
        self.by_task = {task: self.by_task[task] for task in in_order}
        self.group.start(starting)
        deadline = Deadline(self._start_timeout_secs, self.group.pids)
        asked = f"{', '.join(map(str, starting))} to start"
        while True:
            is_late, ended = deadline.has_passed(), self.group.ended()  # before the last look
            if not (silent := [task for task in starting if not self.by_task[task].is_ready()]):
                return
            for task in silent:
                if task in ended:
                    raise TaskFailed(
                        asked=asked,
                        found=f"{task} {how_it_ended(ended[task])}; its last words:\n"
                        f"{self.last_words(task)}",
                        do="repair what the last words name",
                        task=str(task),
                    )
            if is_late:
                raise TaskTimeout(
                    asked=f"{asked} within {self._start_timeout_secs:g} s",
                    found=f"{', '.join(map(str, silent))} did not answer",
                    do="raise start_timeout_secs, or end other work on this machine",
                    task=str(silent[0]),
                )
            time.sleep(_POLL_SECS)

    def _start_of(self, task: TaskName) -> Start:
        kernel, is_worker = self.by_task[task], task.job in ("chief", "worker")
        has_server = self.spec.has_parameter_servers and task.job in ("worker", "ps")
        command = ["-m", "distlab.cluster.local.task_process", "--stacks", str(kernel.stacks)]
        command += ["--devices", str(self._devices if is_worker else 1)]
        command += ["--server"] if has_server else []
        command += ["--", "-f", kernel.connection_file(), "--HistoryManager.enabled=False"]
        own_shell = shell()  # kernels show errors as this process does
        command.append(f"--InteractiveShell.colors={own_shell.colors if own_shell else 'nocolor'}")
        if own_shell:
            command.append(f"--InteractiveShell.xmode={own_shell.InteractiveTB.mode}")
        env: dict[str, str | None] = {
            "IPYTHONDIR": str(self.folder / "ipython"),
            "JPY_PARENT_PID": None,  # of this process, where it is a kernel
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        }
        if self.gpus.of_task:
            env["CUDA_VISIBLE_DEVICES"] = self.gpus.of_task[task]
        return Start(argv=command, env=env | dict(self._env), network_of=self._network_of)

    def stacks(self, task: TaskName) -> str:
        """Returns where the threads of a task are, each with the most recent call first.

        The task has `faulthandler` answer a signal, which needs neither the GIL nor its help.
        """
        file = self.by_task[task].stacks
        before = file.stat().st_size if file.exists() else 0
        self.group.send_signal([task], signal.SIGUSR1, to_group=False)
        deadline = Deadline(_STACKS_SECS, lambda: [self.group.pid(task)])
        size, grown_at = before, time.monotonic()
        while not deadline.has_passed():
            now = file.stat().st_size if file.exists() else 0
            if now != size:
                size, grown_at = now, time.monotonic()
            elif size > before and time.monotonic() - grown_at > _STACKS_QUIET_SECS:
                break  # it says no end, and a dump takes a millisecond
            time.sleep(_POLL_SECS)
        return file.read_bytes()[before:].decode(errors="replace") if size > before else ""

    def ask(self, tasks: Iterable[TaskName], expression: str) -> dict[TaskName, str]:
        """Returns an expression's value, which is a text, on each of some tasks that has told it.

        Those that are idle are asked; for one that is busy, or doesn't answer in a second, stands
        what it told last.
        """
        tasks = [task for task in tasks if task in self.by_task]
        kernels = {task: self.by_task[task] for task in tasks}
        if self.sending.acquire(blocking=False):  # until then, nobody else talks to idle ones
            try:
                with self.in_use():
                    running = self.group.running()
                    self._ask([k for t, k in kernels.items() if t in running], expression)
            finally:
                self.sending.release()
        told = {task: kernel.answers.get(expression) for task, kernel in kernels.items()}
        return {task: text for task, text in told.items() if text is not None}

    def _ask(self, kernels: Iterable[TaskKernel], expression: str) -> None:
        asked = {kernel: kernel.ask(expression) for kernel in kernels if not kernel.is_busy}
        deadline = Deadline(_ANSWER_SECS, self.group.pids)
        while asked and not deadline.has_passed():
            for kernel, question in list(asked.items()):
                if (text := kernel.answer(question)) is not None:
                    kernel.answers[expression] = text
                    del asked[kernel]
            time.sleep(_POLL_SECS)

    def unanswering(self) -> Mapping[TaskName, object]:
        """Returns the probe of each task that doesn't answer; nothing if none of them does.

        In a network of its own no server can be asked from here.
        """
        if self._network_of is not None:
            return {}
        tasks = [(task, self.spec.address_of(task)) for task in self.spec.tasks_in_order()]
        coordinator = "chief" if self.spec.has_parameter_servers else None
        addresses = {task: text for task, text in tasks if text and task.job != coordinator}
        silent = unanswering(addresses)
        return silent if len(silent) < len(addresses) else {}

    def last_words(self, task: TaskName) -> str:
        """Returns the last lines of a task's log, indented, without those that only inform."""
        lines = self.group.log_of(task).read_bytes().splitlines()
        told = [line.decode(errors="replace") for line in lines if not is_noise(line)]
        return "\n".join(f"    {line}" for line in told[-_LOG_LINES:])

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the connections to the kernels stay open."""
        with self._listeners_changed:
            self._listeners += 1
        try:
            yield
        finally:
            with self._listeners_changed:
                self._listeners -= 1
                self._listeners_changed.notify_all()

    def close(self) -> None:
        """Ends every task and leaves nothing."""
        try:
            self.group.stop(grace_secs=0)
            deadline = Deadline(_CLOSING_SECS, lambda: [os.getpid()])
            with self._listeners_changed:  # another thread that listens sees its kernel end
                while self._listeners and not deadline.has_passed():
                    self._listeners_changed.wait(_POLL_SECS)
        finally:
            for kernel in self.by_task.values():
                kernel.close()
            self._context.destroy(linger=0)
            self._ports.close()
            shutil.rmtree(self.folder, ignore_errors=True)
