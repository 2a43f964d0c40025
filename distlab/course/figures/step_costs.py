"""Figures of lesson 14 and `distlab bench`: parts of a step, times of an all-reduce, scaling.

from distlab.course.figures.step_costs import draw_step_parts

draw_step_parts([recording.step(replicas, 64) for replicas in (1, 2, 4)])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.course import palette
from distlab.course.palette import MIDDLE, WIDE, finish, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from distlab.course.measure.cost_model import StepCost
    from distlab.course.measure.scaling_runs import MeasuredStep

_PARTS = ("compute", "communication", "input")
# The numbers of replicas of a curve of efficiency.
SCALES = [2**power for power in range(13)]


def draw_step_parts(
    steps: Sequence[MeasuredStep], *, predicted: Sequence[StepCost] | None = None
) -> Figure:
    """Draws the parts of steps as stacked bars: measured, or predicted beside measured."""
    shown: Sequence[Any] = predicted if predicted is not None else steps
    names = [_name(step) for step in steps]
    figure, ax = panels(width=WIDE, height=0.5 * len(steps) + 1.2)
    left = [0.0] * len(steps)
    for number, part in enumerate(_PARTS):
        widths = [1e3 * getattr(step, f"{part}_secs") for step in shown]
        ax.barh(names, widths, left=left, label=part, **palette.category(number).bar())
        left = [start + width for start, width in zip(left, widths, strict=True)]
    ends, words, room = left, [f"{total:.0f} ms" for total in left], 1.12
    if predicted is not None:
        measured = [1e3 * step.whole_secs for step in steps]
        style = {"color": palette.REFERENCE, "linestyle": "none", "marker": "|", "markersize": 22}
        ax.plot(measured, range(len(steps)), label="measured", markeredgewidth=2.5, **style)
        pairs = list(zip(left, measured, strict=True))
        ends, room = [max(pair) for pair in pairs], 1.5
        words = [f"predicted {forecast:.0f}, measured {was:.0f} ms" for forecast, was in pairs]
    for place, (end, text) in enumerate(zip(ends, words, strict=True)):
        ax.text(end, place, f"   {text}", va="center", fontsize=9)
    ax.set_xlim(0, room * max(ends))
    ax.invert_yaxis()
    palette.label_axes(ax, x="time of one step", y="", x_unit="ms")
    palette.add_legend(figure, loc="outside lower center", ncols=4)
    caption = " ".join(
        f"{name}: {_parts_of(shown[place])}"
        + ("." if predicted is None else f"; measured {1e3 * steps[place].whole_secs:.0f} ms.")
        for place, name in enumerate(names)
    )
    subject = "parts of a step as measured" if predicted is None else "parts of a step as predicted"
    grows = len(steps) > 1 and steps[-1].communication_secs > steps[0].communication_secs
    title = "Communication grows with the replicas" * (predicted is None and grows)
    return finish(figure, title=title, alt=f"Stacked bars of the {subject}. {caption}")


def _name(step: MeasuredStep) -> str:
    replicas = "1 replica" if step.replicas == 1 else f"{step.replicas} replicas"
    return f"{replicas}, {step.global_batch // step.replicas} examples each"


def _parts_of(step: MeasuredStep | StepCost) -> str:
    return ", ".join(f"{part} {1e3 * getattr(step, f'{part}_secs'):.0f} ms" for part in _PARTS)


def draw_efficiency(
    curves: Mapping[str, Sequence[float]], *, published: Sequence[tuple[str, int, float]] = ()
) -> Figure:
    """Draws efficiencies by the number of replicas, one for each of the first of `SCALES`."""
    figure, ax = panels(width=WIDE if len(curves) > 1 else MIDDLE, height=3.4)
    captions: list[str] = []
    ends: dict[str, float] = {}
    names: dict[tuple[int, float], list[str]] = {}
    looks = {name: palette.category(number) for number, name in enumerate(curves)}
    scales = SCALES[: max(map(len, curves.values()))]
    for name, efficiencies in curves.items():
        percent = [100 * efficiency for efficiency in efficiencies]
        ends[name] = percent[-1]
        ax.plot(scales, percent, label=name, **looks[name].line(size=0))
        captions.append(f"{name}: {percent[-1]:.0f} % on {scales[-1]}.")
    for name, replicas, efficiency in published:
        names.setdefault((replicas, 100 * efficiency), []).append(name)
        style = {**looks[name].line(size=8), "linestyle": "none"}
        ax.plot(replicas, 100 * efficiency, **style)
        captions.append(f"Published for {name}: {100 * efficiency:.0f} % on {replicas}.")
    ax.set_xscale("log", base=2)
    ax.set_xticks(scales[::2], [f"{count:,}" for count in scales[::2]])
    lowest = min([*ends.values(), *(percent for _, percent in names)])
    ax.set_ylim(min(60, 10 * (lowest // 10)), 102)
    palette.label_axes(ax, x="replicas", y="efficiency", y_unit="%")
    palette.label_ends(ax)
    for place, who in list(names.items())[-3 if len(curves) > 1 else -1 :]:
        side = 1 if len(curves) > 1 and place[0] == max(names)[0] else -1
        form = {"ha": "left" if side > 0 else "right", "va": "top", "fontsize": 8}
        note = {"xytext": (5 * side, -5), "textcoords": "offset points", **form}
        ax.annotate("\n".join(["published:", *who]), place, **note)
    return finish(
        figure,
        title=f"{min(ends, key=ends.__getitem__)} scales worst" * (len(ends) > 1),
        alt=f"The efficiency of weak scaling by replicas. {' '.join(captions)}",
    )


def draw_spread(
    steps: Mapping[str, Sequence[MeasuredStep]], efficiency: Mapping[str, Sequence[float]]
) -> Figure:
    """Draws measured steps with their spread, by kind of scaling, and the efficiency of each."""
    rows = [
        (kind, step, part)
        for kind in steps
        for step, part in zip(steps[kind], efficiency[kind], strict=True)
    ]
    looks = {kind: palette.category(number) for number, kind in enumerate(steps)}
    figure, ax = panels(width=WIDE, height=0.36 * len(rows) + 0.9)
    captions = []
    for place, (kind, step, part) in enumerate(rows):
        low, high = (1e3 * secs for secs in step.middle_half_secs)
        ax.plot([low, high], [place, place], **looks[kind].band())
        ax.plot(1e3 * step.whole_secs, place, **looks[kind].line())
        text = f"   efficiency {100 * part:.0f} %, middle half {low:.2f} to {high:.2f}"
        ax.text(high, place, text, va="center", fontsize=9)
        captions.append(
            f"{kind}, {_name(step)}: {1e3 * step.whole_secs:.1f} ms, middle half {low:.2f} to "
            f"{high:.2f} ms, efficiency {100 * part:.0f} %."
        )
    ax.set_yticks(range(len(rows)), [f"{kind}: {_name(step)}" for kind, step, _ in rows])
    ax.set_xlim(0, 1.9e3 * max(step.middle_half_secs[1] for _, step, _ in rows))
    ax.set_ylim(len(rows) - 0.4, -0.6)
    palette.label_axes(ax, x="time of one step, and its middle half", y="", x_unit="ms")
    return finish(figure, alt=f"Measured steps with their spread. {' '.join(captions)}")
