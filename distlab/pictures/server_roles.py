"""Who does what in a training with parameter servers. Lesson 10.

draw_roles(workers=2, servers=2)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distlab.pictures.palette import GROUND, NOTE, REFERENCE, category, finish
from distlab.pictures.palette import worker as look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COORDINATOR, _WORKERS, _SERVERS = 0.0, 4.2, 8.6  # middles of the three columns, left to right
_WIDTH, _HEIGHT = 2.1, 0.9


def draw_roles(*, workers: int, servers: int) -> Figure:
    """Draws the coordinator, the workers and the parameter servers, and what goes between them."""
    import matplotlib.pyplot as plt

    most = max(workers, servers)
    figure: Figure
    figure, axes = plt.subplots(figsize=(8.6, 1.0 + 1.15 * most), layout="constrained")
    _box(axes, _COORDINATOR, 0.0, "coordinator\n(your program)", category(0).colour)
    for number, place in enumerate(_places(workers)):
        _box(axes, _WORKERS, place, f"worker {number}\n(computes)", look_of(number).colour)
        _arrows(axes, _COORDINATOR, _WORKERS, 0.0, place)
        for home in _places(servers):
            _arrows(axes, _WORKERS, _SERVERS, place, home)
    for number, place in enumerate(_places(servers)):
        _box(axes, _SERVERS, place, f"parameter server {number}\n(variables)", category(3).colour)
    top = max(_places(most)) + 0.75
    _note(axes, (_COORDINATOR + _WORKERS) / 2, top, "1 sends a step  →\n←  4 reports the result")
    _note(axes, (_WORKERS + _SERVERS) / 2, top, "←  2 reads weights\n3 writes its update  →")
    axes.set_xlim(_COORDINATOR - 1.3, _SERVERS + 1.4)
    axes.set_ylim(-max(_places(most)) - 0.7, top + 0.7)
    axes.axis("off")
    return finish(
        figure,
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
    from matplotlib.patches import FancyBboxPatch

    corner = (x - _WIDTH / 2, y - _HEIGHT / 2)
    style = "round,pad=0.02,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch(corner, _WIDTH, _HEIGHT, boxstyle=style, color=colour, zorder=3))
    axes.text(x, y, text, ha="center", va="center", color=GROUND, fontsize=9, zorder=4)


def _arrows(axes: Axes, x: float, other_x: float, y: float, other_y: float) -> None:
    """One arrow in each direction, beside each other."""
    start, end = x + _WIDTH / 2 + 0.08, other_x - _WIDTH / 2 - 0.08
    for aside, style in ((0.1, "-|>"), (-0.1, "<|-")):
        axes.annotate(
            "",
            xy=(end, other_y + aside),
            xytext=(start, y + aside),
            arrowprops={"arrowstyle": style, "color": NOTE, "lw": 1.1, "shrinkA": 0, "shrinkB": 0},
        )


def _note(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="center", va="center", color=REFERENCE, fontsize=9)
