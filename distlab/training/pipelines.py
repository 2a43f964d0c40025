"""A `tf.data` pipeline: whether it gives the same batches in another process, who reads what of it.

pipeline = inspect(dataset)
pipeline.complaints          # stages that do not, each with what to do
pipeline.unordered           # those of them after which other examples come together
pipeline.must_be_read        # what comes later depends on what was read before
pipeline.order_seeds         # those that its order follows from

By itself TensorFlow lets each worker read files of its own: then the first global batch of two
workers has the first examples of two files, not the first of the data set, and one device has
another. So each worker reads all examples and keeps its part, and all must read in one order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import tensorflow as tf

from distlab.errors import DatasetError
from distlab.strategy.description import describe
from distlab.training.keras_private import data_stages
from distlab.training.workers.workers import Workers

_POLICIES = tf.data.experimental.AutoShardPolicy

# Stages that open their input more than once, late, or never again: how often a shuffle below
# one was opened depends on how far the pipeline was read.
_REOPENING = {
    *("Cache", "Concatenate", "DirectedInterleave", "LegacySnapshot", "Repeat"),
    *("ShuffleAndRepeat", "Snapshot"),
}
_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}

# Why a stage may give other batches in another process, and what to do; whether it then surely
# gives other examples, or the same in another order.
Complaint = tuple[str, bool]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The properties of a pipeline on which repeating its batches depends.

    Attributes:
        complaints: Its stages that may give other batches in another process.
        unordered: Those of them that surely give other examples, or in another order.
        must_be_read: Whether an epoch must be read, and not only opened, for the next one to
            come in its order.
        reshuffling: Its shuffles that give another order in each epoch, by name.
        order_seeds: Of its shuffles, also of those inside functions, as Keras shuffles arrays.
    """

    complaints: tuple[str, ...]
    unordered: tuple[str, ...]
    must_be_read: bool
    reshuffling: tuple[tf.data.Dataset, ...]
    order_seeds: tuple[tuple[int, int], ...] = ()


def inspect(dataset: Any) -> Pipeline:
    """Looks at each stage of a pipeline."""
    if not isinstance(dataset, tf.data.Dataset):
        complaint = f"{type(dataset).__name__} cannot be looked into"
        return Pipeline(complaints=(complaint,), unordered=(), must_be_read=False, reshuffling=())
    complaints: list[Complaint] = []
    if dataset.options().deterministic is False:
        complaints.append(
            ("the option deterministic=False gives up the order (leave it out)", True)
        )
    seeds: list[tuple[int, int]] = []
    reshuffling, must_be_read = [], False
    for stage, reopened in _walk(dataset, reopened=False):
        seeds += _order_seeds(stage)
        complaints += _complaints(stage)
        if _reshuffles(stage):
            reshuffling.append(stage)
            must_be_read |= reopened or name_of(stage) in _REOPENING
    return Pipeline(
        complaints=tuple(dict.fromkeys(text for text, _ in complaints)),
        unordered=tuple(dict.fromkeys(text for text, of_order in complaints if of_order)),
        must_be_read=must_be_read,
        reshuffling=tuple(reshuffling),
        order_seeds=tuple(seeds),
    )


def _walk(stage: Any, *, reopened: bool) -> Iterator[tuple[Any, bool]]:
    yield stage, reopened
    for below in data_stages.stages_below(stage):
        yield from _walk(below, reopened=reopened or name_of(stage) in _REOPENING)


def name_of(stage: tf.data.Dataset) -> str:
    """Returns what a data set's last stage does, as "Batch" or "ParallelMap"."""
    return type(stage).__name__.strip("_").removesuffix("V2").removesuffix("Dataset")


def _complaints(stage: Any) -> Iterator[Complaint]:
    name = name_of(stage)
    seeds = data_stages.seeds_of(stage)
    if seeds is not None and not _seeded(*seeds):
        yield f"{name} has no seed (give one: seed=...)", True
    if data_stages.draws_each_epoch(stage):
        yield f"{name} draws anew in each epoch (leave out rerandomize_each_iteration)", True
    if data_stages.is_unordered(stage) or _interleaves_in_any_order(stage):
        yield f"{name} has deterministic=False (leave it out)", True
    for function in data_stages.functions_of(stage):
        yield from _complaints_of_function(name, function)


def _order_seeds(stage: Any) -> Iterator[tuple[int, int]]:
    if seeds := data_stages.seeds_of(stage):
        first, second = (int(tf.get_static_value(seed) or 0) for seed in seeds)
        yield first, second
    for function in data_stages.functions_of(stage):
        for node in _nodes_of(function):
            if node.op == "RandomShuffle":
                yield node.attr["seed"].i, node.attr["seed2"].i


def _nodes_of(function: Any) -> list[Any]:
    graph = function.graph.as_graph_def()
    return [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]


