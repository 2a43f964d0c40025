"""Finds the notebooks that learners handed in, in what platforms let teachers download.

    folder = find_submissions("handed-in", unpacked)
    folder.submissions         # (Submission(learner='doejane', path=..., is_late=True), ...)
    folder.forms               # {"Canvas": ("doejane", "doejohn", ...)}
    folder.problems            # (Problem(path=..., says='a link: ...'), ...)

`forms.py` lists what is known. No notebook is opened here, and nothing outside of the folder is
ever looked at.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distlab.autograder.intake.forms import (
    GITHUB,
    PLAIN_FILES,
    PLAIN_FOLDERS,
    Label,
    composed,
    read_label,
    without_title,
    without_zip,
)
from distlab.autograder.intake.names_beside import names_learners, with_names
from distlab.autograder.intake.unpack import (
    EMPTY,
    HIDDEN,
    Entry,
    is_notebook,
    is_zip,
    list_entries,
)
from distlab.course.course_page import PAGE as COURSE_PAGE
from distlab.errors import InvalidArgument

# What systems add to a name that is taken: "-2" (Canvas), " (1)" (browsers, Drive).
_AGAIN = re.compile(r"^(?P<stem>.+?)(?:-(?P<canvas>\d{1,3})| \((?P<browser>\d{1,3})\))$")
_COPY_OF = re.compile(r"^(?:Copy of|Kopie von|Copie de|Copia de) ", re.IGNORECASE)
_SUFFIX = re.compile(r"(\.ipynb)?\.[^.]*$", re.IGNORECASE)  # browsers also save .ipynb.txt
_MOST_LINES = 3  # about what one learner handed in besides

Person = tuple[str, str]  # the learner's name, and the platform's number or name of the learner


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A notebook that was handed in."""

    learner: str  # by the name of the folder or of the file
    path: Path
    name: str  # "09_multi_worker" of "Copy of 09_multi_worker (1).ipynb"
    is_late: bool = False  # as far as its name tells
    user: str = ""  # the platform's number or name of the learner
    version: int = 0  # how often it was handed in before, as far as its name tells
    is_alike: bool = False  # whether another learner's name differs in capitals alone

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
    """The submissions of a folder, and the problems found among its files."""

    submissions: tuple[Submission, ...]  # the newest of each learner and name, by learner
    unusable: tuple[tuple[Submission, str], ...]  # of learners without a notebook, and why
    replaced: tuple[Problem, ...]  # others of the same learner and name
    problems: tuple[Problem, ...]
    forms: Mapping[str, tuple[str, ...]]  # the learners of each form that was recognised


def find_submissions(folder: str | os.PathLike[str], unpacked: Path) -> ClassFolder:
    """Returns what is to be graded in a folder or zip; zips are unpacked into a second one."""
    root = Path(folder)

    def refuse(found: str, do: str) -> InvalidArgument:
        return InvalidArgument(asked=f"grade {folder}", found=found, do=do)

    if not (root.is_dir() or (root.is_file() and is_zip(root))):
        raise refuse(
            "no folder of that name" if not root.exists() else "a file",
            f"give the folder that it lies in: {root.parent}"
            if is_notebook(root)
            else "give the folder or the zip that holds the submissions",
        )
    if (root / COURSE_PAGE).is_file() and (root / "exercises").is_dir():
        raise refuse(
            "a folder of the course itself, as `distlab lab` lays it",
            "put each learner's notebooks into a folder of their name, and name what holds these",
        )
    top, entries = list_entries(root, unpacked)
    labels = _labels(top, entries)
    notebooks, others = [], []
    for entry in entries:
        if is_notebook(entry.path) and not entry.problem:
            notebooks.append(entry)
        elif labels[entry.path].learner or not names_learners(entry.path.name):
            others.append(entry)
    if not notebooks:
        files = [entry for entry in entries if not entry.is_folder]
        problem = next((f"; {e.shown}: {e.problem}" for e in others if e.problem and files), "")
        raise refuse(
            f"no notebooks among {len(files)} files{problem}",
            "give the folder or the zip that holds the submissions, as a platform downloads it "
            "or as learner/exercise.ipynb",
        )
    replaced: list[Problem] = []
    groups: dict[tuple[str, str, str, str], list[Entry]] = defaultdict(list)
    for entry in _last_attempts(notebooks, labels, replaced):
        handed = _submission(entry, labels[entry.path])
        groups[(*handed.person, labels[entry.path].assignment, handed.name)].append(entry)
    newest: list[tuple[Submission, Entry]] = []
    clashes: list[tuple[Entry, Path, str]] = []
    for _, group in sorted(groups.items()):
        *older, last = sorted(group, key=lambda entry: _age(entry, labels))
        if places := _equal_places(group, labels, last):
            around = Path(os.path.commonpath(places))
            shown = ", ".join(str(place.relative_to(top.shown)) for place in places[:2])
            says = f"{around.name} holds {len(places)} folders with a {last.shown.name}: {shown}"
            clashes.append((last, around, says))
            continue
        newest.append((_submission(last, labels[last.path]), last))
        replaced += [Problem(path=old.shown, says=f"{last.shown} counts") for old in older]
    if clashes and not newest:
        _, around, clash = clashes[0]
        raise refuse(
            clash,
            f"if these are learners, give {around} as the folder; "
            "otherwise delete all but one of each",
        )
    submissions = [handed for handed, _ in newest]
    unusable, problems = _without_notebook(others, labels, {h.person for h in submissions})
    for entry, _, clash in clashes:
        handed = _submission(entry, labels[entry.path])
        unusable.append((replace(handed, path=entry.shown), f"{clash}; delete all but one"))
    forms: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        label = labels[entry.path]
        forms[label.form].add(_submission(entry, label).learner)
    known = {handed.person for handed in (*submissions, *(handed for handed, _ in unusable))}
    people = {learner for learner, _ in known}
    spelt = Counter((learner.casefold(), user.casefold()) for learner, user in known)
    alike = {p for p in known if spelt[p[0].casefold(), p[1].casefold()] > 1}
    return ClassFolder(
        submissions=tuple(replace(h, is_alike=h.person in alike) for h in submissions),
        unusable=tuple((replace(h, is_alike=h.person in alike), why) for h, why in unusable),
        replaced=tuple(replaced),
        problems=tuple(problems),
        forms={form: tuple(sorted(own & people)) for form, own in forms.items() if own & people},
    )


