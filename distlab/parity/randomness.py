"""Randomness inside a step: the same on both sides, or switched off where Keras's layers draw it.

random = switch_off(model)
random.off          # names of layers that draw nothing any more
random.left         # names of layers that draw numbers and could not be stopped
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from distlab.parity.structure import layers_of

# Any number that nobody else is likely to take.
_OTHER_SEED = 8_675_321

# What to set to zero; the layers of dropout inside attention and recurrent cells are found too.
_RATES = {
    keras.layers.Dropout: ("rate",),
    keras.layers.AlphaDropout: ("rate",),
    keras.layers.GaussianDropout: ("rate",),
    keras.layers.GaussianNoise: ("stddev",),
}
_IN_KERAS = ("dropout", "recurrent_dropout")
# Augmentation passes its input through unchanged when it is told that nobody trains.
_AUGMENTING = ("AugMix", "CutMix", "MixUp", "Solarization")


@dataclass(frozen=True)
class Randomness:
    """Layers that draw random numbers in a step.

    Attributes:
        off: Names of those switched off.
        left: Names of those that could not be.
        alike: Names of those that draw the same numbers on both sides.
    """

    off: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()


def drawing(model: keras.Model) -> Randomness:
    """Finds the layers that draw random numbers while training, and leaves them as they are."""
    found = [one for one in layers_of(model) if _rates(one) or _augments(one) or _seeds(one)]
    return Randomness(alike=tuple(layer.name for layer in found))


def switch_off(model: keras.Model) -> Randomness:
    """Stops the layers of Keras that draw random numbers while training.

    Dropout and noise get the rate zero; image augmentation runs as it does outside training,
    which is the identity (`RandomCrop` takes the centre).
    """
    off, left = [], []
    for layer in layers_of(model):
        rates = _rates(layer)
        for name in rates:
            setattr(layer, name, 0.0)
        if _augments(layer):
            layer.call = _never_training(layer.call)
        if rates or _augments(layer):
            off.append(layer.name)
        elif _is_own(layer) and _seeds(layer):
            left.append(layer.name)
    return Randomness(off=tuple(off), left=tuple(left))


def reseed(model: keras.Model) -> None:
    """Lets every layer, and every operation, that draws random numbers draw others."""
    for layer in layers_of(model):
        for generator in _seeds(layer):
            generator.state.assign(generator.state + 12345)
    # Operations without a seed of their own follow this one, from the next trace on.
    tf.random.set_seed(_OTHER_SEED)


def _rates(layer: keras.layers.Layer) -> list[str]:
    names = [name for kind, names in _RATES.items() if isinstance(layer, kind) for name in names]
    if not names and not _is_own(layer):
        names = list(_IN_KERAS)
    held = vars(layer)
    return [name for name in names if isinstance(held.get(name), int | float) and held[name] > 0]


def _augments(layer: keras.layers.Layer) -> bool:
    name = type(layer).__name__
    return not _is_own(layer) and (name.startswith("Rand") or name in _AUGMENTING)


def _never_training(call: types.MethodType) -> Any:
    @functools.wraps(call)
    def without_training(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **{**kwargs, "training": False})

    return without_training


def _is_own(layer: keras.layers.Layer) -> bool:
    """Whether the layer's class is the user's and not Keras's."""
    return type(layer).__module__.partition(".")[0] != "keras"


def _seeds(layer: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    held = {id(value): value for value in vars(layer).values()}
    return [value for value in held.values() if isinstance(value, keras.random.SeedGenerator)]
