"""Exports the points of one exercise to the LMS that its submissions came from.

    give_back(results.scored, out, canvas=("export.csv", "Exercise 09"), say=print)
    # one by one:
    fill_canvas(exported, results.scored, column="Exercise 09", to=out / "canvas.csv")
    write_gradescope(out / "gradescope", results.scored)      # jane/results.json, ...

Canvas and Gradescope take one exercise at a time, so all notebooks must belong to one exercise.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from distlab.autograder.gradebook.csv_reader import number_in
from distlab.autograder.gradebook.csv_writer import Cell, safe, write_rows
from distlab.autograder.gradebook.feedback_page import folder_of
from distlab.autograder.gradebook.reading_status import READING_WORDINGS
from distlab.autograder.gradebook.scores import Graded, ReportScore, Score
from distlab.errors import InvalidArgument, did_you_mean

Scored = Sequence[tuple[Graded, Score]]

_USER, _NAME, _MOST = "ID", "Student", "Points Possible"
# As Canvas exports an assignment: its title, and its number in brackets.
_ASSIGNMENT = re.compile(r"(.+) \((\d+)\)")


def give_back(
    scored: Scored,
    out: Path,
    *,
    canvas: Sequence[str] | None = None,
    gradescope: bool = False,
    exercise: str | None = None,
    say: Callable[[str], None],
) -> None:
    """Writes `canvas.csv` and the folder `gradescope`, whichever is asked."""
    if exercise:
        scored = _of_exercise(exercise, scored, say)
    if gradescope:
        write_gradescope(out / "gradescope", scored)
    if canvas:
        exported, column, to = Path(canvas[0]), canvas[1], out / "canvas.csv"
        for learner in fill_canvas(exported, scored, column=column, to=to):
            say(f"not in {exported}: {learner}")
        inside = most_in_canvas(exported, column=column)
        most = max((score.points for _, score in scored), default=0.0)
        if inside not in (None, most):
            say(
                f"in Canvas {column!r} has {inside:g} points, and here there are {most:g}: {to} "
                "has the points as they are here; change the assignment's points in Canvas"
            )


def _of_exercise(name: str, scored: Scored, say: Callable[[str], None]) -> Scored:
    """Returns the notebooks of one exercise, and those that cannot be graded."""
    known = sorted({one.stem for one, _ in scored if one.stem})
    if name not in known:
        raise InvalidArgument(
            asked=f"give back the points of {name!r}",
            found="no notebook of that exercise",
            do=did_you_mean(name, known) if known else "leave --exercise out",
        )
    chosen = [(one, score) for one, score in scored if one.stem in ("", name)]
    everybody, theirs = ({one.submission.learner for one, _ in some} for some in (scored, chosen))
    for learner in sorted(everybody - theirs):
        say(f"no notebook of {name}, so no points are given back: {learner}")
    return chosen


def fill_canvas(exported: Path, scored: Scored, *, column: str, to: Path) -> list[str]:
    """Copies an exported Canvas gradebook, with one assignment filled in.

    Only that assignment's cells change, and only of learners whose number is among the
    submissions: what is written can be imported as it is. The export itself stays as it was.
    """
    if to.resolve() == exported.resolve():
        raise InvalidArgument(
            asked=f"fill {exported}",
            found="the export itself as the file to write",
            do="write to a different file",
        )
    best = _best(scored, asked=f"fill {exported}")
    rows = _rows_of(exported)
    header = rows[0]
    place, user = _place_of(column, header, exported), header.index(_USER)
    earned = {
        one.submission.user: score.earned
        for one, score in best
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
    return sorted(one.submission.learner for one, _ in best if one.submission.user not in there)


def most_in_canvas(exported: Path, *, column: str) -> float | None:
    """Returns the most points that an assignment has in Canvas; None if the export has none."""
    rows = _rows_of(exported)
    place, name = _place_of(column, rows[0], exported), rows[0].index(_NAME)
    for row in rows[1:]:
        if row[name:] and row[name].strip() == _MOST and row[place:]:
            most = number_in(row[place])
            return None if most is None or math.isnan(most) else most
    return None


def _rows_of(exported: Path) -> list[list[str]]:
    try:
        text = exported.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidArgument(
            asked=f"fill {exported}",
            found=f"a file that cannot be read ({problem})",
            do="export the gradebook from Canvas (Grades > Export), and give that file",
        ) from problem
    rows = list(csv.reader(io.StringIO(text)))
    if not rows or _USER not in rows[0] or _NAME not in rows[0]:
        raise InvalidArgument(
            asked=f"fill {exported}",
            found=f"a table without the columns {_NAME} and {_USER}",
            do="export the gradebook from Canvas (Grades > Export), and give that file",
        )
    return rows


def write_gradescope(folder: Path, scored: Scored) -> None:
    """Writes for each learner what Gradescope's autograder takes as its results.json."""
    for one, score in _best(scored, asked=f"write {folder}"):
        path = folder / folder_of(one.submission) / "results.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        told = json.dumps(gradescope_results(one, score), indent=1)
        path.write_text(told, encoding="utf-8")


