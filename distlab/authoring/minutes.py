"""The minutes that a lesson takes, counted from its cells: nobody types them.

    counted = count_minutes(cells)
    counted.core                            # (30, 40), as a lesson's metadata keep it
    fill_minutes(cells, counted)            # "{minutes}" in the text is "30 to 40 minutes" now

The first number is for a reader who opens no fold, the second for one who opens all of them.
Sections whose heading begins with "## Extra: " are counted apart from the others.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distlab.authoring.notebook_text import plain_python, tags_of

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from distlab.course.course_map import MapEntry

WORDS_A_MINUTE = 150
SECS_A_LINE = 11
PLACEHOLDER = "{minutes}"
EXTRA = "## Extra: "
# Stated minutes are rounded, so that an edit of a few words leaves them as they are.
_STEP = 5

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FOLD = re.compile(
    r"<details>\s*(?:<summary>(?P<shown>.*?)</summary>)?.*?(?:</details>|\Z)", re.DOTALL
)
_NOT_READ = re.compile(r"<!--.*?-->|<[^>]+>|(?<=\])\([^)]*\)", re.DOTALL)


# What a learner can do in three weekends: the lessons without extra sections, with all folds open.
MOST_CORE_HOURS = 17


@dataclass
class Amount:
    """An amount to read."""

    words: int = 0
    lines: int = 0

    @property
    def minutes(self) -> float:
        """How long that takes."""
        return self.words / WORDS_A_MINUTE + self.lines * SECS_A_LINE / 60


@dataclass
class Counted:
    """The words and lines of a lesson's cells, in its core and in its extra sections.

    Attributes:
        closed: What is there without a click; the other has what is folded, too.
        extra_closed: The same in the extra sections, of which there are `extra_sections`.
    """

    closed: Amount = field(default_factory=Amount)
    opened: Amount = field(default_factory=Amount)
    extra_closed: Amount = field(default_factory=Amount)
    extra_opened: Amount = field(default_factory=Amount)
    extra_sections: int = 0

    @property
    def words(self) -> int:
        """All words, with those of folds and of extra sections."""
        return self.opened.words + self.extra_opened.words

    @property
    def lines(self) -> int:
        """All lines of code, with those of folds and of extra sections."""
        return self.opened.lines + self.extra_opened.lines

    @property
    def core(self) -> tuple[int, int]:
        """The minutes to state for a lesson without its extra sections."""
        return _rounded(self.closed, self.opened)

    @property
    def extra(self) -> tuple[int, int] | None:
        """The minutes to state for the extra sections, if there are any."""
        return _rounded(self.extra_closed, self.extra_opened) if self.extra_sections else None

    def notes(self) -> dict[str, list[int]]:
        """Returns what the metadata of the lesson keep."""
        notes = {"minutes": list(self.core)}
        return notes | ({"extra_minutes": list(self.extra)} if self.extra else {})

    def __str__(self) -> str:
        low, high = self.core
        if not self.extra:
            return f"{low} to {high} minutes"
        less, more = self.extra
        sections = "section" if self.extra_sections == 1 else "sections"
        return f"{low} to {high} minutes (and {less} to {more} for its extra {sections})"


def count_minutes(cells: Sequence[NotebookNode]) -> Counted:
    """Counts the words and the lines of code of a lesson."""
    counted, in_extra = Counted(), False
    for cell in cells:
        parts = _sections(cell.source) if cell.cell_type == "markdown" else [cell.source]
        for part in parts:
            if cell.cell_type == "markdown" and part.startswith("## "):
                in_extra = part.startswith(EXTRA)
                counted.extra_sections += in_extra
            count = _count_text if cell.cell_type == "markdown" else _count_code
            closed, opened = count(part, tags_of(cell))
            for total, more in (
                (counted.extra_closed if in_extra else counted.closed, closed),
                (counted.extra_opened if in_extra else counted.opened, opened),
            ):
                total.words += more.words
                total.lines += more.lines
    return counted


def fill_minutes(cells: Sequence[NotebookNode], counted: Counted) -> None:
    """Puts the minutes where the text of a lesson has their placeholder."""
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(PLACEHOLDER, str(counted))


def count_words(text: str) -> int:
    """Returns the number of words in Markdown: no addresses, no marks, no comments."""
    return sum(bool(re.search(r"\w", word)) for word in _NOT_READ.sub(" ", text).split())


def without_fences(text: str, *, place: str = "") -> str:
    """Returns Markdown without its blocks of code; `place` comes in the place of each."""
    return _FENCE.sub(place, text)


def _rounded(closed: Amount, opened: Amount) -> tuple[int, int]:
    low, high = (_STEP * round(amount.minutes / _STEP) for amount in (closed, opened))
    low = max(low, _STEP)
    return low, max(high, low + _STEP)


def _sections(text: str) -> list[str]:
    """Cuts a text before each '## ' that is a heading."""
    parts, in_fence = [""], False
    for line in text.splitlines(keepends=True):
        in_fence ^= line.startswith("```")
        if line.startswith("## ") and not in_fence:
            parts.append("")
        parts[-1] += line
    return [part for part in parts if part]


def _count_text(text: str, _: list[str]) -> tuple[Amount, Amount]:
    # The summary of a fold is what a reader sees of it.
    closed = _FOLD.sub(lambda fold: fold["shown"] or "", text)
    return _amount(closed), _amount(text)


def _amount(text: str) -> Amount:
    # A fence of "text" shows outputs.
    code = "".join(body for language, body in _FENCE.findall(text) if language != "text")
    return Amount(count_words(without_fences(text)), _count_lines(code))


def _count_code(source: str, tags: list[str]) -> tuple[Amount, Amount]:
    """Counts the words of a prediction, and of all other cells the lines."""
    if {"predict", "reveal"} & set(tags):
        amount = Amount(words=sum(map(count_words, _written(source))))
        return (Amount() if "reveal" in tags else amount), amount
    amount = Amount(lines=_count_lines(source))
    return (Amount() if "hide-input" in tags else amount), amount


def _count_lines(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())


def _written(source: str) -> Iterator[str]:
    """Yields a cell's texts but the keys of dictionaries, which repeat a question's choices."""
    with contextlib.suppress(SyntaxError):
        tree = ast.parse(plain_python(source))
        nodes = list(ast.walk(tree))
        keys = {id(key) for node in nodes if isinstance(node, ast.Dict) for key in node.keys}
        for node in nodes:
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in keys:
                yield str(node.value)  # type: ignore[attr-defined]


def minutes_table(lessons: Sequence[tuple[MapEntry, Counted]]) -> str:
    """Returns a table with a row for each lesson and its exercise, and the sums."""
    heads = ("words", "lines", "minutes", "extra", "tasks", "minutes", "extra", "minutes")
    rows = [
        (
            entry.stem,
            f"{counted.words:,}",
            f"{counted.lines}",
            _dashed(counted.core),
            _dashed(counted.extra),
            f"{entry.tasks}",
            f"{entry.exercise_minutes or 0}",
            f"{len(entry.extra_tasks)}",
            f"{entry.extra_task_minutes or 0}",
        )
        for entry, counted in lessons
    ]
    total = (
        "all",
        f"{sum(counted.words for _, counted in lessons):,}",
        f"{sum(counted.lines for _, counted in lessons):,}",
        _dashed(_summed(counted.core for _, counted in lessons)),
        _dashed(_summed(counted.extra or (0, 0) for _, counted in lessons)),
        f"{sum(entry.tasks for entry, _ in lessons)}",
        f"{sum(entry.exercise_minutes or 0 for entry, _ in lessons)}",
        f"{sum(len(entry.extra_tasks) for entry, _ in lessons)}",
        f"{sum(entry.extra_task_minutes or 0 for entry, _ in lessons)}",
    )
    lines = [(f"{'lesson':<26}", *heads), *rows, total]
    return "\n".join(
        f"{name:<26}" + "".join(f"{cell:>10}" for cell in cells) for name, *cells in lines
    )


def core_hours(counts: Sequence[Counted]) -> float:
    """Returns the hours that the lessons' core takes with all folds open."""
    return sum(counted.core[1] for counted in counts) / 60


def _summed(ranges: Iterable[tuple[int, int]]) -> tuple[int, int]:
    both = list(ranges)
    return sum(low for low, _ in both), sum(high for _, high in both)


def _dashed(minutes: tuple[int, int] | None) -> str:
    return f"{minutes[0]}-{minutes[1]}" if minutes and minutes[1] else ""
