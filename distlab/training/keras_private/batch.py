"""What one replica has of a global batch, known to all that is traced in the replica's thread."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import tensorflow as tf


class Way(enum.Enum):
    """How the values that replicas compute from their shares make that of the global batch."""

    MEAN = "mean"  # each counts by the replica's share of the examples
    SUM = "sum"  # they add up
    WHOLE = "whole"  # neither: the value belongs to the batch as a whole


@dataclasses.dataclass(frozen=True)
class Batch:
    """One replica's share of a global batch.

    Attributes:
        examples: Number of examples of this replica, a float32 scalar; may be 0.
        in_all: Number of examples of the global batch, a float32 scalar.
        as_mean: Whether a compiled loss is handed on as a value that counts by the share (the
            mean over this replica's examples, say), and not as the part that adds up.
        of_sum: Whether the step's loss is a sum over examples, so that what does not depend on
            them (a regulariser) has to count by the share.
        is_trial: Whether the step is only tried, and writes nothing.
    """

    is_trial: ClassVar[bool] = False
    examples: tf.Tensor
    in_all: tf.Tensor
    as_mean: bool = False
    of_sum: bool = False

    @property
    def share(self) -> tf.Tensor:
        """Part of the global batch that this replica has, from 0 to 1."""
        return self.examples / self.in_all

    def only_if_there(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value, or 0 if this replica has no example: then it counts for nothing.

        It may even be no number (a mean over none), or that of an example in a place to fill.

        Args:
            value: What this replica computed.
        """
        return tf.where(self.examples > 0, value, tf.zeros_like(value))

    def rows_that_count(self, part: Any) -> Any:
        """Returns a tensor without the row of an example that only fills a place.

        Args:
            part: A tensor with rows of this replica's examples; None and numbers stay.
        """
        if part is None or not part.shape.rank:
            return part
        return part[: tf.where(self.examples > 0, tf.shape(part)[0], 0)]

    def over_all(self, here: tf.Tensor) -> tf.Tensor:
        """Returns the sum over all replicas.

        Args:
            here: This replica's summand.
        """
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, here)

    def note_loss(self, value: tf.Tensor) -> None:
        """Called with the value of each compiled loss; for trials.

        Args:
            value: It, on this replica's examples, in the convention of `as_mean`.
        """

    def note_added_loss(self, value: tf.Tensor) -> None:
        """Called with the value of each of `model.losses`; for trials.

        Args:
            value: It, on this replica's examples, in the convention of `as_mean`.
        """

    def tries_update(self, update: Any, args: Any, kwargs: Any) -> bool:
        """Called before a metric that Keras does not bring is updated; for trials.

        Args:
            update: An `own_metrics.Update`.
            args: What the metric is given.
            kwargs: The same, by name.

        Returns:
            Whether that was all: then the metric is not updated.
        """
        return False

    def gathered(self, rows: tf.Tensor) -> tf.Tensor:
        """Called where the step asks for the rows of all replicas; a trial has them.

        Args:
            rows: This replica's.
        """
        return rows

    def as_asked(self, part: tf.Tensor) -> tf.Tensor:
        """Returns a part of the global batch's loss as whoever computes the step counts it.

        Args:
            part: The parts of all replicas add up to the global batch's loss.
        """
        if not self.as_mean:
            return part
        return tf.math.divide_no_nan(part, tf.cast(self.share, part.dtype))


# Replicas are traced in turns, each in a thread of its own.
_NOW = threading.local()


@contextlib.contextmanager
def working_on(batch: Batch | None) -> Iterator[None]:
    """Inside the block, this thread works on the batch.

    Args:
        batch: What this replica has of it; None for what is computed as outside of a step.
    """
    before = current()
    _NOW.batch = batch
    try:
        yield
    finally:
        _NOW.batch = before


def current() -> Batch | None:
    """Returns what this thread works on, None outside of a step."""
    return getattr(_NOW, "batch", None)
