"""Writes the pages: what a learner gets back, and how the class did.

    write_feedback(graded, score, folder, policy=policy)    # jane/09_multi_worker.html in there
    write_page(out / "class.html", class_page(scored, policy.exercises))

A page needs no other file and no network. Nothing of the learner's runs in it: all text is
escaped, and the page itself allows pictures, but no form, nothing from elsewhere and no script,
except for the one that sorts the tables of the class, which it knows by its hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from distlab.autograder.gradebook.gradebook_csv import AnswerOutcome, mistakes_in, outcome_of
from distlab.autograder.gradebook.markdown import section_html, written_html
from distlab.autograder.gradebook.scores import Given, Graded, Policy, ReadingStatus, Score
from distlab.autograder.intake.exercises import Exercises
from distlab.autograder.intake.submissions import Submission
from distlab.course.checks.check import Check
from distlab.course.checks.help_steps import section_to_revisit
from distlab.course.checks.report import Ending, Report, with_code
from distlab.course.course_map import exercise_title

Scored = Sequence[tuple[Graded, Score]]

_OTHER = re.compile(r"[^\w.-]+")
_MOST_BARS = 10
_WIDTHS = (1, 2, 3, 4, 5, 10, 20, 50, 100)  # points in a bar
_HALF = 0.5


def write_page(path: Path, text: str) -> None:
    """Writes a page, whatever letters are in it, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def file_name(text: str, *, is_alike: bool = False) -> str:
    """Returns a name for a file, without any folder in it; different texts have different names.

    Texts that are alike differ in capitals only, which is no difference on a Mac's disk.
    """
    name = _OTHER.sub("_", text).strip(".")[:80]
    if name == text and not is_alike:
        return name
    return f"{name}-{hashlib.sha256(text.encode(errors='backslashreplace')).hexdigest()[:8]}"


def folder_of(handed: Submission) -> str:
    """Returns the name of a learner's folder; two learners of one name have two folders."""
    name = "_".join(part for part in dict.fromkeys(handed.person) if part)
    return file_name(name, is_alike=handed.is_alike)


def page_name(graded: Graded) -> str:
    """Returns where the page of a submission is, below the folder of all."""
    handed = graded.submission
    return f"{folder_of(handed)}/{file_name(graded.stem or handed.name)}.html"


