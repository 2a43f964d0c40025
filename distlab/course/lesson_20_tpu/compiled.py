"""The lesson's loss and its gradients, and what XLA says about a step.

losses_of(kernel, bias, images, labels)       # a loss for each row
gradients_of(weights, *padded)                # images, labels and a mask, or no mask
refusal_of(step, images, labels)              # "" if XLA compiles the step
program_of(step, images, labels)              # its program in HLO
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Step = Callable[[Any, Any], Any]


def losses_of(kernel: Any, bias: Any, images: Any, labels: Any) -> Any:
    """Returns the cross-entropy of each row."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ kernel + bias)


def gradients_of(weights: Sequence[Any], images: Any, labels: Any, mask: Any = None) -> Any:
    """Returns the gradients of the mean loss, over all rows or over those of the mask."""
    kernel, bias = [tf.identity(weight) for weight in weights]
    with tf.GradientTape() as tape:
        tape.watch([kernel, bias])
        losses = losses_of(kernel, bias, images, labels)
        if mask is None:
            loss = tf.reduce_mean(losses)
        else:
            loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
    return tape.gradient(loss, [kernel, bias])


def refusal_of(step: Step, images: Any, labels: Any) -> str:
    """Returns the compiler's error, or an empty text if it compiles the step."""
    tf.function(step)(images, labels)  # an error here does not come from XLA
    try:
        tf.function(step, jit_compile=True)(images, labels)
    except Exception as error:  # compilers refuse with many kinds of errors
        return str(error)
    return ""


def program_of(step: Step, images: Any, labels: Any) -> str:
    """Returns the program that TensorFlow hands to XLA."""
    compiled = tf.function(step, jit_compile=True)
    return str(compiled.experimental_get_compiler_ir(images, labels)(stage="hlo"))
