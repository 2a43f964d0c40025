"""Grades a folder of submissions: what `distlab grade` does.

    graded = grade("handed-in", "out", GradingOptions(jobs=2))

Each answer runs in processes of its own, within limits; what came of it is judged where no
submission ever is. In `out` there are then the gradebook, a page of feedback for each notebook, one
of the class, and what a person should read or look at. Run again, it continues where it was, and
grades what is new.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import distlab
from distlab import __version__
from distlab.autograder.grade_one import GradingOptions, Marker
from distlab.autograder.gradebook.class_page import class_page
from distlab.autograder.gradebook.feedback_page import write_feedback
from distlab.autograder.gradebook.gradebook_csv import write_gradebook
from distlab.autograder.gradebook.html_page import write_page
from distlab.autograder.gradebook.manual_points import given_by_hand
from distlab.autograder.gradebook.people import People
from distlab.autograder.gradebook.rubric_csv import RubricMarks, read_marks, write_marks
from distlab.autograder.gradebook.scores import Graded, Policy, Score, score_of
from distlab.autograder.gradebook.teacher_changes import check_overrides, read_overrides
from distlab.autograder.intake.gradable_exercises import Lessons
from distlab.autograder.intake.submissions import Problem, Submission, find_submissions
from distlab.autograder.output.output_dir import Saved, take_away_stale, take_place
from distlab.errors import InvalidArgument, did_you_mean

MARKS = "reports.csv"
# What a result depends on besides the notebook.
_ROOMS = ("checks", "coursework", "results", "autograder")
_COURSE = tuple(Path(str(distlab.__file__)).with_name(room) for room in _ROOMS)


@dataclass(frozen=True, kw_only=True)
class Results:
    """What became of a folder.

    Attributes:
        graded: Each notebook, by learner.
        policy: How points become a mark, with all that the teacher gives.
    """

    graded: tuple[Graded, ...]
    policy: Policy

    @property
    def scored(self) -> list[tuple[Graded, Score]]:
        """Each notebook with what it earned."""
        return [(one, score_of(one, self.policy)) for one in self.graded]


def grade(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: GradingOptions | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Results:
    """Grades the notebooks of a folder, and returns what became of each."""
    options = options or GradingOptions()
    folder, place = Path(folder), Path(out)
    found = find_submissions(folder)
    chosen = _chosen(found.submissions, options.only)
    people = People([*found.submissions, *(one for one, _ in found.unusable)])
    overrides = read_overrides(options.overrides, people) if options.overrides else {}
    lessons = Lessons(options.extra_checks)
    policy = Policy(late_factor=options.late_factor, overrides=overrides, lessons=lessons)
    seed = take_place(place, folder, found.submissions, seed=options.seed)
    # A wrong row is reported before anything is graded.
    known_marks = read_marks(place / MARKS, people, lessons)
    policy = replace(policy, rows=known_marks.given)
    saved = Saved(place / "records", key=_key(options, seed))
    graded: list[Graded] = [Graded(submission=one, problem=why) for one, why in found.unusable]
    todo: list[Submission] = []
    for one in found.submissions:
        if one not in chosen:  # whatever it was graded with: the gradebook is of all
            known = saved.find(one, of_any_key=True)
        else:
            known = None if options.again else saved.find(one)
        if known is not None:
            graded.append(known)
        elif one in chosen:
            todo.append(one)
    before = len(graded) - len(found.unusable)
    say(f"{len(todo)} notebooks to grade, {before} graded before; seed {seed}")
    otherwise = sum(saved.find(one, of_any_key=True) is not None for one in todo)
    if otherwise and not options.again:
        say(f"{otherwise} of them are graded again: the checks or distlab have changed since")
    if later := len(found.submissions) - len(todo) - before:
        say(f"{later} notebooks of others are not graded yet, and in no table")
    for one, why in found.unusable:
        say(f"not graded: {one.path}: {why}")
    for problem in (*found.problems, *found.replaced):
        say(f"left out: {problem.path}: {problem.says}")
    with Marker(options, seed=seed, lessons=lessons) as marker:
        began = time.monotonic()
        for number, new in enumerate(marker.mark_all(todo), 1):
            saved.keep(new)
            graded.append(new)
            left = _left((time.monotonic() - began) / number * (len(todo) - number))
            line = _in_words(new, score_of(new, policy))
            say(f"{number}/{len(todo)}  {line}  {left}".rstrip())
    graded = given_by_hand(graded, overrides, lessons)
    graded.sort(key=lambda one: (one.submission.learner, one.submission.user, one.stem))
    check_overrides(overrides, graded)
    marks = read_marks(place / MARKS, people, lessons)  # a teacher may have gone on meanwhile
    results = Results(graded=tuple(graded), policy=replace(policy, rows=marks.given))
    _write(results, place, marks, left_out=(*found.problems, *found.replaced))
    return results


def _write(
    results: Results, place: Path, marks: RubricMarks, *, left_out: Sequence[Problem]
) -> None:
    scored = results.scored
    write_marks(place / MARKS, scored, marks)
    policy, feedback = results.policy, place / "feedback"
    pages = [write_feedback(*pair, feedback, policy=policy) for pair in scored]
    take_away_stale(place, pages)
    write_gradebook(scored, place, left_out=left_out)
    write_page(place / "class.html", class_page(scored, results.policy.lessons))


def _chosen(submissions: Sequence[Submission], only: Sequence[str]) -> set[Submission]:
    known = {one.learner for one in submissions}
    if unknown := [name for name in only if name not in known]:
        raise InvalidArgument(
            asked=f"grade {unknown[0]!r} only",
            found="no submission of that learner",
            do=did_you_mean(unknown[0], sorted(known)),
        )
    return {one for one in submissions if not only or one.learner in only}


def _key(options: GradingOptions, seed: int) -> str:
    extra = options.extra_checks.read_bytes() if options.extra_checks is not None else b""
    return json.dumps(
        {
            "seed": seed,
            "distlab": __version__,
            "extra checks": hashlib.sha256(extra).hexdigest(),
            "course": _digest_of(_COURSE),
        }
    )


@functools.cache
def _digest_of(folders: tuple[Path, ...]) -> str:
    """Of all Python in some folders: `git pull` brings other checks, and no other version."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _in_words(graded: Graded, score: Score) -> str:
    """The line of a notebook on the console; its points are those of the gradebook."""
    handed = graded.submission
    if graded.problem:
        return f"{handed.learner}  {handed.path.name}  not graded: {graded.problem}"
    earned = f"{score.earned:g} of {score.points:g}"
    late = ", late" if handed.is_late else ""
    held = f"; held for review: {', '.join(score.waiting)}" if score.waiting else ""
    read = f"; to be read: {', '.join(score.to_be_read)}" if score.to_be_read else ""
    return f"{handed.learner}  {graded.stem}  {earned}{late}{held}{read}"


def _left(secs: float) -> str:
    if secs < 1:
        return ""
    return f"about {secs:.0f} s left" if secs < 100 else f"about {secs / 60:.0f} min left"
