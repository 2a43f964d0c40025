"""The page `course.md` in a learner's folder, with where to go next, and the panel's data.

page = course_page(Path("my-lab"))       # Markdown, for `distlab.course.learner_folder.lay_page`
course_state(Path("my-lab"))             # the same as plain values, for JupyterLab's left side
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distlab.course.checks.progress import LessonProgress, progress, saved_outputs
from distlab.course.course_map import MapEntry, read_map
from distlab.errors import InvalidArgument

PAGE = "course.md"

# Pages that the panel links to.
_PAGES = {"Glossary": "docs/glossary.md", "Pitfalls": "docs/pitfalls.md"}

_TEXT = """# Learn distributed training by running it

Run a cell with Shift+Enter, and predict before you look: a wrong prediction is where you learn
most. Each lesson has an exercise that checks your answers as you go, and the tab with the book on
the left keeps count.

{button}{note}
"""
_BUTTON = """<a class="distlab-start" href="{path}">{label}</a>

"""


def course_page(folder: Path) -> str:
    """Returns the page."""
    entries, done = read_map(folder), _progress(folder)
    path, entry = _next(entries, done)
    if entry is None:
        note = "You have passed every task that is here. Now distribute a model of your own."
        return _TEXT.format(button="", note=note)
    # A notebook is laid without outputs.
    verb = "Continue" if any(saved_outputs(folder / path)) else "Start"
    if path == entry.exercise:
        kind, note = "exercise", f"{entry.title}, next task: `{done[entry.stem].next_task}`"
    else:
        minutes = f", about {entry.lesson_minutes} minutes" if entry.lesson_minutes else ""
        kind, note = "lesson", f"{entry.title}{minutes}"
    button = _BUTTON.format(path=path, label=f"{verb} {kind} {entry.number}")
    return _TEXT.format(button=button, note=note)


def course_state(folder: Path) -> dict[str, Any]:
    """Returns the map with the learner's progress, as values that JSON can hold."""
    entries, done = read_map(folder), _progress(folder)
    following, _ = _next(entries, done)
    return {
        "page": PAGE if (folder / PAGE).is_file() else "",
        "pages": {title: page for title, page in _PAGES.items() if (folder / page).is_file()},
        "total": _total(done),
        "next": following,
        "lessons": [
            asdict(entry)
            | {
                "number": entry.number,
                "state": _state(entry, done),
                "share": _share(entry, done),
            }
            for entry in entries
        ],
    }


def _progress(folder: Path) -> dict[str, LessonProgress]:
    try:
        return {lesson.stem: lesson for lesson in progress(folder).lessons}
    except InvalidArgument:  # a folder in which every notebook was deleted
        return {}


def _next(
    entries: tuple[MapEntry, ...], done: dict[str, LessonProgress]
) -> tuple[str, MapEntry | None]:
    """Returns the path of the notebook to open next, and the lesson that it belongs to."""
    available = [entry for entry in entries if entry.lesson or entry.exercise]
    for entry in available:
        lesson = done.get(entry.stem)
        if lesson is None or not lesson.next_task:
            continue
        begun = bool(lesson.tried) and bool(entry.exercise)
        return (entry.exercise if begun or not entry.lesson else entry.lesson), entry
    return (available[-1].lesson, None) if available else ("", None)


def _state(entry: MapEntry, done: dict[str, LessonProgress]) -> str:
    lesson = done.get(entry.stem)
    if lesson is None or not lesson.tried:
        return ""
    return f"{len(lesson.passed)} of {len(lesson.checks)}"


def _share(entry: MapEntry, done: dict[str, LessonProgress]) -> float:
    lesson = done.get(entry.stem)
    return lesson.earned / lesson.points if lesson and lesson.points else 0.0


def _total(done: dict[str, LessonProgress]) -> str:
    passed = sum(len(lesson.passed) for lesson in done.values())
    return f"{passed} of {sum(len(lesson.checks) for lesson in done.values())} tasks passed"


# The server's part of the panel on JupyterLab's left side. Only a browser with the server's token
# gets an answer, and nothing is written.


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "distlab.course.course_page"}]


def _load_jupyter_server_extension(server: Any) -> None:
    from jupyter_server.base.handlers import APIHandler
    from jupyter_server.utils import url_path_join
    from tornado.web import authenticated

    class CourseHandler(APIHandler):  # type: ignore[misc,unused-ignore]
        @authenticated  # type: ignore[misc,untyped-decorator,unused-ignore]
        def get(self) -> None:
            self.finish(json.dumps(course_state(Path(server.root_dir))))

    pattern = url_path_join(server.web_app.settings["base_url"], "distlab", "course")
    server.web_app.add_handlers(".*$", [(pattern, CourseHandler)])
