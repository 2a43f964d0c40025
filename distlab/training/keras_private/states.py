"""What layers remember from step to step: random seeds, moving statistics, losses of a call.

Keras keeps one copy of each on every replica and lets the copies go their own ways (moving
statistics), or the same way where they should differ (seeds). Under CentralStorageStrategy,
which keeps one copy of all, it stops. Here a replica draws its own numbers, and what a layer
writes is averaged over the replicas, each by its share of the batch.

    prepare(model)                                     # once
    with step_of(model, step=step) as written:         # in the replica's function
        ...                                            # the forward pass
    written = agree(model, written, share)             # in the replica's function, after it
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state

from distlab.strategy.describing import describe
from distlab.training.keras_private import hooks, models, seeds
from distlab.training.keras_private.versions import GLOBAL_SEED_GENERATOR, add_up_activities
from distlab.training.reducing import sum_over_replicas

_NOW = threading.local()  # a replica is traced in a thread of its own

# What an error says that comes from keras.random without a seed.
UNSEEDED = "distlab: keras.random without a seed"

# And one from a layer that CentralStorageStrategy cannot have.
WRITTEN_TWICE = "distlab: a variable is written twice in a step"

# By name in `_VARIABLES`: what a layer wrote on this replica.
Written = dict[str, tf.Tensor]

# Every variable that `prepare` has seen. Models may share layers, so a name is no position in one
# model's list; and paths are not unique.
_VARIABLES: WeakValueDictionary[str, keras.Variable] = WeakValueDictionary()

# By path: what a variable was, what it became, and whether replicas agree on what they write.
Changes = dict[str, tuple[np.ndarray, np.ndarray, bool]]


def prepare(model: keras.Model) -> None:
    """Lets the model's layers keep apart what each replica writes, within `step_of`.

    Args:
        model: A built model.
    """
    for layer in models.layers(model):
        if not isinstance(layer._losses, _LossesOfReplica):
            layer.__dict__["_losses"] = _LossesOfReplica()
        add_up_activities(layer)
        for generator in layer._seed_generators:
            seeds.keep_base(generator)
            generator.next = _Drawing(generator)
    for variable in _written_by_layers(model):
        name = str(id(variable))
        _VARIABLES[name] = variable
        variable._direct_assign = _Writing(variable, name)


@contextlib.contextmanager
def step_of(model: keras.Model, *, step: tf.Tensor) -> Iterator[Written]:
    """Inside the block layers draw and write as this replica in this step.

    Call it in a replica's function.

    Args:
        model: A prepared model.
        step: Number of the step, an integer scalar. The same step draws the same numbers.

    Yields:
        What the layers wrote; filled as they do.
    """
    generators = [one for layer in models.layers(model) for one in layer._seed_generators]
    _NOW.key = _key_of(step) if generators else None
    written: Written = {}
    _NOW.written = written
    kind = describe(model.distribute_strategy).kind
    _NOW.central = kind == "central_storage"
    _NOW.shared = kind in ("central_storage", "parameter_server")
    shared = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    try:
        if model.distribute_strategy.num_replicas_in_sync > 1:
            global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, _Refusing())
        if not _NOW.shared:
            for generator in generators:
                generator.state.assign(_seed_now(generator))
        yield written
    finally:
        del _NOW.key, _NOW.written, _NOW.central, _NOW.shared
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, shared)


@contextlib.contextmanager
def put_back(raw: list[tf.Variable]) -> Iterator[Changes]:
    """Inside the block layers draw as without a strategy; what a step writes ends with it.

    Args:
        raw: TensorFlow variables that may be written, too.

    Yields:
        What was written; filled at the block's end.
    """
    _NOW.written, _NOW.central, _NOW.before = {}, True, {}
    kept = [one.numpy() for one in raw]
    changes: Changes = {}
    try:
        yield changes
    finally:
        for variable, old in _NOW.before.values():
            changes[variable.path] = old, variable.numpy(), True
            variable._value.assign(old)
        for index, (one, old) in enumerate(zip(raw, kept, strict=True)):
            new = one.numpy()
            if new.dtype != object and (new != old).any():
                changes[f"{one.name} ({index})"] = old, new, False
            one.assign(old)
        del _NOW.written, _NOW.central, _NOW.before


def written_here(variable: Any) -> tf.Tensor | None:
    """Returns what this replica wrote where all share one copy, None if it wrote nothing.

    Args:
        variable: A Keras variable.
    """
    writing = vars(variable).get("_direct_assign")
    if not getattr(_NOW, "shared", False) or not isinstance(writing, _Writing):
        return None
    written: tf.Tensor | None = _NOW.written.get(writing.name)
    return None if written is None else variable._maybe_autocast(written)


def agree(model: keras.Model, written: Written, share: tf.Tensor) -> Written:
    """Returns what the layers wrote, averaged over the replicas, and gives every copy that.

    Call it in a replica's function. Where all replicas share one copy (CentralStorageStrategy)
    nothing is assigned: hand what comes back to `assign`, outside of `strategy.run`.

    Args:
        model: A prepared model.
        written: What the layers of this replica wrote.
        share: This replica's part of the global batch, from 0 to 1. One without examples has
            seen no statistics.
    """
    context = tf.distribute.get_replica_context()
    if describe(model.distribute_strategy).kind != "central_storage":
        written = {name: _in_this_graph(name, value) for name, value in written.items()}
    names = [name for name, value in written.items() if value.dtype.is_floating]
    parts = [
        tf.where(share > 0, written[name] * tf.cast(share, written[name].dtype), 0)
        for name in names
    ]
    if parts and context.num_replicas_in_sync > 1:
        parts = sum_over_replicas(parts)
        written = written | dict(zip(names, parts, strict=True))
        if describe(model.distribute_strategy).kind != "central_storage":
            assign({name: written[name] for name in names})
    return written


def _in_this_graph(name: str, value: tf.Tensor) -> tf.Tensor:
    """What was written; outside of a condition or a loop only the variable has its value."""
    graph = getattr(value, "graph", None)  # None if the value is no result of a graph
    if graph is None or graph is tf.compat.v1.get_default_graph():
        return value
    return tf.convert_to_tensor(_VARIABLES[name].value)


def assign(written: Written) -> None:
    """Gives the variables what `agree` returned.

    Args:
        written: What the layers wrote.
    """
    for name, value in written.items():
        _VARIABLES[name].value.assign(value)


def _written_by_layers(model: keras.Model) -> list[Any]:
    """Variables that a layer may write in its call, but for seeds.

    A synchronised layer writes alike on all replicas, but not where there is a mask.
    """
    seed_states = {id(g.state) for layer in models.layers(model) for g in layer._seed_generators}
    found: dict[int, Any] = {}
    for layer in models.layers(model):
        found |= {id(v): v for v in layer._non_trainable_variables if id(v) not in seed_states}
    return list(found.values())


def _key_of(step: tf.Tensor) -> tf.Tensor:
    """Two numbers for this step on this replica.

    Keras uses 31 bits of the first, so two steps can draw the same mask by chance: rarely.
    """
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    key = tf.zeros(2, tf.int64)
    # The 0 comes last because the second word is what was folded in last, and what Keras counts
    # draws in: the second draw of one replica would be the first of the next.
    for number in (step, replica, 0):
        key = tf.random.experimental.stateless_fold_in(key, tf.cast(number, tf.int64))
    return key


def _seed_now(generator: keras.random.SeedGenerator) -> tf.Tensor:
    base = tf.constant([seeds.base_of(generator), 0], tf.int64)
    return tf.cast(tf.bitwise.bitwise_xor(base, _NOW.key), generator.state.dtype)


class _Drawing:
    """`next` of a seed generator; where all share one state, without touching it."""

    def __init__(self, generator: keras.random.SeedGenerator) -> None:
        self.generator = generator
        self.next = type(generator).next

    def __call__(self, ordered: bool = True) -> tf.Tensor:
        if not getattr(_NOW, "shared", False):
            return self.next(self.generator, ordered)
        drawn = _NOW.key
        _NOW.key = tf.random.experimental.stateless_fold_in(_NOW.key, tf.constant(0, tf.int64))
        return tf.bitwise.bitwise_xor(
            drawn, tf.constant([seeds.base_of(self.generator), 0], tf.int64)
        )


class _Refusing:
    """In place of the generator that all layers without a seed share."""

    def next(self, ordered: bool = True) -> tf.Tensor:
        raise ValueError(UNSEEDED)


class _Writing:
    """Assignment to a variable of a layer, which a step keeps in mind."""

    def __init__(self, variable: Any, name: str) -> None:
        self.variable = variable
        self.name = name

    def __call__(self, value: tf.Tensor) -> None:
        before = getattr(_NOW, "before", None)
        if before is not None:
            before.setdefault(self.name, (self.variable, self.variable.numpy()))
            with hooks.using(hooks.Hooks()):
                self.variable._value.assign(value)
            return
        written = getattr(_NOW, "written", None)
        if written is not None:
            if _NOW.central and self.name in written and getattr(_NOW, "shared", False):
                raise ValueError(f"{WRITTEN_TWICE}: {self.variable.path}")
            written[self.name] = value
        if written is None or not _NOW.central:
            type(self.variable)._direct_assign(self.variable, value)


class _LossesOfReplica(threading.local):
    """The list in which a layer keeps what was given to `add_loss`, one for each thread."""

    def __init__(self) -> None:
        self.losses: list[tf.Tensor] = []

    def __getitem__(self, index: Any) -> Any:
        return self.losses[index]

    def __len__(self) -> int:
        return len(self.losses)

    def append(self, loss: tf.Tensor) -> None:
        self.losses.append(loss)

    def extend(self, losses: list[tf.Tensor]) -> None:
        self.losses.extend(losses)

    def clear(self) -> None:
        self.losses.clear()
