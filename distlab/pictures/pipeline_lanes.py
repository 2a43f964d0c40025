"""A pipeline's stages over time: what each computes in each tick, and where it is idle.

draw_pipeline({"1 micro-batch": pipeline_schedule(4, micro_batches=1), ...})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.measure.pipeline_schedule import Lane, idle_share
from distlab.pictures import palette
from distlab.pictures.palette import finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS = ("forward", "backward")
_NARROW = 0.12  # a tick that has no place for a number


def draw_pipeline(schedules: Mapping[str, Sequence[Lane]]) -> Figure:
    """Draws each schedule as lanes of ticks; the number in a tick is that of the micro-batch.

    All panels have one time axis, in the time that a stage takes for the whole batch: a tick is
    shorter where the batch is cut into more micro-batches.
    """
    import matplotlib.pyplot as plt

    longest = max(len(lanes[0]) * _tick(lanes) for lanes in schedules.values())
    rows = sum(len(lanes) for lanes in schedules.values())
    heights = [len(lanes) for lanes in schedules.values()]
    size = (8.4, 0.3 * rows + 0.75 * len(schedules) + 0.4)
    form = {"layout": "constrained", "height_ratios": heights, "squeeze": False, "sharex": True}
    figure, panels = plt.subplots(len(schedules), figsize=size, **form)
    told = []
    for axes, (title, lanes) in zip(panels[:, 0], schedules.items(), strict=True):
        idle = f"{100 * idle_share(lanes):.0f} % idle"
        axes.set_title(f"{title}: {idle}", fontsize=10, loc="left")
        for stage, lane in enumerate(lanes):
            _draw_lane(axes, stage, lane, tick=_tick(lanes))
        axes.set_xlim(0, longest)
        axes.set_ylim(len(lanes) - 0.5, -0.5)
        axes.set_yticks(range(len(lanes)), [f"stage {stage}" for stage in range(len(lanes))])
        axes.spines[:].set_visible(False)
        took = len(lanes[0]) * _tick(lanes)
        told.append(f"{title}: {len(lanes)} stages, {idle}, a batch takes {took:g} units of time.")
    panels[-1, 0].set_xlabel("time (1 = a stage's time for the whole batch, one direction)")
    _add_legend(figure)
    return finish(
        figure,
        alt="Lanes of a pipeline's stages. In each tick a stage computes one micro-batch forward "
        f"or backward, or is idle. {' '.join(told)}",
    )


def _tick(lanes: Sequence[Lane]) -> float:
    """How long a tick is: each stage computes the whole batch, forward and backward, in 2."""
    return 2 / sum(work is not None for work in lanes[0])


def _draw_lane(axes: Any, stage: int, lane: Lane, *, tick: float) -> None:
    for place, work in enumerate(lane):
        look = _look(work.kind if work else None)
        axes.barh(stage, 0.92 * tick, left=(place + 0.04) * tick, height=0.8, **look)
        if work and tick > _NARROW:
            style = {"ha": "center", "va": "center", "fontsize": 8, "color": palette.GROUND}
            axes.text((place + 0.5) * tick, stage, str(work.micro_batch), **style)


def _look(kind: str | None) -> dict[str, Any]:
    if kind is None:
        return {"facecolor": palette.GROUND, "edgecolor": palette.PALE, "hatch": "////"}
    return {"facecolor": palette.category(2 * _KINDS.index(kind)).colour}


def _add_legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(label=kind, **_look(kind)) for kind in _KINDS]
    handles.append(Patch(label="idle", **_look(None)))
    palette.add_legend(figure, handles=handles, loc="outside lower center", ncols=3)
