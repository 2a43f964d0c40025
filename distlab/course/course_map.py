"""The course as a map: its lessons in order, what each answers, and how long it takes.

    print(map_table(read_map(shipped_root())))        # the table of README and of the site

Titles and questions are kept here. A lesson's minutes are in its notebook's metadata, where the
builder counts them, and those of a task in the exercise's table. Lessons that are not there yet
are on the map, and marked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distlab.course.exercise_table import read_tasks
from distlab.errors import InvalidArgument

COMING = "coming"
# By part and stem: the title, and the question that the lesson answers.
_LESSONS = {
    "First steps": {
        "00_start_here": ("Start here", "Which of four replicas sees which example?"),
        "01_mirrored_strategy": (
            "MirroredStrategy",
            "What keeps the copies of a weight equal, and when do they drift apart?",
        ),
        "02_batch_scaling": (
            "Batch size and learning rate",
            "What must change when the batch grows with the number of replicas?",
        ),
        "03_custom_training_loop": (
            "Your own training loop",
            "How must a loss be scaled so that four replicas take the steps of one device?",
        ),
    },
    "Training that you can trust": {
        "04_without_keras": (
            "Without Keras",
            "What is left of a training step when Keras does nothing for you?",
        ),
        "05_input_pipelines": (
            "Input pipelines",
            "Does each batch come in time, and does each replica get its share of it?",
        ),
        "06_reproducibility": (
            "Reproducibility",
            "What can be bit-for-bit identical in two runs, and what cannot?",
        ),
        "07_mixed_precision": (
            "Mixed precision",
            "Which gradients become 0 in 16 bits, and how do you keep them?",
        ),
        "08_save_and_load": (
            "Save and load",
            "Why can training jump after a load although every prediction is right?",
        ),
    },
    "Many processes": {
        "09_multi_worker": (
            "Many workers",
            "Who waits, and where, when nothing moves?",
        ),
        "10_parameter_server": (
            "Parameter servers",
            "What does a gradient from old weights do to training?",
        ),
        "11_fault_tolerance": (
            "Fault tolerance",
            "How does a training run that was killed end with the same weights?",
        ),
    },
    "What it costs": {
        "12_ring_all_reduce": (
            "Ring all-reduce",
            "How many bytes does each device send in an all-reduce?",
        ),
        "13_step_cost": (
            "What a step costs",
            "How long should a step take, and why does it take longer?",
        ),
        "14_scaling": ("Scaling", "When do more devices make training slower?"),
    },
    "Too large for one device": {
        "15_fit_into_memory": (
            "Fit the step into memory",
            "The step does not fit: what do you drop?",
        ),
        "16_shard_everything": (
            "Shard everything",
            "Must every replica keep the same weights, gradients and state?",
        ),
        "17_pipelines": (
            "Pipelines that run",
            "In which order should the devices work?",
        ),
        "18_split_layer_and_text": (
            "Split a layer, split a text",
            "What do you do when one layer, or one text, is too large?",
        ),
    },
    "In practice": {
        "19_fine_tuning": (
            "Fine-tune a large model",
            "Which weights of a trained model do you train again?",
        ),
        "20_tpu": ("TPUs", "What can your CPU tell you about a TPU?"),
        "21_choosing_a_strategy": (
            "Choose a strategy",
            "Which strategy fits your model and your machines?",
        ),
    },
}
# By what a reader does: three lessons if there is no time for more, and which one comes next.
_SHORT_PATHS = {
    "a researcher": (("01", "13", "15"), "16"),
    "a cluster engineer": (("09", "11", "14"), "17"),
    "a teacher": (("00", "03", "17"), ""),
}


@dataclass(frozen=True, kw_only=True)
class MapEntry:
    """One lesson on the map.

    Attributes:
        part: The part of the course that it belongs to.
        stem: The name of its files, as "09_multi_worker".
        title: Its title, as "Many workers".
        question: The question that it answers.
        lesson: The lesson's path in the course's folder; "" if the lesson is not there yet.
        lesson_minutes: How long the lesson takes, with all folds closed and with all of them open,
            without its extra sections; None if it was not built.
        extra_minutes: The same of its extra sections; None if it has none.
        exercise: The exercise's path; "" if there is none.
        exercise_minutes: The sum of the minutes that the exercise states for its core tasks.
        tasks: How many core tasks the exercise has.
        extra_tasks: The names of its other tasks, which no later lesson needs; of one without
            points the title.
        extra_task_minutes: What these take.
    """

    part: str
    stem: str
    title: str
    question: str
    lesson: str = ""
    lesson_minutes: tuple[int, int] | None = None
    extra_minutes: tuple[int, int] | None = None
    exercise: str = ""
    exercise_minutes: int | None = None
    tasks: int = 0
    extra_tasks: tuple[str, ...] = ()
    extra_task_minutes: int | None = None

    @property
    def number(self) -> str:
        """The lesson's number, as "09"."""
        return self.stem.partition("_")[0]

    @property
    def name(self) -> str:
        """Number and title, as "09 Many workers"."""
        return f"{self.number} {self.title}"


def exercise_title(stem: str) -> str:
    """Returns "Exercise 09: Many workers"; of a teacher's own exercise the stem."""
    for lessons in _LESSONS.values():
        if stem in lessons:
            return f"Exercise {stem.partition('_')[0]}: {lessons[stem][0]}"
    return stem


