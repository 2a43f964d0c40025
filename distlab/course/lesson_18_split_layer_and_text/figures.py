"""Figures: memory by the number of replicas, the lanes of a pipeline, and layers in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course import palette
from distlab.course.measure.pipeline_schedule import Lane, idle_share
from distlab.course.palette import WIDE, diagram, finish, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_memory_by_replicas(
    replicas: Sequence[int], curves: Mapping[str, Sequence[float]], *, limit_gb: float
) -> Figure:
    """Draws the memory of a step on one device over the number of replicas, on two log axes."""
    figure, ax = panels(width=WIDE, height=3.4)
    captions = []
    for number, (name, gigabytes) in enumerate(curves.items()):
        look = palette.category(number)
        ax.plot(replicas, gigabytes, **look.line(), label=name)
        fitting = [n for n, gb in zip(replicas, gigabytes, strict=True) if gb <= limit_gb]
        fits = f"fits from {fitting[0]} replicas" if fitting else "never fits"
        captions.append(
            f"{name}: {gigabytes[0]:.0f} GB with {replicas[0]} and {gigabytes[-1]:.0f} GB with "
            f"{replicas[-1]}; it {fits}."
        )
    ends, name = [replicas[0], replicas[-1]], f"one device: {limit_gb:.0f} GB"
    ax.plot(ends, [limit_gb] * 2, color=palette.REFERENCE, lw=1.5, label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(list(replicas), [str(count) for count in replicas])
    top = max(limit_gb, *(max(gigabytes) for gigabytes in curves.values()))
    marks = [2**power for power in range(int(top).bit_length() + 1)]
    ax.set_yticks(marks, [str(mark) for mark in marks])
    ax.set_ylim(min(min(gigabytes) for gigabytes in curves.values()) / 1.4, 1.4 * top)
    palette.label_axes(ax, x="replicas", y="memory on each device", y_unit="GB")
    palette.label_ends(ax)
    return finish(
        figure,
        title="What isn't divided is a floor that no number of devices lowers",
        alt="Curves of what one device holds in a step, over the number of replicas, with a line "
        f"at {limit_gb:.0f} GB. {' '.join(captions)}",
    )


_KINDS = ("forward", "backward")
_NARROW = 0.12  # a tick that has no place for a number


def draw_pipeline(schedules: Mapping[str, Sequence[Lane]]) -> Figure:
    """Draws each schedule as lanes of ticks; the number in a tick is that of the micro-batch.

    All panels have one time axis, in the time that a stage takes for the whole batch: a tick is
    shorter where the batch is cut into more micro-batches.
    """
    longest = max(len(lanes[0]) * _tick(lanes) for lanes in schedules.values())
    rows = sum(len(lanes) for lanes in schedules.values())
    heights = [len(lanes) for lanes in schedules.values()]
    height = 0.28 * rows + 0.45 * len(schedules) + 0.5
    form: dict[str, Any] = {"height_ratios": heights, "squeeze": False, "sharex": True}
    figure, column = panels(len(schedules), width=WIDE, height=height, **form)
    captions = []
    for axes, (title, lanes) in zip(column[:, 0], schedules.items(), strict=True):
        idle = f"{100 * idle_share(lanes):.0f} % idle"
        axes.set_title(f"{title}: {idle}", fontsize=10, loc="left")
        for stage, lane in enumerate(lanes):
            _draw_lane(axes, stage, lane, tick=_tick(lanes))
        axes.set_xlim(0, longest)
        axes.set_ylim(len(lanes) - 0.5, -0.5)
        axes.set_yticks(range(len(lanes)), [f"stage {stage}" for stage in range(len(lanes))])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=9)
        took = len(lanes[0]) * _tick(lanes)
        captions.append(
            f"{title}: {len(lanes)} stages, {idle}, a batch takes {took:g} units of time."
        )
    column[-1, 0].set_xlabel("time (1 = a stage's time for the whole batch, one direction)")
    names = {**{kind: _work_look(kind) for kind in _KINDS}, "idle": _work_look(None)}
    _add_legend(figure, names, loc="outside lower center")
    return finish(
        figure,
        title="The more micro-batches, the less time the stages are idle",
        alt="Lanes of a pipeline's stages. In each tick a stage computes one micro-batch forward "
        f"or backward, or is idle. {' '.join(captions)}",
    )


def _tick(lanes: Sequence[Lane]) -> float:
    """How long a tick is: each stage computes the whole batch, forward and backward, in 2."""
    return 2 / sum(work is not None for work in lanes[0])


def _draw_lane(axes: Any, stage: int, lane: Lane, *, tick: float) -> None:
    for place, work in enumerate(lane):
        look = _work_look(work.kind if work else None)
        axes.barh(stage, 0.92 * tick, left=(place + 0.04) * tick, height=0.8, **look)
        if work and tick > _NARROW:
            style = {"ha": "center", "va": "center", "fontsize": 8, "color": palette.GROUND}
            axes.text((place + 0.5) * tick, stage, str(work.micro_batch), **style)


def _work_look(kind: str | None) -> dict[str, Any]:
    if kind is None:
        return {"facecolor": palette.GRID}
    return {"facecolor": palette.category(2 * _KINDS.index(kind)).colour}


def _add_legend(axes: Any, looks: Mapping[str, dict[str, Any]], *, loc: str) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(label=name, **look) for name, look in looks.items()]
    palette.add_legend(axes, handles=handles, loc=loc, ncols=3)


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
