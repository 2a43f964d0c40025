"""The page `course.md` in a learner's folder, with where to go next, and the panel's data.

page = course_page(Path("my-lab"))       # Markdown, for `distlab.course.learner_folder.lay_page`
course_state(Path("my-lab"))             # the same as plain values, for JupyterLab's left side
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from distlab.course.checks.progress import LessonProgress, progress, saved_outputs
from distlab.course.course_map import MapEntry, in_minutes, read_map, short_paths
from distlab.course.learner_folder import lay_page
from distlab.course.predictions.prediction import is_recap
from distlab.errors import InvalidArgument

PAGE = "course.md"

# Pages that the panel links to.
_PAGES = {"Glossary": "docs/glossary.md", "Pitfalls": "docs/pitfalls.md"}

_TEXT = """# Learn distributed training by running it

Run a cell with Shift+Enter, and predict before you look: a wrong prediction is where you learn
most. Each lesson has an exercise that checks your answers as you go.

{button}{note}

## How far you are

<progress class="distlab-all" max="1" value="{share:.2f}"></progress> {total}

{tiles}

## If you only have three lessons

{short_paths}
"""
_BUTTON = """<a class="distlab-start" href="{path}">{label}</a>

"""


@dataclass(frozen=True)
class _Step:
    """The notebook to open next, and the words to it; without a path the course is done."""

    path: str = ""
    label: str = ""
    note: str = "You have passed every task that is here. Now distribute a model of your own."


@dataclass(frozen=True)
class _Place:
    """How far a learner is in one lesson.

    Attributes:
        entry: The lesson on the map.
        tasks: The results of its exercise's checks; None without checks.
        read: Whether the lesson was read to its end, where `recap()` counts the predictions.
        saved: When each of its notebooks was saved, by its path, if it was begun.
    """

    entry: MapEntry
    tasks: LessonProgress | None
    read: bool
    saved: dict[str, float]

    def open_task(self, *, extra: bool) -> str:
        """The next core task, or the next extra one; "" if all are passed or none is there."""
        if self.tasks is None or not self.entry.exercise:
            return ""
        left = (name for name in self.tasks.checks if name not in self.tasks.passed)
        return next((name for name in left if (name in self.entry.extra_tasks) == extra), "")

    @property
    def state(self) -> str:
        """How many tasks are passed, "" if none was tried."""
        if self.tasks is None or not self.tasks.tried:
            return ""
        return f"{len(self.tasks.passed)} of {len(self.tasks.checks)}"

    @property
    def share(self) -> float:
        """The part of the points that is earned."""
        return self.tasks.earned / self.tasks.points if self.tasks and self.tasks.points else 0.0

    def step(self) -> _Step | None:
        """The notebook of this lesson to go on with, or None; passed core tasks are enough."""
        entry, tried = self.entry, bool(self.state)
        if entry.lesson and not self.read and not tried:
            minutes = in_minutes(entry.lesson_minutes)
            return self._to(entry.lesson, "lesson", ", ".join(filter(None, [entry.title, minutes])))
        if task := self.open_task(extra=False):
            return self._to(entry.exercise, "exercise", f"{entry.title}, next task: `{task}`")
        return None

    def extra_step(self) -> _Step | None:
        """The exercise with a task that is not on the core path, or None."""
        if task := self.open_task(extra=True):
            entry = self.entry
            return self._to(entry.exercise, "exercise", f"{entry.title}, extra task: `{task}`")
        return None

    def _to(self, path: str, kind: str, note: str) -> _Step:
        verb = "Go on with" if path in self.saved else "Start"
        return _Step(path, f"{verb} {kind} {self.entry.number}", note)


def course_page(folder: Path) -> str:
    """Returns the page."""
    places = _places(folder)
    step = _next(places)
    button = _BUTTON.format(path=step.path, label=step.label) if step.path else ""
    total, tiles = _total(places), _tiles(places)
    share = sum(place.share for place in places) / max(len(places), 1)
    return _TEXT.format(
        button=button,
        note=step.note,
        share=share,
        total=total,
        tiles=tiles,
        short_paths=short_paths([place.entry for place in places]),
    )


def course_state(folder: Path) -> dict[str, Any]:
    """Returns the map with the learner's progress, as values that JSON can hold."""
    places = _places(folder)
    page = folder / PAGE
    return {
        "page": PAGE if page.is_file() else "",
        "text": page.read_text(encoding="utf-8") if page.is_file() else "",
        "pages": {title: page for title, page in _PAGES.items() if (folder / page).is_file()},
        "total": _total(places),
        "next": _next(places).path,
        "lessons": [
            asdict(place.entry)
            | {
                "number": place.entry.number,
                "read": place.read,
                "state": place.state,
                "share": place.share,
            }
            for place in places
        ],
    }


