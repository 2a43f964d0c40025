"""Finds the notebooks that learners handed in, in the folders that teachers get.

    found = find_submissions("handed-in")
    for one in found.submissions:         # Submission(learner='doejane', path=..., is_late=True)
        ...
    for one in found.problems:            # Problem(path=..., says='a link: ...')
        ...

Known are the folders of a Canvas download, of nbgrader (`submitted/<student>/<assignment>/`), one
folder for each learner, and notebooks side by side. Nothing is opened here, and nothing outside of
the folder is ever looked at.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

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
_SUBMITTED = "submitted"  # nbgrader's name of the folder
# Checkpoints of Jupyter, marks of systems, and what nbgrader writes beside each notebook.
_NOBODYS = (".", "__MACOSX", "timestamp.txt")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A notebook that was handed in.

    Attributes:
        learner: Whose it is, by the name of the folder or of the file.
        path: Where it lies.
        name: Its name without what systems add: of "Copy of 09_multi_worker (1).ipynb" it is
            "09_multi_worker".
        is_late: Whether the name marks it as late.
        user: The learner's number in Canvas; "" for none.
        version: How often it was handed in before, as far as its name tells.
    """

    learner: str
    path: Path
    name: str
    is_late: bool = False
    user: str = ""
    version: int = 0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something in the folder that is not graded, and why.

    Attributes:
        path: What.
        says: Why.
    """

    path: Path
    says: str


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a folder holds.

    Attributes:
        submissions: The newest of each learner and name, by learner.
        unusable: What learners handed in that have no notebook at all, and why it cannot be graded.
        replaced: Others of the same learner and name, which do not count.
        problems: What is not graded.
    """

    submissions: tuple[Submission, ...]
    unusable: tuple[tuple[Submission, str], ...]
    replaced: tuple[Problem, ...]
    problems: tuple[Problem, ...]


