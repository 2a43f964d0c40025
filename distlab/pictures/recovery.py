"""A training that was stopped and went on, and what it costs to be ready for that. Lesson 11.

draw_resumed(undisturbed, {"everything": losses, "weights only": others}, stopped_at=37)
draw_interval(seconds, {"saving": parts, "lost": others}, best_secs=600)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart; shapes say it too.
_LOOKS = (("#0072B2", "o", 4.0), ("#D55E00", "x", 6.0), ("#009E73", "^", 5.0))
_LINES = (("#D55E00", "--"), ("#0072B2", "-."), ("#009E73", ":"))


def draw_resumed(
    undisturbed: Sequence[float],
    resumed: Mapping[str, Sequence[float]],
    *,
    stopped_at: int,
    killed_in: int | None = None,
) -> Figure:
    """Draws the losses of a training that nothing stopped, and of ones that went on after a stop.

    Args:
        undisturbed: The loss after each step: a broad grey line under the others.
        resumed: By what was kept, the loss after each step from there on.
        stopped_at: How many steps were done when the training was stopped, or behind which it
            went on.
        killed_in: The step in which it was killed, where that is a later one.

    Returns:
        The figure, closed, so that a notebook shows it once.
    """
    import matplotlib.pyplot as plt

    figure: Figure
    figure, ax = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    steps = range(1, len(undisturbed) + 1)
    ax.plot(steps, undisturbed, color="0.78", linewidth=7, label="undisturbed")
    for (name, losses), look in zip(resumed.items(), _LOOKS, strict=False):
        colour, shape, size = look
        after = range(stopped_at + 1, stopped_at + 1 + len(losses))
        ax.plot(after, losses, color=colour, marker=shape, markersize=size, lw=1.1, label=name)
    marks = [(stopped_at + 0.5, "stopped here", ":", -5, "right")]
    if killed_in is not None:
        marks = [(stopped_at + 0.5, "goes on from here", ":", -5, "right")]
        marks.append((killed_in, "killed", "-", 5, "left"))
    for step, says, style, aside, to in marks:
        ax.axvline(step, color="black", linewidth=1, linestyle=style)
        ax.annotate(
            says,
            (step, 0.95),
            xycoords=("data", "axes fraction"),
            xytext=(aside, 0),
            textcoords="offset points",
            ha=to,
            va="top",
            fontsize=9,
        )
    ax.set(xlabel="step", ylabel="loss on all digits", yscale="log")
    ax.legend(fontsize=9, frameon=False, loc="lower left")
    plt.close(figure)
    return figure


def draw_interval(
    every_secs: Sequence[float], parts: Mapping[str, Sequence[float]], *, best_secs: float
) -> Figure:
    """Draws which parts of the time are spent on being ready for a failure, and their sum.

    Args:
        every_secs: Seconds from one checkpoint to the next, above 0.
        parts: By name, the share of the time that it costs at each of these, 0 to 1.
        best_secs: Where the sum should be least: a vertical line.

    Returns:
        The figure, closed, so that a notebook shows it once.
    """
    import matplotlib.pyplot as plt

    figure: Figure
    figure, ax = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    minutes = [secs / 60 for secs in every_secs]
    for (name, shares), (colour, style) in zip(parts.items(), _LINES, strict=False):
        ax.plot(minutes, [100 * s for s in shares], color=colour, linestyle=style, label=name)
    total = [100 * sum(each) for each in zip(*parts.values(), strict=True)]
    ax.plot(minutes, total, color="black", linewidth=2.5, label="together")
    ax.axvline(best_secs / 60, color="0.5", linewidth=1)
    ax.annotate(
        f"{best_secs / 60:.0f} min",
        (best_secs / 60, 0.97),
        xycoords=("data", "axes fraction"),
        xytext=(5, 0),
        textcoords="offset points",
        va="top",
        fontsize=9,
    )
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_ylim(0, 3 * min(total))
    ax.set(xlabel="minutes from one checkpoint to the next", ylabel="% of the time")
    ax.legend(fontsize=9, frameon=False)
    plt.close(figure)
    return figure
