"""Grades a folder of submissions: what `distlab grade` does.

    results = grade("handed-in", "out", GradingOptions(jobs=2))

Each answer runs behind walls and within limits, and is judged where no submission ever is. In
`out` there are then the gradebook, a page of feedback for each notebook, one of the class, and
what a person should read or look at. Run again, it continues where it was, and grades what is new.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import distlab
from distlab import __version__
from distlab.autograder.gradebook.gradebook_csv import write_gradebook
from distlab.autograder.gradebook.pages import class_page, write_feedback, write_page
from distlab.autograder.gradebook.scores import Graded, Policy, Score, score_of
from distlab.autograder.gradebook.teacher_tables import (
    Marks,
    People,
    check_overrides,
    grade_by_hand,
    read_marks,
    read_overrides,
    write_marks,
)
from distlab.autograder.grader import Grader, GradingOptions
from distlab.autograder.intake.exercises import Exercises
from distlab.autograder.intake.forms import composed
from distlab.autograder.intake.recognition import doubles_in
from distlab.autograder.intake.submissions import (
    ClassFolder,
    Person,
    Problem,
    Submission,
    find_submissions,
)
from distlab.autograder.isolation.question import require_safe_user
from distlab.autograder.isolation.walls import missing_walls
from distlab.autograder.output_dir import OutputDir, claim_output_dir
from distlab.errors import InvalidArgument, did_you_mean

MARKS = "reports.csv"
_MOST_LINES, _MOST_NAMES, _MOST_FILES = 10, 5, 3  # on the console
# What a result depends on besides the notebook.
_COURSE = tuple(Path(str(distlab.__file__)).with_name(wing) for wing in ("course", "autograder"))


@dataclass(frozen=True, kw_only=True)
class Results:
    """A folder's graded notebooks, by learner, and how points become a mark."""

    graded: tuple[Graded, ...]
    policy: Policy

    @property
    def scored(self) -> list[tuple[Graded, Score]]:
        """Each notebook with what it earned."""
        return [(graded, score_of(graded, self.policy)) for graded in self.graded]


def grade(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: GradingOptions | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    ask: Callable[[str], bool] = lambda question: False,
) -> Results:
    """Grades the notebooks of a folder or zip, and returns what became of each.

    Whether notebooks that look like those of several people are one learner's, a person is asked.
    """
    with tempfile.TemporaryDirectory(prefix="distlab-grade-") as unpacked:
        handed_in = find_submissions(folder, Path(unpacked))
        return _grade(handed_in, Path(folder), Path(out), options or GradingOptions(), say, ask)


def _grade(
    handed_in: ClassFolder,
    folder: Path,
    path: Path,
    options: GradingOptions,
    say: Callable[[str], None],
    ask: Callable[[str], bool],
) -> Results:
    chosen = _chosen(handed_in.submissions, options.only)
    people = People([*handed_in.submissions, *(handed for handed, _ in handed_in.unusable)])
    overrides = read_overrides(options.overrides, people) if options.overrides else {}
    exercises = Exercises(options.extra_checks)
    policy = Policy(late_factor=options.late_factor, overrides=overrides, exercises=exercises)
    require_safe_user(allow_root=options.allow_root)
    for line in _found(handed_in.forms):
        say(line)
    doubles = doubles_in((h for h in handed_in.submissions if h in chosen), exercises)
    if doubles and not options.allow_doubles:
        refusal = _several(folder, doubles)
        who = "this" if len(doubles) == 1 else "each of them"
        if not ask(f"{refusal.found}. Is {who} one person? Then the better notebook counts."):
            raise refusal
    claimed = claim_output_dir(path, folder, handed_in.submissions, seed=options.seed)
    given = {
        "--late": f"{options.late_factor:g}" if options.late_factor != 1 else "",
        "--overrides": str(options.overrides or ""),
        "--extra-checks": str(options.extra_checks or ""),
    }
    for line in claimed.note_options(given):
        say(line)
    # A wrong row is reported before anything is graded.
    policy = replace(policy, rows=read_marks(path / MARKS, people, exercises).given)
    key = _key(options, claimed.seed)
    left_out = (*handed_in.problems, *handed_in.replaced)
    graded = [Graded(submission=handed, problem=why) for handed, why in handed_in.unusable]
    todo: list[Submission] = []
    for handed in handed_in.submissions:
        if handed in chosen:
            known = None if options.again else claimed.find(handed, key=key)
        else:  # whatever it was graded with: the gradebook is of all
            known = claimed.find(handed, key=None)
        if known is not None:
            graded.append(known)
        elif handed in chosen:
            todo.append(handed)
    before = len(graded) - len(handed_in.unusable)
    say(f"{len(todo)} notebooks to grade, {before} graded before; seed {claimed.seed}")
    if why := missing_walls():
        say(
            f"no walls around submissions here ({why}): they can read your files and use your "
            "network, so grade in a container or a virtual machine"
        )
    changed = sum(claimed.find(handed, key=None) is not None for handed in todo)
    if changed and not options.again:
        say(f"{changed} of them are graded again: the checks or distlab have changed since")
    if later := len(handed_in.submissions) - len(todo) - before:
        say(f"{later} notebooks of others are not graded yet, and in no table")
    for handed, why in handed_in.unusable:
        say(f"not graded: {handed.path}: {why}")
    for problem in left_out[:_MOST_LINES]:
        say(f"left out: {problem.path}: {problem.says}")
    if more := left_out[_MOST_LINES:]:
        say(f"left out: {len(more)} more, which {path / 'review.csv'} lists")
    if names := claimed.left_under_way():
        say(f"the last run was ended while it graded {' and '.join(names)}: look there first")
    grader = Grader(options, seed=claimed.seed, exercises=exercises, begin=claimed.begin)
    began = time.monotonic()
    for number, new in enumerate(grader.grade_all(todo), 1):
        claimed.keep(new, key=key)
        graded.append(new)
        left = _left((time.monotonic() - began) / number * (len(todo) - number))
        say(f"{number}/{len(todo)}  {_in_words(new, score_of(new, policy))}  {left}".rstrip())
    graded = grade_by_hand(graded, overrides, exercises)
    graded.sort(key=lambda notebook: (*notebook.submission.person, notebook.stem))
    check_overrides(overrides, graded)
    marks = read_marks(path / MARKS, people, exercises)  # a teacher may have gone on meanwhile
    results = Results(graded=tuple(graded), policy=replace(policy, rows=marks.given))
    _write(results, path, claimed, marks, left_out)
    return results


