"""A timeline of training steps: a lane for each thread, a colour for each kind of work.

from distlab.course.figures.timeline import draw_timeline
from distlab.course.measure.timeline import record_timeline

draw_timeline({"without prefetch": record_timeline(train)})
draw_timeline(runs, by=lambda event: event.work)     # products, other operations, input, waits
draw_timeline(runs, by=one_operation("Mul"))         # one operation against all others
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.course import palette
from distlab.course.measure.timeline import COMPUTE, KINDS, Event, covered_ms
from distlab.course.palette import WIDE, finish, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {
    **{kind: palette.category(number).colour for number, kind in enumerate((*COMPUTE, "input"))},
    "waits": palette.NOTE,
}
_OTHERS = "other operations"
# Lanes of threads that compute, and lanes of all others: the busiest ones are drawn.
_MOST_LANES = 4


def one_operation(name: str) -> Callable[[Event], str]:
    """Returns a colouring for `draw_timeline`: one operation, such as `Mul`, against all others."""

    def by(event: Event) -> str:
        if event.kind not in COMPUTE:
            return event.kind
        return name if event.operation == name else _OTHERS

    return by


def draw_timeline(
    runs: Mapping[str, Sequence[Event]],
    *,
    title: str = "",
    by: Callable[[Event], str] = lambda event: event.kind,
) -> Figure:
    """Draws recorded timelines below each other, on one axis of time.

    Args:
        runs: What `record_timeline` returned, by the name of each run.
        title: What the figure shows, in words that hold on every machine.
        by: Returns the name of an event's colour: at most three names beside `input` and `waits`.
    """
    from matplotlib.patches import Patch

    lanes = {name: _lanes(events) for name, events in runs.items()}
    colours = _colours({by(event) for events in runs.values() for event in events})
    heights = [len(threads) for threads in lanes.values()]
    figure, axes = panels(
        len(runs),
        width=WIDE,
        height=0.32 * sum(heights) + 0.55 * len(runs) + 0.6,
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )
    says = []
    for ax, (name, events) in zip(axes[:, 0], runs.items(), strict=True):
        threads = lanes[name]
        for place, thread in enumerate(threads):
            for name_of_colour, colour in colours.items():
                bars = [
                    (event.start_ms, event.ms)
                    for event in events
                    if event.thread == thread and by(event) == name_of_colour
                ]
                if bars:
                    ax.broken_barh(bars, (place - 0.4, 0.8), facecolors=colour)
        ax.set_yticks(range(len(threads)), threads)
        ax.set_ylim(len(threads) - 0.5, -0.5)
        ax.set_title(name, fontsize=10, loc="left")
        _label(ax, is_last=ax is axes[-1, 0])
        says.append(f"{name}: {_in_words(events, colours, by)}")
    patches = [Patch(color=colour, label=each) for each, colour in colours.items()]
    palette.add_legend(figure, handles=patches, loc="outside lower center", ncols=len(patches))
    alt = f"Timelines of threads, coloured by kind of work. {' '.join(says)}"
    return finish(figure, title=title, alt=alt)


def _lanes(events: Sequence[Event]) -> list[str]:
    """Returns the busiest threads, those that compute first."""
    busy: dict[str, float] = {}
    for event in events:
        busy[event.thread] = busy.get(event.thread, 0.0) + event.ms
    compute = {event.thread for event in events if event.kind in COMPUTE}
    groups = [sorted(compute), sorted(set(busy) - compute)]
    return [
        thread
        for group in groups
        for thread in sorted(sorted(group, key=lambda name: -busy[name])[:_MOST_LANES])
    ]


def _label(ax: Any, *, is_last: bool) -> None:
    palette.label_axes(ax, x="time" if is_last else "", y="", x_unit="ms" if is_last else "")


def _colours(names: set[str]) -> dict[str, str]:
    """Returns the colour of each name, in the order of the legend: kinds keep their own."""
    others = sorted(names - set(KINDS), key=lambda name: (name == _OTHERS, name))
    own = {name: palette.category(number).colour for number, name in enumerate(others)}
    return own | {kind: _COLOURS[kind] for kind in KINDS if kind in names}


def _in_words(events: Sequence[Event], names: Iterable[str], by: Callable[[Event], str]) -> str:
    busy = {name: covered_ms(event for event in events if by(event) == name) for name in names}
    parts = ", ".join(f"{name} {ms:.0f} ms" for name, ms in busy.items() if ms)
    return f"{parts}, in {max(event.end_ms for event in events):.0f} ms."
