"""A timeline of training steps: a lane for each thread, a colour for each kind of work.

from distlab.course.figures.timeline import draw_timeline
from distlab.course.measure.timeline import record_timeline

draw_timeline({"without prefetch": record_timeline(train)})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.course import palette
from distlab.course.measure.timeline import COMPUTE, KINDS, Event, busy_ms
from distlab.course.palette import WIDE, finish, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {
    **{kind: palette.category(number).colour for number, kind in enumerate((*COMPUTE, "input"))},
    "waits": palette.NOTE,
}
# Lanes of threads that compute, and lanes of all others: the busiest ones are drawn.
_MOST_LANES = 4


def draw_timeline(runs: Mapping[str, Sequence[Event]], *, title: str = "") -> Figure:
    """Draws recorded timelines below each other, on one axis of time.

    Args:
        runs: What `record_timeline` returned, by the name of each run.
        title: What the figure shows, in words that hold on every machine.
    """
    from matplotlib.patches import Patch

    lanes = {name: _lanes(events) for name, events in runs.items()}
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
            for kind in KINDS:
                bars = [
                    (event.start_ms, event.ms)
                    for event in events
                    if event.thread == thread and event.kind == kind
                ]
                if bars:
                    ax.broken_barh(bars, (place - 0.4, 0.8), facecolors=_COLOURS[kind])
        ax.set_yticks(range(len(threads)), threads)
        ax.set_ylim(len(threads) - 0.5, -0.5)
        ax.set_title(name, fontsize=10, loc="left")
        _label(ax, is_last=ax is axes[-1, 0])
        says.append(f"{name}: {_in_words(events)}")
    used = [kind for kind in KINDS if any(e.kind == kind for run in runs.values() for e in run)]
    patches = [Patch(color=_COLOURS[kind], label=kind) for kind in used]
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


def _in_words(events: Sequence[Event]) -> str:
    kinds = [kind for kind in KINDS if any(event.kind == kind for event in events)]
    parts = ", ".join(f"{kind} {busy_ms(events, kind):.0f} ms" for kind in kinds)
    return f"{parts}, in {max(event.end_ms for event in events):.0f} ms."
