"""Runs a learner's `fsdp_gradients` on replicas that hold only their own rows of each kernel.

given = draw_stack(seed)                        # kernels, examples and targets
gradients, notes = piece_gradients(fsdp_gradients, given)
notes.letters                                   # "g l g l ..."
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from distlab.course.runs.noted_collectives import Notes
from distlab.course.runs.replicas import give_each, mirrored, take_each

REPLICAS = 4
NO_GRADIENT = "None for"


def draw_stack(seed: int) -> dict[str, Any]:
    """Returns three kernels, 16 examples and their targets."""
    draw = np.random.default_rng(seed)
    widths = [4 * int(size) for size in draw.permutation([2, 3, 4, 5])]
    shapes = itertools.pairwise(widths)
    return {
        "kernels": [draw.normal(size=s, scale=s[0] ** -0.5).astype("float32") for s in shapes],
        "x": draw.normal(size=(16, widths[0])).astype("float32"),
        "y": draw.normal(size=(16, widths[3])).astype("float32"),
    }


def piece_gradients(
    fsdp_gradients: Callable[..., Any], given: Mapping[str, Any]
) -> tuple[list[list[Any]] | str, Notes]:
    """Returns for each kernel the gradient on each replica, and what replica 0 has noted.

    If the function doesn't return a gradient for each kernel, a text says what it returned.
    """
    import tensorflow as tf

    strategy, notes, other = mirrored(REPLICAS), Notes(), ""

    def cut(value: Any) -> Any:
        return give_each(strategy, [tf.constant(own) for own in np.split(value, REPLICAS)])

    def on_replica(x: Any, y: Any, pieces: list[Any]) -> Any:
        nonlocal other

        def loss(x: Any) -> Any:
            return tf.reduce_sum((x - y) ** 2) / len(given["x"])

        layer = notes.layer(lambda kernel, x: tf.tanh(x @ kernel))
        answer = fsdp_gradients(notes.context(), layer, loss, list(pieces), x)
        other = _unlike_a_list(answer, len(pieces))
        return [] if other else [tf.convert_to_tensor(each) for each in answer]

    pieces = [cut(kernel) for kernel in given["kernels"]]
    step = tf.function(lambda *args: strategy.run(on_replica, args=args))
    answer = step(cut(given["x"]), cut(given["y"]), pieces)
    if other:
        return other, notes
    return [[own.numpy() for own in take_each(strategy, each)] for each in answer], notes


def _unlike_a_list(answer: Any, count: int) -> str:
    """Says what an answer is, if it isn't a list of gradients; "" for such a list."""
    if not isinstance(answer, list | tuple):
        return "None" if answer is None else "one value, and no list"
    if len(answer) != count:
        values = "1 value" if len(answer) == 1 else f"{len(answer)} values"
        return f"{values} for {count} pieces"
    missing = sum(each is None for each in answer)
    return f"{NO_GRADIENT} {missing} of {count} pieces" if missing else ""
