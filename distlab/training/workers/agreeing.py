"""What workers agree on while `fit` runs: when to stop, when to leave, and what time it is.

A callback may stop training on one worker only: by its own clock, or because the chief alone has
it. The others would wait for that worker in the next step. So after each execution, and at the end
of each epoch, all workers tell each other what they are about to do, and do the same.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import asdict
from time import monotonic
from typing import Any

import keras

from distlab.training.resume.preemption import Notice
from distlab.training.workers.consistency import Read, check_read
from distlab.training.workers.exchanging import Workers
from distlab.training.workers.same_state import check_learning_rates, learning_rates


class Agreement(keras.callbacks.Callback):  # type: ignore[misc]
    """Lets all workers do the same next. It comes after the callbacks that `fit` was given.

    Args:
        workers: Those that train together.

    Attributes:
        leaves: Whether any worker was asked to leave, as all know it.
        now: The chief's clock when all agreed last, in seconds.
    """

    listens_to_executions = True

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._notice: Notice | None = None
        self._read = Read()
        self.leaves = False
        self.now = 0.0
        self._workers = workers

    def listen(self, is_running: Callable[[], bool]) -> None:
        """From here on SIGTERM is a request to leave, on which all agree."""
        self._notice = Notice(is_running)
        self._notice.listen()

    def stop_listening(self) -> None:
        """Gives the signal back, and hands on one that came and was not heeded."""
        notice, self._notice = self._notice, None
        if notice is not None:
            notice.put_back()
            if notice.given and not self.leaves:
                signal.raise_signal(signal.SIGTERM)

    def see(self, read: Read) -> None:
        """Takes note of what an execution has read, to compare it with what the others have."""
        self._read = read

    def agree(self, rates: list[float] | None = None) -> None:
        """Asks the others."""
        given = self._notice is not None and self._notice.given
        stops = bool(self.model.stop_training)
        said = self._workers.exchange([stops, given, monotonic(), asdict(self._read), rates or []])
        all_stop, all_leave, clocks, reads, all_rates = zip(*said, strict=True)
        self.model.stop_training = any(all_stop)
        self.leaves, self.now = any(all_leave), clocks[0]
        check_read(self._workers, [Read(**read) for read in reads])
        check_learning_rates(self._workers, list(all_rates))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Agrees after each execution."""
        self.agree()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Agrees after each epoch."""
        self.agree(learning_rates(self.model) if self._workers.count > 1 else None)
