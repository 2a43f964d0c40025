"""Lists what can be graded: distlab's exercises, and a teacher's own.

exercises = Exercises(Path("mine/lesson_20_my_topic.py"))
exercises.checks["20_my_topic"]              # its checks, in their order
exercises.reports_of("20_my_topic")          # the reports it asks for; () of most
check_named("slices_again", Path("private.py"))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import distlab
from distlab.autograder.intake.written_reports import text_lines
from distlab.course.checks.check import Check
from distlab.course.checks.handed_out import exercise_of
from distlab.course.checks.own_checks import load_own
from distlab.course.checks.registry import checks_of, find_check, reports_of, stems
from distlab.course.checks.rubric import WrittenReport
from distlab.course.editions import answered, parse_answers
from distlab.course.markup import TASK_LINE, TEXT

_CELL_MARK = re.compile(r"^# ?%%.*$", re.MULTILINE)


class Exercises:
    """The exercises by their stems; with a teacher's own file `lesson_NAME.py` also NAME."""

    def __init__(self, extra_checks: Path | None = None) -> None:
        self._file = extra_checks
        self._own = "" if extra_checks is None else extra_checks.stem.removeprefix("lesson_")
        self._extra, self._reports = load_own(extra_checks) if extra_checks else ((), ())

    @cached_property
    def checks(self) -> Mapping[str, tuple[Check, ...]]:
        """The checks of each exercise, those of the teacher's own last."""
        own = {} if self._file is None else {self._own: self._extra}
        return {stem: checks_of(stem) for stem in stems()} | own

    @property
    def stems(self) -> tuple[str, ...]:
        """The stems of all."""
        return (*stems(), *[self._own] * (self._own not in ("", *stems())))

    def questions(self, stem: str) -> Iterator[tuple[Check, str]]:
        """Yields checks, each with the one whose answer it asks; a teacher's own come last."""
        checks = self.checks[stem]
        asked_of = {check.function: check.name for check in checks}
        for check in checks:
            yield check, check.name
        for check in self._extra if checks is not self._extra else ():
            if check.function in asked_of:
                yield check, asked_of[check.function]

    def stem_of(self, check: str) -> str:
        """Returns the stem of the exercise that has a check; "" if none has it."""
        having = (s for s in self.checks if any(check == c.name for c, _ in self.questions(s)))
        return next(having, "")

    def reports_of(self, stem: str) -> tuple[WrittenReport, ...]:
        """Returns the reports that an exercise asks for; none of one that is not known."""
        if stem == self._own:
            return self._reports
        return reports_of(stem) if stem in stems() else ()

    def notebook_of(self, stem: str) -> Path:
        """Returns where an exercise is, as it was handed out; the file may not be there."""
        if stem != self._own or self._file is None:
            return exercise_of(stem)
        return self._file.resolve().parent.parent / "exercises" / f"{stem}.ipynb"

    def text_of(self, stem: str) -> frozenset[str]:
        """Returns the lines of text of an exercise as it was handed out, as far as it is found."""
        source = self._source_of(stem)
        if stem == self._own and source.is_file():
            return _text_of_source(source.read_text(encoding="utf-8-sig"))
        return text_lines(self.notebook_of(stem))

    @cached_property
    def titles(self) -> Mapping[str, frozenset[str]]:
        """The first headings of each exercise, as far as it is found."""
        return {
            stem: frozenset(line for line in self.text_of(stem) if line.startswith("# "))
            for stem in self.checks
        }

    def solutions_of(self, stem: str) -> dict[str, str]:
        """Returns our code for each task; {} without the exercise's source, as in a wheel."""
        source = self._source_of(stem)
        if not source.is_file():
            return {}
        cells = _CELL_MARK.split(source.read_text(encoding="utf-8-sig"))
        return {
            task: answered(parse_answers(cell, file=source.name, line=1))
            for cell in cells
            for task in TASK_LINE.findall(cell)
        }

    def _source_of(self, stem: str) -> Path:
        if self._file is not None and stem == self._own:
            return self._file.with_name(f"{stem}.py")
        return Path(str(distlab.__file__)).with_name("course") / f"lesson_{stem}" / "exercise.py"


def _text_of_source(text: str) -> frozenset[str]:
    """The same of a source in jupytext's percent format, whose text is in comments."""
    lines, is_answer = set(), False
    for line in text.splitlines():
        comment = line.removeprefix("#").strip() if line.startswith("#") else ""
        if comment == TEXT.begin:
            is_answer = True
        elif comment in (TEXT.stub, TEXT.end):
            is_answer = False
        elif not is_answer:
            lines.add(comment)
    return frozenset(lines - {""})


def check_named(name: str, extra_checks: Path | None) -> Check:
    """Returns the check of this name; a teacher's own comes before one of distlab's."""
    own = () if extra_checks is None else load_own(extra_checks)[0]
    return next((check for check in own if check.name == name), None) or find_check(name)
