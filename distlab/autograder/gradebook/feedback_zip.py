"""Packs the pages of feedback as platforms take them back: under the names of the downloads.

    others = write_feedback_zip(graded, out)     # out/feedback.zip; whose names are no platform's

Moodle finds a learner by the folder of the download (View all submissions > Upload multiple
feedback files in a zip; `is_valid_filename_for_import` in its mod/assign/feedback/file), and Canvas
by the two numbers in a file's name (Submissions > Upload Submissions;
`infer_comment_context_from_filename` in its app/models/assignment.rb).
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

from distlab.autograder.gradebook.pages import folder_of, page_name
from distlab.autograder.gradebook.scores import Graded
from distlab.autograder.intake.submissions import Submission

NAME = "feedback.zip"
_MOODLE = re.compile(r"[^/]+_\d+_assignsubmission_file_")


def write_feedback_zip(graded: Iterable[Graded], out: Path) -> list[str]:
    """Writes the zip; returns the learners whose pages lie in it by their names alone."""
    others = []
    with zipfile.ZipFile(out / NAME, "w", zipfile.ZIP_DEFLATED) as packed:
        for one in graded:
            page = out / "feedback" / page_name(one)
            if not (start := _start_of(one.submission)):
                others.append(one.submission.learner)
                start = f"{folder_of(one.submission)}/"
            packed.write(page, start + page.name)
    return others


def _start_of(handed: Submission) -> str:
    """Returns a download's name up to the learner's own file; "" if no platform takes it back."""
    if moodle := [found[0] for part in handed.path.parts if (found := _MOODLE.match(part))]:
        is_folder = moodle[-1] in handed.path.parts
        return moodle[-1] + "/" * is_folder
    canvas = re.match(rf".*_{re.escape(handed.user)}_\d+_", handed.path.name)
    return canvas[0] if canvas and handed.user else ""
