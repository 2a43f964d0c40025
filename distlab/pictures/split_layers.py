"""Two layers on two devices: the first kernel cut by column, the second by row.

draw_split_layers(examples=8, inputs=6, hidden=10, outputs=4)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distlab.pictures import palette
from distlab.pictures.palette import finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GAP, _DEVICES = 2.2, 2


def draw_split_layers(*, examples: int, inputs: int, hidden: int, outputs: int) -> Figure:
    """Draws all matrices of two layers, each element in the colour of the device that has it."""
    import matplotlib.pyplot as plt

    half = hidden // _DEVICES
    matrices = (  # the name, rows, columns, where it is cut, and the sign behind it
        ("x", examples, inputs, "on both", "@"),
        ("first kernel", inputs, hidden, "by column", "ReLU"),
        ("hidden", examples, hidden, "by column", "@"),
        ("second kernel", hidden, outputs, "by row", "="),
        ("device 0's part", examples, outputs, "device 0", "+"),
        ("device 1's part", examples, outputs, "device 1", "="),
        ("output", examples, outputs, "on both", ""),
    )
    width = sum(columns for _, _, columns, _, _ in matrices) + _GAP * len(matrices)
    tallest = max(rows for _, rows, _, _, _ in matrices)
    figure, axes = plt.subplots(figsize=(0.2 * width, 0.2 * tallest + 1.0), layout="constrained")
    left = 0.0
    for name, rows, columns, cut, sign in matrices:
        top = (tallest - rows) / 2
        for row in range(rows):
            for column in range(columns):
                device = _device(cut, row, column, half)
                _draw_element(axes, left + column, top + row, device)
        middle = {"ha": "center", "va": "center"}
        axes.text(left + columns / 2, -1.9, f"{name}\n[{rows}, {columns}]", fontsize=10, **middle)
        axes.text(left + columns + _GAP / 2, tallest / 2, sign, fontsize=11, **middle)
        left += columns + _GAP
    axes.set_xlim(-1.2, width)
    axes.set_ylim(tallest + 0.3, -3)
    axes.set_aspect("equal")
    axes.axis("off")
    _add_legend(figure)
    return finish(
        figure,
        alt=f"The matrices of two layers on two devices. x, [{examples}, {inputs}], is on both. "
        f"The first kernel, [{inputs}, {hidden}], is cut by column, so each device has "
        f"[{inputs}, {half}] and computes {half} of the {hidden} hidden units. The second kernel, "
        f"[{hidden}, {outputs}], is cut by row: each device has the [{half}, {outputs}] of its own "
        f"hidden units. Each device then has a part of all [{examples}, {outputs}] outputs, and "
        "the sum of both parts is the output, on both devices.",
    )


def _device(cut: str, row: int, column: int, half: int) -> int | None:
    """Which device has an element; None if both have it."""
    places = {"by column": column // half, "by row": row // half, "device 0": 0, "device 1": 1}
    return places.get(cut)


def _draw_element(axes: Any, left: float, top: float, device: int | None) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top), 1, 1, **_look(device)))


def _look(device: int | None) -> dict[str, Any]:
    if device is None:
        return {"facecolor": palette.PALE, "edgecolor": palette.GROUND}
    look = palette.replica(device)
    return {"facecolor": look.colour, "edgecolor": palette.GROUND, "hatch": look.hatch}


def _add_legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    names = {"device 0": 0, "device 1": 1, "the same on both": None}
    handles = [Patch(label=name, **_look(device)) for name, device in names.items()]
    palette.add_legend(figure, handles=handles, loc="outside lower center", ncols=3)
