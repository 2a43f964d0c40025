"""Grades submissions: runs each answer behind walls and has it judged, several at a time.

for graded in Grader(options, seed=7).grade_all(submissions):
    ...
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distlab.autograder.gradebook.scores import Graded
from distlab.autograder.intake.answers import Answers, find_answers, misplaced
from distlab.autograder.intake.exercises import Exercises
from distlab.autograder.intake.notebook import Cell, open_notebook, shown_points
from distlab.autograder.intake.recognition import recognised
from distlab.autograder.intake.submissions import Submission
from distlab.autograder.intake.written_reports import find_written
from distlab.autograder.isolation.limits import Limits
from distlab.autograder.isolation.question import Question, grade_answer
from distlab.course.checks.check import Check
from distlab.course.checks.handed_out import is_cell_of, is_handed_out
from distlab.course.checks.help_steps import with_help, with_section
from distlab.course.checks.report import UNCHANGED, Ending, Report
from distlab.course.results.failures import Failure
from distlab.errors import DistlabError, InvalidArgument, ProcessError

DRAWS = 3
_LONGEST = 500
_LONGEST_CODE = 20_000
# Errors that say all themselves: no hint about the task's concept goes with them.
_SAYS_ALL = (
    *("SyntaxError", "IndentationError", "TabError", "NameError", "ModuleNotFoundError"),
    *("EOFError", "Stopped: "),
)


_NO_HELP: dict[str, Any] = dict.fromkeys(("question", "hint", "revisit", "revisit_link"), "")


@dataclass(frozen=True, kw_only=True)
class GradingOptions:
    """How a folder is graded."""

    jobs: int = 2  # answers at a time
    seed: int | None = None  # of the inputs; None draws one for the folder of results
    limits: Limits = field(default_factory=Limits)  # of each answer
    late_factor: float = 1.0  # what is left of the points of a late hand-in, 0 to 1
    overrides: Path | None = None  # a teacher's own points, as a table
    only: tuple[str, ...] = ()  # learners to grade; all if there are none
    again: bool = False  # also what was graded before
    extra_checks: Path | None = None  # a teacher's own file
    allow_doubles: bool = False  # whether one learner may have several notebooks of an exercise
    allow_root: bool = False  # also where no walls can be built

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise InvalidArgument(
                asked=f"grade with --jobs {self.jobs}",
                found=f"--jobs {self.jobs}",
                do="grade 1 answer at a time or more; without --jobs it's one for each core",
            )


class Grader:
    """Grades submissions, several answers at a time."""

    def __init__(
        self,
        options: GradingOptions,
        *,
        seed: int,
        exercises: Exercises | None = None,
        begin: Callable[[Submission], None] = lambda submission: None,
    ) -> None:
        self._options, self._seed, self._begin = options, seed, begin
        self._exercises = exercises or Exercises(options.extra_checks)
        self._ended = threading.Event()

    def grade_all(self, submissions: Sequence[Submission]) -> Iterator[Graded]:
        """Yields what became of each, as they come.

        A submission that runs out of time, or for which no process could be started, is graded
        again at the end, alone, because the others may have held it up.
        """
        late: list[Submission] = []
        with ThreadPoolExecutor(self._options.jobs) as pool:
            try:
                futures = [pool.submit(self.grade, handed) for handed in submissions]
                for future in as_completed(futures):
                    graded = future.result()
                    timed_out = any(r.ending is Ending.TIMED_OUT for r in graded.reports)
                    if timed_out or not graded.is_final:
                        late.append(graded.submission)
                    else:
                        yield graded
                for handed in late:
                    yield pool.submit(self.grade, handed).result()
            except BaseException:
                self._ended.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def grade(self, submission: Submission) -> Graded:
        """Returns what became of a submission.

        If a notebook breaks the grader, its learner has no points until a person has looked.
        """
        self._begin(submission)
        try:
            return self._graded(submission)
        except ProcessError as problem:
            return Graded(submission=submission, problem=problem.found, is_final=False)
        except (DistlabError, OSError):
            raise
        except Exception as problem:
            why = f"a notebook that broke the grader ({type(problem).__name__}: {problem})"
            return Graded(submission=submission, problem=why[:_LONGEST])

    def _graded(self, submission: Submission) -> Graded:
        exercises, name = self._exercises, submission.path.name
        try:
            notebook = open_notebook(submission.path)
            known = recognised(notebook.cells, exercises)
            lessons = {stem: known.get(stem, ()) for stem in exercises.checks}
            answers = find_answers(notebook.code, lessons, asked=name)
        except InvalidArgument as problem:
            return Graded(submission=submission, problem=problem.found)
        except OSError as problem:
            why = f"a file that cannot be read ({problem.strerror})"
            return Graded(submission=submission, problem=why)
        shown = shown_points(notebook.cells)
        wanted, handed_out = exercises.reports_of(answers.stem), exercises.text_of(answers.stem)
        written = find_written(notebook.cells, wanted, handed_out=handed_out)
        answered = tuple(self._answered(answers, submission))
        notes = [note for answer in answers.answers for note in answer.notes]
        notes += misplaced(notebook.cells, answers)
        notes += [note for one in answered for note in _notes_on(one, answers, shown)]
        notes += [
            f"the line '<!-- report: {report.report} -->' is gone"
            for report in written
            if not report.is_marked
        ]
        return Graded(
            submission=submission,
            stem=answers.stem,
            reports=tuple(one.report for one in answered),
            written=written,
            code={
                one.report.name: answers.source(one.asked, one.place)[:_LONGEST_CODE]
                for one in answered
            },
            notes=tuple(notes),
        )

    def _answered(self, answers: Answers, submission: Submission) -> Iterator[_Answered]:
        """Yields what became of each task, which a mistake of an earlier one costs no points.

        A second run has our code beside the learner's, so nothing of it is shown but that it
        passed: what it prints, returns or raises could be our code.
        """
        wrong: dict[str, str] = {}  # earlier tasks, and the functions they ask for
        stopped_at: dict[Failure, str] = {}  # what failed, and the first task that it stopped
        ours = self._exercises.solutions_of(answers.stem)
        for check, asked in self._exercises.questions(answers.stem):
            one = self._tried(check, asked, answers, submission)
            report = one.report
            defined = set() if report.passed else answers.functions_in(asked)
            carried = [t for t, name in wrong.items() if t != asked and name in defined]
            if corrected := {task: ours[task] for task in carried if task in ours}:
                again = self._tried(check, asked, answers.with_ours(corrected), submission).report
                if again.passed:
                    report = replace(again, corrected=tuple(wrong[task] for task in corrected))
            if not report.passed and check.name == asked:
                wrong[asked] = check.function
            if report.failure is not None and report.failure.lines:
                first = stopped_at.setdefault(report.failure, check.name)
                if first != check.name:
                    says = f"The error that stops `{first}` stops this one, too."
                    report = replace(report, failure=None, message=says, printed="", **_NO_HELP)
            yield replace(one, report=report)

    def _tried(
        self, check: Check, asked: str, answers: Answers, submission: Submission
    ) -> _Answered:
        """Returns the best that an answer does: of its cells, or after the whole notebook."""
        exercise = self._exercises.notebook_of(answers.stem)
        places = answers.places(asked)
        if not places:
            none = _not_started(check, f"There is no answer to the task `{asked}`.")
            return _Answered(report=none, asked=asked)
        own = [p for p in places if not is_handed_out(asked, answers.source(asked, p), exercise)]
        if not own:
            return _Answered(report=_not_started(check, UNCHANGED), asked=asked, place=places[0])
        tried = list[_Answered]()
        for place in own:
            report = self._report(check, answers.program(asked, place), answers, submission)
            tried.append(_Answered(report=report, asked=asked, place=place))
            if report.passed:
                return tried[-1]
        is_late = any(one.report.ending is Ending.TIMED_OUT for one in tried)
        if not is_late and answers.has_more(asked, functools.partial(is_cell_of, exercise)):
            report = self._report(check, answers.whole(), answers, submission, whole=True)
            if (failure := report.failure) is not None and (
                report.ending is Ending.TIMED_OUT or failure.error.startswith("Stopped: ")
            ):
                says = f"the whole notebook did not run to its end ({failure.error})"
                report = replace(report, left_out=(says,), ending=Ending.ERROR)
            tried.append(_Answered(report=report, asked=asked, place=own[-1]))
        best = max(tried, key=lambda one: (one.report.earned, one.report.failure is None))
        return replace(best, report=replace(best.report, left_out=tried[-1].report.left_out))

    def _report(
        self,
        check: Check,
        program: Sequence[Cell],
        answers: Answers,
        submission: Submission,
        *,
        whole: bool = False,
    ) -> Report:
        if self._ended.is_set():
            raise KeyboardInterrupt
        question = Question(
            check=check.name,
            cells=tuple((cell.name, cell.source) for cell in program),
            is_whole_notebook=whole,
            seeds=self._seeds(check.name, submission),
            extra_checks=self._options.extra_checks,
        )
        report = grade_answer(question, limits=self._options.limits, give_up=self._ended)
        if report.passed or report.ending is Ending.NOT_STARTED:
            return report
        if (failure := report.failure) is not None and (
            failure.error.startswith(_SAYS_ALL)
            or any(map(answers.is_outside_of_functions, failure.lines[:1]))
        ):
            return report
        return with_section(check, with_help(check, report, tries=2))

    def _seeds(self, check: str, submission: Submission) -> tuple[int, ...]:
        """Each learner has different draws: results copied from a neighbour are of no use."""
        text = f"{self._seed}\0{submission.learner}\0{submission.user}\0{check}"
        # A name may hold bytes that are no text, as the system has it.
        digest = hashlib.sha256(text.encode(errors="surrogateescape")).digest()
        return tuple(int.from_bytes(digest[4 * n : 4 * n + 4], "big") >> 1 for n in range(DRAWS))


@dataclass(frozen=True, kw_only=True)
class _Answered:
    """A task as it was graded: its report, and the cell that it is about."""

    report: Report
    asked: str  # the check whose answer it is
    place: int | None = None


def _notes_on(one: _Answered, answers: Answers, shown: Mapping[str, float]) -> Iterator[str]:
    """Yields what a teacher should know about the points of a task."""
    report, first = one.report, next(iter(answers.places(one.asked)), None)
    if first is not None and one.place not in (first, None) and report.name == one.asked:
        counts, marked = answers.cells[one.place].name, answers.cells[first].name
        yield f"`{report.function}` of {counts} counts, not that of {marked} with the task's line"
    if report.passed:
        return
    yield from (f"`{report.name}`: {text}" for text in report.left_out)
    if (earned := shown.get(report.name, 0.0)) > report.earned:
        yield (
            f"`{report.name}` has {report.earned:g} points here, and its check in the notebook "
            f"shows {earned:g}, of an earlier run: run the check again before you hand in"
        )


def _not_started(check: Check, message: str) -> Report:
    report = Report(check.name, check.function, check.title, Ending.NOT_STARTED, 0.0, check.points)
    return replace(report, message=message)
