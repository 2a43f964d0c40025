"""Figures: layers in parts, what their cuts cost, and the turns of a ring.

draw_doublings({2: 14000.0, 4: 12000.0}, gpus_a_host=8)
draw_turns({"in order": pairs_by_turn(positions)})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course import palette
from distlab.course.lesson_18_split_layer_and_text.causal_ring import busy_share
from distlab.course.palette import MIDDLE, WIDE, diagram, finish, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _add_legend(axes: Any, looks: Mapping[str, dict[str, Any]], *, loc: str) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(label=name, **look) for name, look in looks.items()]
    palette.add_legend(axes, handles=handles, loc=loc, ncols=3)


_COMPUTES = {"facecolor": palette.category(0).colour}
_WAITS = {"facecolor": palette.GRID}
_GAP, _DEVICES = 2.4, 2


def draw_split_layers(*, examples: int, inputs: int, hidden: int, outputs: int) -> Figure:
    """Draws all matrices of two layers, each element in the colour of the device that has it."""
    from matplotlib.patches import Rectangle

    half = hidden // _DEVICES
    layers = (  # of each matrix the name, rows, columns, where it is cut, and the sign behind it
        (
            ("x", examples, inputs, "on both", "@"),
            ("first kernel", inputs, hidden, "by column", "ReLU"),
            ("hidden", examples, hidden, "by column", ""),
        ),
        (
            ("hidden", examples, hidden, "by column", "@"),
            ("second kernel", hidden, outputs, "by row", "="),
            ("device 0's part", examples, outputs, "device 0", "+"),
            ("device 1's part", examples, outputs, "device 1", "="),
            ("output", examples, outputs, "on both", ""),
        ),
    )
    tallest = max(examples, inputs, hidden)
    width = max(sum(matrix[2] + _GAP for matrix in layer) for layer in layers)
    figure, axes = diagram(x=(-1, width - _GAP + 1), y=(2 * (tallest + 3.2) + 1.5, 0))
    for row, layer in enumerate(layers):
        top, left = row * (tallest + 3.2) + 2.8, 0.0
        for name, rows, columns, cut, sign in layer:
            corner = (left, top + (tallest - rows) / 2)
            for y, x in np.ndindex(rows, columns):
                look = _device_look(_device(cut, y, x, half))
                axes.add_patch(Rectangle((corner[0] + x, corner[1] + y), 1, 1, **look))
            middle = {"ha": "center", "va": "center", "fontsize": 9}
            title = f"{name}\n[{rows}, {columns}]"
            axes.text(left + columns / 2, corner[1] - 1.2, title, **middle)
            sign_at = left + columns + _GAP / 2
            axes.text(sign_at, top + tallest / 2, sign, weight="bold", **middle)
            left += columns + _GAP
    names = {"device 0": 0, "device 1": 1, "the same on both": None}
    looks = {name: _device_look(device) for name, device in names.items()}
    _add_legend(axes, looks, loc="lower center")
    return finish(
        figure,
        title="Cut by column, then by row: one sum completes the output",
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


def _device_look(device: int | None) -> dict[str, Any]:
    if device is None:
        return {"facecolor": palette.PALE, "edgecolor": palette.GROUND}
    return palette.replica(device).bar()


def draw_doublings(speeds: Mapping[int, float], *, gpus_a_host: int) -> Figure:
    """Draws the speed of each GPU by how many share a layer, and what each doubling costs."""
    figure, ax = panels(width=MIDDLE, height=3)
    says, before = [], 0.0
    for place, (gpus, speed) in enumerate(speeds.items()):
        inside = gpus <= gpus_a_host
        ax.bar(place, speed, 0.7, **palette.category(0 if inside else 1).bar())
        cost = f"{100 * (speed / before - 1):.0f} %" if before else ""
        ax.text(place, speed, cost, ha="center", va="bottom", fontsize=10, weight="bold")
        says.append(f"{gpus} GPUs: {speed:,.0f}{f', {cost}' if cost else ''}")
        before = speed
    ax.set_xticks(range(len(speeds)), [str(gpus) for gpus in speeds])
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    palette.label_axes(ax, x="GPUs that share each layer", y="tokens/s of each GPU")
    words = {"in one host": 0, f"in several hosts of {gpus_a_host}": 1}
    looks = {name: palette.category(number).bar() for name, number in words.items()}
    _add_legend(ax, looks, loc="upper right")
    return finish(
        figure,
        title="The third doubling leaves the host",
        alt="Bars of the tokens that each GPU trains on in a second, by how many GPUs share each "
        f"layer, and the change from the bar before. {'. '.join(says)}. Up to {gpus_a_host} GPUs "
        "are in one host.",
    )


def draw_turns(works: Mapping[str, Any]) -> Figure:
    """Draws what each device of a ring computes in each turn, and how long it waits.

    Args:
        works: By the name of a deal, the pairs of tokens that each device computes in each turn,
            `[turn, device]`.
    """
    most = max(int(work.max(axis=1).sum()) for work in works.values())
    rows = sum(work.shape[1] for work in works.values())
    height = 0.28 * rows + 0.45 * len(works) + 0.5
    figure, column = panels(len(works), width=WIDE, height=height, squeeze=False, sharex=True)
    says = []
    for axes, (name, work) in zip(column[:, 0], works.items(), strict=True):
        starts = np.cumsum([0, *work.max(axis=1)])
        busy = f"busy for {100 * busy_share(work):.0f} % of the time"
        axes.set_title(f"{name}: {busy}", fontsize=10, loc="left")
        for turn, device in np.ndindex(*work.shape):
            lasts, pairs = int(work[turn].max()), int(work[turn, device])
            lane = {"left": starts[turn] + 0.5, "height": 0.8}
            axes.barh(device, lasts - 1, **lane, **_WAITS)
            if pairs:
                axes.barh(device, pairs - 1, **lane, **_COMPUTES)
                middle = {"ha": "center", "va": "center", "fontsize": 8, "color": palette.GROUND}
                axes.text(starts[turn] + pairs / 2, device, f"turn {turn}", **middle)
        axes.set_xlim(0, most)
        axes.set_ylim(work.shape[1] - 0.5, -0.5)
        axes.set_yticks(range(work.shape[1]), [f"device {d}" for d in range(work.shape[1])])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=9)
        turns = "; ".join(f"turn {turn}: {list(map(int, row))}" for turn, row in enumerate(work))
        says.append(f"{name}, {busy}, {starts[-1]} pairs long. Pairs of each device, {turns}")
    column[-1, 0].set_xlabel("time (1 = one pair of tokens)")
    names = {"computes": _COMPUTES, "waits": _WAITS}
    _add_legend(figure, names, loc="outside lower center")
    return finish(
        figure,
        title="Dealt from both ends, every device works in every turn" * ("zigzag" in works),
        alt=f"Lanes of the devices of a ring, turn by turn. {'. '.join(says)}.",
    )
