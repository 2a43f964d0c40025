"""Figures: a resumed run beside an unbroken one, and how often to save.

draw_resumed(undisturbed, {"everything": losses, "weights only": others}, stopped_at=37)
draw_interval(seconds, {"saving": parts, "lost": others}, best_secs=600)
draw_waste([1, 10, 100], {"no restart time": shares, "a restart takes 60 s": others})
draw_lanes(A_RESTART, xlabel="time (a sketch)")                         # of workers.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distlab.course.palette import (
    NOTE,
    ONE_DEVICE,
    REFERENCE,
    RIGHT,
    WIDE,
    WRONG,
    category,
    finish,
    label_axes,
    label_ends,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UNTIL_THEN = (("computes", 4.0, "steps 1 to 15, saved"), ("computes", 1.0, "16, 17"))
_AGAIN = (("starts again", 1.0), ("computes", 3.0, "from 16 on"))
# A sketch in lanes: worker 1 dies in step 17, and the last checkpoint has 15 steps.
A_RESTART = {
    "worker:0": (*_UNTIL_THEN, ("waits", 1.5), *_AGAIN),
    "worker:1": (*_UNTIL_THEN, ("is dead", 1.5), *_AGAIN),
}


def draw_resumed(
    undisturbed: Sequence[float],
    resumed: Mapping[str, Sequence[float]],
    *,
    stopped_at: int,
    killed_in: int | None = None,
) -> Figure:
    """Draws the losses of a training that nothing stopped, and of ones that resumed."""
    figure, ax = panels(width=WIDE)
    ax.plot(range(1, len(undisturbed) + 1), undisturbed, **ONE_DEVICE.band(), label="undisturbed")
    says = [f"The undisturbed loss ends at {undisturbed[-1]:.2f}."]
    for number, (name, losses) in enumerate(resumed.items()):
        after = range(stopped_at + 1, stopped_at + 1 + len(losses))
        look = (RIGHT, WRONG, category(0))[min(number, 2)]
        ax.plot(after, losses, label=name, **look.line(size=4))
        begins, least = losses[0], min(losses)
        says.append(
            f"{name}: begins at {begins:.2f}, lowest {least:.2f}, ends at {losses[-1]:.2f}."
        )
    marks = [(stopped_at + 0.5, "stopped here", ":", -5, "right")]
    if killed_in is not None:
        marks = [(stopped_at + 0.5, "resumes here", ":", -5, "right")]
        marks.append((killed_in, "killed", "-", 5, "left"))
    for step, text, style, aside, to in marks:
        ax.axvline(step, color=REFERENCE, linewidth=1, linestyle=style)
        _note(ax, text, step, aside=aside, ha=to)
    ax.set_yscale("log")
    _plain_numbers(ax)
    label_axes(ax, x="step", y="mean loss on all digits")
    label_ends(ax)
    return finish(
        figure,
        title="Only a run that restores everything goes on as if nothing had happened",
        alt=f"Loss by step; stopped after step {stopped_at}. {' '.join(says)}",
    )


def draw_interval(
    every_secs: Sequence[float], parts: Mapping[str, Sequence[float]], *, best_secs: float
) -> Figure:
    """Draws which shares of the time go into being ready for a failure, and their sum."""
    figure, ax = panels(width=WIDE)
    minutes = [secs / 60 for secs in every_secs]
    for number, (name, shares) in enumerate(parts.items()):
        look = category(number)
        percent = [100 * share for share in shares]
        ax.plot(minutes, percent, **look.line(size=0), label=name)
    total = [100 * sum(each) for each in zip(*parts.values(), strict=True)]
    ax.plot(minutes, total, color=REFERENCE, linewidth=2.5, label="together")
    ax.axvline(best_secs / 60, color=NOTE, linewidth=1)
    _note(ax, f"{best_secs / 60:.0f} min", best_secs / 60, aside=5, ha="left")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_ylim(0, 3 * min(total))
    label_axes(
        ax, x="from one checkpoint to the next", x_unit="minutes", y="lost", y_unit="% of the time"
    )
    label_ends(ax)
    says = f"Together {' and '.join(parts)} cost least, {min(total):.1f} % of the time, near "
    says += f"{best_secs / 60:.0f} minutes, and more for shorter and longer intervals."
    return finish(figure, title="The best interval is where both costs are equal", alt=says)


def draw_waste(machines: Sequence[int], lost: Mapping[str, Sequence[float]]) -> Figure:
    """Draws the share of the time that is lost against the number of machines."""
    figure, ax = panels(width=WIDE)
    says = []
    for number, (name, shares) in enumerate(lost.items()):
        percent = [100 * share for share in shares]
        ax.plot(machines, percent, label=name, **category(number).line())
        says.append(
            f"{name}: {percent[0]:.0f} % on {machines[0]}, {percent[-1]:.0f} % on {machines[-1]}."
        )
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_ylim(0, 100)
    label_axes(ax, x="machines", y="lost", y_unit="% of the time")
    label_ends(ax)
    return finish(
        figure,
        title="The more machines, the more of the time goes into failures",
        alt=f"Share of the time that is lost, by machines. {' '.join(says)}",
    )


def _note(ax: Axes, text: str, x: float, *, aside: int, ha: str) -> None:
    """Writes beside a vertical line, at its top."""
    ax.annotate(
        text,
        (x, 0.97),
        xycoords=("data", "axes fraction"),
        xytext=(aside, 0),
        textcoords="offset points",
        ha=ha,
        va="top",
        fontsize=9,
    )


def _plain_numbers(ax: Axes) -> None:
    """Numbers at the ticks of a logarithmic axis, also where it spans less than a decade."""
    from matplotlib.ticker import LogLocator

    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter("{x:g}")
