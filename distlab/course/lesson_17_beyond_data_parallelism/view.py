"""The memory calculator of lesson 17: what fits on a device, by how a model is divided.

explore_memory()   # as the last line of a cell
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from distlab.course.figures.step_memory import draw_memory
from distlab.course.lesson_17_beyond_data_parallelism.step_bytes import (
    Optimizer,
    Precision,
    Sharding,
    held_bytes,
    sent_bytes,
)
from distlab.course.view import Choices, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        _draw,
    )


def _draw(
    *,
    parameters: float,
    precision: Precision,
    optimizer: Optimizer,
    replicas: int,
    sharding: Sharding,
) -> Figure:
    count, rows = int(parameters), {}
    kinds: tuple[Sharding, ...] = ("mirrored", sharding)
    for kind in kinds:
        held = held_bytes(
            count,
            replicas=replicas,
            sharding=kind,
            precision=precision,
            optimizer=optimizer,
        )
        sent = sent_bytes(count, replicas=replicas, sharding=kind, precision=precision)
        name = f"{kind}, {replicas} replicas,\nsends {sent / 1e9:.1f} GB a step"
        rows[name] = {part: size / 1e9 for part, size in held.items()}
    return draw_memory(rows, limit_gb=80)


def _parameters(count: float) -> str:
    return f"{count / 1e9:g} billion" if count >= 1e9 else f"{count / 1e6:g} million"
