"""Logical devices: several replicas on the machine you have.

A CPU, or a GPU with memory to spare, can be split into logical devices before TensorFlow
wakes. They teach correctness, not speed: they share the same silicon.

    split_devices(4)        # ('CPU:0', 'CPU:1', 'CPU:2', 'CPU:3'), or four on the GPUs
"""

from __future__ import annotations

from typing import Any, Literal

from distlab.errors import DeviceError, InvalidArgument, did_you_mean

# Every logical device brings threads of its own; beyond this they outnumber everything else.
MAX_LOGICAL_DEVICES = 64

# Room for a lesson's model and its cuDNN workspace; N of these must fit on the GPUs.
DEFAULT_MEMORY_LIMIT_MB = 2048

_KINDS = ("auto", "cpu", "gpu")


def split_devices(
    count: int,
    *,
    kind: Literal["auto", "cpu", "gpu"] = "auto",
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB,
) -> tuple[str, ...]:
    """Splits this machine's CPU or GPUs into `count` logical devices, one for each replica.

    Call it first of all: TensorFlow fixes its devices when it starts, so later there's nothing left
    to split. Logical devices show that a training is correct and not how fast it'd be, because they
    share the same hardware. With at least `count` GPUs, each device is a whole GPU instead. With
    fewer, they share the GPUs and TF32 is switched off, so that numbers can be compared with a
    CPU's. Calling it again with the same count changes nothing.

    Args:
        count: How many logical devices, 1 to 64.
        kind: "cpu", "gpu", or "auto" for the GPUs where there are any.
        memory_limit_mb: GPU memory in MiB for each device that shares a GPU.

    Returns:
        The devices' names, as `make_strategy("mirrored", devices=...)` takes them.

    Raises:
        InvalidArgument: `count` or `kind` is invalid.
        DeviceError: There's no GPU for `kind="gpu"`, or TensorFlow has already started.

    Example:
        >>> devices = dl.split_devices(4, kind="cpu")
        >>> devices
        ('CPU:0', 'CPU:1', 'CPU:2', 'CPU:3')
        >>> dl.make_strategy("mirrored", devices=devices).num_replicas_in_sync
        4
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidArgument(
            asked=f"split_devices({count!r})",
            found=f"count={count!r}",
            do="pass the number of devices, at least 1: split_devices(4)",
        )
    if count > MAX_LOGICAL_DEVICES:
        raise InvalidArgument(
            asked=f"split_devices({count})",
            found=f"count={count}, more logical devices than one process can hold",
            do=f"ask for at most {MAX_LOGICAL_DEVICES}; 4 are enough for every lesson",
        )
    if kind not in _KINDS:
        raise InvalidArgument(
            asked=f"split_devices({count}, kind={kind!r})",
            found=f"kind={kind!r}, which is no kind of device",
            do=did_you_mean(str(kind), _KINDS),
        )
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU") if kind != "cpu" else []
    if kind == "gpu" and not gpus:
        raise DeviceError(
            asked=f"split_devices({count}, kind='gpu')",
            found="no GPU that TensorFlow can see",
            do="use kind='auto' or 'cpu', or see what `distlab doctor` says of the GPU",
        )
    wanted = "GPU" if gpus else "CPU"
    try:
        if not gpus:
            _share(tf, tf.config.list_physical_devices("CPU")[:1], count, None)
        elif len(gpus) >= count:
            tf.config.set_visible_devices(gpus[:count], "GPU")
        else:
            tf.config.experimental.enable_tensor_float_32_execution(False)
            _share(tf, gpus, count, memory_limit_mb)
    except RuntimeError as error:
        existing = len(tf.config.list_logical_devices(wanted))
        if existing != count:
            raise DeviceError(
                asked=f"split_devices({count})",
                found=f"TensorFlow is already running with {existing} logical {wanted} device"
                f"{'s' if existing != 1 else ''}, and devices are fixed once it runs",
                do="restart the kernel (or Python) and call split_devices first, "
                "before any other use of TensorFlow",
            ) from error
    return tuple(f"{wanted}:{index}" for index in range(count))


def _share(tf: Any, physical: list[Any], count: int, memory_limit_mb: int | None) -> None:
    """Spreads `count` logical devices over the physical ones, as evenly as they go."""
    whole, rest = divmod(count, len(physical))
    for index, device in enumerate(physical):
        parts = whole + (index < rest)
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=memory_limit_mb)
        tf.config.set_logical_device_configuration(device, [limit] * parts)
