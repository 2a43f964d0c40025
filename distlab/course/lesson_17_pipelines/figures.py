"""Figures: the lanes of a pipeline's devices, as a schedule was played.

draw_lanes({"GPipe": play(gpipe(4, 8), 8)})     # a panel for each timetable, on one axis of ticks
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distlab.course import palette
from distlab.course.figures.shapes import box
from distlab.course.lesson_17_pipelines.timetable import Timetable
from distlab.course.palette import WIDE, finish, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {"F": "forward", "B": "backward", "W": "backward, weights' half"}
_HALF = "backward, inputs' half"
_COLOURS = {
    kind: palette.category(number).colour for kind, number in zip("FBW", (0, 2, 3), strict=True)
}
_INCHES_A_LETTER = 0.075
_LANE = 0.27


def draw_lanes(tables: Mapping[str, Timetable], *, title: str = "") -> Figure:
    """Draws what each device does in each tick; a number is that of the micro-batch.

    A pale box is the device's second piece of the model, and a red one is where a device waits
    forever.
    """
    lanes = [len(table.lanes) for table in tables.values()]
    height = _LANE * sum(lanes) + 0.38 * len(lanes) + 0.75
    form: dict[str, Any] = {"height_ratios": lanes, "squeeze": False, "sharex": True}
    figure, column = panels(len(lanes), width=WIDE, height=height, **form)
    longest = max(_axis_of(table) for table in tables.values())
    for axes, (name, table) in zip(column[:, 0], tables.items(), strict=True):
        axes.set_title(f"{name}: {summary(table)}", fontsize=10, loc="left")
        axes.set(xlim=(0, longest), ylim=(len(table.lanes) - 0.5, -0.5))
        axes.set_yticks(range(len(table.lanes)), [f"device {d}" for d in range(len(table.lanes))])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=9)
        _draw_table(axes, table, inches_a_tick=0.86 * WIDE / longest)
    column[-1, 0].set_xlabel("ticks", fontsize=9)
    column[-1, 0].locator_params(axis="x", integer=True)
    _name_colours(figure, tables)
    said = ". ".join(f"{name}: {_in_words(table)}" for name, table in tables.items())
    return finish(figure, title=title, alt=f"Lanes of a pipeline's devices. {said}.")


def _axis_of(table: Timetable) -> float:
    """Returns the ticks to draw: behind lanes that wait there is room for a word."""
    return max(8.0, table.ticks + 2) if table.waits else table.ticks


def summary(table: Timetable) -> str:
    """Returns how long a timetable takes, how idle it is and what it keeps; or that it hangs."""
    if table.waits:
        return f"nothing moves after tick {table.ticks:g}"
    idle, kept = f"{100 * table.idle_share:.0f} % idle", f"keeps up to {max(table.kept):g}"
    return f"{table.ticks:g} ticks, {idle}, {kept}"


def _draw_table(axes: Any, table: Timetable, *, inches_a_tick: float) -> None:
    for device, lane in enumerate(table.lanes):
        end = lane[-1].end if lane else 0
        if not table.waits:
            box(axes, (0, device - 0.4), (table.ticks, 0.8), fill=palette.GRID)
        for start, stop, item in lane:
            number, _, piece = item[1:].partition(".")
            shade = {"fill": _COLOURS[item[0]], "color": palette.GROUND}
            if int(piece or 0) % 2:
                shade = {"fill": palette.GROUND, "edge": _COLOURS[item[0]]}
                shade["color"] = palette.ink(_COLOURS[item[0]])
            room = inches_a_tick * (stop - start) > _INCHES_A_LETTER * (len(number) + 0.6)
            text = number if room else ""
            box(axes, (start, device - 0.4), (stop - start, 0.8), text, fontsize=8, **shade)
        if device in table.waits:
            word = f"waits at {table.waits[device]}"
            style = {"color": palette.WRONG.colour, "weight": "bold", "fontsize": 9}
            axes.text(end + 0.15, device, word, va="center", **style)


def _name_colours(figure: Figure, tables: Mapping[str, Timetable]) -> None:
    from matplotlib.patches import Patch

    kinds = "FBW" if any(table.split for table in tables.values()) else "FB"
    names = dict(_NAMES)
    if all(table.split for table in tables.values()):
        names["B"] = _HALF
    handles = [Patch(label=names[kind], facecolor=_COLOURS[kind]) for kind in kinds]
    idle = Patch(label="idle", facecolor=palette.GRID)
    palette.add_legend(figure, handles=[*handles, idle], loc="outside lower center", ncols=4)


def _in_words(table: Timetable) -> str:
    if table.waits:
        return f"{summary(table)}, because {table.why}"
    kept = ", ".join(f"{count:g}" for count in table.kept)
    return f"{summary(table)}; by device, micro-batches kept: {kept}"