def find_submissions(folder: str | os.PathLike[str]) -> Found:
    """Returns what is to be graded in a folder."""
    root = Path(folder)
    asked = f"grade {folder}"
    if not root.is_dir():
        raise InvalidArgument(
            asked=asked,
            found="no folder of that name" if not root.exists() else "a file",
            do=f"give the folder that it lies in: {root.parent}"
            if root.suffix.lower() == SUFFIX
            else "give the folder that holds the submissions; unpack a zip file first",
        )
    problems: list[Problem] = []
    files = list(itertools.islice(_files(root, problems), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise InvalidArgument(
            asked=asked,
            found=f"more than {MOST_FILES:,} files",
            do="give the folder of the submissions alone",
        )
    everything = []
    for path in files:
        one = _submission(path, root)
        if one is None:
            problems.append(Problem(path=path, says="not a notebook (.ipynb)"))
        else:
            everything.append(one)
    if not everything:
        raise InvalidArgument(
            asked=asked,
            found=f"no notebooks among {len(files)} files",
            do="give the folder that holds the submissions, as learner/exercise.ipynb or as "
            "Canvas downloads them; unpack a zip file first",
        )
    _refuse_sections(everything, root)
    newest, replaced = _newest(everything)
    unusable = _without_notebook(problems, everything, root)
    taken = {one.path for one, _ in unusable}
    return Found(
        submissions=tuple(newest),
        unusable=tuple(unusable),
        replaced=tuple(replaced),
        problems=tuple(one for one in problems if one.path not in taken),
    )


def _files(root: Path, problems: list[Problem]) -> Iterator[Path]:
    """Yields regular files, in a fixed order; links go to the problems and are not followed."""
    try:
        with os.scandir(root) as entries:
            there = sorted(entries, key=lambda entry: entry.name)
    except OSError as problem:
        problems.append(Problem(path=root, says=f"cannot be read ({problem.strerror})"))
        return
    there = [one for one in there if not one.name.startswith(_NOBODYS)]
    if not there:
        problems.append(Problem(path=root, says="an empty folder"))
    for entry in there:
        path = Path(entry.path)
        if entry.is_symlink():
            problems.append(Problem(path=path, says="a link, which may lead anywhere"))
        elif entry.is_dir(follow_symlinks=False):
            yield from _files(path, problems)
        elif entry.is_file(follow_symlinks=False):
            yield path
        else:
            problems.append(Problem(path=path, says="neither a file nor a folder"))


def _submission(path: Path, root: Path) -> Submission | None:
    if path.suffix.lower() != SUFFIX:
        return None
    one = _whose(path, root)
    return one if one.learner else replace(one, learner=path.stem)


def _whose(path: Path, root: Path) -> Submission:
    """A file as a submission; its learner is "" where neither a folder nor a name says whose."""
    folders = path.relative_to(root).parts[:-1]
    if known := _CANVAS.fullmatch(path.stem):
        one = _named(known["file"])
        return replace(
            one,
            learner=known["learner"],
            path=path,
            is_late=known["late"] is not None,
            user=known["user"],
        )
    if _SUBMITTED in folders[:-1]:
        folders = folders[folders.index(_SUBMITTED) + 1 :]
    return replace(_named(path.stem), path=path, learner=folders[0] if folders else "")


def _without_notebook(
    problems: Iterable[Problem], everything: Iterable[Submission], root: Path
) -> list[tuple[Submission, str]]:
    """Returns what learners without any notebook handed in: the first file of each."""
    there = {(one.learner, one.user) for one in everything}
    found: list[tuple[Submission, str]] = []
    for problem in problems:
        if problem.path == root:
            continue
        one = _whose(problem.path, root)
        is_folder = problem.path.is_dir() and not problem.path.is_symlink()
        if is_folder and problem.path.parent == root:  # an empty folder of a learner
            one = replace(one, learner=problem.path.name)
        if one.learner and (one.learner, one.user) not in there:
            there.add((one.learner, one.user))
            found.append((one, problem.says))
    return found


def _named(stem: str) -> Submission:
    version = 0
    while copy := _COPY_OF.match(stem):
        stem = stem[copy.end() :]
    while again := _AGAIN.match(stem):
        version = max(version, int(again["canvas"] or again["browser"]))
        stem = again["stem"]
    return Submission(learner="", path=Path(), name=stem, version=version)


def _newest(everything: list[Submission]) -> tuple[list[Submission], list[Problem]]:
    newest, replaced = [], []
    for several in _alike(everything):
        *older, last = sorted(several, key=_how_new)
        newest.append(last)
        replaced += [Problem(path=one.path, says=f"{last.path} counts") for one in older]
    return sorted(newest, key=lambda one: (one.learner, one.user, one.name)), replaced


def _how_new(one: Submission) -> tuple[int, int, str]:
    """Of the same version the one counts that lies nearer: `jane/old` is an attic."""
    return one.version, -len(one.path.parts), str(one.path)


def _alike(everything: list[Submission]) -> list[list[Submission]]:
    """Returns the submissions by learner and name."""
    groups: dict[tuple[str, str, str], list[Submission]] = {}
    for one in everything:
        groups.setdefault((one.learner, one.user, one.name), []).append(one)
    return list(groups.values())


def _refuse_sections(everything: list[Submission], root: Path) -> None:
    """Raises where a folder that would be one learner's holds folders of several learners."""
    for several in _alike(everything):
        top = root / several[0].path.relative_to(root).parts[0]
        below = sorted({one.path.parent for one in several if not one.user})
        if len(below) > 1 and top not in below and not (top.name == _SUBMITTED):
            raise InvalidArgument(
                asked=f"grade {root}",
                found=f"{top.name} holds {len(below)} folders with a {several[0].name}{SUFFIX}: "
                f"{below[0].relative_to(root)}, {below[1].relative_to(root)}",
                do=f"if these are learners, give {top} as the folder; "
                "otherwise delete all but one of each",
            )
