"""Steps of workers that do not wait for each other, and how stale each step is. Lesson 10.

draw_staleness({"two workers": [(0, 2, 0, 0.5), (1, 4, 1, 0.2)]})   # reads, writes, stale, weight
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distlab.pictures.palette import (
    GROUND,
    NOTE,
    REFERENCE,
    add_legend,
    category,
    finish,
    label_axes,
)
from distlab.pictures.palette import worker as look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Staleness is no mistake, so it has not the colour of one.
_FRESH, _STALE = (NOTE, "o", "full"), (category(2).colour, category(2).marker, "full")
_LEFT_OUT = (category(2).colour, "o", "none")  # a stale update that the training did not take

Applied = tuple[int, int, int, float]


def draw_staleness(trainings: Mapping[str, Sequence[Applied]]) -> Figure:
    """Draws for each training its steps, how often each staleness occurs, and the weight."""
    import matplotlib.pyplot as plt

    size = (3.5 * len(trainings), 6.4)
    figure: Figure = plt.figure(figsize=size, layout="constrained")
    rows = figure.subplots(
        3, len(trainings), squeeze=False, sharey="row", gridspec_kw={"height_ratios": [1, 1.3, 1.3]}
    )
    most = max(step[2] for steps in trainings.values() for step in steps)
    for (timeline, histogram, path), (title, steps) in zip(rows.T, trainings.items(), strict=True):
        timeline.set_title(title, fontsize=10, loc="left")
        _draw_steps(timeline, steps)
        _draw_histogram(histogram, [step[2] for step in steps], most=most)
        _draw_weights(path, _in_order_of_writing(steps))
    for axes in rows[:, 1:].flat:
        axes.set_ylabel("")
    _add_legend(figure, left_out=any(map(_any_left_out, trainings.values())))
    told = " ".join(_told(title, steps) for title, steps in trainings.items())
    return finish(
        figure,
        alt="For each training: its steps by worker from reading to writing, how often each "
        f"staleness occurs, and the weight after each update. {told}",
    )


def _told(title: str, steps: Sequence[Applied]) -> str:
    """Says in words what the column of one training shows."""
    found = [step[2] for step in steps]
    counts = ", ".join(f"{found.count(n)} with staleness {n}" for n in sorted(set(found)))
    last = max(steps, key=lambda step: step[1])[3]
    farthest = max((step[3] for step in steps), key=abs)
    return (
        f"{title}: {counts}; the weight is {last:.3g} in the end and {farthest:.3g} where it is "
        "farthest from 0."
    )


def _add_legend(figure: Figure, *, left_out: bool) -> None:
    from matplotlib.lines import Line2D

    names = {"fresh: staleness 0": _FRESH, "stale": _STALE}
    if left_out:
        names["stale, left out"] = _LEFT_OUT
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="", label=name, fillstyle=fill)
        for name, (colour, marker, fill) in names.items()
    ]
    handles.append(Line2D([], [], color=REFERENCE, linestyle=":", label="best weight"))
    add_legend(figure, handles=handles, loc="outside lower center", ncols=len(handles))


def lanes(steps: Sequence[Applied]) -> list[int]:
    """Returns for each step a worker that is free when it reads, the first one of them."""
    free_from: list[int] = []
    found = []
    for reads, writes, *_ in steps:
        free = [lane for lane, until in enumerate(free_from) if until < reads]
        lane = free[0] if free else len(free_from)
        free_from[lane : lane + 1] = [writes]
        found.append(lane)
    return found


def _draw_steps(axes: Axes, steps: Sequence[Applied]) -> None:
    steps = sorted(steps, key=lambda step: step[0])
    workers = lanes(steps)
    for (reads, writes, stale, _), worker in zip(steps, workers, strict=True):
        lasts = writes + 1 - reads  # both turns are its own
        look = look_of(worker).bar() | {"hatch": ""}  # a number is written on each bar
        axes.barh(worker, lasts, left=reads, height=0.6, **look)
        middle = reads + lasts / 2
        axes.text(middle, worker, str(stale), ha="center", va="center", color=GROUND, fontsize=8)
    axes.set_xlim(0, max(step[1] for step in steps) + 1)
    axes.set_ylim(max(1, *workers) + 0.6, -0.6)
    axes.set_yticks(range(max(1, *workers) + 1))
    _label(axes, x="turn of the clock (number: staleness)", y="worker")


def _draw_histogram(axes: Axes, staleness: Sequence[int], *, most: int) -> None:
    from matplotlib.ticker import MaxNLocator

    for stale in sorted(set(staleness)):
        times = staleness.count(stale)
        axes.bar(stale, times, width=0.8, color=(_STALE if stale else _FRESH)[0])
        axes.text(stale, times, str(times), ha="center", va="bottom", fontsize=8)
    axes.margins(y=0.12)
    axes.set_xlim(-0.7, most + 0.7)
    axes.set_xticks(range(most + 1))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _label(axes, x="staleness (updates)", y="steps")


def _draw_weights(axes: Axes, steps: Sequence[Applied]) -> None:
    numbers = range(1, len(steps) + 1)
    weights = [weight for *_, weight in steps]
    axes.axhline(0, color=REFERENCE, linewidth=1, linestyle=":")
    axes.plot(numbers, weights, color=NOTE, linewidth=1)
    for number, (_, _, stale, weight) in zip(numbers, steps, strict=True):
        mark = _LEFT_OUT if _is_left_out(steps, number - 1) else _STALE if stale else _FRESH
        colour, marker, fill = mark
        axes.plot(number, weight, color=colour, marker=marker, fillstyle=fill, markersize=5)
    _label(axes, x="update", y="weight after the update")


def _in_order_of_writing(steps: Sequence[Applied]) -> list[Applied]:
    return sorted(steps, key=lambda step: step[1])


def _any_left_out(steps: Sequence[Applied]) -> bool:
    steps = _in_order_of_writing(steps)
    return any(_is_left_out(steps, place) for place in range(len(steps)))


def _is_left_out(steps: Sequence[Applied], place: int) -> bool:
    """Whether a stale update changed nothing: its weight is the one before it."""
    return place > 0 and bool(steps[place][2]) and steps[place][3] == steps[place - 1][3]


def _label(axes: Axes, *, x: str, y: str) -> None:
    label_axes(axes, x=x, y=y)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
    axes.tick_params(labelsize=8)
