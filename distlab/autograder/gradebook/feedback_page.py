"""Writes the page that a learner gets back: the reports, the learner's code, what to read again.

    path = write_feedback(graded, score, folder)      # feedback/jane/09_multi_worker.html

The page needs no other file and no network. Nothing of the learner's runs in it: all text is
escaped, and the page itself allows pictures, but no script, no form and nothing from elsewhere.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from distlab.autograder.gradebook.html_page import file_name, page, write_page
from distlab.autograder.gradebook.markdown_html import blocks_of, to_html
from distlab.autograder.gradebook.reading_status import READING_WORDINGS, ReadingStatus
from distlab.autograder.gradebook.scores import Given, Graded, Policy, ReportScore, Score
from distlab.autograder.gradebook.written_html import written_html
from distlab.autograder.intake.submissions import Submission
from distlab.course.checks.check import Check
from distlab.course.checks.help_steps import Section, section_to_revisit
from distlab.course.checks.report import Ending, Report
from distlab.course.learner_folder import course_root

_HELD = (
    "<p><b>Held for review.</b> These {points:g} points do not count yet. The code does something "
    "that only a person can judge, such as importing an unusual module. Your teacher looks at it "
    "and decides. You need not do anything.</p>"
)
_AGAIN = (
    "<p>Open your notebook and check that it is complete. Save it with File &gt; Download in "
    "Jupyter or Colab, and hand in that file. If you cannot, ask your teacher.</p>"
)


def write_feedback(
    graded: Graded, score: Score, folder: Path, *, policy: Policy | None = None
) -> Path:
    """Writes the page of one submission, and returns where."""
    handed = graded.submission
    path = folder / folder_of(handed) / f"{file_name(graded.stem or handed.name)}.html"
    write_page(path, page_of(graded, score, policy=policy))
    return path


def folder_of(handed: Submission) -> str:
    """Returns the name of a learner's folder; two learners of one name have two folders."""
    return file_name("_".join(part for part in (handed.learner, handed.user) if part))


def page_of(graded: Graded, score: Score, *, policy: Policy | None = None) -> str:
    """Returns the page of one submission."""
    policy = policy or Policy()
    checks = {one.name: one for one in policy.lessons.checks.get(graded.stem, ())}
    sections: dict[str, str] = {}  # the HTML of each section, by its heading
    parts = [f"<p>{escape(graded.submission.path.name)}</p>"]
    if graded.problem:
        parts += [f"<p><b>Not graded:</b> {escape(graded.problem)}</p>", _AGAIN]
    else:
        parts += _points(graded, score, policy)
    parts += [f"<p>{escape(note)}</p>" for note in graded.notes]
    for report in graded.reports:
        link = _link_to_section(report, checks.get(report.name), sections)
        parts.append(_answer(report, graded.code.get(report.name, ""), score, link))
    handed_out = policy.lessons.handed_out(graded.stem) if score.readings else frozenset()
    parts += [_reading(reading, handed_out) for reading in score.readings]
    if sections:
        parts.append("<h2>To read again</h2>")
    for number, (heading, html) in enumerate(sections.items()):
        summary = f"<summary>{escape(heading)}</summary>"
        parts.append(f'<details class="lesson" id="section-{number}">{summary}{html}</details>')
    return page(f"{graded.stem or 'Feedback'}, {graded.submission.learner}", "\n".join(parts))


def _points(graded: Graded, score: Score, policy: Policy) -> list[str]:
    late = f", late: {policy.late_factor:.0%} of the points" if graded.submission.is_late else ""
    lines = [f"<p><b>{score.earned:g} of {score.points:g} points</b>{late}</p>"]
    if score.waiting:
        held = sum(score.waiting.values())
        lines.append(f"<p>{held:g} more points are held for review, as explained below.</p>")
    if score.to_be_read:
        lines.append("<p>Your teacher still has to read your report: its points are missing.</p>")
    return lines


def _link_to_section(report: Report, check: Check | None, sections: dict[str, str]) -> str:
    """Returns a link to the section to read again, which goes to the end of the page."""
    section = section_to_revisit(check) if check and report.revisit else None
    if section is None:
        return ""
    if section.in_words not in sections:
        html = section_html(section)
        if not html:
            return ""
        sections[section.in_words] = html
    return f"#section-{list(sections).index(section.in_words)}"


