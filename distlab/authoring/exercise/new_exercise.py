"""Makes the files of a new exercise: its source, its checks, and their test.

made = make_exercise("20_my_topic", folder=Path("mine"))
made.files                              # three paths, all of them new
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distlab.authoring.exercise.own_editions import check_folder
from distlab.authoring.source import LESSONS, STEM, lesson_folder
from distlab.errors import InvalidArgument

# With `<stem>`, `<slug>` and `<title>` where the exercise's own names go.
_TEMPLATES = Path(__file__).with_name("templates")
_OWN_IMPORT = """
from lesson_<stem> import CHECKS

checks = {check.name: check for check in CHECKS}
"""


@dataclass(frozen=True)
class Made:
    """The files of a new exercise."""

    source: Path
    checks: Path
    test: Path
    is_own: bool  # a teacher's own, outside of distlab's lessons

    @property
    def files(self) -> tuple[Path, ...]:
        """All that was made."""
        return self.source, self.checks, self.test


def make_exercise(stem: str, *, folder: Path | None = None, here: Path = Path()) -> Made:
    """Makes a new exercise, and overwrites nothing."""
    asked = f"a new exercise {stem!r}"
    if not STEM.fullmatch(stem):
        raise InvalidArgument(
            asked=asked,
            found="a name that is not two digits, '_' and at most 50 of a-z, 0-9 and '_'",
            do="name it as in 20_my_topic",
        )
    made = _places(stem, folder, here)
    # A package of checks takes the module's name, too.
    taken = [path for path in (*made.files, made.checks.with_suffix("")) if path.exists()]
    if taken:
        raise InvalidArgument(
            asked=asked,
            found=f"{taken[0]}, which would be overwritten",
            do="take another name, or another --folder",
        )
    for path in made.files:
        check_folder(path.parent, asked=asked)
    texts = (
        _source_text(stem, own=made.is_own),
        _filled("checks", stem),
        _filled("own_test" if made.is_own else "test", stem),
    )
    for path, text in zip(made.files, texts, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    if not made.is_own:
        made.checks.with_name("__init__.py").touch()
    return made


def _places(stem: str, folder: Path | None, here: Path) -> Made:
    test = f"test_{stem}.py"
    if folder is None and (here / LESSONS).is_dir():
        lesson = lesson_folder(here, stem)
        test_path = here / "tests" / "course" / test
        return Made(lesson / "exercise.py", lesson / "checks.py", test_path, is_own=False)
    place = here if folder is None else folder
    return Made(place / f"{stem}.py", place / f"lesson_{stem}.py", place / test, is_own=True)


def _source_text(stem: str, *, own: bool) -> str:
    """The source of an exercise, in jupytext's percent format."""
    check = 'checks["mean_<slug>"]' if own else '"mean_<slug>"'
    return _filled("exercise", stem, import_=_OWN_IMPORT if own else "", check=check)


def _filled(template: str, stem: str, **parts: str) -> str:
    text = (_TEMPLATES / f"{template}.py.txt").read_text(encoding="utf-8")
    slug = stem.partition("_")[2]
    words = {name.rstrip("_"): part for name, part in parts.items()}
    for name, value in (
        words | {"stem": stem, "slug": slug, "title": slug.replace("_", " ")}
    ).items():
        text = text.replace(f"<{name}>", value)
    return text
