"""Writes class.html: how a class did in each exercise, and what to teach again.

write_page(out / "class.html", class_page(scored))
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape

from distlab.autograder.gradebook.class_counts import AnswerOutcome, mistakes_in, tasks_in
from distlab.autograder.gradebook.html_page import page
from distlab.autograder.gradebook.scores import Graded, Score
from distlab.autograder.intake.gradable_exercises import Lessons
from distlab.course.checks.check import Check
from distlab.course.checks.help_steps import section_to_revisit
from distlab.course.checks.report import with_code

Scored = Sequence[tuple[Graded, Score]]

_MOST_BARS = 10
_WIDTHS = (1, 2, 3, 4, 5, 10, 20, 50, 100)  # points in a bar
_WIDE, _HIGH, _GAP, _TEXT = 70, 120, 4, 18  # pixels
_HALF = 0.5


def class_page(scored: Scored, lessons: Lessons | None = None) -> str:
    """Returns the page."""
    checks = (lessons or Lessons()).checks
    stems = sorted({one.stem for one, _ in scored if one.stem})
    parts = [
        _exercise(stem, [pair for pair in scored if pair[0].stem == stem], checks.get(stem, ()))
        for stem in stems
    ]
    broken = [one for one, _ in scored if one.problem]
    if broken:
        named = [
            ", ".join(dict.fromkeys((one.submission.learner, one.submission.path.name)))
            for one in broken
        ]
        lines = [
            f"<li>{escape(name)}: {escape(one.problem)}</li>"
            for name, one in zip(named, broken, strict=True)
        ]
        parts.append(f"<h2>Not graded</h2><ul>{''.join(lines)}</ul>")
    return page("The class", "\n".join(parts))


def histogram(earned: Sequence[float], most: float) -> str:
    """Returns a picture (SVG) of how many learners earned how many points."""
    width = next((one for one in _WIDTHS if most < one * _MOST_BARS), most / _MOST_BARS)
    count = math.floor(most / width) + 1
    bars = Counter(min(max(math.floor(one / width), 0), count - 1) for one in earned)
    tallest = max(bars.values(), default=1)
    shapes = []
    for at in range(count):
        left, height = at * (_WIDE + _GAP), _HIGH * bars[at] / tallest
        middle, top = left + _WIDE / 2, _TEXT + _HIGH - height
        shapes.append(f'<rect x="{left}" y="{top:g}" width="{_WIDE}" height="{height:g}"/>')
        if bars[at]:
            shapes.append(f'<text x="{middle:g}" y="{top - 4:g}">{bars[at]}</text>')
        # Points are whole or half, so a bar ends half a point below the next one.
        first, last = at * width, min((at + 1) * width - _HALF, most)
        ends = f"{first:g} to {last:g}" if last > first else f"{first:g}"
        shapes.append(f'<text x="{middle:g}" y="{_HIGH + 2 * _TEXT - 4}">{ends}</text>')
    wide, high = count * (_WIDE + _GAP), _HIGH + 2 * _TEXT
    shapes.append(f'<line x1="0" x2="{wide}" y1="{_TEXT + _HIGH}" y2="{_TEXT + _HIGH}"/>')
    return (
        f'<svg viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img" '
        f'aria-label="how many of {len(earned)} learners earned how many points" '
        f'fill="currentColor" font-size="11" text-anchor="middle">{"".join(shapes)}</svg>'
    )


def _exercise(stem: str, scored: Scored, checks: Sequence[Check]) -> str:
    graded = [one for one, _ in scored]
    people = {(one.submission.learner, one.submission.user) for one in graded}
    most = max(score.points for _, score in scored)
    to_read = sum(len(score.to_be_read) for _, score in scored)
    late = sum(one.submission.is_late for one in graded)
    counted = [f"{len(people)} handed in"]
    counted += [f"{late} of them late"] * bool(late)
    unread = "1 report is" if to_read == 1 else f"{to_read} reports are"
    counted += [f"{unread} still to be read, so points are missing"] * bool(to_read)
    parts = [f"<h2>{escape(stem)}</h2><p>{', '.join(counted)}</p>"]
    if most:
        parts.append(f"<h3>How many learners earned how many of {most:g} points</h3>")
        parts.append(histogram([score.earned for _, score in scored], most))
    parts += [_tasks(graded), _mistakes(graded, checks)]
    return "<section>" + "\n".join(parts) + "</section>"


def _tasks(graded: Sequence[Graded]) -> str:
    titles = ("task", *(outcome.label for outcome in AnswerOutcome), "held for review")
    rows = ["".join(f'<th class="number">{title}</th>' for title in titles)]
    rows[0] = rows[0].replace(' class="number"', "", 1)
    for task in tasks_in(graded):
        counts = (*(task.counts[outcome] for outcome in AnswerOutcome), task.held)
        name = f"{task.name}: {task.title}" if task.title else task.name
        rows.append(
            f"<td>{escape(name)}</td>"
            + "".join(f'<td class="number">{number or ""}</td>' for number in counts)
        )
    return f"<h3>Tasks</h3><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _mistakes(graded: Sequence[Graded], checks: Sequence[Check]) -> str:
    """What to teach again: the most common mistake first, each with the section to go back to."""
    sections = {check.name: section_to_revisit(check) for check in checks}
    lines = []
    for one in mistakes_in(graded):
        section = sections.get(one.check)
        again = f" Section to revisit: {escape(section.in_words)}." if section else ""
        learners = "1 learner" if one.learners == 1 else f"{one.learners} learners"
        lines.append(
            f"<li><b>{learners}, {escape(one.check)}:</b> {with_code(one.says)}{again}</li>"
        )
    said = f"<ol>{''.join(lines)}</ol>" if lines else "<p>No known mistake.</p>"
    return f"<h3>To teach again</h3>{said}"