def _answer(report: Report, code: str, score: Score, link: str) -> str:
    """The answer to one task: what the check says of it, its code, and the teacher's words."""
    lines = [f"<h2>{escape(report.title or report.name)}</h2>", report.as_html(revisit_link=link)]
    if report.name in score.waiting:
        lines.append(_HELD.format(points=score.waiting[report.name]))
    elif score.by_check[report.name] != report.earned:
        lines.append(f"<p><b>Your teacher gives {score.by_check[report.name]:g} points.</b></p>")
    if comment := score.comments.get(report.name):
        lines.append(f"<p><b>Your teacher says:</b> {escape(comment)}</p>")
    if code and report.ending is not Ending.NOT_STARTED:
        numbered = "".join(f"<span>{escape(line)}</span>\n" for line in code.split("\n"))
        is_open = "" if report.passed else " open"
        lines.append(f"<details{is_open}><summary>Your code</summary>")
        lines.append(f'<pre class="code">{numbered}</pre></details>')
    return "<section>" + "\n".join(lines) + "</section>"


def _reading(reading: ReportScore, handed_out: frozenset[str]) -> str:
    """A report: how far it is read, what each row of its rubric earned, and what was handed in."""
    report, written = reading.report, reading.written
    counted = f"{reading.earned:g} of" if reading.status is ReadingStatus.READ else "at most"
    status = READING_WORDINGS[reading.status].on_pages
    lines = [
        f"<h2>{escape(report.title or report.name)}</h2>",
        f"<p><b>{status}</b> ({counted} {report.points:g} points)</p>",
    ]
    # The rubric gives answers away, so only learners whose report is read see it.
    if any(given != Given() for _, given in reading.rows):
        lines += ["<table>", _row("th", "what earns points", "points", "your teacher says")]
        for row, given in reading.rows:
            points = "" if given.points is None else f"{given.points:g} "
            lines.append(_row("td", row.says, f"{points}of {row.points:g}", given.comment))
        lines.append("</table>")
    if written.text:
        lines.append(written_html(written.text, handed_out=handed_out))
    lines += [f"<p>{escape(note)}</p>" for note in written.notes]
    lines += [
        f'<p><img alt="a picture of the learner" src="data:image/png;base64,{escape(picture)}"></p>'
        for picture in written.pictures
    ]
    return "<section>" + "\n".join(lines) + "</section>"


def _row(kind: str, *cells: str) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"


_HEADING = re.compile(r"(#{1,6}) (.*)")
_TAG = re.compile(r"</?(?:details|summary)>")
_PREDICTION = {"predict", "reveal"}  # tags of cells whose code is not for reading


def section_html(section: Section) -> str:
    """Returns the HTML of a section; "" if the lesson has no such heading."""
    cells = _cells(course_root() / "notebooks" / f"{section.stem}.ipynb")
    return "\n".join(html for cell in _of_section(cells, section.heading) for html in _html(cell))


@functools.cache
def _cells(notebook: Path) -> tuple[tuple[str, str, tuple[dict[str, Any], ...]], ...]:
    """The cells of a notebook of ours: kind, source without a prediction's code, and outputs."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):  # as in a clone in which no notebook was built
        return ()
    return tuple(
        (cell["cell_type"], _source(cell), tuple(cell.get("outputs", ()))) for cell in cells
    )


def _source(cell: dict[str, Any]) -> str:
    is_prediction = _PREDICTION & set(cell.get("metadata", {}).get("tags", ()))
    return "" if is_prediction else "".join(cell["source"])


def _of_section(cells: Any, heading: str) -> Iterator[Any]:
    """Yields what is below a heading, down to the next one of its level."""
    level = 0
    for kind, source, outputs in cells:
        if kind != "markdown":
            if level:
                yield kind, source, outputs
            continue
        for block in blocks_of(source):  # a "#" in a fence is no heading
            found = _HEADING.fullmatch(block)
            if found and found[2].strip().replace("`", "") == heading:
                level = len(found[1])
            elif found and level and len(found[1]) <= level:
                return
            if level:
                yield kind, block, ()


def _html(cell: Any) -> Iterator[str]:
    kind, source, outputs = cell
    if kind == "markdown":
        yield to_html(_TAG.sub("", source))
        return
    if source:
        yield f"<pre>{escape(source)}</pre>"
    for output in outputs:
        data = output.get("data", {})
        text = "".join(output.get("text", "") or data.get("text/plain", ""))
        if "image/png" in data:
            picture = escape("".join(data["image/png"]).replace("\n", ""))
            yield f'<p><img alt="a figure of the lesson" src="data:image/png;base64,{picture}"></p>'
        elif text:
            yield f'<pre class="output">{escape(text)}</pre>'
