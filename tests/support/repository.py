"""Where the repository is whose code is tested."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lesson_text(stem: str, name: str = "lesson.py") -> str:
    """The source of a lesson, or of its exercise."""
    return (ROOT / f"distlab/course/lesson_{stem}/{name}").read_text(encoding="utf-8")
