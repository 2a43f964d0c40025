"""One device against replicas: the same model, data, order and random numbers."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

import distlab as dl
from distlab.training.parity import synchronise_batch_norms
from distlab.training.parity_runs import switch_off
from tests.support import parity
from tests.zoo.family import FAMILIES, Family


def families() -> dict[str, Family]:
    """Returns all families, by name."""
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        if path.stem not in ("__init__", "harness") and not path.stem.startswith("test_"):
            importlib.import_module(f"tests.zoo.{path.stem}")
    return FAMILIES


def differences(
    family: Family,
    replicas: int,
    *,
    train: str = "distribute",
    batch: int | None = None,
    epochs: int = 2,
) -> dict[str, float]:
    """Returns how far each weight and each log is from one device's.

    Args:
        family: The model and its data.
        replicas: How many replicas share a batch.
        train: "distribute", or "keras" for Keras's own `fit` under the strategy: there, in its
            favour, layers do not draw, and BatchNormalization is synchronised, on both sides.
        batch: Another size of the global batch than the family's.
        epochs: How many both sides train.
    """
    by_keras = train == "keras"
    expected = one_device(family, batch, epochs, still=by_keras)
    strategy = strategy_of(replicas)

    def under_strategy(build: Callable[[], keras.Model]) -> keras.Model:
        if train == "distribute":
            return dl.distribute(build, strategy)
        with strategy.scope():
            return build()

    found = _trained(family, under_strategy, batch, epochs, still=by_keras)
    if by_keras or not family.in_16_bits:
        return _apart(expected, found)
    with _in_float32():
        exact = _trained(family, parity.alone, batch, epochs)
    limit = max(_apart(exact, expected).values())  # what rounding does to one device
    return {name: far if far > limit else 0.0 for name, far in _apart(exact, found).items()}


@contextlib.contextmanager
def _in_float32() -> Iterator[None]:
    """Inside the block, layers that ask for another precision get this one."""
    policy, keras.DTypePolicy = keras.DTypePolicy, lambda name: policy("float32")
    try:
        yield
    finally:
        keras.DTypePolicy = policy


def _apart(expected: parity.Run, found: parity.Run) -> dict[str, float]:
    """Compares two runs, with one device's logs named as Keras does since 3.14.

    Before, if a `test_step` of one's own returns the compiled metrics, plain `fit` writes those of
    the validation over those of the training: `mae` holds what is `val_mae` since. So here the
    training's cannot be compared.
    """
    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14):
        (logs, weights), (ours, our_weights) = expected, found
        new = {name: f"val_{name}" for name in logs if f"val_{name}" in ours.keys() - logs.keys()}
        expected = {new.get(name, name): values for name, values in logs.items()}, weights
        found = {name: values for name, values in ours.items() if name not in new}, our_weights
    return parity.differences(expected, found)


def beyond_rounding(
    family: Family, found: dict[str, float], replicas: int, *, epochs: int = 2
) -> dict[str, float]:
    """Returns what `distribute` left further from one device than rounding explains.

    Processors round otherwise, so what is too far in float32 is trained in float64 again.

    Args:
        family: The family.
        found: What `differences` returned.
        replicas: As they were.
        epochs: As they were.
    """
    far = too_far(family, found)
    if far and not family.in_16_bits:
        with _in_float64():
            far = too_far(family, differences(family, replicas, epochs=epochs))
    return far


@contextlib.contextmanager
def _in_float64() -> Iterator[None]:
    """Inside the block models compute with twice the digits, in which a fault stays as it is."""

    def choose(dtype: str) -> None:
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)
        one_device.cache_clear()

    choose("float64")
    try:
        yield
    finally:
        choose("float32")


def too_far(family: Family, found: dict[str, float]) -> dict[str, float]:
    """Returns what is further from one device than rounding explains.

    Args:
        family: The family.
        found: What `differences` returned.
    """
    exact = keras.config.floatx() == "float64"
    weights, logs = (1e-9, 1e-9) if exact else (family.atol, max(family.atol, 2e-5))
    return parity.too_far(found, atol=weights, logs=logs)


@functools.cache
def strategy_of(replicas: int) -> Any:
    """Returns one strategy for each number of replicas."""
    return dl.make_strategy("mirrored", devices=replicas)


@functools.cache
def one_device(
    family: Family, batch: int | None = None, epochs: int = 2, *, still: bool = False
) -> parity.Run:
    """Returns what plain Keras logs, and the weights that it ends with."""
    return _trained(family, parity.alone, batch, epochs, still=still)


def _trained(
    family: Family,
    make: Callable[[Callable[[], keras.Model]], keras.Model],
    batch: int | None,
    epochs: int,
    *,
    still: bool = False,
) -> parity.Run:
    build, data = family.make()
    options = {"epochs": epochs, "verbose": 0, "shuffle": False} | family.fit()
    if batch is not None:
        data = _in_batches(data, batch)
        held_back = options.get("validation_data")
        options["validation_data"] = _in_batches(held_back, batch)
        if isinstance(held_back, tuple):
            options["validation_batch_size"] = batch

    def built() -> keras.Model:
        model = build()
        if still:
            switch_off(model)
            synchronise_batch_norms(model)
        return model

    model = make(built)
    logs = model.fit(data, **options).history
    weights = [weight for weight in model.weights if "seed_generator" not in weight.path]
    return logs, parity.snapshot(weights)


def _in_batches(data: Any, batch: int) -> Any:
    """Cuts a data set into other batches; a generator or a PyDataset keeps its own.

    The new batches are counted: with data of unknown length, Keras takes one step too many.
    """
    if not isinstance(data, tf.data.Dataset):
        return data
    batches = data.unbatch().batch(batch)
    return batches.apply(tf.data.experimental.assert_cardinality(sum(1 for _ in batches)))
