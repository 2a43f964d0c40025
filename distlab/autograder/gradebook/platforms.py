"""Gives the points of one exercise back to the platform that its submissions came from.

    give_back(scored, out, canvas=("export.csv", "Exercise 09"), moodle="worksheet.csv", say=print)

Canvas's exported gradebook and Moodle's grading worksheet are copied with one column filled in:
only cells of learners whose number is among the submissions change. Both take one exercise at a
time.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distlab.autograder.gradebook.scores import Graded, Score
from distlab.autograder.gradebook.tables import Cell, safe, write_rows
from distlab.errors import InvalidArgument, did_you_mean

Scored = Sequence[tuple[Graded, Score]]

# As Canvas exports an assignment: its title, and its number in brackets.
_ASSIGNMENT = re.compile(r"(.+) \(\d+\)")


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """How a platform exports points: the columns of the learner, and how to get the file."""

    columns: tuple[str, ...]  # the first has the learner's number
    get: str
    points: str = ""  # the column to fill, where it is always the same


CANVAS = Sheet(
    columns=("ID", "Student"),
    get="export the gradebook from Canvas (Grades > Export), and give that file",
)
MOODLE = Sheet(
    columns=("Identifier", "Grade"),
    get="download the grading worksheet of the assignment from Moodle, and give that file",
    points="Grade",
)


def give_back(
    scored: Scored,
    out: Path,
    *,
    canvas: Sequence[str] | None = None,
    moodle: Path | None = None,
    exercise: str | None = None,
    say: Callable[[str], None],
) -> None:
    """Writes `canvas.csv` and `moodle.csv`, whichever is asked."""
    if exercise:
        scored = _of_exercise(exercise, scored, say)
    best = _best(scored, asked=f"give points back in {out}")
    exports = [(CANVAS, Path(canvas[0]), canvas[1], "canvas.csv")] if canvas else []
    exports += [(MOODLE, moodle, MOODLE.points, "moodle.csv")] if moodle else []
    for sheet, exported, column, name in exports:
        if absent := fill_sheet(sheet, exported, best, column=column, to=out / name):
            say(f"not in {exported}: {', '.join(absent)}")


def check_export(sheet: Sheet, exported: Path, column: str) -> None:
    """Raises where an export has not the column to fill, before anything is graded."""
    _place_of(column, _rows_of(sheet, exported)[0], exported)


def fill_sheet(sheet: Sheet, exported: Path, best: Scored, *, column: str, to: Path) -> list[str]:
    """Copies an exported table, with one column filled in; returns who is not in it."""
    if to.resolve() == exported.resolve():
        raise InvalidArgument(
            asked=f"fill {exported}",
            found="the export itself as the file to write",
            do="write to a different file",
        )
    header, *rows = _rows_of(sheet, exported)
    place, user = _place_of(column, header, exported), header.index(sheet.columns[0])
    numbers = [(re.findall(r"\d+", row[user]) or [""])[-1] if row[user:] else "" for row in rows]
    earned = {
        graded.submission.user: score.earned
        for graded, score in best
        if graded.submission.user and not graded.problem
    }
    filled: list[list[Cell]] = [list(header)]
    for row, number in zip(rows, numbers, strict=True):
        cells: list[Cell] = [*row, *([""] * (len(header) - len(row)))]
        if number in earned:
            cells[place] = safe(earned[number])
        filled.append(cells)
    write_rows(to, filled)  # all but the points is the platform's own
    handed = (graded.submission for graded, _ in best)
    return sorted(submission.learner for submission in handed if submission.user not in numbers)


def _of_exercise(name: str, scored: Scored, say: Callable[[str], None]) -> Scored:
    """Returns the notebooks of one exercise, and those that cannot be graded."""
    known = sorted({graded.stem for graded, _ in scored if graded.stem})
    if name not in known:
        raise InvalidArgument(
            asked=f"give back the points of {name!r}",
            found="no notebook of that exercise",
            do=did_you_mean(name, known) if known else "leave --exercise out",
        )
    chosen = [(graded, score) for graded, score in scored if graded.stem in ("", name)]
    everybody, own = ({g.submission.learner for g, _ in some} for some in (scored, chosen))
    for learner in sorted(everybody - own):
        say(f"no notebook of {name}, so no points are given back: {learner}")
    return chosen


def _best(scored: Scored, *, asked: str) -> Scored:
    """Returns the best notebook of each learner."""
    stems = Counter(graded.stem for graded, _ in scored if graded.stem)
    if len(stems) > 1:
        counted = ", ".join(f"{stem} ({number})" for stem, number in stems.most_common())
        raise InvalidArgument(
            asked=asked,
            found=f"notebooks of {len(stems)} exercises: {counted}",
            do=f"choose one with --exercise, such as --exercise {stems.most_common()[0][0]}; "
            "what is graded is kept",
        )
    ranked = sorted(scored, key=lambda pair: (not pair[0].problem, pair[1].earned))
    return list({pair[0].submission.person: pair for pair in ranked}.values())


def _rows_of(sheet: Sheet, exported: Path) -> list[list[str]]:
    def refuse(found: str) -> InvalidArgument:
        return InvalidArgument(asked=f"fill {exported}", found=found, do=sheet.get)

    try:
        rows = list(csv.reader(io.StringIO(exported.read_text(encoding="utf-8-sig"))))
    except (OSError, UnicodeDecodeError) as problem:
        raise refuse(f"a file that cannot be read ({problem})") from problem
    if not rows or not set(sheet.columns) <= set(rows[0]):
        raise refuse(f"a table without the columns {' and '.join(sheet.columns)}")
    return rows


def _place_of(column: str, header: Sequence[str], exported: Path) -> int:
    """Finds a column by its name, or by the title of an assignment in Canvas."""
    titles = {name: at for at, name in enumerate(header)}
    assignments = {
        known[1]: at for name, at in titles.items() if (known := _ASSIGNMENT.match(name))
    }
    for names in (titles, assignments):
        if column in names:
            return names[column]
    raise InvalidArgument(
        asked=f"fill {column!r} in {exported}",
        found="no assignment of that title",
        do=did_you_mean(column, sorted(assignments))
        if assignments
        else "the export has no assignments",
    )
