"""The page that a learner gets back: what each check found, and what a teacher says.

    path = write_feedback(graded, policy, folder)     # feedback/jane/09_multi_worker.html

Nothing of the learner's runs in it: all text is escaped, and the page itself allows no script, no
form and nothing from elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from html import escape
from pathlib import Path

from distlab.grader.scoring import Graded, Policy, Score, score_of

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em }}
section {{ margin: 1.5em 0; overflow-wrap: anywhere }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
_OTHER = re.compile(r"[^\w.-]+")


def write_feedback(graded: Graded, policy: Policy, folder: Path) -> Path:
    """Writes the page of one submission, and returns where.

    Args:
        graded: The submission.
        policy: How points become a mark.
        folder: Where the learners' folders are.
    """
    handed = graded.submission
    person = "_".join(part for part in (handed.learner, handed.user) if part)
    path = folder / _file_name(person) / f"{_file_name(graded.stem or handed.name)}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    page = page_of(graded, score_of(graded, policy), late_factor=policy.late_factor)
    path.write_text(page, encoding="utf-8", errors="backslashreplace")
    return path


def page_of(graded: Graded, score: Score, *, late_factor: float = 1.0) -> str:
    """Returns the page of one submission.

    Args:
        graded: The submission.
        score: What it earned.
        late_factor: What is left of the points of a late hand-in.
    """
    parts = [f"<p>{escape(graded.submission.path.name)}</p>"]
    if graded.problem:
        parts.append(f"<p><b>Not graded:</b> {escape(graded.problem)}</p>")
    else:
        late = f", late: {late_factor:.0%} of the points" if graded.submission.is_late else ""
        parts.append(f"<p><b>{score.earned:g} of {score.points:g} points</b>{late}</p>")
    for note in graded.notes:
        parts.append(f"<p>{escape(note)}</p>")
    waiting = {held.check for held in graded.held}
    for report in graded.reports:
        lines = [f"<h2>{escape(report.title or report.name)}</h2>", report._repr_html_()]
        if report.name in waiting:
            lines.append("<p>A person will look at this answer before its points count.</p>")
        if score.by_check[report.name] != report.earned:
            lines.append(
                f"<p><b>Your teacher gives {score.by_check[report.name]:g} points.</b></p>"
            )
        if comment := score.comments.get(report.name):
            lines.append(f"<p><b>Your teacher says:</b> {escape(comment)}</p>")
        parts.append("<section>" + "\n".join(lines) + "</section>")
    title = escape(f"{graded.stem or 'Feedback'}, {graded.submission.learner}")
    return _PAGE.format(title=title, body="\n".join(parts))


def _file_name(text: str) -> str:
    """Returns a name for a file that leads nowhere else, another one for another text."""
    name = _OTHER.sub("_", text).strip(".")[:80]
    if name == text:
        return name
    return f"{name}-{hashlib.sha256(text.encode(errors='backslashreplace')).hexdigest()[:8]}"
