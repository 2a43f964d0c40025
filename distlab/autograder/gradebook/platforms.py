"""Gives the points of one exercise back to the platform that its submissions came from.

    give_back(scored, out, canvas=("export.csv", "Exercise 09"), moodle="worksheet.csv", say=print)

Canvas's exported gradebook and Moodle's grading worksheet are copied with one column filled in:
only cells of learners whose number is among the submissions change, and all else stays as it was
saved. Both take one exercise at a time.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distlab.atomic_write import write_atomically
from distlab.autograder.gradebook.saved_table import SavedTable, open_table
from distlab.autograder.gradebook.scores import Graded, Score
from distlab.autograder.gradebook.tables import number_in, safe
from distlab.errors import InvalidArgument, did_you_mean

Scored = Sequence[tuple[Graded, Score]]

# As Canvas exports an assignment: its title, and its number in brackets.
_ASSIGNMENT = re.compile(r"(.+) \(\d+\)")
# As Moodle names a participant in any language: a word, and the number that files have, too.
_PARTICIPANT = re.compile(r"(\D+?)\s*(\d+)")
_UNGRADED = ("", "-")


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """How a platform exports points: where the numbers and the points are, and how to get it."""

    number: Callable[[SavedTable], int | None]  # finds the column of the learners' numbers
    points: Callable[[SavedTable, str], int | None]  # the column to fill, by its title
    lacks: str  # of a table in which they are not found
    get: str


def _canvas_number(table: SavedTable) -> int | None:
    """Finds the column that Canvas calls ID in every language (lib/gradebook_exporter.rb)."""
    return table.header.index("ID") if "ID" in table.header else None


def _canvas_points(table: SavedTable, title: str) -> int | None:
    """Finds an assignment by its title, with or without its number."""
    titles = {name: at for at, name in enumerate(table.header)}
    return titles.get(title, _assignments(table).get(title))


def _assignments(table: SavedTable) -> dict[str, int]:
    named = ((at, _ASSIGNMENT.match(name)) for at, name in enumerate(table.header))
    return {found[1]: at for at, found in named if found}


def _moodle_number(table: SavedTable) -> int | None:
    """Finds the column of participants: in each row the same word, and a number of its own."""
    for at in range(len(table.header)):
        found = [_PARTICIPANT.fullmatch(value) for value in _column(table, at)]
        known = [(match[1], match[2]) for match in found if match]
        if known and len(known) == len(found) == len(set(known)) and len(dict(known)) == 1:
            return at
    return None


def _moodle_points(table: SavedTable, title: str) -> int | None:
    """Finds the column of grades: empty or numbers, and beside them the highest grade there is.

    Names of columns are in Moodle's language (mod/assign/gradingtable.php), and their order isn't.
    """
    number = _moodle_number(table)
    for at in reversed(range(0 if number is None else number + 1, len(table.header) - 1)):
        grades = [number_in(v) or 0.0 for v in _column(table, at) if v not in _UNGRADED]
        highest = {value: number_in(value) or math.nan for value in _column(table, at + 1)}
        if len(highest) == 1 and not any(map(math.isnan, (*highest.values(), *grades))):
            return at
    return None


def _column(table: SavedTable, at: int) -> list[str]:
    """Returns a column's values in rows that are not empty, "" where a row is too short."""
    rows = (row for row in table.rows[1:] if any(cell.value.strip() for cell in row))
    return [row[at].value.strip() if at < len(row) else "" for row in rows]


CANVAS = Sheet(
    number=_canvas_number,
    points=_canvas_points,
    lacks="a table without a column ID",
    get="export the gradebook from Canvas (Grades > Export), and give that file",
)
MOODLE = Sheet(
    number=_moodle_number,
    points=_moodle_points,
    lacks="a table without a column of participants, such as 'Participant 123'",
    get="download the grading worksheet of the assignment from Moodle, and give that file",
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
    exports += [(MOODLE, moodle, "", "moodle.csv")] if moodle else []
    for sheet, exported, column, name in exports:
        if absent := fill_sheet(sheet, exported, best, column=column, to=out / name):
            say(f"not in {exported}: {', '.join(absent)}")


def check_export(sheet: Sheet, exported: Path, title: str = "") -> None:
    """Raises where an export has not the column to fill, before anything is graded."""
    _opened(sheet, exported, title)


def fill_sheet(
    sheet: Sheet, exported: Path, best: Scored, *, to: Path, column: str = ""
) -> list[str]:
    """Copies an exported table, with one column filled in; returns who is not in it."""
    if to.resolve() == exported.resolve():
        raise InvalidArgument(
            asked=f"fill {exported}",
            found="the export itself as the file to write",
            do="name a different file to write",
        )
    table, user, place = _opened(sheet, exported, column)
    numbers = [_number_in(row[user].value) if user < len(row) else "" for row in table.rows]
    earned = {
        graded.submission.user: score.earned
        for graded, score in best
        if graded.submission.user and not graded.problem
    }
    filled = {}
    for at, number in enumerate(numbers):
        if number in earned:
            points = str(safe(earned[number]))
            filled[at, place] = points.replace(".", "," if table.has_decimal_comma else ".")
    write_atomically(to, table.filled(filled))
    handed = (graded.submission for graded, _ in best)
    return sorted(submission.learner for submission in handed if submission.user not in numbers)


def _number_in(cell: str) -> str:
    """Returns the number of `12345`, or of `Participant 12345`."""
    found = re.fullmatch(r"\D*(\d+)", cell.strip())
    return found[1] if found else ""


def _of_exercise(name: str, scored: Scored, say: Callable[[str], None]) -> Scored:
    """Returns the notebooks of one exercise, and those that cannot be graded."""
    known = sorted({graded.stem for graded, _ in scored if graded.stem})
    if name not in known:
        raise InvalidArgument(
            asked=f"give back the points of {name!r}",
            found=f"no notebook of the exercise {name!r}",
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


def _opened(sheet: Sheet, exported: Path, title: str) -> tuple[SavedTable, int, int]:
    """Returns a table, with the columns of the numbers and of the points."""
    tables = open_table(exported, asked=f"fill {exported}", do=sheet.get).values()
    table = max(tables, key=lambda table: len(table.header))
    if (number := sheet.number(table)) is None:
        raise InvalidArgument(asked=f"fill {exported}", found=sheet.lacks, do=sheet.get)
    if (points := sheet.points(table, title)) is not None:
        return table, number, points
    if not title:
        found = "no column of grades, which are empty or numbers, with the highest grade beside it"
        raise InvalidArgument(asked=f"fill {exported}", found=found, do=sheet.get)
    assignments = sorted(_assignments(table))
    raise InvalidArgument(
        asked=f"fill {title!r} in {exported}",
        found=f"no assignment titled {title!r}",
        do=did_you_mean(title, assignments) if assignments else "the export has no assignments",
    )