def _write(
    results: Results,
    out: Path,
    claimed: OutputDir,
    marks: Marks,
    left_out: Sequence[Problem],
) -> None:
    scored, policy = results.scored, results.policy
    write_marks(out / MARKS, scored, marks)
    pages = [write_feedback(*pair, out / "feedback", policy=policy) for pair in scored]
    claimed.delete_stale_pages(pages)
    to_review = write_gradebook(scored, out, left_out=left_out)
    write_page(out / "class.html", class_page(scored, policy.exercises, to_review=to_review))


def _chosen(submissions: Sequence[Submission], only: Sequence[str]) -> set[Submission]:
    known, names = {handed.learner for handed in submissions}, [composed(name) for name in only]
    if unknown := [name for name in names if name not in known]:
        raise InvalidArgument(
            asked=f"grade {unknown[0]!r} only",
            found=f"no submission of {unknown[0]!r}",
            do=did_you_mean(unknown[0], sorted(known), most=_MOST_LINES),
        )
    return {handed for handed in submissions if not only or handed.learner in names}


def _found(forms: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns how many learners of each form there are, and in all, with the first names."""
    found = [(form, learners) for form, learners in forms.items()]
    if len(found) > 1:
        found.append(("in all", sorted(set().union(*forms.values()))))
    return [
        f"{form}: {len(own)} learner{'s' * (len(own) > 1)} ({_first(own)})" for form, own in found
    ]


def _several(folder: Path, doubles: Mapping[Person, Sequence[Submission]]) -> InvalidArgument:
    """Returns the error that names those who may be several people under one name."""
    named = [
        f"{learner} ({_first([handed.path.name for handed in own], most=_MOST_FILES)})"
        for (learner, _), own in sorted(doubles.items())
    ]
    start = "1 name" if len(named) == 1 else f"{len(named)} names"
    return InvalidArgument(
        asked=f"grade {folder}",
        found=f"{start} with several notebooks of one exercise: {_first(named)}",
        do="if these are different people, give each a folder with a name of its own; if each name "
        "is one person's, add --yes, and the better notebook counts",
    )


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
    """Returns a hash of all Python in some folders: `git pull` may keep the version."""
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
    read = f"; to be read: {', '.join(score.to_be_read)}" if score.to_be_read else ""
    return f"{handed.learner}  {graded.stem}  {earned}{late}{read}"


def _first(names: Sequence[str], *, most: int = _MOST_NAMES) -> str:
    """Returns the first names of a class, or of files."""
    return ", ".join(names[:most]) + ", ..." * (len(names) > most)


def _left(secs: float) -> str:
    if secs < 1:
        return ""
    return f"about {secs:.0f} s left" if secs < 100 else f"about {secs / 60:.0f} min left"
