"""What a model family of the zoo is, and the data sets that they share out unequally.

@family("Image classification from scratch")
def convnet():
    def build():
        ...
        return model                        # compiled, as for one device
    return build, batches(images(), labels(4))

Where the example has Adam, most have plain descent here: it shows a gradient of the wrong scale,
which Adam hides, and a third of a traced step is Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support.parity import BATCH, ROWS


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model and its data, as a user would write them for one device.

    Attributes:
        name: Of the function that makes it.
        like: The guide or example of keras.io that is written in the same manner.
        make: Returns `build` and the training data.
        fit: Further arguments of `fit`, by a function, since data sets need TensorFlow.
        core: Whether `make test` trains it, too. The core, a third of the families, uses each
            mechanism of the rule; CI and `make check` train all of them.
        why: Why `atol` is larger than elsewhere.
        in_16_bits: Whether it rounds so much that the measure is how far one device in 16 bits is
            from one in 32.
        atol: How far a weight may be from one device's.
    """

    name: str
    like: str
    make: Callable[[], tuple[Callable[[], keras.Model], tf.data.Dataset]]
    fit: Callable[[], dict[str, Any]] = dict
    core: bool = False
    in_16_bits: bool = False
    why: str = ""
    atol: float = 2e-6


FAMILIES: dict[str, Family] = {}


def family(like: str, **options: Any) -> Callable[[Any], Any]:
    """Registers a function that returns `build` and the training data."""

    def register(make: Any) -> Any:
        assert make.__name__ not in FAMILIES, make.__name__
        FAMILIES[make.__name__] = Family(name=make.__name__, like=like, make=make, **options)
        return make

    return register


def draw(seed: int = 0) -> np.random.Generator:
    """Returns a generator of its own for each data set."""
    return np.random.default_rng(seed)


def images(size: int = 8, channels: int = 1, examples: int = ROWS, seed: int = 0) -> np.ndarray:
    """Returns random pictures, float32 in [0, 1)."""
    return draw(seed).uniform(size=(examples, size, size, channels)).astype("float32")


def vectors(width: int = 8, examples: int = ROWS, seed: int = 1) -> np.ndarray:
    """Returns random features, float32, normal."""
    return draw(seed).normal(size=(examples, width)).astype("float32")


def labels(classes: int, shape: tuple[int, ...] = (), examples: int = ROWS) -> np.ndarray:
    """Returns random classes, int32."""
    return draw(2).integers(0, classes, (examples, *shape)).astype("int32")


def tokens(vocabulary: int, length: int, examples: int = ROWS, seed: int = 3) -> np.ndarray:
    """Returns sequences of tokens from 1 on, padded by 0 to different lengths."""
    drawn = draw(seed)
    found = drawn.integers(1, vocabulary, (examples, length))
    found[np.arange(length) >= drawn.integers(2, length + 1, examples)[:, None]] = 0
    return found.astype("int32")


def batches(*parts: Any, batch: int = BATCH) -> tf.data.Dataset:
    """Returns global batches, in order."""
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0]).batch(batch)
