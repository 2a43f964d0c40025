"""The table of an exercise's tasks: how long each takes, how hard it is, and on which path it is.

| task | what you do | minutes | difficulty | path |
|---|---|---|---|---|
| 1. `slices` | write the rule by which a batch is shared | 5 | easy | core |
| your own data | see how your batches are shared (no points) | 10 | open | extra |

sum(task.minutes for task in read_tasks(text) if not task.is_extra)      # 5
"""

from __future__ import annotations

import re
from dataclasses import dataclass

COLUMNS = ("task", "what you do", "minutes", "difficulty", "path")
DIFFICULTIES = ("easy", "medium", "hard", "open")
PATHS = ("core", "extra")
_NUMBER = re.compile(r"^(?:\d+\.|report) ")


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """One task of an exercise.

    Attributes:
        name: The name of its check or report; of a task without points its title.
        what: What a learner does.
        is_extra: Whether later lessons do without it.
    """

    name: str
    what: str
    minutes: int
    difficulty: str
    is_extra: bool


def read_tasks(text: str) -> tuple[TaskRow, ...]:
    """Returns the tasks of an exercise's Markdown; none where a learner has broken the table."""
    tasks = []
    for row in table_of(text)[1:]:
        if row.get("minutes", "").isdigit():
            task = TaskRow(
                name=_NUMBER.sub("", row["task"]).strip("`"),
                what=row.get("what you do", ""),
                minutes=int(row["minutes"]),
                difficulty=row.get("difficulty", ""),
                is_extra=row.get("path") == "extra",
            )
            tasks.append(task)
    return tuple(tasks)


def table_of(text: str) -> list[dict[str, str]]:
    """Returns the rows of the table of tasks, its head included, by the head's cells."""
    rows: list[dict[str, str]] = []
    head: list[str] = []
    for line in text.splitlines():
        between = line.strip().removeprefix("|").removesuffix("|").split("|")
        cells = [cell.strip() for cell in between]
        if not head:
            if cells[0] == "task" and "minutes" in cells:
                head = cells
                rows.append({cell: cell for cell in head})
        elif not line.startswith("|"):
            break
        elif not set(line) <= set("|-: "):
            rows.append(dict(zip(head, cells, strict=False)))
    return rows
