"""Mixed precision for one block of code, or from here on.

with mixed_precision("mixed_bfloat16"):
    model = build()
"""

from __future__ import annotations

import contextlib
from types import TracebackType

from distlab.errors import InvalidArgument, did_you_mean

POLICIES = ("mixed_bfloat16", "mixed_float16", "float32")


class mixed_precision(contextlib.ContextDecorator):  # noqa: N801 - it is called like a function
    """Sets Keras's dtype policy for mixed precision, in one block or for the rest of the process.

    Layers read the policy while they're made, so build the model inside the block or after the
    call; a block restores the former policy when it ends. With "mixed_float16", Keras's `compile`
    wraps the optimizer in a `LossScaleOptimizer`.

    Args:
        policy: "mixed_bfloat16" (TPUs, and GPUs since Ampere), "mixed_float16" (GPUs since
            Volta, with loss scaling) or "float32".

    Raises:
        InvalidArgument: There's no such policy.

    Example:
        >>> import keras
        >>> with dl.mixed_precision("mixed_bfloat16"):
        ...     layer = keras.layers.Dense(10)
        >>> layer.compute_dtype, layer.variable_dtype
        ('bfloat16', 'float32')
        >>> keras.config.dtype_policy().name  # as before the block
        'float32'
    """

    def __init__(self, policy: str) -> None:
        if policy not in POLICIES:
            raise InvalidArgument(
                asked=f"mixed_precision({policy!r})",
                found=f"policy={policy!r}, which is no precision policy",
                do=did_you_mean(str(policy), POLICIES),
            )
        import keras

        self._policy = policy
        self._before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)

    def __enter__(self) -> None:
        import keras

        keras.config.set_dtype_policy(self._policy)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import keras

        keras.config.set_dtype_policy(self._before)

    def __repr__(self) -> str:
        return f"mixed_precision({self._policy!r})"