def read_map(course: Path) -> tuple[MapEntry, ...]:
    """Returns the map, with what the notebooks in a folder say of minutes and tasks."""
    known = {stem for lessons in _LESSONS.values() for stem in lessons}
    own = sorted(path.stem for path in (course / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    for stem in own:
        if stem not in known and "." not in stem:  # "01_x.fresh" is a learner's second copy
            raise InvalidArgument(
                asked=f"the map of the course in {course}",
                found=f"notebooks/{stem}.ipynb, which is not on the map",
                do="give it a title and a question in distlab/course/course_map.py",
            )
    return tuple(
        _entry(course, part, stem, *words)
        for part, lessons in _LESSONS.items()
        for stem, words in lessons.items()
    )


def map_table(entries: Sequence[MapEntry]) -> str:
    """Returns the map as a Markdown table, its links relative to the course's folder."""
    head = ["", "Lesson", "The question that it answers", "Exercise"]
    rows, part = [head, ["---"] * len(head)], ""
    for entry in entries:
        if entry.part != part:
            part = entry.part
            rows.append(["", f"**{part}**", "", ""])
        rows.append([entry.number, _lesson_cell(entry), entry.question, _exercise_cell(entry)])
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


def short_paths(entries: Sequence[MapEntry], *, root: str = "") -> str:
    """Returns a table with three lessons for each kind of reader.

    Args:
        entries: The map.
        root: What leads from the page to the course's folder, as "../".
    """
    known = {entry.number: entry for entry in entries}

    def named(number: str) -> str:
        entry = known[number]
        if not entry.lesson:
            return f"{entry.name} ({COMING})"
        return f"[{entry.name}]({root}{entry.lesson})"

    rows = [["If you are", "three lessons", "and then"], ["---"] * 3]
    for reader, (numbers, further) in _SHORT_PATHS.items():
        rows.append([reader, ", ".join(map(named, numbers)), named(further) if further else ""])
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


@dataclass(frozen=True, kw_only=True)
class TotalMinutes:
    """The sums over all lessons that are there.

    Attributes:
        lessons: Of the lessons without their extra sections, with folds closed and folds open.
        extra: Of the extra sections, with folds open.
        tasks: Of the core tasks.
        extra_tasks: Of the others.
    """

    lessons: tuple[int, int]
    extra: int
    tasks: int
    extra_tasks: int


def total_minutes(entries: Sequence[MapEntry]) -> TotalMinutes:
    """Returns the minutes of the whole course."""
    stated = [entry.lesson_minutes or (0, 0) for entry in entries]
    return TotalMinutes(
        lessons=(sum(low for low, _ in stated), sum(high for _, high in stated)),
        extra=sum((entry.extra_minutes or (0, 0))[1] for entry in entries),
        tasks=sum(entry.exercise_minutes or 0 for entry in entries),
        extra_tasks=sum(entry.extra_task_minutes or 0 for entry in entries),
    )


def in_minutes(minutes: tuple[int, int] | int | None) -> str:
    """Returns 30 and 40 with a dash between them and the unit, or 30 with its unit, or ""."""
    if isinstance(minutes, tuple):
        return f"{minutes[0]}\u2013{minutes[1]}\u00a0min"
    return f"{minutes}\u00a0min" if minutes else ""


def _lesson_cell(entry: MapEntry) -> str:
    if not entry.lesson:
        return f"{entry.title} ({COMING})"
    return ",\u00a0".join(
        filter(None, [f"[{entry.title}]({entry.lesson})", in_minutes(entry.lesson_minutes)])
    )


def _exercise_cell(entry: MapEntry) -> str:
    if not entry.exercise:
        return ""
    count = f"[{entry.tasks} {'task' if entry.tasks == 1 else 'tasks'}]({entry.exercise})"
    more = f"{len(entry.extra_tasks)}\u00a0extra" if entry.extra_tasks else ""
    cell = ",\u00a0".join(filter(None, [count, in_minutes(entry.exercise_minutes)]))
    return f"{cell}, {more}" if more else cell


def _entry(course: Path, part: str, stem: str, title: str, question: str) -> MapEntry:
    lesson, exercise = f"notebooks/{stem}.ipynb", f"exercises/{stem}.ipynb"
    has_lesson, has_exercise = (course / lesson).is_file(), (course / exercise).is_file()
    tasks = read_tasks(_text(course / exercise)) if has_exercise else ()
    core = [task.minutes for task in tasks if not task.is_extra]
    extra = {task.name: task.minutes for task in tasks if task.is_extra}
    return MapEntry(
        part=part,
        stem=stem,
        title=title,
        question=question,
        lesson=lesson if has_lesson else "",
        lesson_minutes=_built_minutes(course / lesson, "minutes"),
        extra_minutes=_built_minutes(course / lesson, "extra_minutes"),
        exercise=exercise if has_exercise else "",
        exercise_minutes=sum(core) or None,
        tasks=len(core),
        extra_tasks=tuple(extra),
        extra_task_minutes=sum(extra.values()) or None,
    )


def _built_minutes(path: Path, key: str) -> tuple[int, int] | None:
    """Returns what the builder counted; None if a learner has broken the file."""
    try:
        low, high = json.loads(path.read_text(encoding="utf-8"))["metadata"]["distlab"][key]
        return int(low), int(high)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _text(path: Path) -> str:
    """Returns a notebook's Markdown; "" if a learner has broken the file."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        kept = [cell["source"] for cell in cells if cell["cell_type"] == "markdown"]
        return "\n\n".join("".join(source) for source in kept)
    except (OSError, ValueError, KeyError, TypeError):
        return ""
