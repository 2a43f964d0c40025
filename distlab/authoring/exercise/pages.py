"""A page whose source lies anywhere, in a teacher's own folder or in a lesson's.

page = own_page(Path("20_my_topic.py"), "exercise", out=Path("handout"))
page.target                             # 'exercises/20_my_topic.ipynb', below handout
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from distlab.authoring.source import Edition, Page
from distlab.autograder.intake.exercises import load_checks, load_reports
from distlab.course.checks.registry import stems
from distlab.errors import InvalidArgument

_STEM = re.compile(r"[A-Za-z0-9_-]{1,50}")  # what ids of cells may hold, and their number beside it
_IN_LESSONS = "exercise.py"
# A cell that needs a file of checks: of a check, or of a report.
_ASKS = re.compile(r"^((dl\.)?check\(|# report: )", re.MULTILINE)


@dataclass(frozen=True)
class OwnPage(Page):
    """A page that is built from one file into any folder."""

    file: Path
    checks: Path | None

    @property
    def source(self) -> str:
        """The source as messages and the notebook name it, without this machine's folders."""
        is_in_lessons = self.file.name == _IN_LESSONS
        return f"{self.stem}/{_IN_LESSONS}" if is_in_lessons else self.file.name

    @property
    def path(self) -> Path:
        """The source's path."""
        return self.file

    def points(self) -> dict[str, float]:
        """Returns what each check and each report is worth, by its name."""
        if self.checks is None:
            return super().points()
        checks = {check.name: check.points for check in load_checks(self.checks)}
        return checks | {report.name: report.points for report in load_reports(self.checks)}


def check_folder(folder: Path, *, asked: str) -> None:
    """Raises where nothing can be written into a folder, which need not be there yet."""
    path = folder.absolute()
    existing = next(place for place in (path, *path.parents) if place.exists())
    if not existing.is_dir():
        raise InvalidArgument(asked=asked, found=f"{existing}, which is a file", do="give a folder")
    if not os.access(existing, os.W_OK):
        raise InvalidArgument(
            asked=asked, found=f"{existing}, which cannot be written", do="give another folder"
        )


def own_page(
    file: Path, edition: Edition, *, out: Path = Path(), checks: Path | None = None
) -> OwnPage:
    """Returns the page of a source."""
    asked = f"the notebooks of {file}"
    if not file.is_file():
        inside = file / _IN_LESSONS
        raise InvalidArgument(
            asked=asked,
            found="a folder" if file.is_dir() else "no file of that name",
            do=f"give its source: {inside}"
            if inside.is_file()
            else "give an exercise's source, a .py file",
        )
    stem = (
        file.resolve().parent.name.removeprefix("lesson_")
        if file.name == _IN_LESSONS
        else file.stem
    )
    if file.suffix != ".py" or not _STEM.fullmatch(stem):
        raise InvalidArgument(
            asked=asked,
            found=f"the name {file.name!r}",
            do="name it .py, before that at most 50 of a-z, A-Z, 0-9, '_' and '-'",
        )
    if checks is not None and not checks.is_file():
        raise InvalidArgument(
            asked=asked, found=f"no file of checks {checks}", do="give --checks a .py file"
        )
    beside = file.with_name(f"lesson_{stem}.py")
    if checks is None and beside.is_file():
        checks = beside
    if checks is not None:
        load_checks(checks)
        load_reports(checks)
    elif stem not in stems() and _ASKS.search(file.read_text(encoding="utf-8")):
        raise InvalidArgument(
            asked=asked,
            found=f"a check or a report, and no file of checks: there is no {beside}",
            do="put it there, or name it with --checks",
        )
    return OwnPage(out, stem, edition, file, checks)
