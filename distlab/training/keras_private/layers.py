"""A layer of Keras: its losses, its state, its axes."""

from __future__ import annotations

from typing import Any

import keras


def layer_losses(layer: keras.layers.Layer) -> list[Any]:
    """The losses that a layer was given, to be added to."""
    losses: list[Any] = layer._losses
    return losses


def own_state(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The variables of a layer, without those of its parts, that are not trained."""
    state: list[keras.Variable] = layer._non_trainable_variables
    return state


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """The axes over which a BatchNormalization takes its statistics."""
    axes: list[int] = layer._reduction_axes
    return axes
