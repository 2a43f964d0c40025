"""A data set that workers read for themselves, each from its own copy.

    feed = WorkerFeed(dataset, coordinator, batches=100)
    reading = iter(feed)                     # the next iterator over the data

Every worker goes through all batches in the same order, and trains on those whose numbers it is
sent. A worker that comes back after a loss opens its copy as often as it was opened before, so
that shuffles give the order of this epoch, and passes over the batches that others took.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from distlab.training import pipelines
from distlab.training.parameter_server import remote
from distlab.training.parameter_server.remote import HandedOut, Reading, Work

# Batches that a worker prepares ahead of time.
_AHEAD = 2
_IGNORE = 1  # the state of shuffles: each copy begins with the seed

# Batches that were taken of what each shuffle gives, by opening of the shuffle.
_TAKEN: WeakKeyDictionary[tf.data.Dataset, list[int]] = WeakKeyDictionary()


class WorkerFeed:
    """A data set as workers read it. Each `iter` opens another iterator."""

    def __init__(
        self,
        dataset: tf.data.Dataset,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        *,
        batches: int | None,
    ) -> None:
        self.element_spec, self.batches = dataset.element_spec, batches
        self._dataset = weakref.ref(dataset)  # feeds are kept for as long as it lives
        pipeline = pipelines.inspect(dataset)
        self._reshuffles, self._must_be_read = bool(pipeline.reshuffling), pipeline.must_be_read
        # Data sets that are made of one shuffle go through its orders together.
        own: list[int] = []
        self._taken = _TAKEN.setdefault(pipeline.reshuffling[0], own) if self._reshuffles else own
        self._coordinator = coordinator
        self._load = _loader(dataset)
        self._copies: Any = None  # of the data set, one on each worker
        self._opened = 0  # how often each copy was, those before it was made included
        self._replay: list[int] = []  # what a copy goes through when it is made

    @property
    def _original_dataset(self) -> tf.data.Dataset | None:
        """The data set itself; the name is that of TensorFlow's distributed data sets."""
        return self._dataset()

    def __iter__(self) -> Reading:
        """Opens another iterator; workers open theirs when it is needed."""
        self._taken.append(0)
        return _ReadByWorkers(self, opening=len(self._taken) - 1)

    def note(self, opening: int, batches: int) -> None:
        """Notes how far an iterator was read."""
        self._taken[opening] = batches

    def open_on_workers(self, opening: int, *, anew: bool) -> Any:
        """Returns an iterator for each worker, as an argument of scheduled functions."""
        unread = opening - self._opened if self._reshuffles else 0
        if anew or self._copies is None or self._must_be_read or unread < 0:
            self._opened, unread = opening, 0
            self._note_replay()
            spec = tf.data.DatasetSpec(self._numbered)
            self._copies = remote.make_on_workers(self._coordinator, self._copy, spec=spec)
        self._note_replay()
        self._opened = opening + 1
        spec = tf.data.IteratorSpec(self._numbered)
        return remote.make_on_workers(
            self._coordinator, _open, args=(self._copies, unread), spec=spec
        )

    @property
    def _numbered(self) -> tuple[tf.TensorSpec, Any]:
        return tf.TensorSpec([], tf.int64), self.element_spec

    def _note_replay(self) -> None:
        if self._must_be_read:
            self._replay = self._taken[: self._opened]
        elif self._reshuffles:
            self._replay = [0] * self._opened

    def _copy(self) -> tf.data.Dataset:
        """Makes a copy on the worker that this is called for, at any later time."""
        return self._load(tf.constant(self._replay, tf.int64))


