"""The field's map: what each kind of parallelism gives to each device. A picture of lesson 16.

draw_map([Kind("data parallelism", (Part("device 0", batch=(0, 0.5)), ...), "Does a copy fit?")])
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distlab.pictures import palette
from distlab.pictures.palette import finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LAYERS, _ROW = 3, 1.9
_WHOLE = ((0.0, 1.0),) * _LAYERS


@dataclass(frozen=True)
class Part:
    """What one device has."""

    device: str
    batch: tuple[float, float] | None
    layers: tuple[tuple[float, float] | None, ...] = _WHOLE
    fetches: bool = False


@dataclass(frozen=True)
class Kind:
    """One kind of parallelism."""

    name: str
    parts: tuple[Part, ...]
    question: str
    example: str


_SPLIT = (((0.0, 0.5),) * _LAYERS, ((0.5, 1.0),) * _LAYERS)
_NOTHING = (None,) * _LAYERS
_FIRST, _SECOND = (0.0, 0.5), (0.5, 1.0)

# The kinds in the order in which their questions are asked.
FIELD = (
    Kind(
        "data parallelism",
        (Part("device 0", _FIRST), Part("device 1", _SECOND)),
        "Does one device hold a replica, its activations and all state?",
        "MirroredStrategy, DDP",
    ),
    Kind(
        "sharded data parallelism (FSDP, ZeRO 3)",
        (
            Part("device 0", _FIRST, _SPLIT[0], fetches=True),
            Part("device 1", _SECOND, _SPLIT[1], fetches=True),
        ),
        "If not: does one device hold the largest layer and all activations?",
        "PyTorch FSDP, DeepSpeed",
    ),
    Kind(
        "tensor parallelism",
        (Part("device 0", (0, 1), _SPLIT[0]), Part("device 1", (0, 1), _SPLIT[1])),
        "If not: is the link between the devices fast enough for several messages a layer?",
        "DTensor, Megatron-LM",
    ),
    Kind(
        "pipeline parallelism",
        (
            Part("device 0", (0, 1), (_WHOLE[0], _WHOLE[0], None)),
            Part("device 1", None, (None, None, _WHOLE[0])),
        ),
        "If the link is slow: can you send many small batches one after the other?",
        "GPipe, Megatron-LM",
    ),
    Kind(
        "expert parallelism",
        (
            Part("device 0", _FIRST, (_WHOLE[0], _FIRST, _WHOLE[0])),
            Part("device 1", _SECOND, (_WHOLE[0], _SECOND, _WHOLE[0])),
        ),
        "Does each example use only a few experts of a layer?",
        "GShard, DeepSpeed-MoE",
    ),
    Kind(
        "parameter servers (each worker: its own batch)",
        (
            Part("worker 0", (0, 1), _NOTHING, fetches=True),
            Part("worker 1", (0, 1), _NOTHING, fetches=True),
            Part("server 0", None, _SPLIT[0]),
            Part("server 1", None, _SPLIT[1]),
        ),
        "Are large tables read a few rows at a time, or do hosts come and go?",
        "ParameterServerStrategy",
    ),
)


def draw_map(kinds: Sequence[Kind] = FIELD) -> Figure:
    """Draws for each kind what each device has of the batch and of three layers."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9.4, 1.12 * len(kinds) + 0.4), layout="constrained")
    for row, kind in enumerate(kinds):
        _draw_row(axes, kind, top=-_ROW * row)
    legend = (
        "coloured strip: its examples of the batch\ngrey: what it keeps of each of three layers\n"
        "hatched: what it fetches to compute that layer"
    )
    axes.text(0, 0.8, legend, fontsize=9.5, va="bottom", color=palette.NOTE)
    axes.text(8.7, 0.8, "the question that decides", fontsize=9.5, va="bottom", weight="bold")
    axes.set_xlim(-4.4, 15.6)
    axes.set_ylim(-_ROW * len(kinds) + 0.2, 1.8)
    axes.axis("off")
    told = " ".join(f"{kind.name}: {_told(kind)}. {kind.question}" for kind in kinds)
    return finish(
        figure,
        alt="A map of the kinds of parallelism. Each row shows what each device has of a batch and "
        f"of a model with three layers, and the question that decides. {told}",
    )


def _draw_row(axes: Any, kind: Kind, *, top: float) -> None:
    name = "\n".join([textwrap.fill(kind.name, 22), textwrap.fill(kind.example, 26)])
    style = {"va": "center", "fontsize": 9.5}
    axes.text(-4.3, top - 0.65, name, **style)
    for number, part in enumerate(kind.parts):
        _draw_device(axes, part, number, corner=(2.1 * number, top))
    axes.text(8.7, top - 0.65, textwrap.fill(kind.question, 42), **style)


def _draw_device(axes: Any, part: Part, number: int, *, corner: tuple[float, float]) -> None:
    left, top = corner
    look = palette.replica(number)
    axes.text(left + 0.85, top + 0.04, part.device, ha="center", va="bottom", fontsize=9)
    _box(axes, left, top, 1.7, 1.35)
    if part.batch:
        start, end = part.batch
        _box(axes, left + 0.1, top - 0.12, 0.3, 1.1, face=palette.GROUND)
        first = top - 0.12 - 1.1 * start
        _box(axes, left + 0.1, first, 0.3, 1.1 * (end - start), face=look.colour)
    for layer, columns in enumerate(part.layers):
        level = top - 0.12 - 0.4 * layer
        if columns or part.fetches:
            _box(axes, left + 0.5, level, 1.1, 0.3, face=palette.GROUND, hatched=part.fetches)
        if columns:
            start, end = columns
            _box(axes, left + 0.5 + 1.1 * start, level, 1.1 * (end - start), 0.3, face=palette.PALE)


def _box(
    axes: Any,
    left: float,
    top: float,
    width: float,
    height: float,
    face: str = "",
    *,
    hatched: bool = False,
) -> None:
    import matplotlib.patches as patches

    fill: dict[str, Any] = {"fc": face} if face else {"fill": False}
    fill |= {"hatch": "////"} if hatched else {}
    frame = patches.Rectangle((left, top - height), width, height, ec=palette.NOTE, lw=0.9, **fill)
    axes.add_patch(frame)


def _told(kind: Kind) -> str:
    return "; ".join(f"{part.device} has {_share(part)}" for part in kind.parts)


def _share(part: Part) -> str:
    batch = "no examples"
    if part.batch:
        batch = "the whole batch" if part.batch == (0, 1) else "half of the batch"
    names = {0: "no part", 0.5: "half", 1: "all"}
    amounts = [names[columns[1] - columns[0] if columns else 0] for columns in part.layers]
    if len(set(amounts)) == 1:
        what = {"half": "the other half", "no part": "the whole"}.get(amounts[0])
        fetched = f", and fetches {what} while it computes the layer"
        return f"{batch} and {amounts[0]} of each layer{fetched * part.fetches}"
    layers = [f"{amount} of layer {number}" for number, amount in enumerate(amounts, 1)]
    return f"{batch} and {', '.join(layers)}"
