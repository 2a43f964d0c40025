"""Trains two layers on one device or with DTensor, each kernel cut along a mesh as asked.

    losses, kernel = train(step, data, mesh=pair, first=(WHOLE, "model"), second=("model", WHOLE))

A layout has for each axis of a tensor the name of a mesh axis along which it is cut, or `WHOLE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

WHOLE = dtensor.UNSHARDED
STEPS = 3


def random_layers() -> tuple[tf.Tensor, ...]:
    """Returns 8 examples of 6 inputs, their 4 targets, and the kernels `[6, 10]`, `[10, 4]`."""
    draw = np.random.default_rng(1)
    shapes = [(8, 6), (8, 4), (6, 10), (10, 4)]
    return tuple(tf.constant(draw.normal(size=shape), tf.float32) for shape in shapes)


def train(
    step: Callable[..., tf.Tensor],
    data: Sequence[tf.Tensor],
    *,
    mesh: dtensor.Mesh,
    first: tuple[str, str],
    second: tuple[str, str],
    examples: str = WHOLE,
) -> tuple[list[float], list[tf.Tensor]]:
    """Takes three steps; returns their losses, and what each device holds of the first kernel.

    Args:
        step: Takes x, y and both kernels as variables, and returns the loss.
        data: What `random_layers` returns.
        mesh: The devices, along named axes.
        first: The layout of the first kernel; `second` is the second kernel's.
        second: As `first`.
        examples: The mesh axis along which the examples are cut.
    """
    batch = [_put(value, (examples, WHOLE), mesh) for value in data[:2]]
    kernels = [
        dtensor.DVariable(_put(value, layout, mesh))
        for value, layout in zip(data[2:], (first, second), strict=True)
    ]
    losses = [float(step(*batch, *kernels).numpy()) for _ in range(STEPS)]
    return losses, dtensor.unpack(kernels[0].read_value())


def train_on_one_device(step: Callable[..., tf.Tensor], data: Sequence[tf.Tensor]) -> list[float]:
    """Takes the same steps with whole kernels; returns their losses."""
    kernels = [tf.Variable(value) for value in data[2:]]
    return [float(step(*data[:2], *kernels)) for _ in range(STEPS)]


def _put(value: tf.Tensor, axes: tuple[str, str], mesh: dtensor.Mesh) -> tf.Tensor:
    """A tensor with a layout; the whole value goes to each device first, and is cut there."""
    everywhere = dtensor.Layout.replicated(mesh, rank=len(axes))
    return dtensor.relayout(dtensor.copy_to_mesh(value, everywhere), dtensor.Layout(axes, mesh))
