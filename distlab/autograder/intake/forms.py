"""How platforms name the files that teachers download: one table, and what a path says by it.

    label = read_label("in/doejane_LATE_12345_678901_09_multi_worker-2.ipynb")
    label.form, label.learner, label.user     # "Canvas", "doejane", "12345"
    label.file, label.is_late                 # "09_multi_worker-2.ipynb", True

A path begins with the folder that a teacher gave, and a zip in it counts as a folder. Names are
compared in Unicode's composed form: a Mac writes é as two letters, and a keyboard as one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from distlab.autograder.intake.attempt_dates import sortable_date

_TOP = r"[^/]+/"  # the folder or zip that a teacher gave
_ABOVE = r"(?:.*?/)?"  # folders around a download
_FILE = r"(?:.*/)?(?P<file>[^/]*)"  # the file, in whatever folders of the learner
_ZIP = r"[^/]+\.[zZ][iI][pP]/"
_FOLDER = rf"(?!{_ZIP})[^/]+"  # and no zip, which is a learner's own
_DRIVE_ZIP = r"[^/]+-\d{8}T\d{6}Z(?:-\d+)*\.zip/[^/]+/"
_LATE = r"(?P<late>LATE_|late_)?"  # small in Canvas of some years ago
_NAMED_FILE = rf"(?P<learner>[^/]+?) - (?:{_ZIP}(?:.*/)?)?(?P<file>[^/]+)"
# "Version 2", "Versión 2", "Wersja 2", "バージョン2": one attempt in Teams.
_VERSION = r"(?:ver[sz]\w*|wersja|версия|sürüm|バージョン|版本|버전) ?(?P<attempt>\d+) ?"
_CANVAS = "instructure/canvas-lms: get_filename in lib/content_zipper.rb"
GITHUB = "GitHub Classroom"
PLAIN_FOLDERS, PLAIN_FILES = "a folder for each learner", "a file for each learner"


def _canvas(digits: str) -> str:
    """Returns the pattern of a file's name in Canvas, with numbers of so many digits.

    Canvas takes `_12_` out of names, so the first number is the learner's. The name of a group
    may end in a number, `team_7`, which is smaller than those of Canvas.
    """
    file = rf"(?:{digits}_{_FILE}|(?:text|link)\.html)"
    group = r"(?!\d{1,3}_\d{4,}_\d{5,}_)"
    return rf"(?P<learner>[^/]*?)_{_LATE}{group}(?P<user>{digits})_{file}"


@dataclass(frozen=True)
class Form:
    """How a platform names what it lets a teacher download."""

    name: str
    source: str  # the code that writes these names, or a public description of them
    pattern: str  # of a whole path; without `learner`, the user's name is taken

    @property
    def compiled(self) -> re.Pattern[str]:
        """The pattern, ready to match."""
        return re.compile(self.pattern, re.DOTALL)  # which `re` keeps


# What a path has the form of, the first that fits.
FORMS = (
    Form(  # Jane Doe_123456_assignsubmission_file_/, and _onlinetext_ beside it
        "Moodle",
        "moodle/moodle: download_submissions in mod/assign/locallib.php",
        rf"{_ABOVE}(?P<learner>[^/]+?)_(?P<user>\d+)_assignsubmission_"
        rf"(?:onlinetext.*|file_?{_FILE})",
    ),
    Form(  # TITLE_jdoe_attempt_2024-05-01-10-30-00_FILE, and .txt for each attempt
        "Blackboard",
        "kwurst/bb-file-cleanup: README.md",
        rf"{_ABOVE}(?P<assignment>[^/]+?)_(?P<user>[^/_]+)_attempt_"
        rf"(?P<attempt>\d{{4}}(?:-\d\d){{5}})(?:\.txt|_{_FILE})",
    ),
    Form(  # 12345-67890 - Jane Doe - May 1, 2024 1030 AM/, the date as the university writes it
        "Brightspace",
        "files that teachers downloaded",
        rf"{_ABOVE}(?P<user>\d+)-\d+ - (?P<learner>[^/]+) - "
        rf"(?P<attempt>(?=[^/]*\d{{4}})[^/]+)/{_FILE}",
    ),
    Form(
        "Gradescope",
        "files that teachers downloaded",
        rf"{_ABOVE}(?P<learner>submission_(?P<user>\d+))/{_FILE}",
    ),
    Form(  # anon_aB3dE_678901_FILE, LATE_anon_aB3dE_...: no number of Canvas's gradebook
        "Canvas",
        _CANVAS,
        rf"{_ABOVE}{_LATE}(?P<user>anon_[^/_]+)_(?:\d+_{_FILE}|(?:text|link)\.html)",
    ),
    Form(  # doejane_LATE_12345_678901_FILE, and _text.html of a learner who typed instead
        "Canvas",
        _CANVAS,
        _TOP + _canvas(r"\d+"),
    ),
    Form(  # deeper, where a learner's own file may be task_09_2026_last.ipynb
        "Canvas",
        _CANVAS,
        _ABOVE + _canvas(r"\d{3,}"),
    ),
    Form(  # ps1-submissions/ps1-jane/
        GITHUB,
        "github/gh-classroom: cmd/gh-classroom/clone/student-repos/student-repos.go",
        rf"{_ABOVE}(?P<title>[^/]+)-submissions/(?P=title)-(?P<user>[^/]+)/{_FILE}",
    ),
    Form(
        "nbgrader",
        "nbgrader.readthedocs.io: the philosophy of nbgrader, Directory structure",
        rf"{_ABOVE}submitted/(?P<learner>[^/]+)/{_FILE}",
    ),
    Form(  # Submitted files/Jane Doe/Exercise 00/Version 2/FILE
        "Microsoft Teams",
        "kubohiroya/-summarize-teams-submissions: README.md",
        rf"{_TOP}{_ABOVE}?(?P<learner>[^/]+)(?:/(?P<assignment>[^/]+))?/(?i:{_VERSION})/{_FILE}",
    ),
    Form(  # Takeout/Classroom/COURSE/ASSIGNMENT/Jane Doe - FILE
        "Google Classroom",
        "files that teachers downloaded with Google Takeout",
        rf"(?:[^/]+/){{0,2}}Takeout/(?:{_FOLDER}/)*(?P<assignment>{_FOLDER})/{_NAMED_FILE}",
    ),
    Form(
        "Google Classroom",
        "files that teachers downloaded from Google Drive",
        rf"{_TOP}(?:{_DRIVE_ZIP})?{_NAMED_FILE}",
    ),
    Form(
        "Google Classroom",
        "files that teachers downloaded from Google Drive",
        rf"{_TOP}{_DRIVE_ZIP}(?P<file>[^/]+)",
    ),
    Form(PLAIN_FOLDERS, "docs/teaching.md", rf"{_TOP}(?P<learner>[^/]+)/{_FILE}"),
    Form(PLAIN_FILES, "docs/teaching.md", rf"{_TOP}(?P<learner>[^/]+)\.py"),
    Form(PLAIN_FILES, "docs/teaching.md", rf"{_TOP}(?P<file>[^/]*)"),
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


def composed(name: str) -> str:
    """Returns a name in Unicode's composed form (NFC), in which two spellings of é are one."""
    return unicodedata.normalize("NFC", name)


