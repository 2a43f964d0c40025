"""What two builds of a model must have in common, and names for its weights.

start = Start.of(model)
check_same(start, Start.of(other))      # raises where build() made something else
names = plain_names(start.paths, other_start.paths)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import ModelError

ASKED = "check_parity(build, data, strategy=strategy)"


@dataclass(frozen=True, kw_only=True)
class Start:
    """A model's weights before the first step, in the model's order.

    Attributes:
        weights: Keras's variables.
        values: What they held.
        seeds: Keras's variables that its layers draw by.
        drawn: What those held.
        optimizer: The model's optimizer.
    """

    weights: tuple[Any, ...]
    values: tuple[np.ndarray, ...]
    seeds: tuple[Any, ...]
    drawn: tuple[np.ndarray, ...]
    optimizer: Any

    @classmethod
    def of(cls, model: keras.Model) -> Start:
        """Returns the weights of a built model."""
        weights = tuple(model.weights)
        values = tuple(copies(weight)[0] for weight in weights)
        known = {id(weight) for weight in weights}
        seeds = tuple(v for v in model.variables if id(v) not in known and "seed" in v.path)
        drawn = tuple(copies(seed)[0] for seed in seeds)
        return cls(
            weights=weights, values=values, seeds=seeds, drawn=drawn, optimizer=model.optimizer
        )

    @property
    def paths(self) -> list[str]:
        """Keras's name of each weight, without the model's."""
        paths = [weight.path for weight in self.weights]
        prefixes = {path.partition("/")[0] for path in paths}
        if len(prefixes) == 1 and all("/" in path.partition("/")[2] for path in paths):
            return [path.partition("/")[2] for path in paths]
        return paths


def copies(weight: Any) -> tuple[np.ndarray, ...]:
    """Returns a weight's value on every replica (once, where all replicas share it)."""
    strategy = getattr(weight.value, "distribute_strategy", None)
    if strategy is None:
        return (weight.numpy(),)
    return tuple(copy.numpy() for copy in strategy.experimental_local_results(weight.value))


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns the model and every layer inside it, however deep, each once."""
    found: dict[int, keras.layers.Layer] = {}

    def visit(thing: Any) -> Iterator[Any]:
        if isinstance(thing, keras.layers.Layer):
            if id(thing) not in found:
                found[id(thing)] = thing
                yield from list(vars(thing).values())
        elif isinstance(thing, dict):
            yield from list(thing.values())
        elif isinstance(thing, list | tuple):
            yield from thing

    waiting: list[Any] = [model]
    while waiting:
        waiting[:0] = list(visit(waiting.pop(0)))
    return list(found.values())


def build_symbolically(model: keras.Model, spec: Any) -> None:
    """Gives a model that waits for its first batch its weights."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)

    def symbolic(part: Any) -> keras.KerasTensor:
        return keras.KerasTensor((None, *part.shape[1:]), dtype=part.dtype.name)

    model(tf.nest.map_structure(symbolic, x))


def check_same(one: Start, other: Start) -> None:
    """Raises where two calls of build() did not make two models of the same structure."""
    shared = {id(weight) for weight in one.weights} & {id(weight) for weight in other.weights}
    if shared or one.optimizer is other.optimizer:
        raise ModelError(
            asked=ASKED,
            found=f"build() gave the same {'weights' if shared else 'optimizer'} on two calls",
            do="let build() make a new model each time, layers and optimizer included",
        )
    names = plain_names(one.paths, other.paths)
    for name, a, b in zip(names, one.weights, other.weights, strict=False):
        if (tuple(a.shape), a.dtype, a.trainable) != (tuple(b.shape), b.dtype, b.trainable):
            raise _differ(f"{name} is {_describe(a)} on one call and {_describe(b)} on the next")
    if len(one.weights) != len(other.weights):
        raise _differ(f"{len(one.weights)} weights on one call, {len(other.weights)} on the next")


def _describe(weight: Any) -> str:
    kind = "" if weight.trainable else ", not trainable"
    return f"{tuple(weight.shape)} {weight.dtype}{kind}"


def _differ(found: str) -> ModelError:
    return ModelError(
        asked=ASKED,
        found=f"build() makes models of different structure: {found}",
        do="let build() make the same layers each time: no sizes that are drawn, counted or read "
        "from something that changes",
    )


def plain_names(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Returns names that do not depend on how many models were made before.

    Keras numbers layers without a name of their own through the whole process. Where two
    builds differ in a part of a name, that number is Keras's, and it is counted anew.
    """
    counts: Counter[str] = Counter()
    given: dict[str, str] = {}

    def plain(prefix: str, a: str, b: str) -> str:
        base = re.sub(r"_\d+$", "", a)
        if a == b or base != re.sub(r"_\d+$", "", b):
            return a
        if prefix + a not in given:
            given[prefix + a] = f"{base}_{counts[base]}" if counts[base] else base
            counts[base] += 1
        return given[prefix + a]

    names = []
    for index, path in enumerate(one):
        parts = path.split("/")
        others = (other[index] if index < len(other) else path).split("/")
        if len(others) != len(parts):
            others = parts
        names.append(
            "/".join(
                plain("/".join(parts[:depth]), a, b)
                for depth, (a, b) in enumerate(zip(parts, others, strict=True))
            )
        )
    return names
