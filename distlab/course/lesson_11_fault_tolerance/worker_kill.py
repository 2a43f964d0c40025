"""Kills a worker: from outside as soon as it has written a file, or in a step of a `fit`.

with killing(folder / "process", when=folder / "has-begun"):
    call_on_workers(job, function, restarts=1)
model.fit(..., callbacks=[killed_once(worker=1, step=17, note=folder / "was-killed")])
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def killing(process: Path, *, when: Path) -> Iterator[None]:
    """Inside, a process is killed, from outside of it, as soon as a file is there."""
    is_over = threading.Event()

    def kill() -> None:
        while not when.exists():
            if is_over.wait(0.01):
                return
        os.kill(int(process.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        yield
    finally:
        is_over.set()
        killer.join()


def killed_once(*, worker: int, step: int, note: Path) -> Any:
    """Returns a Keras callback: a worker kills its process by SIGKILL when it has taken a step."""
    import keras

    class KilledOnce(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            me = self.model.distribute_strategy.cluster_resolver.task_id
            if me == worker and self.model.optimizer.iterations == step and not note.exists():
                note.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    return KilledOnce()
