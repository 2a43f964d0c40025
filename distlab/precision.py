"""Mixed precision for one block of code; what was set before comes back.

with mixed_precision("mixed_bfloat16"):
    model = build()
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from distlab.errors import InvalidArgument, did_you_mean

POLICIES = ("mixed_bfloat16", "mixed_float16", "float32")


@contextlib.contextmanager
def mixed_precision(policy: str) -> Iterator[None]:
    """Sets Keras's dtype policy inside the block and restores the former one after it.

    The policy is read while layers are made, so build the model inside the block. With
    "mixed_float16" Keras's `compile` wraps the optimizer in a `LossScaleOptimizer`.

    Args:
        policy: "mixed_bfloat16" (TPUs, and GPUs since Ampere), "mixed_float16" (GPUs since
            Volta, with loss scaling) or "float32".

    Raises:
        InvalidArgument: There is no such policy.
    """
    if policy not in POLICIES:
        raise InvalidArgument(
            asked=f"mixed_precision({policy!r})",
            found="no such precision policy",
            do=did_you_mean(str(policy), POLICIES),
        )
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
