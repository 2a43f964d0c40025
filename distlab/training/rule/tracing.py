"""How TensorFlow traces a step: functions become part of it, and promised tensors have shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from distlab.training.keras_private import functions
from distlab.training.rule.current import replaces
from distlab.training.rule.step import Step

_PYTHON = "tensorflow.python"


@replaces(f"{_PYTHON}.eager.polymorphic_function.polymorphic_function.Function.__call__")
def inline(step: Step, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes a `tf.function` part of the step that calls it: replicas cannot meet inside one."""
    own = functions.python_function(self)
    return original(self, *args, **kwargs) if own is None else own(*args, **kwargs)


@replaces(f"{_PYTHON}.ops.gen_array_ops.shape")
def shape_of_promise(
    step: Step, original: Callable[..., Any], input: Any, *args: Any, **kwargs: Any
) -> tf.Tensor:
    """Gives the shape of a promised tensor without looking at the tensor."""
    if not hasattr(input, "_distlab_shape"):
        return original(input, *args, **kwargs)
    return tf.cast(input._distlab_shape(), kwargs.get("out_type") or tf.int32)


@replaces(f"{_PYTHON}.ops.parallel_for.control_flow_ops._pfor_impl")
def note_loop(step: Step, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Notes that the body of `tf.vectorized_map` or of a jacobian is made, in the step's graph."""
    before, step.in_loop = step.in_loop, True
    try:
        return original(*args, **kwargs)
    finally:
        step.in_loop = before
