"""The marks in sources of exercises, which the notebooks built from them keep."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Marks:
    """The lines that stand around an answer."""

    begin: str
    stub: str
    end: str


CODE = Marks("### BEGIN SOLUTION", "### STUB", "### END SOLUTION")
TEXT = Marks("<!-- BEGIN SOLUTION -->", "<!-- STUB -->", "<!-- END SOLUTION -->")

# The first line of a cell that is a learner's answer.
TASK = re.compile(r"# task: (\S+)")
# The same line wherever a learner has moved it to.
TASK_LINE = re.compile(r"^[ \t]*# task: (\w+)[ \t\r]*$", re.MULTILINE)
# The first line of a cell that is given, and that answers may use.
GIVEN = "# given"
# The first line of the cell that draws a report's picture, or of the one that holds its text.
REPORT = re.compile(r"# report: (\S+)|<!-- report: (\S+) -->")
