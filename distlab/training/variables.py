"""All variables of a training as NumPy arrays, and back, under any strategy.

entries, values = read(model)
check(model, entries)                  # raises where they are another model's
write(model, entries, values)

What replicas hold in common is stored once. What differs between them (the metrics of an epoch
that is not over, for one) is stored for each, so that the same strategy gets the same bits back,
and another one the same total. Where replicas are spread over several workers, all of them call
`read` and `write` together, and read the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import ModelError
from distlab.training.keras_private import models
from distlab.training.keras_private.models import global_seed, inner
from distlab.training.workers.workers import Workers, workers_of

# What is stored of one variable, beside its values: all that a reader of JSON needs.
Entry = dict[str, Any]

# The attribute of a model that holds what `on_settle` was given.
_SETTLE = "_distlab_settle"

_GROUPS = ("model", "optimizer", "metrics")


def on_settle(model: keras.Model, wait: Callable[[], None]) -> None:
    """Keeps what waits for steps that are still in flight when `fit` has moved on."""
    vars(model)[_SETTLE] = wait


def read(model: keras.Model) -> tuple[list[Entry], dict[str, np.ndarray]]:
    """Returns what describes each variable, and the values by key."""
    vars(model).get(_SETTLE, lambda: None)()
    workers = workers_of(model.distribute_strategy)
    variables = [
        (f"{group}/{index:03d}/{variable.path}", group, variable)
        for group in _GROUPS
        for index, variable in enumerate(_variables(model, group))
    ]
    copies = {key: [c.numpy() for c in _copies(model, variable)] for key, _, variable in variables}
    entries, values = [], {}
    for key, group, variable in variables:
        first, *others = copies[key]
        # Workers' replicas are alike in all but sums, as `distribute` keeps them.
        differs = workers.count == 1 and any(c.tobytes() != first.tobytes() for c in others)
        each = differs or is_summed(variable)
        values[key] = _of_all(np.stack(copies[key]), workers) if each else first
        entries.append({**_describe(group, variable), "key": key, "of_each_replica": each})
    return entries, values


def check(model: keras.Model, entries: list[Entry], *, optimizer: str, metrics: bool) -> None:
    """Raises where the entries are those of another model, optimizer or (if asked) metrics."""
    ours = name_optimizer(model)
    if ours != optimizer:
        raise ModelError(
            asked="resume from a checkpoint",
            found=f"a checkpoint of the optimizer {optimizer}, and a model with {ours}",
            do="compile the model as before, or name another folder for Resume",
        )
    for group in _GROUPS if metrics else _GROUPS[:2]:
        stored = [entry for entry in entries if entry["group"] == group]
        existing = [_describe(group, variable) for variable in _variables(model, group)]
        for saved, own in itertools.zip_longest(stored, existing):
            if saved is None or own is None or _identity(saved) != _identity(own):
                raise ModelError(
                    asked="resume from a checkpoint",
                    found=f"another {group}: the checkpoint has {_name(saved)} where this one "
                    f"has {_name(own)}",
                    do="build and compile the model as before, or name another folder for Resume",
                    pitfall="A restored model with random weights",
                )


def write(
    model: keras.Model, entries: list[Entry], values: dict[str, np.ndarray], *, metrics: bool
) -> None:
    """Gives the variables the values."""
    workers = workers_of(model.distribute_strategy)
    for group in _GROUPS if metrics else _GROUPS[:2]:
        stored = [entry for entry in entries if entry["group"] == group]
        for entry, variable in zip(stored, _variables(model, group), strict=True):
            copies = _copies(model, variable)
            replicas = len(copies) * workers.count
            value = values[entry["key"]]
            if not entry["of_each_replica"]:
                shares: Sequence[Any] = [value] * replicas
            elif len(value) == replicas:
                shares = list(value)
            else:
                shares = _shared_anew(value, replicas, variable)
            first = len(copies) * workers.index
            for copy, share in zip(copies, shares[first : first + len(copies)], strict=True):
                copy.assign(share)


def name_optimizer(model: keras.Model) -> str:
    """Returns "Adam", "LossScaleOptimizer around Adam", or "Adam and RMSprop"."""

    def name_of(optimizer: keras.optimizers.Optimizer) -> str:
        own, name = inner(optimizer), type(optimizer).__name__
        return name if own is optimizer else f"{name} around {type(own).__name__}"

    return " and ".join(map(name_of, models.optimizers_of(model)))


def options_of(model: keras.Model) -> dict[str, str]:
    """Returns what the model's optimizers were made with, as text, by "Adam.learning_rate"."""
    return {
        f"{type(each).__name__}.{name}": str(value)
        for each in models.optimizers_of(model)
        for name, value in keras.saving.serialize_keras_object(each)["config"].items()
        if name != "name"
    }


def _variables(model: keras.Model, group: str) -> list[keras.Variable]:
    if group == "optimizer":
        return [variable for each in models.optimizers_of(model) for variable in each.variables]
    if group == "metrics":
        return list(model.metrics_variables)
    # What keras.random draws by where it is given no seed is as much a part of a training.
    return [*model.variables, global_seed(model.distribute_strategy).state]


def _copies(model: keras.Model, variable: keras.Variable) -> tuple[Any, ...]:
    copies: tuple[Any, ...] = model.distribute_strategy.experimental_local_results(variable.value)
    return copies


def _of_all(values: np.ndarray, workers: Workers) -> np.ndarray:
    """The copies of all workers, where one has `values`."""
    parts = workers.gather(values.tobytes())
    return np.concatenate([np.frombuffer(p, values.dtype).reshape(values.shape) for p in parts])


def is_summed(variable: keras.Variable) -> bool:
    """Whether each replica counts for itself, and the value is the sum of all, as of a metric."""
    value = variable.value
    on_read = getattr(value, "synchronization", None) == tf.VariableSynchronization.ON_READ
    return bool(on_read and value.aggregation == tf.VariableAggregation.SUM)


def _shared_anew(value: np.ndarray, replicas: int, variable: keras.Variable) -> list[np.ndarray]:
    """For another number of replicas: the same total, or what Keras itself saves, the first."""
    if not is_summed(variable):
        return [value[0]] * replicas
    total = value.sum(axis=0, dtype=value.dtype)
    return [total] + [np.zeros_like(total)] * (replicas - 1)


def _describe(group: str, variable: keras.Variable) -> Entry:
    return {
        "group": group,
        "path": variable.path,
        "shape": list(variable.shape),
        "dtype": str(variable.dtype),
    }


def _identity(entry: Entry) -> tuple[Any, ...]:
    """Keras counts layers of a kind over the whole process: `dense_3` may have been `dense`."""
    path = re.sub(r"_\d+(?=[_/]|$)", "", entry["path"])
    return path, tuple(entry["shape"]), entry["dtype"]


def _name(entry: Entry | None) -> str:
    if entry is None:
        return "no variable"
    return f"{entry['path']} {tuple(entry['shape'])} {entry['dtype']}"
