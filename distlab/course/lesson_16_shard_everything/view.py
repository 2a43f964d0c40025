"""The memory calculator of lesson 16: what fits on a device, by how a model is divided.

explore_memory()   # as the last line of a cell
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from distlab.course.figures.step_memory import draw_memory
from distlab.course.measure.step_bytes import (
    Optimizer,
    Precision,
    Sharding,
    held_bytes,
    sent_bytes,
)
from distlab.course.view import Choices, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIMIT_GB = 80
_PARTS = tuple(held_bytes(1))
_PRECISIONS = {
    "mixed": "mixed precision",
    "mixed in Keras": "mixed precision in Keras",
}
_PARAMETERS = (125e6, 350e6, 1.5e9, 3e9, 7e9, 13e9, 30e9, 70e9, 175e9, 405e9)


def explore_memory() -> View:
    """Returns a calculator of the memory of a step: a bar for each way to divide the model.

    Activations are not counted. The limit of a device is 80 GB.
    """
    return View(
        "The memory of a step on each device",
        {
            "parameters": Choices("parameters", _PARAMETERS, start=7e9, say=_parameters),
            "precision": Choices("precision", get_args(Precision), start="mixed"),
            "optimizer": Choices("optimizer", get_args(Optimizer), start="Adam"),
            "replicas": Choices("replicas", [1, 2, 4, 8, 16, 64, 256, 1024], start=8),
            "sharding": Choices("compare with", get_args(Sharding)[1:], start="ZeRO 1"),
        },
        _numbers,
        _draw,
    )


def _numbers(
    parameters: float,
    precision: Precision,
    optimizer: Optimizer,
    replicas: int,
    sharding: Sharding,
) -> dict[str, Any]:
    """Returns the GB a device holds and sends in a step, for a mirrored and a divided model."""
    count = int(parameters)
    numbers: dict[str, Any] = {"held": [], "sent": []}
    for kind in _kinds(sharding):
        held = held_bytes(
            count, replicas=replicas, sharding=kind, precision=precision, optimizer=optimizer
        )
        sent = sent_bytes(count, replicas=replicas, sharding=kind, precision=precision)
        numbers["held"].append([_gigabytes(size) for size in held.values()])
        numbers["sent"].append(_gigabytes(sent))
    return numbers


def _draw(
    numbers: Mapping[str, Any],
    *,
    parameters: float,
    precision: Precision,
    replicas: int,
    sharding: Sharding,
    **_: Any,
) -> Figure:
    rows = {
        f"{kind}, {replicas} replicas,\nsends {sent:.1f} GB a step": dict(
            zip(_PARTS, held, strict=True)
        )
        for kind, held, sent in zip(_kinds(sharding), numbers["held"], numbers["sent"], strict=True)
    }
    model = f"{_parameters(parameters)} weights, {_PRECISIONS.get(precision, precision)}"
    return draw_memory(rows, limit_gb=LIMIT_GB, model=model)


def _kinds(sharding: Sharding) -> tuple[Sharding, Sharding]:
    return "mirrored", sharding


def _gigabytes(size: float) -> float:
    return round(size / 1e9, 2)


def _parameters(count: float) -> str:
    return f"{count / 1e9:g} billion" if count >= 1e9 else f"{count / 1e6:g} million"
