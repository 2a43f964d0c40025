"""Lists what can be graded: distlab's lessons, and a teacher's own exercise.

lessons = Lessons(Path("mine/lesson_20_my_topic.py"))
lessons.checks["20_my_topic"]                # its checks, in their order
lessons.reports_of("20_my_topic")            # the reports it asks for; () of most
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from distlab.autograder.intake.private_checks import load_checks, load_reports
from distlab.autograder.intake.report_submission import handed_out, text_lines
from distlab.course.checks.check import Check
from distlab.course.checks.handed_out import exercise_of
from distlab.course.checks.registry import checks_of, reports_of, stems
from distlab.course.checks.rubric import WrittenReport
from distlab.course.markup import TEXT


class Lessons:
    """The lessons by their stems, as "00_start_here".

    Args:
        extra_checks: A teacher's own file of checks. `lesson_NAME.py` is of the exercise NAME.

    Attributes:
        extra: The checks of that file.

    Raises:
        InvalidArgument: The file cannot be used.
    """

    def __init__(self, extra_checks: Path | None = None) -> None:
        self._file = extra_checks
        self._own = "" if extra_checks is None else extra_checks.stem.removeprefix("lesson_")
        self.extra: tuple[Check, ...] = ()
        self._reports: tuple[WrittenReport, ...] = ()
        if extra_checks is not None:
            self.extra, self._reports = load_checks(extra_checks), load_reports(extra_checks)

    @cached_property
    def checks(self) -> Mapping[str, tuple[Check, ...]]:
        """The checks of each lesson, those of the teacher's own last."""
        own = {} if self._file is None else {self._own: self.extra}
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
        for check in self.extra if checks is not self.extra else ():
            if check.function in asked_of:
                yield check, asked_of[check.function]

    def stem_of(self, check: str) -> str:
        """Returns the stem of the lesson that has a check; "" if none has it."""
        having = (s for s in self.checks if any(check == c.name for c, _ in self.questions(s)))
        return next(having, "")

    def reports_of(self, stem: str) -> tuple[WrittenReport, ...]:
        """Returns the reports that an exercise asks for; none of one that is not known."""
        if stem == self._own:
            return self._reports
        return reports_of(stem) if stem in stems() else ()

    def exercise_of(self, stem: str) -> Path:
        """Returns where an exercise is, as it was handed out; the file may not be there."""
        if stem != self._own or self._file is None:
            return exercise_of(stem)
        return self._file.resolve().parent.parent / "exercises" / f"{stem}.ipynb"

    def handed_out(self, stem: str) -> frozenset[str]:
        """Returns the lines of text of an exercise as it was handed out, as far as it is found."""
        if stem != self._own or self._file is None:
            return handed_out(stem)
        source = self._file.with_name(f"{stem}.py")
        if source.is_file():
            return _lines_of_source(source.read_text(encoding="utf-8"))
        return text_lines(self.exercise_of(stem))


def _lines_of_source(text: str) -> frozenset[str]:
    """The same of a source in jupytext's percent format, whose text is in comments."""
    lines, is_answer = set(), False
    for line in text.splitlines():
        said = line.removeprefix("#").strip() if line.startswith("#") else ""
        if said == TEXT.begin:
            is_answer = True
        elif said in (TEXT.stub, TEXT.end):
            is_answer = False
        elif not is_answer:
            lines.add(said)
    return frozenset(lines - {""})
