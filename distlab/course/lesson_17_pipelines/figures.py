"""Figures: the lanes of a pipeline's devices, as a schedule was played.

draw_lanes({"GPipe": play(gpipe(4, 8), 8)})     # a panel for each timetable, on one axis of ticks
show_lanes("yours", gpipe(4, 8), micro_batches=8)   # the same, or what is wrong with the schedule
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.course import palette
from distlab.course.figures.shapes import box
from distlab.course.lesson_17_pipelines.timetable import Timetable, play
from distlab.course.palette import MIDDLE, WIDE, finish, panels
from distlab.course.show import show
from distlab.errors import InvalidArgument

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {"F": "forward", "B": "backward", "W": "backward, weights' half"}
_HALF = "backward, inputs' half"
_COLOURS = {
    kind: palette.category(number).colour for kind, number in zip("FBW", (0, 2, 3), strict=True)
}
_PALE = 0.4  # of the colour, for the second piece of a device
_FONT_SIZES = (8, 6)  # the larger one with which a number fits into its box
_INCHES_A_DIGIT = 0.0078  # and point of its size
_INCHES_A_WORD = 1.1  # behind a lane that waits
_LANES_OF_WIDTH = 0.86  # the part of a figure's width
_LANE = 0.27


def draw_lanes(tables: Mapping[str, Timetable], *, title: str = "") -> Figure:
    """Draws what each device does in each tick; a number is that of the micro-batch.

    A pale box is the device's second piece of the model, and a red one is where a device waits
    forever.
    """
    lanes = [len(table.lanes) for table in tables.values()]
    height = _LANE * sum(lanes) + 0.38 * len(lanes) + 0.75
    form: dict[str, Any] = {"height_ratios": lanes, "squeeze": False, "sharex": True}
    width = MIDDLE if all(table.waits for table in tables.values()) else WIDE
    figure, column = panels(len(lanes), width=width, height=height, **form)
    longest = max(_axis_of(table, width) for table in tables.values())
    for axes, (name, table) in zip(column[:, 0], tables.items(), strict=True):
        axes.set_title(f"{name}: {summary(table)}", fontsize=10, loc="left")
        axes.set(xlim=(0, longest), ylim=(len(table.lanes) - 0.5, -0.5))
        axes.set_yticks(range(len(table.lanes)), [f"device {d}" for d in range(len(table.lanes))])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=9)
        _draw_table(axes, table, inches_a_tick=_LANES_OF_WIDTH * width / longest)
    column[-1, 0].set_xlabel("ticks", fontsize=9)
    column[-1, 0].locator_params(axis="x", integer=True)
    _name_colours(figure, tables)
    said = ". ".join(f"{name}: {_in_words(table)}" for name, table in tables.items())
    return finish(figure, title=title, alt=f"Lanes of a pipeline's devices. {said}.")


def show_lanes(
    name: str,
    schedule: Sequence[Sequence[str]],
    micro_batches: int,
    *,
    message_ticks: float = 0,
) -> None:
    """Shows the lanes of a schedule in a notebook; of what is no schedule, what is wrong."""
    try:
        table = play(schedule, micro_batches, message_ticks=message_ticks)
    except InvalidArgument as error:
        show("nothing to draw", f"{error.found}; {error.do}")
    else:
        from IPython.display import display

        display(draw_lanes({name: table}))


def _axis_of(table: Timetable, width: float) -> float:
    """Returns the ticks to draw: behind lanes that wait there is room for a word."""
    lanes = _LANES_OF_WIDTH * width
    return max(1.0, table.ticks * lanes / (lanes - _INCHES_A_WORD * bool(table.waits)))


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
            place = (start, device - 0.4), (stop - start, 0.8)
            shade: dict[str, Any] = {"fill": _COLOURS[item[0]], "color": palette.GROUND}
            if int(piece or 0) % 2:
                box(axes, *place, fill=palette.GROUND)
                shade = {"fill": (_COLOURS[item[0]], _PALE), "color": palette.REFERENCE}
            size = _font_size(number, inches=inches_a_tick * (stop - start))
            box(axes, *place, number if size else "", fontsize=size or None, **shade)
        if device in table.waits:
            word = f"waits at {table.waits[device]}"
            style = {"color": palette.WRONG.colour, "weight": "bold", "fontsize": 9}
            axes.text(end + 0.15, device, word, va="center", **style)


def _font_size(number: str, *, inches: float) -> int:
    """Returns the size in which a number fits into a box; 0 if it's too wide in each."""
    fit = (size for size in _FONT_SIZES if len(number) * size * _INCHES_A_DIGIT + 0.025 < inches)
    return next(fit, 0)


def _name_colours(figure: Figure, tables: Mapping[str, Timetable]) -> None:
    from matplotlib.patches import Patch

    kinds = "FBW" if any(table.split for table in tables.values()) else "FB"
    names = dict(_NAMES)
    if all(table.split for table in tables.values()):
        names["B"] = _HALF
    handles = [Patch(label=names[kind], facecolor=_COLOURS[kind]) for kind in kinds]
    if (pieces := max(table.pieces for table in tables.values())) > 1:
        which = "second piece" if pieces == 2 else "every second piece"
        handles.append(Patch(label=which, facecolor=(_COLOURS["F"], _PALE)))
    if not all(table.waits for table in tables.values()):
        handles.append(Patch(label="idle", facecolor=palette.GRID))
    palette.add_legend(figure, handles=handles, loc="outside lower center", ncols=len(handles))


def _in_words(table: Timetable) -> str:
    if table.waits:
        return f"{summary(table)}, because {table.why}"
    kept = ", ".join(f"{count:g}" for count in table.kept)
    return f"{summary(table)}; by device, micro-batches kept: {kept}"
