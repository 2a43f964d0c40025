"""A request to leave, SIGTERM, which is heeded at the next good moment.

notice = Notice(is_running)      # whether what it would interrupt still runs
notice.listen()
...                              # SIGTERM comes; nothing happens yet
if notice.given: ...             # save, then leave with EXIT_CODE
notice.put_back()

Whoever takes a machine away sends SIGTERM first, and waits: Kubernetes and Slurm for 30 s.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

# What a process ends with that SIGTERM ends: 128 + 15. Supervisors take it for "restart me".
EXIT_CODE = 143


class Notice:
    """Listens for SIGTERM while something runs that is not to be cut off in the middle.

    Only the main thread can listen: elsewhere, and where the signal is ignored, nothing changes.
    A second SIGTERM is obeyed at once, by whoever listened before.

    Args:
        is_running: Whether the signal is to be kept for later. Asked in the signal's handler,
            because what runs may be left by an exception, with nobody to call `put_back`.

    Attributes:
        given: Whether the signal came.
    """

    def __init__(self, is_running: Callable[[], bool]) -> None:
        self.given = False
        self._is_running = is_running
        self._before: Any = None

    def listen(self) -> None:
        """Takes the signal from whoever listens to it."""
        before = signal.getsignal(signal.SIGTERM)
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and before not in (None, signal.SIG_IGN):
            self._before = before
            signal.signal(signal.SIGTERM, self._heed)

    def put_back(self) -> None:
        """Gives the signal back to whoever listened before, if nobody has taken it since."""
        if self._before is not None and signal.getsignal(signal.SIGTERM) == self._heed:
            signal.signal(signal.SIGTERM, self._before)
        self._before = None

    def _heed(self, number: int, frame: Any) -> None:
        if self.given or not self._is_running():
            self.put_back()
            signal.raise_signal(number)
        self.given = True
