"""How platforms name the files that teachers download: one table, and what a path says by it.

    label = read_label("in/doejane_LATE_12345_678901_09_multi_worker-2.ipynb")
    label.form, label.learner, label.user     # "Canvas", "doejane", "12345"
    label.file, label.is_late                 # "09_multi_worker-2.ipynb", True

A path begins with the folder that a teacher gave, and a zip in it counts as a folder.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

_ABOVE = r"(?:.*?/)?"  # folders around a download
_FILE = r"(?:.*/)?(?P<file>[^/]*)"  # the file, in whatever folders of the learner
_DRIVE_ZIP = r"[^/]+-\d{8}T\d{6}Z(?:-\d+)*\.zip/[^/]+/"
GITHUB = "GitHub Classroom"
PLAIN_FOLDERS, PLAIN_FILES = "a folder for each learner", "a file for each learner"

# Blackboard's text of an attempt begins "Name: Jane Doe (jdoe)"; Gradescope lists all submitters.
_RECEIPT = re.compile(r"[^:\n]+: (?P<learner>[^\n]+) \((?P<user>[^()\n]+)\)\s")
_MOST_TEXT = 10_000_000
_METADATA = "submission_metadata.yml"
_SUBMITTERS = re.compile(
    r"^submission_(\d+):\s*\n  :submitters:\n((?:  ?[ -] .*\n)+)", re.MULTILINE
)

# What a path has the form of, the first that fits. Without `learner`, the user's name is taken.
FORMS = tuple(
    (name, re.compile(pattern, re.DOTALL))
    for name, pattern in (
        (
            "Moodle",  # Jane Doe_123456_assignsubmission_file_/, and _onlinetext_ beside it
            rf"{_ABOVE}(?P<learner>[^/]+?)_(?P<user>\d+)_assignsubmission_"
            rf"(?:onlinetext.*|file_?{_FILE})",
        ),
        (
            "Blackboard",  # TITLE_jdoe_attempt_2024-05-01-10-30-00_FILE, and .txt for each attempt
            rf"{_ABOVE}(?P<assignment>[^/]+?)_(?P<user>[^/_]+)_attempt_"
            rf"(?P<attempt>\d{{4}}(?:-\d\d){{5}})(?:\.txt|_{_FILE})",
        ),
        (
            "Brightspace",  # 12345-67890 - Jane Doe - May 1, 2024 1030 AM/
            rf"{_ABOVE}(?P<user>\d+)-\d+ - (?P<learner>[^/]+) - "
            rf"(?P<attempt>\w{{3}} \d+, \d{{4}} \d+ [AP]M)/{_FILE}",
        ),
        ("Gradescope", rf"{_ABOVE}(?P<learner>submission_(?P<user>\d+))/{_FILE}"),
        (
            "Canvas",  # doejane_LATE_12345_678901_FILE, and _text.html of who typed instead
            rf"{_ABOVE}(?P<learner>[^/_]+)_(?P<late>LATE_)?(?P<user>\d+)_"
            rf"(?:\d+_{_FILE}|text\.html)",
        ),
        (
            GITHUB,  # ps1-submissions/ps1-jane/
            rf"{_ABOVE}(?P<title>[^/]+)-submissions/(?P=title)-(?P<user>[^/]+)/{_FILE}",
        ),
        ("nbgrader", rf"{_ABOVE}submitted/(?P<learner>[^/]+)/{_FILE}"),
        ("Google Classroom", rf"[^/]+/(?:{_DRIVE_ZIP})?(?P<learner>[^/]+?) - (?P<file>[^/]+)"),
        ("Google Classroom", rf"[^/]+/{_DRIVE_ZIP}(?P<file>[^/]+)"),
        (PLAIN_FOLDERS, rf"[^/]+/(?P<learner>[^/]+)/{_FILE}"),
        (PLAIN_FILES, r"[^/]+/(?P<learner>[^/]+)\.py"),
        (PLAIN_FILES, r"[^/]+/(?P<file>[^/]*)"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Label:
    """A submission's details, as its path gives them."""

    form: str
    learner: str = ""  # "" where a path names nobody
    user: str = ""  # the platform's number or name of the learner
    file: str = ""  # "" for what a platform writes itself, and for an empty folder
    attempt: str = ""  # its date, such that a later one sorts behind
    assignment: str = ""  # that the attempt belongs to, where the path names it
    is_late: bool = False


