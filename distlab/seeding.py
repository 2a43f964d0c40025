"""Seeds: the same numbers on every run.

set_seed(42, deterministic=True)
"""

from __future__ import annotations

from distlab.errors import InvalidArgument


def set_seed(seed: int, *, deterministic: bool = False) -> None:
    """Seeds Python, NumPy, TensorFlow and Keras at once, so that a run repeats the same numbers.

    Args:
        seed: A whole number from 0 to 2**32 - 1, the range that NumPy takes.
        deterministic: Also choose operations whose result is the same on every run. That can
            be slower, turns XLA's "auto" off, and can't be undone in a process.

    Raises:
        InvalidArgument: The seed is out of range.

    Example:
        >>> import keras
        >>> dl.set_seed(42)
        >>> first = keras.random.normal((3,))
        >>> dl.set_seed(42)
        >>> bool(keras.ops.all(keras.random.normal((3,)) == first))
        True
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InvalidArgument(
            asked=f"set_seed({seed!r})",
            found=f"seed={seed!r}",
            do="pass a whole number from 0 to 2**32 - 1: set_seed(42)",
        )
    import keras
    import tensorflow as tf

    from distlab.training.keras_private.global_state import forget_generator

    keras.utils.set_random_seed(seed)
    forget_generator()  # as Keras does from 3.13 on
    if deterministic:
        tf.config.experimental.enable_op_determinism()