class _ReadByWorkers(Reading):
    """One opening of a `WorkerFeed`."""

    def __init__(self, feed: WorkerFeed, *, opening: int) -> None:
        self._feed, self._opening = feed, opening
        self._next = 0

    def begin_anew(self) -> None:
        """As said above."""
        self.iterators = self._feed.open_on_workers(self._opening, anew=True)

    def take(self, batches: int, *, at_once: int) -> list[Work]:
        """As said above."""
        if self.iterators is None:
            self.iterators = self._feed.open_on_workers(self._opening, anew=False)
        first, end = self._next, self._next + batches
        if self._feed.batches is not None:
            end = min(end, self._feed.batches)
        self._go_to(end)
        starts = range(first, end, at_once)
        return [Work(reading=self, first=s, count=min(at_once, end - s)) for s in starts]

    def __next__(self) -> int:
        """Passes over a batch: the workers will."""
        if self._next == self._feed.batches:
            raise StopIteration
        self._go_to(self._next + 1)
        return self._next - 1

    def _go_to(self, batch: int) -> None:
        self._next = batch
        self._feed.note(self._opening, batch)


def _loader(dataset: tf.data.Dataset) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """Returns what makes a copy of a data set, numbered, where it is called."""
    spec = dataset.element_spec
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=_IGNORE,
        strip_device_assignment=True,
    )

    def load(replay: tf.Tensor) -> tf.data.Dataset:
        """Opens the copy as often as `replay` has entries, and reads so many batches of each."""
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
        copy = tf.data.experimental.from_variant(variant, spec)

        def read(index: tf.Tensor) -> tf.Tensor:
            iterator = iter(copy)

            def pass_over(batch: tf.Tensor) -> tf.Tensor:
                iterator.get_next_as_optional()
                return batch + 1

            tf.while_loop(
                lambda batch: batch < replay[index], pass_over, [tf.constant(0, tf.int64)]
            )
            return index + 1

        tf.while_loop(lambda index: index < tf.size(replay), read, [tf.constant(0)])
        return copy.enumerate().prefetch(_AHEAD)

    lengths = tf.TensorSpec([None], tf.int64)
    loader: Callable[[tf.Tensor], tf.data.Dataset] = tf.function(
        load, autograph=False, input_signature=[lengths]
    )
    return loader


def _open(copy: tf.data.Dataset, unread: int) -> Any:
    """Opens a worker's copy, after other iterators that nobody reads."""
    for _ in range(unread):
        iter(copy)
    return iter(copy)


class ChiefFeed:
    """A data set that the coordinator reads."""

    def __init__(self, dataset: tf.data.Dataset, *, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        self._original_dataset = dataset  # the name is that of TensorFlow's distributed data sets
        ready = pipelines.name_of(dataset) == "Prefetch"
        self._dataset = dataset if ready else dataset.prefetch(2)
        self.element_spec = dataset.element_spec

    def __iter__(self) -> Reading:
        """Opens another iterator."""
        return HandedOut(iter(self._dataset))


def feed_of(
    dataset: tf.data.Dataset, coordinator: tf.distribute.coordinator.ClusterCoordinator
) -> ChiefFeed | WorkerFeed:
    """Returns what feeds a data set to the workers.

    They read it themselves where each of them reads the same batches in the same order. Else the
    coordinator reads, and says why.
    """
    reasons = list(_reasons_to_hand_out(dataset))
    if not reasons:
        batches = int(dataset.cardinality())
        endless = batches == tf.data.INFINITE_CARDINALITY
        try:
            return WorkerFeed(dataset, coordinator, batches=None if endless else batches)
        except tf.errors.OpError as error:
            reasons = [f"it cannot be sent to another process ({error.message})"]
    return ChiefFeed(dataset, reasons=tuple(reasons))


def _reasons_to_hand_out(dataset: tf.data.Dataset) -> Iterator[str]:
    pipeline = pipelines.inspect(dataset)
    yield from pipeline.complaints
    batches = int(dataset.cardinality())
    if batches == tf.data.UNKNOWN_CARDINALITY:
        yield "it does not know its length (say it: tf.data.experimental.assert_cardinality)"
    elif batches != tf.data.INFINITE_CARDINALITY and pipeline.must_be_read:
        yield (
            "a shuffle below cache or repeat, whose order depends on how far each worker has read "
            "(shuffle after it, or with reshuffle_each_iteration=False)"
        )
