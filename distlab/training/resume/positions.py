"""Where in a training one is, and how often it is saved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in a training.

    Attributes:
        epoch: Epochs that are done.
        batch: Batches that are done of the next one.
        batches: Batches in an epoch, where that is known.
        step: Steps that are done, over all epochs.
    """

    epoch: int
    batch: int
    batches: int | None
    step: int

    def __str__(self) -> str:
        """As in "step 240: epoch 3, batch 40 of 100"."""
        of = "" if self.batches is None else f" of {self.batches}"
        here = f", batch {self.batch}{of}" if self.batch else ""
        return f"step {self.step}: epoch {self.epoch + 1}{here}"


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What lies between two checkpoints: so many steps or seconds, whichever is over first.

    Attributes:
        steps: Steps; None where they do not count.
        secs: Seconds; None where they do not count.
    """

    steps: int | None
    secs: float | None

    def is_over(self, steps: tuple[int, int], *, secs: float) -> bool:
        """Whether it is time to save again."""
        before, now = steps
        by_steps = self.steps is not None and now // self.steps > before // self.steps
        return by_steps or (self.secs is not None and secs >= self.secs)
