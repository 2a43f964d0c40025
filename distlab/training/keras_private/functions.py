"""Functions and operations of TensorFlow: what they are made of, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.framework import op_def_registry, ops
from tensorflow.python.framework.tensor_util import constant_value_as_shape as constant_shape

__all__ = [
    "constant_shape",
    "definition_of",
    "function_in",
    "has_gradient",
    "is_recorded",
    "python_function",
]

_Function = type(tf.function(lambda: None))


def python_function(function: Any) -> Callable[..., Any] | None:
    """Returns what a user's `tf.function` runs, converted by AutoGraph as it would be.

    None of TensorFlow's own functions, and of kinds that compile in another way.
    """
    own = function._python_function
    of_tensorflow = (getattr(own, "__module__", None) or "").startswith("tensorflow.")
    if type(function) is not _Function or of_tensorflow:
        return None
    if not function._autograph or tf.executing_eagerly():
        return own  # type: ignore[no-any-return]
    converted = autograph_util.py_func_from_autograph(own)

    def call(*args: Any, **kwargs: Any) -> Any:
        with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
            return converted(*args, **kwargs)

    return call


def function_in(graph: Any, name: str) -> Any:
    """The definition of a function that a graph calls; None if the graph doesn't have it."""
    function = graph._get_function(name)
    return None if function is None else function.cached_definition


def definition_of(op_type: str) -> Any:
    """The definition of an operation, with its attributes; None of one that isn't registered."""
    return op_def_registry.get(op_type)


def has_gradient(op_type: str) -> bool:
    """Whether TensorFlow knows the gradient of an operation, and it is not zero everywhere."""
    try:
        return ops.gradient_registry.lookup(op_type) is not None
    except LookupError:
        return False


def is_recorded(inputs: list[Any]) -> bool:
    """Whether a gradient may flow back through what is computed of these."""
    return bool(record.should_record_backprop(inputs))