def _labels(top: Entry, entries: Sequence[Entry]) -> dict[Path, Label]:
    """Returns what the path of each file says."""
    name, labels = top.shown.resolve().name or "folder", {}
    around: set[str] = set()  # folders that hold a whole download
    for entry in entries:
        is_inside = entry.shown.is_relative_to(top.shown)
        parts = entry.shown.relative_to(top.shown).parts if is_inside else (entry.shown.name,)
        end = ("",) if entry.is_folder else ()
        label = labels[entry.path] = read_label("/".join((name, *parts, *end)))
        if label.form not in (PLAIN_FOLDERS, PLAIN_FILES) and len(parts) > 1:
            around.add(without_zip(parts[0]))
    for entry in entries:
        label = labels[entry.path]
        if label.form == PLAIN_FOLDERS and label.learner in around and not is_notebook(entry.path):
            labels[entry.path] = replace(label, form=PLAIN_FILES, learner="")
    cloned = [composed(mark.parent.name) for mark in top.path.glob("*/.git")]
    files = [entry.path for entry in entries if not entry.problem]
    return with_names(without_title(labels, cloned), files)


def _submission(entry: Entry, label: Label) -> Submission:
    """Returns a file as a submission, of the learner of its own name if its path names nobody."""
    stem = _SUFFIX.sub("", label.file or composed(entry.shown.name))
    learner, version = label.learner or stem, 0
    while copy := _COPY_OF.match(stem):
        stem = stem[copy.end() :]
    while again := _AGAIN.match(stem):
        version = max(version, int(again["canvas"] or again["browser"]))
        stem = again["stem"]
    return Submission(
        learner=learner,
        path=entry.path,
        name=stem,
        is_late=label.is_late,
        user=label.user,
        version=version,
    )


def _last_attempts(
    notebooks: Sequence[Entry], labels: Mapping[Path, Label], replaced: list[Problem]
) -> list[Entry]:
    """Returns the notebooks of each learner's last attempt that has one."""

    def whose(entry: Entry) -> tuple[str, str, str]:
        label = labels[entry.path]
        return label.learner, label.user, label.assignment

    last: dict[tuple[str, str, str], str] = defaultdict(str)
    for entry in notebooks:
        last[whose(entry)] = max(last[whose(entry)], labels[entry.path].attempt)
    counting = []
    for entry in notebooks:
        if labels[entry.path].attempt == last[whose(entry)]:
            counting.append(entry)
        else:
            replaced.append(Problem(path=entry.shown, says="a later attempt counts"))
    return counting


def _without_notebook(
    others: Sequence[Entry], labels: Mapping[Path, Label], known: set[Person]
) -> tuple[list[tuple[Submission, str]], list[Problem]]:
    """Returns what learners without any notebook handed in, and all else that is not graded."""
    unusable: dict[Person, tuple[Submission, str]] = {}
    lines: dict[Person, list[Problem]] = defaultdict(list)
    # A learner's own file says more than what the platform wrote beside it.
    for entry in sorted(others, key=lambda entry: not labels[entry.path].file):
        label = labels[entry.path]
        person = label.learner, label.user
        says = entry.problem or (
            "a Python file (.py), not a notebook"
            if entry.path.suffix == ".py"
            else "not a notebook (.ipynb)"
            if label.file
            else "only text or a link on the page of the platform, no file"
        )
        if label.learner and person not in known | unusable.keys():
            unusable[person] = replace(_submission(entry, label), path=entry.shown), says
        elif label.file or entry.problem not in ("", EMPTY, HIDDEN):
            lines[person].append(Problem(path=entry.shown, says=says))
    problems = []
    for person, own in lines.items():
        is_cut = person != ("", "") and len(own) > _MOST_LINES + 1
        problems += own[:_MOST_LINES] if is_cut else own
        if is_cut:
            first, *more = own[_MOST_LINES:]
            says = f"{first.says}; {len(more):,} more files of {person[0]} are left out as well"
            problems.append(Problem(path=first.path, says=says))
    return list(unusable.values()), problems


def _age(entry: Entry, labels: Mapping[Path, Label]) -> tuple[int, int, str]:
    """Returns a sort key: the version, then how near the top the file lies.

    Of two files with one version, that in `jane/` counts, and that in `jane/old/` doesn't.
    """
    version = _submission(entry, labels[entry.path]).version
    return version, -len(entry.shown.parts), str(entry.shown)


def _equal_places(group: Sequence[Entry], labels: Mapping[Path, Label], last: Entry) -> list[Path]:
    """Returns the folders of a learner that hold the same notebook, none of them nearer."""
    if labels[last.path].form not in (PLAIN_FOLDERS, GITHUB):
        return []
    newest = _age(last, labels)[:2]
    places = {entry.shown.parent for entry in group if _age(entry, labels)[:2] == newest}
    return sorted(places) if len(places) > 1 else []