def gradescope_results(graded: Graded, score: Score) -> dict[str, Any]:
    """Returns what Gradescope's autograder reads as results.json."""
    if graded.problem:
        return {"score": 0.0, "output": _text(f"Not graded: {graded.problem}"), "tests": []}
    return {
        "score": score.earned,
        "output": _text("\n".join(graded.notes)),
        "output_format": "text",
        "tests": [*_tests(graded, score), *(_test_of(reading) for reading in score.readings)],
    }


def _tests(graded: Graded, score: Score) -> Iterator[dict[str, Any]]:
    for report in graded.reports:
        looks = "Held for review: your teacher looks at this answer before its points count."
        parts = (
            repr(report),
            looks if report.name in score.waiting else "",
            score.comments.get(report.name, ""),
        )
        yield _test(report.title or report.name, score.by_check[report.name], report.points, parts)


def _test_of(reading: ReportScore) -> dict[str, Any]:
    report = reading.report
    # The rubric gives answers away, so only learners whose report is read see it.
    rows = [
        f"{row.name if given.points is None else f'{row.says}: {given.points:g}'} of "
        f"{row.points:g}" + (f". {given.comment}" if given.comment else "")
        for row, given in reading.rows
    ]
    parts = (READING_WORDINGS[reading.status].in_tables, "\n".join(rows))
    return _test(report.title or report.name, reading.earned, report.points, parts)


def _test(name: str, score: float, most: float, parts: Sequence[str]) -> dict[str, Any]:
    return {
        "name": _text(name),
        "score": float(score),
        "max_score": float(most),
        "output": _text("\n\n".join(part for part in parts if part)),
        "output_format": "text",
        "visibility": "visible",
    }


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _best(scored: Scored, *, asked: str) -> Scored:
    """Returns the best notebook of each learner."""
    stems = Counter(one.stem for one, _ in scored if one.stem)
    if len(stems) > 1:
        counted = ", ".join(f"{stem} ({number})" for stem, number in stems.most_common())
        rare = stems.most_common()[-1][0]
        whose = next(one.submission.learner for one, _ in scored if one.stem == rare)
        raise InvalidArgument(
            asked=asked,
            found=f"notebooks of {len(stems)} exercises: {counted}; {whose} handed in {rare}",
            do=f"choose one with --exercise, such as --exercise {stems.most_common()[0][0]}; "
            "what is graded is kept",
        )
    best: dict[tuple[str, str], tuple[Graded, Score]] = {}
    for one, score in scored:
        person = (one.submission.learner, one.submission.user)
        if person not in best or _rank(one, score) > _rank(*best[person]):
            best[person] = (one, score)
    return list(best.values())


def _rank(graded: Graded, score: Score) -> tuple[bool, float]:
    return not graded.problem, score.earned


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
