"""A limit for the memory of TensorFlow on a CPU, so that a laptop runs out of it like a GPU.

    memory_limit(64)        # before any other use of TensorFlow: 64 MB for all its tensors

A tensor beyond the limit raises TensorFlow's own "OOM when allocating tensor".
"""

from __future__ import annotations

import os
import sys
from typing import Any

from distlab.errors import DeviceError, InvalidArgument

# Read by TensorFlow once, as it makes its first device.
ALLOCATOR_VARIABLE = "TF_CPU_ALLOCATOR_USE_BFC"
LIMIT_VARIABLE = "TF_CPU_BFC_MEM_LIMIT_IN_MB"


def memory_limit(megabytes: int) -> None:
    """Limits the memory of all tensors on this process's CPU, so that it runs out as a GPU does.

    Call it before TensorFlow starts. What doesn't fit raises `tf.errors.ResourceExhaustedError`, as
    on a GPU, after 10 seconds in which TensorFlow waits for memory. Logical devices share the
    limit, and a process that this one starts has the same limit for itself. Memory outside of
    tensors, such as Python's, isn't counted. It was tried on Linux only. Calling it again with the
    same limit changes nothing.

    Args:
        megabytes: The limit in MB of 2**20 bytes. TensorFlow itself needs less than 1.

    Raises:
        InvalidArgument: `megabytes` isn't a whole number of at least 1.
        DeviceError: TensorFlow has already started, or this process has a different limit.

    Example:
        >>> dl.memory_limit(64)  # first of all
        >>> import tensorflow as tf
        >>> tf.zeros((1024, 1024)).shape.as_list()  # 4 MB of float32 fit; 128 MB don't
        [1024, 1024]
    """
    asked = f"memory_limit({megabytes!r})"
    if isinstance(megabytes, bool) or not isinstance(megabytes, int) or megabytes < 1:
        raise InvalidArgument(
            asked=asked,
            found=f"megabytes={megabytes!r}",
            do="pass the limit in whole MB, at least 1: memory_limit(64)",
        )
    present = os.environ.get(LIMIT_VARIABLE)
    if present == str(megabytes) and os.environ.get(ALLOCATOR_VARIABLE) == "true":
        return
    if present is not None:
        raise DeviceError(
            asked=asked,
            found=f"a limit of {present} MB, which this process already has ({LIMIT_VARIABLE})",
            do=f"keep that limit, or restart the kernel (or Python) without {LIMIT_VARIABLE}",
        )
    if _has_started():
        raise DeviceError(
            asked=asked,
            found="TensorFlow is already running, and its memory is fixed once it runs",
            do="restart the kernel (or Python) and call memory_limit first, before any other use "
            "of TensorFlow",
        )
    os.environ[ALLOCATOR_VARIABLE], os.environ[LIMIT_VARIABLE] = "true", str(megabytes)


def _has_started() -> bool:
    """Whether TensorFlow has made its devices; there is no public way to ask."""
    eager: Any = sys.modules.get("tensorflow.python.eager.context")
    context = eager and eager.context_safe()
    return context is not None and context._context_handle is not None