def _places(folder: Path) -> list[_Place]:
    try:
        done = {lesson.stem: lesson for lesson in progress(folder).lessons}
    except InvalidArgument:  # a folder in which every notebook was deleted
        done = {}
    return [_place(folder, entry, done.get(entry.stem)) for entry in read_map(folder)]


def _place(folder: Path, entry: MapEntry, tasks: LessonProgress | None) -> _Place:
    paths = [path for path in (entry.lesson, entry.exercise) if path]
    # A notebook is laid without outputs.
    begun = [path for path in paths if any(saved_outputs(folder / path))]
    saved = {path: (folder / path).stat().st_mtime for path in begun}
    read = entry.lesson in saved and _was_read(folder / entry.lesson)
    return _Place(entry, tasks, read, saved)


def _was_read(lesson: Path) -> bool:
    texts = ("".join(output["data"].get("text/plain", "")) for output in saved_outputs(lesson))
    return any(map(is_recap, texts))


def _next(places: list[_Place]) -> _Step:
    """Returns where to go on: in the lesson whose notebook was saved last, or after it.

    An exercise whose core tasks are passed stands for its lesson. One that was left out comes at
    the end, and after it the extra tasks.
    """
    last = max(
        range(len(places)), key=lambda at: max(places[at].saved.values(), default=0.0), default=0
    )
    steps = [place.step() for place in [*places[last:], *places[:last]]]
    steps += [place.extra_step() for place in places]
    return next(filter(None, steps), _Step())


def _total(places: list[_Place]) -> str:
    tasks = [place.tasks for place in places if place.tasks is not None]
    passed = sum(len(lesson.passed) for lesson in tasks)
    return f"{passed} of {sum(len(lesson.checks) for lesson in tasks)} tasks passed"


def _tiles(places: list[_Place]) -> str:
    """Returns a tile for each lesson, in a row for each part."""
    there = (place for place in places if place.entry.lesson or place.entry.exercise)
    rows = []
    for part, row in itertools.groupby(there, lambda place: place.entry.part):
        tiles = "\n".join(map(_tile, row))
        rows.append(f'<div class="distlab-tiles"><strong>{escape(part)}</strong>\n{tiles}\n</div>')
    return "\n\n".join(rows)


def _tile(place: _Place) -> str:
    entry = place.entry
    done = ["read"] * place.read + [f"{place.state} tasks"] * bool(place.state)
    words = ", ".join(done) or ("begun" if place.saved else "")
    inside = (
        f"<span>{entry.number}{' ✓' * place.read}</span> <b>{escape(entry.title)}</b> "
        f'<progress max="1" value="{place.share:.2f}"></progress> <small>{words}</small>'
    )
    return f'<a class="distlab-tile" href="{entry.lesson or entry.exercise}">{inside}</a>'


# The server's part of the panel on JupyterLab's left side. Only a browser with the server's token
# gets an answer. It asks at each save, so the page is written then too.


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "distlab.course.course_page"}]


def _load_jupyter_server_extension(server: Any) -> None:
    from jupyter_server.base.handlers import APIHandler
    from jupyter_server.utils import url_path_join
    from tornado.web import authenticated

    class CourseHandler(APIHandler):  # type: ignore[misc,unused-ignore]
        @authenticated  # type: ignore[misc,untyped-decorator,unused-ignore]
        def get(self) -> None:
            folder = Path(server.root_dir)
            with contextlib.suppress(OSError):  # a folder that can only be read
                lay_page(folder, PAGE, course_page(folder))
            self.finish(json.dumps(course_state(folder)))

    pattern = url_path_join(server.web_app.settings["base_url"], "distlab", "course")
    server.web_app.add_handlers(".*$", [(pattern, CourseHandler)])
