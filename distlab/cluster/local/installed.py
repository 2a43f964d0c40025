"""Whose code a file is: the user's own, or installed (Python's, a library's, distlab's)."""

from __future__ import annotations

import sysconfig
from pathlib import Path

_FOLDERS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[2]),
)


def is_installed(file: str) -> bool:
    """Whether a file is not the user's own."""
    return file.startswith(_FOLDERS)