@functools.cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("distlab.autograder"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters["points"] = lambda number: f"{number:g}"
    templates.filters["with_code"] = lambda text: Markup(with_code(text))
    return templates


def _render(name: str, **values: Any) -> str:
    return _templates().get_template(f"{name}.html.j2").render(**values)


# A learner's page


def write_feedback(
    graded: Graded, score: Score, folder: Path, *, policy: Policy | None = None
) -> Path:
    """Writes the page of one submission, and returns where."""
    path = folder / page_name(graded)
    write_page(path, feedback_page(graded, score, policy=policy))
    return path


def feedback_page(graded: Graded, score: Score, *, policy: Policy | None = None) -> str:
    """Returns the page of one submission."""
    policy = policy or Policy()
    checks = {check.name: check for check in policy.exercises.checks.get(graded.stem, ())}
    sections: dict[str, Markup] = {}  # the HTML of each section to read again, by its heading
    answers = [
        {
            "report": report,
            "outcome": outcome_of(report),
            "html": Markup(report.as_html(revisit_link=_link(report, checks, sections))),
            "given": score.by_check[report.name],
            "comment": score.comments.get(report.name, ""),
            "code": "" if report.ending is Ending.NOT_STARTED else graded.code.get(report.name, ""),
        }
        for report in graded.reports
    ]
    handed_out = policy.exercises.text_of(graded.stem) if score.readings else frozenset()
    readings = [
        {
            "reading": reading,
            "is_read": reading.status is ReadingStatus.READ,
            # The rubric gives answers away, so only learners whose report is read see it.
            "shows_rubric": any(given != Given() for _, given in reading.rows),
            "html": Markup(written_html(reading.written.text, handed_out=handed_out)),
        }
        for reading in score.readings
    ]
    return _render(
        "feedback",
        title=exercise_title(graded.stem) if graded.stem else "Feedback",
        graded=graded,
        score=score,
        late_factor=policy.late_factor,
        answers=answers,
        readings=readings,
        sections=sections,
    )


def _link(report: Report, checks: dict[str, Check], sections: dict[str, Markup]) -> str:
    """Returns a link to the section to read again, which goes to the end of the page."""
    check = checks.get(report.name)
    section = section_to_revisit(check) if check and report.revisit else None
    if section is None or not (html := section_html(section)):
        return ""
    sections.setdefault(section.in_words, Markup(html))
    return f"#section-{list(sections).index(section.in_words) + 1}"


# The page of the class


def class_page(scored: Scored, exercises: Exercises | None = None, *, to_review: int = 0) -> str:
    """Returns the page of how a class did in each exercise, and what to teach again.

    Args:
        scored: The notebooks of all.
        exercises: The exercises that are known, with a teacher's own.
        to_review: How many rows `review.csv` has.
    """
    checks = (exercises or Exercises()).checks
    stems = sorted({graded.stem for graded, _ in scored if graded.stem})
    shown = [
        _exercise(stem, [pair for pair in scored if pair[0].stem == stem], checks.get(stem, ()))
        for stem in stems
    ]
    not_graded = [(graded, _page_of(graded)) for graded, _ in scored if graded.problem]
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _render(
        "class",
        title="The class",
        exercises=shown,
        not_graded=not_graded,
        to_review=to_review,
        script=Markup(script),
        script_hash=f"sha256-{digest}",
    )


@functools.cache
def _script() -> str:
    return Path(__file__).parent.with_name("templates").joinpath("sort.js").read_text("utf-8")


def _page_of(graded: Graded) -> str:
    return f"feedback/{page_name(graded)}"


def _exercise(stem: str, scored: Scored, checks: Iterable[Check]) -> dict[str, Any]:
    graded = [notebook for notebook, _ in scored]
    sections = {check.name: section_to_revisit(check) for check in checks}
    most = max(score.points for _, score in scored)
    earned = [score.earned for notebook, score in scored if not notebook.problem] or [0.0]
    return {
        "stem": stem,
        "title": exercise_title(stem),
        "mean": f"{statistics.mean(earned):.1f}",
        "median": statistics.median(earned),
        "people": len({notebook.submission.person for notebook in graded}),
        "late": sum(notebook.submission.is_late for notebook in graded),
        "unread": sum(len(score.to_be_read) for _, score in scored),
        "most": most,
        "bars": bars([score.earned for _, score in scored], most) if most else [],
        "tasks": _tasks(graded),
        "rows": [_row(notebook, score) for notebook, score in scored if not notebook.problem],
        "errors": sum(
            report.ending in (Ending.ERROR, Ending.TIMED_OUT)
            for notebook in graded
            for report in notebook.reports
        ),
        "mistakes": [(mistake, sections.get(mistake.check)) for mistake in mistakes_in(graded)],
    }


def _tasks(graded: Sequence[Graded]) -> list[dict[str, Any]]:
    """Returns the tasks of one exercise, in their order, and how many learners passed each."""
    reports = [report for notebook in graded for report in notebook.reports]
    passed = Counter(report.name for report in reports if report.passed)
    titles = {report.name: report.title for report in reports}
    return [{"name": n, "title": title, "passed": passed[n]} for n, title in titles.items()]


def _row(graded: Graded, score: Score) -> dict[str, Any]:
    return {
        "learner": graded.submission.learner,
        "page": _page_of(graded),
        "score": score,
        "cells": {r.name: _cell(r, score.by_check[r.name]) for r in graded.reports},
    }


def _cell(report: Report, earned: float) -> dict[str, Any]:
    """Returns an answer's outcome; points that a teacher changed are shown as they are."""
    outcome = outcome_of(report) if earned == report.earned else AnswerOutcome.PARTIAL
    label = report.status if report.corrected else outcome.label
    if outcome is AnswerOutcome.ERROR:
        label = "error"  # which is not in the teacher's code
    return {"outcome": outcome, "label": label, "earned": earned, "points": report.points}


def bars(earned: Sequence[float], most: float) -> list[tuple[str, int]]:
    """Returns the bars of a histogram: which points, and how many learners earned so many.

    There are as many as Sturges's rule gives: 3 for four learners, 6 for thirty.
    """
    at_most = min((len(earned) - 1).bit_length() + 1, _MOST_BARS)
    width = next((width for width in _WIDTHS if most < width * at_most), most / at_most)
    count = math.floor(most / width) + 1
    learners = Counter(min(max(math.floor(points / width), 0), count - 1) for points in earned)
    labels = []
    for at in range(count):
        # Points are whole or half, so a bar ends half a point below the next one.
        first, last = at * width, min((at + 1) * width - _HALF, most)
        labels.append(f"{first:g} to {last:g}" if last > first else f"{first:g}")
    return [(label, learners[at]) for at, label in enumerate(labels)]
