"""A kernel as JupyterLab has one: it runs cells, is interrupted, and completes names.

with live_kernel() as kernel:
    kernel.run("1 + 1")                                  # [("execute_result", "2")]
    kernel.interrupt_when(path.exists, "%%workers\\n...")
    kernel.complete("%%workers\\nvar")
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from jupyter_client.manager import start_new_kernel

from tests.support.limits import HANG_SECS
from tests.support.local_tasks import wait_until
from tests.support.repository import ROOT


class LiveKernel:
    """A kernel that is up, and the client that speaks to it."""

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager, self._client = manager, client

    def run(self, code: str) -> list[tuple[str, str]]:
        """Runs a cell, and returns its outputs in short, as they are in the end: (kind, text)."""
        outputs: dict[object, tuple[str, str]] = {}

        def note(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                outputs[len(outputs)] = (content["name"], content["text"])
            elif kind == "error":
                outputs[len(outputs)] = ("error", "\n".join(content["traceback"]))
            elif "data" in content:
                key = content.get("transient", {}).get("display_id", len(outputs))
                kind = kind.removeprefix("update_")
                outputs[key] = (kind, content["data"].get("text/plain", ""))

        self._client.execute_interactive(code, output_hook=note, timeout=HANG_SECS)
        return list(outputs.values())

    def interrupt_when(self, *conditions: Any, code: str) -> list[tuple[str, str]]:
        """Runs a cell, and interrupts it as soon as each condition holds, one after the other."""

        def interrupt() -> None:
            for condition in conditions:
                wait_until(condition)
                self._manager.interrupt_kernel()

        thread = threading.Thread(target=interrupt)
        thread.start()
        outputs = self.run(code)
        thread.join(HANG_SECS)
        return outputs

    def complete(self, code: str) -> list[str]:
        """The names that Tab gives at the end of a cell."""
        return [each["text"] for each in self.completions(code)]

    def completions(self, code: str) -> list[dict[str, Any]]:
        """The same with what stands beside each name, its type."""
        content = self._client.complete(code, reply=True, timeout=HANG_SECS)["content"]
        assert content["cursor_end"] == len(code)
        start = code[content["cursor_start"] :]
        assert all(name.startswith(start) for name in content["matches"])
        return list(content["metadata"]["_jupyter_types_experimental"])


@contextlib.contextmanager
def live_kernel() -> Iterator[LiveKernel]:
    """Yields a kernel in the repository's folder; it is ended without being asked."""
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    try:
        yield LiveKernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