def without_zip(name: str) -> str:
    """Returns the name of a folder, which may still be a zip."""
    return re.sub(r"\.zip$", "", composed(name), flags=re.IGNORECASE)


def read_label(path: str) -> Label:
    """Returns what a path below the teacher's folder says."""
    path = composed(path)
    form, match = next((f.name, m) for f in FORMS if (m := f.compiled.fullmatch(path)))
    parts = {name: part or "" for name, part in match.groupdict().items()}
    return Label(
        form=form,
        learner=without_zip(parts.get("learner", "")) or parts.get("user", ""),
        user=parts.get("user", ""),
        file=parts.get("file", ""),
        attempt=sortable_date(parts.get("attempt", "")),
        assignment=parts.get("assignment", ""),
        is_late=bool(parts.get("late")),
    )


def without_title(labels: Mapping[Path, Label], repositories: Iterable[str]) -> dict[Path, Label]:
    """Returns labels in which folders `ps1-jane` and `ps1-joe` are those of jane and joe.

    That is how GitHub Classroom names repositories. Without a `.git` in them, all folders of a
    class must begin alike, and be three or more. Only a start with a number is a title, because
    `anna-lena` and `anna-maria` also begin alike, and so do `ps1-jane-doe` and `ps1-jane-roe`.
    """
    folders = {label.learner for label in labels.values() if label.form == PLAIN_FOLDERS}
    cloned = folders & set(repositories)
    named = sorted(cloned or folders)
    title = _title_of(named[0]) if len(named) >= (2 if cloned else 3) else ""
    if not title or not all(name.startswith(title) and name != title for name in named):
        return dict(labels)
    return {
        path: replace(label, form=GITHUB, learner=user, user=user)
        if label.form == PLAIN_FOLDERS
        and label.learner in named
        and (user := label.learner.removeprefix(title))
        else label
        for path, label in labels.items()
    }


def _title_of(folder: str) -> str:
    """Returns `assignment-1-` of `assignment-1-jane-doe`; "" if no part before the last has one."""
    start = re.match(r"(?:[^-\d]*-)*?[^-\d]*\d[^-]*-", folder)
    return start[0] if start else ""
