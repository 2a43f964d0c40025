"""Notes the collectives of replica 0 in their order, and the bytes that rings would send for them.

    notes = Notes()

    def on_replica(piece, x):                       # strategy.run(on_replica, ...)
        context = notes.context()                   # in place of get_replica_context()
        layer = notes.layer(lambda kernel, x: x @ kernel)
        return layer(context.all_gather(piece, axis=0), x)

    notes.letters, notes.sent_bytes()               # "g l", 3/4 of the kernel's bytes of 4 replicas

A compiled step is noted as it's traced, so its notes don't grow when it runs again. If a gradient
goes back through an all-gather, that's a reduce-scatter, and it's noted as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from distlab.errors import InvalidArgument

Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "layer"]
_LETTERS: dict[Kind, str] = {"all-gather": "g", "reduce-scatter": "s", "all-reduce": "r"}
_LETTERS["layer"] = "l"
# How often a ring of N ranks passes (N - 1) / N of the tensor on from each rank.
_ROUNDS: dict[Kind, int] = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2, "layer": 0}


@dataclass(frozen=True)
class Note:
    """One collective, or one call of a layer.

    Attributes:
        kind: Which one it was.
        bytes: Of the whole tensor that was gathered or summed; 0 for a layer.
    """

    kind: Kind
    bytes: int = 0

    @property
    def letter(self) -> str:
        """The kind in one letter."""
        return _LETTERS[self.kind]


@dataclass
class Notes:
    """The collectives and the layers of replica 0, in their order."""

    notes: list[Note] = field(default_factory=list)
    replicas: int = 1

    @property
    def letters(self) -> str:
        """One letter a note: g all-gather, s reduce-scatter, r all-reduce, l layer."""
        return " ".join(note.letter for note in self.notes)

    def sent_bytes(self) -> int:
        """Returns the bytes that each replica sends for these collectives, over rings."""
        return sum(
            _ROUNDS[note.kind] * note.bytes * (self.replicas - 1) // self.replicas
            for note in self.notes
        )

    def context(self) -> NotedContext:
        """Returns the replica's context, whose collectives are noted. Call it on a replica."""
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        self.replicas = context.num_replicas_in_sync
        return NotedContext(context, self._append)

    def layer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function, each call of which is noted as a layer."""

        def noted(*args: Any) -> Any:
            self._append(Note("layer"))
            return function(*args)

        return noted

    def _append(self, note: Note) -> None:
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        if int(tf.get_static_value(context.replica_id_in_sync_group)) == 0:
            self.notes.append(note)


class NotedContext:
    """A replica's context that notes its collectives, and has a reduce-scatter as well."""

    def __init__(self, context: Any, append: Callable[[Note], None]) -> None:
        self._context = context
        self._append = append

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        """Returns the pieces of all replicas, one behind the other along an axis."""
        import tensorflow as tf

        value = tf.convert_to_tensor(value)
        count = self._context.num_replicas_in_sync
        note = Note("reduce-scatter", count * _bytes_of(value))

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def with_noted_gradient(piece: Any) -> Any:
            def gradient(upstream: Any) -> Any:
                self._append(note)
                return upstream

            return tf.identity(piece), gradient

        self._append(Note("all-gather", note.bytes))
        whole = self._context.all_gather(with_noted_gradient(value), axis=axis)
        shape = value.shape.as_list()
        shape[axis] *= count  # TensorFlow doesn't say how long the axis becomes
        return tf.ensure_shape(whole, shape)

    def all_reduce(self, op: Any, value: Any) -> Any:
        """Returns the sum or mean over all replicas, the same on each."""
        import tensorflow as tf

        for each in tf.nest.flatten(value):
            self._append(Note("all-reduce", _bytes_of(tf.convert_to_tensor(each))))
        return self._context.all_reduce(op, value)

    def reduce_scatter(self, value: Any) -> Any:
        """Returns this replica's rows of the sum over all replicas.

        `tf.distribute` has no reduce-scatter, so this one sums all rows and cuts out its own.

        Raises:
            InvalidArgument: If the rows can't be divided among the replicas.
        """
        import tensorflow as tf

        value = tf.convert_to_tensor(value)
        self._append(Note("reduce-scatter", _bytes_of(value)))
        return self.own_rows(self._context.all_reduce("SUM", value))

    def own_rows(self, value: Any) -> Any:
        """Returns this replica's rows of a tensor that is whole on each replica."""
        index = self._context.replica_id_in_sync_group
        return own_rows(value, self._context.num_replicas_in_sync, index)


def own_rows(value: Any, replicas: int, index: Any) -> Any:
    """Returns the rows of one replica: the first rows belong to replica 0.

    Args:
        value: A tensor or an array, to be cut along its first axis.
        replicas: How many there are.
        index: The replica's number; it may be a tensor.

    Raises:
        InvalidArgument: If the rows can't be divided among the replicas.
    """
    import tensorflow as tf

    value = tf.convert_to_tensor(value)
    rows = value.shape[0]
    if rows % replicas:
        raise InvalidArgument(
            asked=f"the own rows of a tensor {value.shape.as_list()} on {replicas} replicas",
            found=f"{rows} rows, and {rows} / {replicas} leaves {rows % replicas}",
            do=f"pad it with {-rows % replicas} rows of zeros, and cut these off after a gather",
        )
    return tf.reshape(value, [replicas, rows // replicas, *value.shape[1:]])[index]


def _bytes_of(value: Any) -> int:
    return int(value.shape.num_elements() * value.dtype.size)
