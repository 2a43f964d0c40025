"""Points for the systems that submissions came from.

fill_canvas(exported, graded, policy, column="Exercise 09", to=out / "canvas.csv")
gradescope_results(graded, policy)       # what Gradescope reads as results.json
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distlab.errors import InvalidArgument, did_you_mean
from distlab.grader.scoring import Graded, Policy, score_of
from distlab.grader.tables import Cell, safe, write_rows

_USER, _NAME = "ID", "Student"
# As Canvas exports an assignment: its title, and its number in brackets.
_ASSIGNMENT = re.compile(r"(.+) \((\d+)\)")


def fill_canvas(
    exported: Path, graded: Sequence[Graded], policy: Policy, *, column: str, to: Path
) -> list[str]:
    """Writes an exported Canvas gradebook once more, with one assignment filled in.

    Only that assignment's cells change, and only of learners whose number is among the
    submissions: what is written can be imported as it is. The export itself stays as it was.

    Args:
        exported: What Canvas exported (Grades > Export).
        graded: The submissions, of one exercise.
        policy: How points become a mark.
        column: The assignment's title there, with or without its number.
        to: Where to write.

    Returns:
        The learners that the export does not have, by name.

    Raises:
        InvalidArgument: It is no such export, it has no such assignment, or `to` is the export.
    """
    if to.resolve() == exported.resolve():
        raise InvalidArgument(
            asked=f"fill {exported}",
            found="the export itself as the place to write to",
            do="write to another file",
        )
    text = exported.read_text(encoding="utf-8-sig")
    rows = list(csv.reader(io.StringIO(text)))
    header = rows[0] if rows else []
    if _USER not in header or _NAME not in header:
        raise InvalidArgument(
            asked=f"fill {exported}",
            found=f"a table without the columns {_NAME} and {_USER}",
            do="export the gradebook from Canvas (Grades > Export), and give that file",
        )
    place, user = _place_of(column, header, exported), header.index(_USER)
    earned = {
        one.submission.user: score_of(one, policy).earned
        for one in graded
        if one.submission.user and not one.problem
    }
    there = {row[user].strip() for row in rows[1:] if len(row) > user}
    filled: list[list[Cell]] = [list(header)]
    for row in rows[1:]:
        cells: list[Cell] = [*row, *([""] * (len(header) - len(row)))]
        points = earned.get(str(cells[user]).strip())
        if points is not None:
            cells[place] = safe(points)
        filled.append(cells)
    write_rows(to, filled)  # all but the points is Canvas's own
    return sorted(one.submission.learner for one in graded if one.submission.user not in there)


def gradescope_results(graded: Graded, policy: Policy) -> dict[str, Any]:
    """Returns what Gradescope's autograder reads as results.json.

    Args:
        graded: One submission.
        policy: How points become a mark.
    """
    score = score_of(graded, policy)
    if graded.problem:
        return {"score": 0.0, "output": f"Not graded: {graded.problem}", "tests": []}
    return {
        "score": score.earned,
        "output": "\n".join(graded.notes),
        "output_format": "text",
        "tests": [
            {
                "name": report.title or report.name,
                "score": score.by_check[report.name],
                "max_score": report.points,
                "output": "\n\n".join(
                    part for part in (repr(report), score.comments.get(report.name, "")) if part
                ),
                "output_format": "text",
                "visibility": "visible",
            }
            for report in graded.reports
        ],
    }


def _place_of(column: str, header: Sequence[str], exported: Path) -> int:
    titles = {
        known[1]: at for at, name in enumerate(header) if (known := _ASSIGNMENT.fullmatch(name))
    }
    exact = {name: at for at, name in enumerate(header) if _ASSIGNMENT.fullmatch(name)}
    for names in (exact, titles):
        if column in names:
            return names[column]
    raise InvalidArgument(
        asked=f"fill {column!r} in {exported}",
        found="no assignment of that title",
        do=did_you_mean(column, sorted(titles)) if titles else "the export has no assignments",
    )
