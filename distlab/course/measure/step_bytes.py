"""Counts what each device holds and sends in a step, by how the model is divided among replicas.

    held_bytes(7_000_000_000, replicas=8, sharding="ZeRO 1", precision="mixed")
    # {"weights": 14000000000, "gradients": 14000000000, "optimizer state": 10500000000}
    sent_bytes(7_000_000_000, replicas=8, sharding="ZeRO 1", precision="mixed")

Activations are not counted: they depend on the batch and on the layers, not on the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from distlab.errors import InvalidArgument

Sharding = Literal["mirrored", "ZeRO 1", "ZeRO 2", "ZeRO 3, FSDP"]
Precision = Literal["float32", "mixed", "mixed in Keras", "bfloat16"]
Optimizer = Literal["SGD", "SGD with momentum", "Adam"]


@dataclass(frozen=True, kw_only=True)
class _Bytes:
    """Bytes for each parameter; `master` is a float32 weight that the optimizer keeps."""

    weight: int
    gradient: int
    sent_weight: int
    master: int = 0
    slot: int = 4


_PRECISIONS: dict[Precision, _Bytes] = {
    "float32": _Bytes(weight=4, gradient=4, sent_weight=4),
    # As the ZeRO paper counts: 16-bit weights, and float32 weights beside Adam's two numbers.
    "mixed": _Bytes(weight=2, gradient=2, sent_weight=2, master=4),
    # Keras keeps float32 weights and gradients, and makes a 16-bit copy of each weight.
    "mixed in Keras": _Bytes(weight=4 + 2, gradient=4, sent_weight=4),
    "bfloat16": _Bytes(weight=2, gradient=2, sent_weight=2, slot=2),
}
_SLOTS: dict[Optimizer, int] = {"SGD": 0, "SGD with momentum": 1, "Adam": 2}


def held_bytes(
    parameters: int,
    *,
    replicas: int = 1,
    sharding: Sharding = "mirrored",
    precision: Precision = "float32",
    optimizer: Optimizer = "Adam",
) -> dict[str, int]:
    """Returns the bytes that one device holds in a step, without the activations.

    What is divided among replicas is rounded up to whole parameters. ZeRO 3 needs one more layer's
    weights for a moment, while it computes that layer; they are not counted either.

    Args:
        parameters: How many the model has.
        replicas: How many devices work on one batch together.
        sharding: What is divided among them: nothing ("mirrored"), the optimizer's state, the
            gradients as well, or the weights as well.
        precision: In what weights, gradients and state are kept. "mixed" is the ZeRO paper's.
        optimizer: How many numbers it keeps for each parameter: none, one or two.

    Returns:
        Bytes of the weights, the gradients and the optimizer state, by these names.

    Raises:
        InvalidArgument: If there is nothing to count, or a name is unknown.
    """
    _check(parameters, replicas, sharding, precision, optimizer)
    size = _PRECISIONS[precision]
    divided = get_args(Sharding).index(sharding)  # how many of the three parts
    piece = -(-parameters // replicas)
    state = size.master + _SLOTS[optimizer] * size.slot
    return {
        "weights": size.weight * (piece if divided >= 3 else parameters),
        "gradients": size.gradient * (piece if divided >= 2 else parameters),
        "optimizer state": state * (piece if divided >= 1 else parameters),
    }


def sent_bytes(
    parameters: int,
    *,
    replicas: int,
    sharding: Sharding = "mirrored",
    precision: Precision = "float32",
) -> float:
    """Returns the bytes that each device sends in a step, over rings.

    A reduce-scatter or an all-gather of S bytes sends (N - 1) / N S from each of N devices. Each
    step reduces the gradients once and gathers the weights once; ZeRO 3 gathers them twice, for
    the forward and for the backward pass. Mirrored replicas gather gradients instead of weights.

    Args:
        parameters: How many the model has.
        replicas: How many devices work on one batch together.
        sharding: What is divided among them, as for `held_bytes`.
        precision: As for `held_bytes`.

    Raises:
        InvalidArgument: If there is nothing to count, or a name is unknown.
    """
    _check(parameters, replicas, sharding, precision, "Adam")
    size = _PRECISIONS[precision]
    gathered = {
        "mirrored": size.gradient,
        "ZeRO 1": size.sent_weight,
        "ZeRO 2": size.sent_weight,
        "ZeRO 3, FSDP": 2 * size.sent_weight,
    }[sharding]
    return (replicas - 1) / replicas * (size.gradient + gathered) * parameters


def _check(parameters: int, replicas: int, sharding: str, precision: str, optimizer: str) -> None:
    asked = f"{parameters} parameters on {replicas} replicas, {sharding}, {precision}, {optimizer}"
    if parameters < 1 or replicas < 1:
        raise InvalidArgument(
            asked=asked, found="nothing to count", do="pass at least 1 parameter and 1 replica"
        )
    for name, known in (
        (sharding, get_args(Sharding)),
        (precision, get_args(Precision)),
        (optimizer, get_args(Optimizer)),
    ):
        if name not in known:
            raise InvalidArgument(
                asked=asked, found=f"{name!r}", do=f"pass one of {', '.join(known)}"
            )
