"""Keras's attributes of a tensor: the mask of its examples, and the logits it was made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def mask_of(tensor: Any) -> Any:
    """The mask that a layer gave to its output, or None."""
    return getattr(tensor, "_keras_mask", None)


def keep_with(made: Any, tensor: Any, change: Callable[[Any], Any]) -> Any:
    """Returns `made` with the attributes of a tensor: mask and logits changed in the same way."""
    for name, value in vars(tensor).items() if hasattr(tensor, "__dict__") else ():
        if not name.startswith("_"):  # of the user's own
            setattr(made, name, value)
    mask, logits = mask_of(tensor), getattr(tensor, "_keras_logits", None)
    if mask is not None:
        made._keras_mask = tf.cast(change(mask), tf.bool)
    if logits is not None:
        made._keras_logits = change(logits)
    return made
