"""Calls into TensorFlow that wait for other processes: in a thread, while this one stays its own.

call = Call(lambda: c_interface.enable_collective_ops(handle, server))
while not call.ended(timeout_secs=0.01):
    ...                        # interrupts are heeded, and time limits kept
call.check()                   # raises what the call has raised
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

# Contexts of TensorFlow that have not met all others. They are kept: some are within a call still,
# and none can be ended without ending the process.
_given_up: list[Any] = []


class Call:
    """A call under way in a thread of its own, which does not outlive the process."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._function()
        except Exception as error:
            self._error = error

    def ended(self, timeout_secs: float) -> bool:
        """Whether it has ended; waits for that a moment."""
        self._thread.join(timeout_secs)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raises what the function has raised."""
        if self._error is not None:
            raise self._error


def give_up(handle: Any) -> None:
    """Notes that what a context waits for is not waited for any more."""
    _given_up.append(handle)


def has_given_up() -> bool:
    """Whether this process has waited for others in vain: it can be in no cluster any more."""
    return bool(_given_up)


def give_back_sigterm() -> None:
    """Lets SIGTERM be what it is to Python.

    A worker of TensorFlow catches it from its start on, unknown to Python, and does nothing.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
