"""The seeds that the random layers of a distributed model were made with.

What such a layer draws follows from its seed and the number of the step. A layer without a seed
takes one by chance, another in each process: so it belongs to a checkpoint.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import keras

from distlab.training.keras_private import models

# The seed that each generator was made with: its state moves on.
_BASES: WeakKeyDictionary[keras.random.SeedGenerator, int] = WeakKeyDictionary()


def keep_base(generator: keras.random.SeedGenerator) -> None:
    """Remembers the seed of a generator; it must not have drawn yet when this is first called.

    Args:
        generator: A layer's generator.
    """
    _BASES.setdefault(generator, int(generator.state.value.numpy()[0]))


def base_of(generator: keras.random.SeedGenerator) -> int:
    """Returns the seed that a generator was made with.

    Args:
        generator: One that `keep_base` has seen.
    """
    return _BASES[generator]


def read(model: keras.Model) -> list[int]:
    """Returns the seed of each generator, in the order of the layers.

    Args:
        model: Any model; one that `distribute` never saw has none here.
    """
    return [_BASES[generator] for generator in _generators(model)]


def write(model: keras.Model, seeds: list[int]) -> None:
    """Gives the generators their seeds.

    Args:
        model: A model with as many generators.
        seeds: As `read` returned them.
    """
    if read(model) == seeds:
        return
    for generator, seed in zip(_generators(model), seeds, strict=True):
        _BASES[generator] = seed
    model.make_train_function(force=True)  # a traced one holds the old seeds


def _generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    return [
        generator
        for layer in models.layers(model)
        for generator in layer._seed_generators
        if generator in _BASES
    ]