def _complaints_of_function(stage: str, function: Any) -> Iterator[Complaint]:
    nodes = _nodes_of(function)
    if _PYTHON & {node.op for node in nodes}:
        yield (
            f"{stage} calls Python (a generator, py_function or numpy_function), and whether that "
            "gives the same again is not known",
            False,
        )
    for node in nodes:
        if "seed" not in node.attr or "seed2" not in node.attr:
            continue
        if not (node.attr["seed"].i or node.attr["seed2"].i):
            # Keras shuffles arrays by a RandomShuffle.
            text = f"{stage} draws random numbers without a seed ({node.op}: set_seed first)"
            yield text, node.op == "RandomShuffle"
        elif stage.startswith("Parallel"):
            yield (
                f"{stage} draws random numbers in parallel, so in any order ({node.op}: leave "
                "out num_parallel_calls, or take tf.random.stateless_*)",
                False,
            )
    shuffles = any(node.op.startswith(("Shuffle", "RandomDataset")) for node in nodes)
    if shuffles or any(tensor.dtype == tf.variant for tensor in function.captured_inputs):
        yield (
            f"{stage} shuffles or reads another data set inside its function, which cannot be "
            "looked into",
            False,
        )


def _reshuffles(stage: Any) -> bool:
    return data_stages.reshuffles(stage, otherwise=name_of(stage) == "ShuffleAndRepeat")


def _interleaves_in_any_order(stage: Any) -> bool:
    """An interleave keeps its `deterministic` nowhere but in the operation."""
    if name_of(stage) != "ParallelInterleave":
        return False
    nodes = data_stages.graph_of(stage).node
    orders = [n.attr["deterministic"].s for n in nodes if "ParallelInterleave" in n.op]
    return b"false" in orders


def _seeded(seed: Any, seed2: Any) -> bool:
    return any(int(tf.get_static_value(value) or 0) for value in (seed, seed2))


def without_none(data: Any) -> Any:
    """Returns data whose batches do not end in None."""
    if isinstance(data, GeneratorType):
        return (batch[: _kept(batch)] if isinstance(batch, tuple) else batch for batch in data)
    if not isinstance(data, tf.data.Dataset) or not isinstance(data.element_spec, tuple):
        return data
    kept = _kept(data.element_spec)
    if kept == len(data.element_spec):
        return data
    return data.map(lambda *batch: batch[:kept])


def _kept(batch: tuple[Any, ...]) -> int:
    """The length of a batch without the parts at its end that are None."""
    # The class of None's spec has no public name.
    missing = [type(part).__name__ in ("NoneType", "NoneTensorSpec") for part in batch]
    kept = max((place for place, each in enumerate(missing, start=1) if not each), default=1)
    if any(missing[:kept]):
        parts = ", ".join("None" if each else "a tensor" for each in missing)
        raise DatasetError(
            asked="distribute the batches of a data set",
            found=f"batches ({parts}): TensorFlow cannot distribute None before another part",
            do="put an array of zeros in its place",
        )
    return kept


def choose_sharding(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the data set, with the auto-shard policy DATA unless its options name one.

    With DATA every worker reads all examples and keeps its part: any number of files will do,
    global batches are those of one device, and reading costs as much as on one. FILE lets each
    worker read its own files only; it needs at least as many files as workers, and changes
    which examples form a global batch. Data that claim a length (`assert_cardinality`) then give
    that many batches, though the worker with the most files may need more. Ask for it by
    `dataset.with_options`.
    """
    if _policy_of(dataset) != _POLICIES.AUTO:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _POLICIES.DATA
    return dataset.with_options(options)


def is_shared_by_example(dataset: tf.data.Dataset) -> bool:
    """Whether each worker is to read all examples and keep its part of each batch."""
    return _policy_of(dataset) in (_POLICIES.AUTO, _POLICIES.DATA)


def check_order(dataset: tf.data.Dataset, workers: Workers) -> None:
    """Raises if each worker would read the examples in a different order."""
    if workers.count == 1 or _policy_of(dataset) == _POLICIES.OFF:
        return
    unordered = inspect(dataset).unordered
    if unordered:
        raise DatasetError(
            asked=f"read one data set on {workers.count} workers",
            found=f"{'; '.join(unordered)}: each worker would have an order of its own, and of "
            "all examples some would be read twice and others never",
            do="set seed= of shuffle, or call distlab.set_seed with one number on every worker; "
            "for arrays, set_seed too, or fit(..., shuffle=False)",
            pitfall="A shuffle that differs on each worker: examples read twice",
        )


def order_seeds(dataset: tf.data.Dataset | None) -> tuple[tuple[int, int], ...]:
    """Returns the seeds that must be the same on all workers: they give the examples' order."""
    if dataset is None or not is_shared_by_example(dataset):
        return ()
    return inspect(dataset).order_seeds


def _policy_of(dataset: tf.data.Dataset) -> tf.data.experimental.AutoShardPolicy:
    return dataset.options().experimental_distribute.auto_shard_policy


def splits(strategy: tf.distribute.Strategy) -> bool:
    """Whether batches are to be split in the step: one process, replicas on CPUs only."""
    kind = describe(strategy).kind
    if kind == "default":
        return True  # nothing to split, and no devices to ask for
    if kind in ("parameter_server", "tpu"):
        return False
    devices = strategy.extended.worker_devices
    return all(tf.DeviceSpec.from_string(device).device_type == "CPU" for device in devices)


def can_be_split(element_spec: Any) -> bool:
    """Whether every part of a batch has examples along its first dimension, to slice there."""
    parts = tf.nest.flatten(element_spec)
    dense = all(isinstance(part, tf.TensorSpec | tf.RaggedTensorSpec) for part in parts)
    if not dense or not all(part.shape.rank for part in parts):
        return False
    return len({part.shape[0] for part in parts} - {None}) <= 1
