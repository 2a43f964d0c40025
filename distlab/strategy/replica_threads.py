"""`strategy.run` returns when the threads of its replicas have ended.

MirroredStrategy starts a thread for each replica in every `strategy.run` outside of a compiled
function, and in every trace of one inside. TensorFlow then looks whether they have ended, and if
one has not, it looks again a second later. On Python 3.13, and on a busy machine, one often needs a
moment more: about each fifth call of a few milliseconds then takes a second.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tensorflow.python.distribute import mirrored_run
from tensorflow.python.training import coordinator

_LOOK_SECS = 1.0  # between looks whether a replica has asked all others to stop


def install() -> None:
    """Lets TensorFlow wait for the threads of replicas with `Coordinator`, in all of this process.

    The function that waits is inside TensorFlow and takes no coordinator of one's own.
    """
    mirrored_run.coordinator = SimpleNamespace(Coordinator=Coordinator)


class Coordinator(coordinator.Coordinator):  # type: ignore[misc]
    """TensorFlow's coordinator of threads, whose `join` returns as soon as they have ended."""

    def join(self, threads: Sequence[threading.Thread] | None = None, **options: Any) -> None:
        """Waits until the threads have ended, or one asked all to stop."""
        for thread in threads or ():
            while thread.is_alive() and not self.should_stop():
                thread.join(_LOOK_SECS)
        super().join(threads, **options)
