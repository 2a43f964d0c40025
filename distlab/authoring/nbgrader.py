"""The marks that nbgrader reads in a notebook: which cells answer, and which give points.

    mark_cells(cells, points_of=lambda: {"slices": 2}, places=["exercise.py, line 3", ...])

The metadata is of nbgrader's schema 3. The cell of a check is one whose last line is
`dl.check("name")`, or `dl.check(checks["name"])` where the checks are a teacher's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.course.markup import REPORT, TASK
from distlab.errors import DistlabError, NotebookError, did_you_mean

if TYPE_CHECKING:
    from nbformat import NotebookNode

_CHECK = re.compile(r"""^(?:dl\.)?check\((?:\w+\[)?["'](\w+)["']\]?\)\s*\Z""", re.MULTILINE)


def mark_cells(
    cells: Sequence[NotebookNode],
    *,
    points_of: Callable[[], Mapping[str, float]],
    places: Sequence[str],
) -> None:
    """Marks the answers, the checks and the reports of an exercise."""
    checked = set[str]()
    for cell, place in zip(cells, places, strict=True):
        is_code = cell.cell_type == "code"
        if is_code and (task := TASK.match(cell.source)):
            cell.metadata["nbgrader"] = _marks(task[1], is_solution=True)
        elif report := REPORT.match(cell.source):
            # Of code the picture, of text what a person gives points for.
            name = report[1] or report[2]
            points = None if is_code else _points(name, points_of, place)
            grade_id = f"{name}-picture" if is_code else name
            cell.metadata["nbgrader"] = _marks(grade_id, is_solution=True, points=points)
        elif is_code and (check := _CHECK.search(cell.source)):
            name = check[1]
            if name in checked:
                raise NotebookError(
                    asked=f"the cell at {place}",
                    found=f"a second cell that checks {name!r}, which would count twice",
                    do="check each task in one cell",
                )
            checked.add(name)
            points = _points(name, points_of, place)
            cell.metadata["nbgrader"] = _marks(f"{name}-check", is_solution=False, points=points)


def _marks(grade_id: str, *, is_solution: bool, points: float | None = None) -> dict[str, Any]:
    is_graded = points is not None
    return {
        "grade": is_graded,
        "grade_id": grade_id,
        "locked": not is_solution,
        "schema_version": 3,
        "solution": is_solution,
        "task": False,
        **({"points": points} if is_graded else {}),
    }


def _points(name: str, points_of: Callable[[], Mapping[str, float]], place: str) -> float:
    asked, found = f"the cell at {place}", f"{name!r}, of which no check and no report is known"
    try:
        known = points_of()
    except DistlabError as error:  # the lesson has none at all
        raise NotebookError(
            asked=asked, found=f"{found}: {error}", do="write its checks"
        ) from error
    if name not in known:
        raise NotebookError(asked=asked, found=found, do=did_you_mean(name, known))
    return known[name]
