"""Grades one submission: runs each of its answers in isolation and has the result judged.

with Marker(options, seed=7) as marker:
    for graded in marker.mark_all(submissions):
        ...
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from distlab.autograder.gradebook.scores import Graded, Held
from distlab.autograder.intake.extract_answers import Answers, find_answers, misplaced
from distlab.autograder.intake.gradable_exercises import Lessons
from distlab.autograder.intake.notebook_file import open_notebook
from distlab.autograder.intake.report_submission import find_written
from distlab.autograder.intake.submissions import Submission
from distlab.autograder.isolation.judge_process import Judge
from distlab.autograder.isolation.limits import Limits
from distlab.autograder.isolation.run_isolated import Outcome, Question, ask
from distlab.course.checks.check import Check
from distlab.course.checks.handed_out import is_handed_out
from distlab.course.checks.help_steps import with_help, with_section
from distlab.course.checks.report import UNCHANGED, Ending, Report
from distlab.errors import DistlabError, InvalidArgument

DRAWS = 3
_LONGEST = 500
_LONGEST_CODE = 20_000


@dataclass(frozen=True, kw_only=True)
class GradingOptions:
    """How a folder is graded.

    Attributes:
        jobs: Answers at a time.
        seed: What inputs are drawn from; None draws one for this `out`, and keeps it there.
        limits: What each answer may use.
        late_factor: What is left of the points of a late hand-in, 0 to 1.
        overrides: A teacher's own points, as a table.
        only: Learners to grade; all if there are none.
        again: Whether to grade what was graded already.
        extra_checks: A teacher's own file of checks.
        allow_root: Whether root may grade.
    """

    jobs: int = 2
    seed: int | None = None
    limits: Limits = field(default_factory=Limits)
    late_factor: float = 1.0
    overrides: Path | None = None
    only: tuple[str, ...] = ()
    again: bool = False
    extra_checks: Path | None = None
    allow_root: bool = False

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise InvalidArgument(
                asked=f"GradingOptions(jobs={self.jobs})",
                found=f"jobs={self.jobs}",
                do="give 1 or more; without --jobs there is one for each core",
            )


class Marker:
    """Grades submissions, several at a time."""

    def __init__(
        self, options: GradingOptions, *, seed: int, lessons: Lessons | None = None
    ) -> None:
        self._options, self._seed = options, seed
        self._lessons = lessons or Lessons(options.extra_checks)
        self._opened = contextlib.ExitStack()
        self._judges: queue.SimpleQueue[Judge] = queue.SimpleQueue()
        for _ in range(options.jobs):
            self._judges.put(self._opened.enter_context(Judge(extra_checks=options.extra_checks)))
        self._ended = threading.Event()

    def mark_all(self, submissions: Sequence[Submission]) -> Iterator[Graded]:
        """Yields what became of each, as they come."""
        with ThreadPoolExecutor(self._options.jobs) as pool:
            try:
                futures = [pool.submit(self.mark, one) for one in submissions]
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                self._ended.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def mark(self, submission: Submission) -> Graded:
        """Returns what became of a submission.

        If a notebook breaks the grader, its learner has no points until a person has looked.
        """
        try:
            return self._mark(submission)
        except (DistlabError, OSError):
            raise
        except Exception as problem:
            why = f"a notebook that broke the grader ({type(problem).__name__}: {problem})"
            return Graded(submission=submission, problem=why[:_LONGEST])

    def _mark(self, submission: Submission) -> Graded:
        try:
            notebook = open_notebook(submission.path)
            answers = find_answers(notebook.code, self._lessons.checks, asked=submission.path.name)
        except InvalidArgument as problem:
            return Graded(submission=submission, problem=problem.found)
        except OSError as problem:
            why = f"a file that cannot be read ({problem.strerror})"
            return Graded(submission=submission, problem=why)
        written = find_written(
            notebook.cells,
            self._lessons.reports_of(answers.stem),
            handed_out=self._lessons.handed_out(answers.stem),
        )
        reports: list[Report] = []
        held: list[Held] = []
        for check, asked in self._lessons.questions(answers.stem):
            if self._ended.is_set():
                raise KeyboardInterrupt
            report, reasons = self._answered(check, asked, answers, submission)
            reports.append(report)
            held += [Held(check=check.name, reason=reason) for reason in reasons]
        notes = [note for answer in answers.answers for note in answer.notes]
        notes += misplaced(notebook.cells, answers)
        notes += [
            f"the line '<!-- report: {one.report} -->' is gone"
            for one in written
            if not one.is_marked
        ]
        return Graded(
            submission=submission,
            stem=answers.stem,
            reports=tuple(reports),
            written=written,
            code={one.check: answers.source(one.check)[:_LONGEST_CODE] for one in answers.answers},
            held=tuple(held),
            notes=tuple(notes),
        )

    def close(self) -> None:
        """Ends the judging processes."""
        self._opened.close()

    def __enter__(self) -> Marker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answered(
        self, check: Check, asked: str, answers: Answers, submission: Submission
    ) -> tuple[Report, tuple[str, ...]]:
        program = answers.program(asked)
        if not program:
            return _not_started(check, f"There is no answer to the task `{asked}`."), ()
        exercise = self._lessons.exercise_of(answers.stem)
        if is_handed_out(asked, answers.source(asked), exercise):
            return _not_started(check, UNCHANGED), ()
        options = self._options
        outcome: Outcome = ask(
            Question(
                check=check.name,
                cells=tuple((cell.name, cell.source) for cell in program),
                seeds=self._seeds(check.name, submission),
                extra_checks=options.extra_checks,
            ),
            limits=options.limits,
            allow_root=options.allow_root,
            give_up=self._ended,
        )
        judge = self._judges.get()
        try:
            report = judge.report(check.name, outcome.called)
        finally:
            self._judges.put(judge)
        if not report.passed and report.ending is not Ending.NOT_STARTED:
            report = with_section(check, with_help(check, report, tries=2))
        return report, outcome.review

    def _seeds(self, check: str, submission: Submission) -> tuple[int, ...]:
        """Each learner has different draws: results copied from a neighbour are of no use."""
        text = f"{self._seed}\0{submission.learner}\0{submission.user}\0{check}"
        # A name may hold bytes that are no text, as the system has it.
        digest = hashlib.sha256(text.encode(errors="surrogateescape")).digest()
        return tuple(int.from_bytes(digest[4 * n : 4 * n + 4], "big") >> 1 for n in range(DRAWS))


def _not_started(check: Check, message: str) -> Report:
    report = Report(check.name, check.function, check.title, Ending.NOT_STARTED, 0.0, check.points)
    return replace(report, message=message)
