"""Finds the notebooks that learners handed in, in the folders that teachers get.

    folder = find_submissions("handed-in")
    folder.submissions         # (Submission(learner='doejane', path=..., is_late=True), ...)
    folder.problems            # (Problem(path=..., says='a link: ...'), ...)

Known are the folders of a Canvas or Moodle download, of nbgrader
(`submitted/<student>/<assignment>/`), one folder for each learner, and notebooks side by side.
Nothing is opened here, and nothing outside of
the folder is ever looked at.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distlab.errors import InvalidArgument

SUFFIX = ".ipynb"
MOST_FILES = 20_000

# doejane_LATE_12345_678901_09_multi_worker-2.ipynb: the name as Canvas writes it, its user's
# number, its attachment's number, and the file, numbered where it was handed in again.
_CANVAS = re.compile(
    r"(?P<learner>[^_]+)_(?P<late>LATE_)?(?P<user>\d+)_(?P<attachment>\d+)_(?P<file>.+)"
)
# What systems add to a name that is taken: "-2" (Canvas), " (1)" (browsers, Drive).
_AGAIN = re.compile(r"^(?P<stem>.+?)(?:-(?P<canvas>\d{1,3})| \((?P<browser>\d{1,3})\))$")
_COPY_OF = re.compile(r"^(?:Copy of|Kopie von|Copie de|Copia de) ", re.IGNORECASE)
# What Moodle names the folders of a learner's files, and of the text typed on its page.
_MOODLE = re.compile(r"(?P<learner>.+)_(?P<user>\d+)_assignsubmission_(?P<kind>file|onlinetext)_?")
_SUBMITTED = "submitted"  # nbgrader's name of the folder
_LESSONS, _EXERCISES = "notebooks", "exercises"  # the folders of a course that was laid
# Checkpoints of Jupyter, marks of systems, and what nbgrader writes beside each notebook.
_NOBODYS = (".", "__MACOSX", "timestamp.txt")

Person = tuple[str, str]  # the learner's name and number


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A notebook that was handed in."""

    learner: str  # by the name of the folder or of the file
    path: Path
    name: str  # "09_multi_worker" of "Copy of 09_multi_worker (1).ipynb"
    is_late: bool = False  # as far as its name tells
    user: str = ""  # the learner's number in Canvas or Moodle
    version: int = 0  # how often it was handed in before, as far as its name tells

    @property
    def person(self) -> Person:
        """The learner's name and number."""
        return self.learner, self.user


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something in the folder that is not graded, and why."""

    path: Path
    says: str


@dataclass(frozen=True, kw_only=True)
class ClassFolder:
    """What a folder holds."""

    submissions: tuple[Submission, ...]  # the newest of each learner and name, by learner
    unusable: tuple[tuple[Submission, str], ...]  # of learners without a notebook, and why
    replaced: tuple[Problem, ...]  # others of the same learner and name
    problems: tuple[Problem, ...]


def find_submissions(folder: str | os.PathLike[str]) -> ClassFolder:
    """Returns what is to be graded in a folder."""
    root = Path(folder)

    def refuse(found: str, do: str) -> InvalidArgument:
        return InvalidArgument(asked=f"grade {folder}", found=found, do=do)

    if not root.is_dir():
        raise refuse(
            "no folder of that name" if not root.exists() else "a file",
            f"give the folder that it lies in: {root.parent}"
            if root.suffix.lower() == SUFFIX
            else "give the folder that holds the submissions; unpack a zip file first",
        )
    problems: list[Problem] = []
    files = list(itertools.islice(_files(root, problems), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise refuse(f"more than {MOST_FILES:,} files", "give the folder of the submissions alone")
    notebooks = [path for path in files if path.suffix.lower() == SUFFIX]
    problems += [
        Problem(path=path, says="not a notebook (.ipynb)")
        for path in files
        if path.suffix.lower() != SUFFIX
    ]
    if not notebooks:
        raise refuse(
            f"no notebooks among {len(files)} files",
            "give the folder that holds the submissions, as learner/exercise.ipynb or as "
            "Canvas or Moodle downloads them; unpack a zip file first",
        )
    groups: dict[tuple[str, str, str], list[Submission]] = {}
    for path in notebooks:
        handed = _submission(path, root)
        groups.setdefault((*handed.person, handed.name), []).append(handed)
    for (_, user, _), several in groups.items():
        if not user:
            _refuse_sections(several, root)
    newest, replaced = [], []
    for key in sorted(groups):
        *older, last = sorted(groups[key], key=_age)
        newest.append(last)
        replaced += [Problem(path=old.path, says=f"{last.path} counts") for old in older]
    unusable = _without_notebook(problems, newest, root)
    taken = {handed.path for handed, _ in unusable}
    return ClassFolder(
        submissions=tuple(newest),
        unusable=tuple(unusable),
        replaced=tuple(replaced),
        problems=tuple(problem for problem in problems if problem.path not in taken),
    )


def _files(root: Path, problems: list[Problem]) -> Iterator[Path]:
    """Yields regular files, in a fixed order; links go to the problems and are not followed."""
    try:
        with os.scandir(root) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError as problem:
        problems.append(Problem(path=root, says=f"cannot be read ({problem.strerror})"))
        return
    entries = [entry for entry in entries if not entry.name.startswith(_NOBODYS)]
    if not entries:
        problems.append(Problem(path=root, says="an empty folder"))
    is_course = {_LESSONS, _EXERCISES} <= {entry.name for entry in entries}
    for entry in entries:
        path = Path(entry.path)
        if entry.is_symlink():
            problems.append(Problem(path=path, says="a link, which may lead anywhere"))
        elif is_course and entry.name == _LESSONS:
            problems.append(Problem(path=path, says="the lessons, in which nothing is graded"))
        elif entry.is_dir(follow_symlinks=False):
            yield from _files(path, problems)
        elif entry.is_file(follow_symlinks=False):
            yield path
        else:
            problems.append(Problem(path=path, says="neither a file nor a folder"))


def _submission(path: Path, root: Path) -> Submission:
    handed = _whose(path, root)
    return handed if handed.learner else replace(handed, learner=path.stem)


def _whose(path: Path, root: Path) -> Submission:
    """A file as a submission; its learner is "" where neither a folder nor a name says whose."""
    folders = path.relative_to(root).parts[:-1]
    if canvas := _CANVAS.fullmatch(path.stem):
        late = canvas["late"] is not None
        return _named(path, canvas["file"], canvas["learner"], user=canvas["user"], is_late=late)
    if folders and (moodle := _MOODLE.fullmatch(folders[0])):
        return _named(path, path.stem, moodle["learner"], user=moodle["user"])
    if _SUBMITTED in folders[:-1]:
        folders = folders[folders.index(_SUBMITTED) + 1 :]
    return _named(path, path.stem, folders[0] if folders else "")


def _named(path: Path, stem: str, learner: str, **more: Any) -> Submission:
    version = 0
    while copy := _COPY_OF.match(stem):
        stem = stem[copy.end() :]
    while again := _AGAIN.match(stem):
        version = max(version, int(again["canvas"] or again["browser"]))
        stem = again["stem"]
    return Submission(learner=learner, path=path, name=stem, version=version, **more)


def _without_notebook(
    problems: Iterable[Problem], submissions: Iterable[Submission], root: Path
) -> list[tuple[Submission, str]]:
    """Returns what learners without any notebook handed in: the first file of each."""
    known = {handed.person for handed in submissions}
    unusable: list[tuple[Submission, str]] = []
    for problem in problems:
        if problem.path == root:
            continue
        handed = _whose(problem.path, root)
        is_folder = problem.path.is_dir() and not problem.path.is_symlink()
        if is_folder and problem.path.parent == root:  # an empty folder of a learner
            handed = replace(handed, learner=problem.path.name)
        if handed.learner and handed.person not in known:
            known.add(handed.person)
            unusable.append((handed, problem.says))
    return unusable


def _age(handed: Submission) -> tuple[int, int, str]:
    """Of the same version the one counts that lies nearer: `jane/old` is an attic."""
    return handed.version, -len(handed.path.parts), str(handed.path)


def _refuse_sections(several: Sequence[Submission], root: Path) -> None:
    """Raises where a folder that would be one learner's holds folders of several learners."""
    top = root / several[0].path.relative_to(root).parts[0]
    below = sorted({handed.path.parent for handed in several})
    if len(below) > 1 and top not in below and top.name != _SUBMITTED:
        raise InvalidArgument(
            asked=f"grade {root}",
            found=f"{top.name} holds {len(below)} folders with a {several[0].name}{SUFFIX}: "
            f"{below[0].relative_to(root)}, {below[1].relative_to(root)}",
            do=f"if these are learners, give {top} as the folder; "
            "otherwise delete all but one of each",
        )
