"""Figures: the programs that XLA compiles.

draw_compiled_batches({"as they come": [(32, 32, 1), (4, 4, 2)]})   # (examples, rows, program)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.course.palette import (
    GROUND,
    MIDDLE,
    NARROW,
    NOTE,
    add_legend,
    category,
    finish,
    label_axes,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_compiled_batches(plans: Mapping[str, Sequence[tuple[int, int, int]]]) -> Figure:
    """Draws each batch as a bar, in the colour of the program that runs it."""
    from matplotlib.patches import Patch

    width = MIDDLE if len(plans) > 1 else NARROW
    figure, columns = panels(1, len(plans), width=width, sharey=True, squeeze=False)
    padding = {"facecolor": GROUND, "edgecolor": NOTE, "hatch": ".."}
    looks: dict[str, dict[str, Any]] = {}
    for axes, (title, batches) in zip(columns[0], plans.items(), strict=True):
        for place, (examples, rows, program) in enumerate(batches, 1):
            look = looks.setdefault(f"program {program}", category(program - 1).bar())
            axes.bar(place, examples, **look)
            if rows > examples:
                look = looks.setdefault("padding", padding)
                axes.bar(place, rows - examples, bottom=examples, **look)
        label_axes(axes, x="batch", y="rows")
        axes.set_title(f"{title}: {_count(batches)}", fontsize=10, loc="left")
        axes.set_xticks(range(1, len(batches) + 1))
    labels = sorted(looks, key=lambda label: (label == "padding", label))
    handles = [Patch(**looks[label], label=label) for label in labels]
    add_legend(figure, handles=handles, loc="outside lower center", ncols=3)
    return finish(
        figure,
        title="Padding keeps one shape" if len(plans) > 1 else "Each new shape is a new program",
        alt=" ".join(_told(title, plans[title]) for title in plans),
    )


def _count(batches: Sequence[tuple[int, int, int]]) -> str:
    programs = len({program for _, _, program in batches})
    return f"{programs} program{'s' if programs > 1 else ''}"


def _told(title: str, batches: Sequence[tuple[int, int, int]]) -> str:
    rows = ", ".join(str(rows) for _, rows, _ in batches)
    ran_by = ", ".join(str(program) for _, _, program in batches)
    padding = sum(rows - examples for examples, rows, _ in batches)
    return (
        f"{title}: {len(batches)} batches of {rows} rows, {padding} of them padding, run by "
        f"programs {ran_by}."
    )
