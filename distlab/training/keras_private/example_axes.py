"""Whether what Keras brings goes over the examples of a batch, as `Softmax(axis=0)` does."""

from __future__ import annotations

from typing import Any

import keras

# Operations of a functional model that are no layers and compute each entry by itself.
_ENTRY_BY_ENTRY = {"Add", "Subtract", "Multiply", "Divide", "TrueDivide", "Negative"}


def keeps_examples_apart(operation: keras.Operation) -> bool:
    """Whether an operation of a functional model cannot look at other examples.

    Args:
        operation: An operation that is no layer.
    """
    kind = type(operation).__name__
    if kind == "GetItem":
        return all(_keeps_first_axis(node) for node in operation._inbound_nodes)
    return kind in _ENTRY_BY_ENTRY and all(
        len(_ranks([*node.input_tensors, *node.outputs])) == 1  # else examples may meet each other
        for node in operation._inbound_nodes
    )


def has_axis_of_examples(layer: keras.layers.Layer) -> bool:
    """Whether a layer was given the first axis of its inputs, or one of several that is the first.

    Args:
        layer: Such as `keras.layers.Softmax(axis=0)`. An axis from the end is known to be the first
            where a functional model calls the layer.
    """
    given = getattr(layer, "axis", None)
    axes = given if isinstance(given, tuple | list) else [given]
    ranks = _ranks([tensor for node in layer._inbound_nodes for tensor in node.input_tensors])
    return any(isinstance(axis, int) and (axis == 0 or -axis in ranks) for axis in axes)


def _keeps_first_axis(node: Any) -> bool:
    """Whether a call of `GetItem` takes all that the first axis has, and leaves it the first."""
    given: list[Any] = [*node.arguments.args, *node.arguments.kwargs.values()]
    tensor, key = given
    keys = list(key) if isinstance(key, tuple | list) else [key]
    if keys and keys[0] is Ellipsis:
        return sum(one is not None for one in keys[1:]) < len(tensor.shape)
    is_slice = bool(keys) and isinstance(keys[0], slice)
    return is_slice and (keys[0].start or 0, keys[0].stop, keys[0].step or 1) == (0, None, 1)


def _ranks(tensors: list[Any]) -> set[int]:
    return {len(tensor.shape) for tensor in tensors}