def read_label(path: str) -> Label:
    """Returns what a path below the teacher's folder says."""
    form, match = next((form, m) for form, pattern in FORMS if (m := pattern.fullmatch(path)))
    parts = {name: part or "" for name, part in match.groupdict().items()}
    learner = re.sub(r"\.zip$", "", parts.get("learner", ""), flags=re.IGNORECASE)
    attempt = parts.get("attempt", "")
    with contextlib.suppress(ValueError):
        attempt = datetime.strptime(attempt, "%b %d, %Y %I%M %p").isoformat()
    return Label(
        form=form,
        learner=learner or parts.get("user", ""),
        user=parts.get("user", ""),
        file=parts.get("file", ""),
        attempt=attempt,
        assignment=parts.get("assignment", ""),
        is_late=bool(parts.get("late")),
    )


def names_learners(name: str) -> bool:
    """Whether a file is one in which a platform writes learners' names."""
    return name == _METADATA or (name.endswith(".txt") and "_attempt_" in name)


def with_names(labels: Mapping[Path, Label], files: Iterable[Path]) -> dict[Path, Label]:
    """Returns labels with the names that Blackboard and Gradescope write beside the files."""
    people: dict[tuple[str, ...], tuple[str, str]] = {}
    for path in files:
        label = labels[path]
        # What a learner handed in under such a name doesn't count.
        is_receipt = label.form == "Blackboard" and not label.file
        if not names_learners(path.name) or not (is_receipt or not label.learner):
            continue
        text = ""
        with (
            contextlib.suppress(OSError),
            path.open(encoding="utf-8-sig", errors="replace") as file,
        ):
            text = file.read(_MOST_TEXT)
        if is_receipt and (receipt := _RECEIPT.match(text)):
            key = (label.form, label.assignment, label.user)
            people[key] = receipt["learner"], receipt["user"]
        for submission, submitters in () if is_receipt else _SUBMITTERS.findall(text):
            names = [name.strip("'\"") for name in re.findall(r":name: (.+)", submitters)]
            people["Gradescope", "", submission] = " & ".join(names), submission
    named = {}
    for path, label in labels.items():
        key = (label.form, label.assignment, label.user)
        learner, user = people.get(key, (label.learner, label.user))
        named[path] = replace(label, learner=learner, user=user)
    return named


def without_title(labels: Mapping[Path, Label], repositories: Iterable[str]) -> dict[Path, Label]:
    """Returns labels in which folders `ps1-jane` and `ps1-joe` are those of jane and joe.

    That is how GitHub Classroom names repositories. Without a `.git` in them, all folders of a
    class must begin alike, and be three or more: a folder may also be `anna-maria`.
    """
    folders = {label.learner for label in labels.values() if label.form == PLAIN_FOLDERS}
    cloned = folders & set(repositories)
    named = sorted(cloned or folders)
    starts = [named[0][: hyphen.end()] for hyphen in re.finditer("-", named[0])] if named else []
    shared = [start for start in starts if all(name.startswith(start) for name in named)]
    title = shared[-1] if shared else ""
    if not title or len(named) < (2 if cloned else 3):
        return dict(labels)
    return {
        path: replace(label, form=GITHUB, learner=user, user=user)
        if label.form == PLAIN_FOLDERS
        and label.learner in named
        and (user := label.learner.removeprefix(title))
        else label
        for path, label in labels.items()
    }
