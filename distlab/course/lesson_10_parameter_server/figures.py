"""Figures: who does what in a training with parameter servers, and how stale gradients are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distlab.course.figures.shapes import arrow, box
from distlab.course.palette import (
    GROUND,
    NOTE,
    REFERENCE,
    WIDE,
    add_legend,
    category,
    diagram,
    finish,
    label_axes,
    panels,
)
from distlab.course.palette import worker as look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COORDINATOR, _WORKERS, _SERVERS = 0.0, 4.2, 8.6  # middles of the three columns, left to right
_WIDTH, _HEIGHT = 2.3, 0.9


def draw_roles(*, workers: int, servers: int) -> Figure:
    """Draws the coordinator, the workers and the parameter servers, and what goes between them."""
    most = max(_places(max(workers, servers)))
    figure, axes = diagram(x=(_COORDINATOR - 1.2, _SERVERS + 1.2), y=(-most - 0.5, most + 1.3))
    _box(axes, _COORDINATOR, 0.0, "coordinator\n(your program)", category(0).colour)
    for number, place in enumerate(_places(workers)):
        _box(axes, _WORKERS, place, f"worker {number}\n(computes)", look_of(number).colour)
        _arrows(axes, _COORDINATOR, _WORKERS, 0.0, place)
        for home in _places(servers):
            _arrows(axes, _WORKERS, _SERVERS, place, home)
    for number, place in enumerate(_places(servers)):
        _box(axes, _SERVERS, place, f"parameter server {number}\n(variables)", category(3).colour)
    for middle, text in (
        ((_COORDINATOR + _WORKERS) / 2, "1 sends a step →\n← 4 reports the result"),
        ((_WORKERS + _SERVERS) / 2, "← 2 reads weights\n3 writes its update →"),
    ):
        axes.text(middle, most + 0.8, text, ha="center", va="center", fontsize=9)
    return finish(
        figure,
        title="Workers talk to servers, and never to each other",
        alt="A diagram in three columns: one coordinator on the left, "
        f"{_counted(workers, 'worker')} in the middle, {_counted(servers, 'parameter server')} on "
        "the right. Arrows go both ways between the "
        "coordinator and each worker: 1, it sends a step; 4, the worker reports the result. "
        "Arrows go both ways between each worker and each server: 2, the worker reads weights; "
        "3, it writes its update. No arrow connects two workers.",
    )


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _places(count: int) -> list[float]:
    """Returns the heights of `count` boxes, from the top, about 0."""
    return [1.25 * ((count - 1) / 2 - number) for number in range(count)]


def _box(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    corner = (x - _WIDTH / 2, y - _HEIGHT / 2)
    box(axes, corner, (_WIDTH, _HEIGHT), text, fill=colour, color=GROUND)


def _arrows(axes: Axes, x: float, other_x: float, y: float, other_y: float) -> None:
    """One arrow in each direction, beside each other."""
    start, end = x + _WIDTH / 2 + 0.08, other_x - _WIDTH / 2 - 0.08
    arrow(axes, (start, y + 0.1), (end, other_y + 0.1))
    arrow(axes, (end, other_y - 0.1), (start, y - 0.1))


# Staleness is no mistake, so it has not the colour of one.
_FRESH, _STALE = (NOTE, "o", "full"), (category(2).colour, category(2).marker, "full")
_LEFT_OUT = (category(2).colour, "o", "none")  # a stale update that the training did not take

Applied = tuple[int, int, int, float]


def draw_staleness(trainings: Mapping[str, Sequence[Applied]], *, title: str) -> Figure:
    """Draws for each training its steps, how often each staleness occurs, and the weight."""
    form = {"squeeze": False, "sharey": "row", "height_ratios": [1, 1.3, 1.3]}
    figure, rows = panels(3, len(trainings), width=WIDE, height=6.2, **form)
    most = max(step[2] for steps in trainings.values() for step in steps)
    for (timeline, histogram, path), (name, steps) in zip(rows.T, trainings.items(), strict=True):
        timeline.set_title(name, fontsize=10, loc="left")
        _draw_steps(timeline, steps)
        _draw_histogram(histogram, [step[2] for step in steps], most=most)
        _draw_weights(path, _in_order_of_writing(steps))
    _add_legend(figure, left_out=any(map(_any_left_out, trainings.values())))
    caption = " ".join(_told(name, steps) for name, steps in trainings.items())
    return finish(
        figure,
        title=title,
        alt="For each training: its steps by worker from reading to writing, how often each "
        f"staleness occurs, and the weight after each update. {caption}",
    )


def _told(name: str, steps: Sequence[Applied]) -> str:
    """Says in words what the column of one training shows."""
    ages = [step[2] for step in steps]
    counts = ", ".join(f"{ages.count(n)} with staleness {n}" for n in sorted(set(ages)))
    last = max(steps, key=lambda step: step[1])[3]
    farthest = max((step[3] for step in steps), key=abs)
    return (
        f"{name}: {counts}; the weight is {last:.3g} in the end and {farthest:.3g} where it is "
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
    ages = []
    for reads, writes, *_ in steps:
        free = [lane for lane, until in enumerate(free_from) if until < reads]
        lane = free[0] if free else len(free_from)
        free_from[lane : lane + 1] = [writes]
        ages.append(lane)
    return ages


def _draw_steps(axes: Axes, steps: Sequence[Applied]) -> None:
    steps = sorted(steps, key=lambda step: step[0])
    workers = lanes(steps)
    for (reads, writes, stale, _), worker in zip(steps, workers, strict=True):
        lasts = writes + 1 - reads  # both turns are its own
        axes.barh(worker, lasts, left=reads, height=0.6, **look_of(worker).bar())
        middle = reads + lasts / 2
        axes.text(middle, worker, str(stale), ha="center", va="center", color=GROUND, fontsize=8)
    axes.set_xlim(0, max(step[1] for step in steps) + 1)
    axes.set_ylim(max(1, *workers) + 0.6, -0.6)
    axes.set_yticks(range(max(1, *workers) + 1))
    label_axes(axes, x="turn of the clock (number: staleness)", y="worker")
    axes.grid(visible=False)


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
    label_axes(axes, x="staleness (updates)", y="steps")


def _draw_weights(axes: Axes, steps: Sequence[Applied]) -> None:
    numbers = range(1, len(steps) + 1)
    weights = [weight for *_, weight in steps]
    axes.axhline(0, color=REFERENCE, linewidth=1, linestyle=":")
    axes.plot(numbers, weights, color=NOTE, linewidth=1.8)
    for number, (_, _, stale, weight) in zip(numbers, steps, strict=True):
        mark = _LEFT_OUT if _is_left_out(steps, number - 1) else _STALE if stale else _FRESH
        colour, marker, fill = mark
        axes.plot(number, weight, color=colour, marker=marker, fillstyle=fill, markersize=5)
    label_axes(axes, x="update", y="weight after the update")


def _in_order_of_writing(steps: Sequence[Applied]) -> list[Applied]:
    return sorted(steps, key=lambda step: step[1])


def _any_left_out(steps: Sequence[Applied]) -> bool:
    steps = _in_order_of_writing(steps)
    return any(_is_left_out(steps, place) for place in range(len(steps)))


def _is_left_out(steps: Sequence[Applied], place: int) -> bool:
    """Whether a stale update changed nothing: its weight is the one before it."""
    return place > 0 and bool(steps[place][2]) and steps[place][3] == steps[place - 1][3]
