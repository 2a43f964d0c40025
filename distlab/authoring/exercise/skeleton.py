"""The files of a new exercise, as text: one task that works, to be replaced.

`templates/` has them, with `<stem>`, `<slug>` and `<title>` where the exercise's own names go.
"""

from __future__ import annotations

from pathlib import Path

_TEMPLATES = Path(__file__).with_name("templates")
_OWN_IMPORT = """
from lesson_<stem> import CHECKS

checks = {check.name: check for check in CHECKS}
"""


def source_text(stem: str, *, own: bool) -> str:
    """The source of an exercise, in jupytext's percent format."""
    check = 'checks["mean_<slug>"]' if own else '"mean_<slug>"'
    return _filled("exercise", stem, import_=_OWN_IMPORT if own else "", check=check)


def checks_text(stem: str) -> str:
    """The module of its checks."""
    return _filled("checks", stem)


def test_text(stem: str, *, own: bool) -> str:
    """The test of its checks: in a clone of distlab, or anywhere else."""
    return _filled("own_test" if own else "test", stem)


def _filled(template: str, stem: str, **parts: str) -> str:
    text = (_TEMPLATES / f"{template}.py.txt").read_text(encoding="utf-8")
    slug = stem.partition("_")[2]
    words = {name.rstrip("_"): part for name, part in parts.items()}
    for name, value in (
        words | {"stem": stem, "slug": slug, "title": slug.replace("_", " ")}
    ).items():
        text = text.replace(f"<{name}>", value)
    return text
