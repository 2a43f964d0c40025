"""Paths of the files that come with the package: lessons, pages and examples.

shipped_root() / "docs/pitfalls.md"      # in a wheel inside the package, in a clone at its top
path_to_open("docs/pitfalls.md")         # "../docs/pitfalls.md" in a learner's notebook
"""

from __future__ import annotations

import os
from pathlib import Path

# In a learner's folder: what was laid there.
MANIFEST = ".distlab.json"


def shipped_root() -> Path:
    """Returns the folder that has them: inside the installed package, or the clone's own."""
    package = Path(__file__).resolve().parent
    installed = package / "_course"
    return installed if installed.is_dir() else package.parent


def path_to_open(name: str) -> str:
    """Returns the path by which a reader opens a page, from the folder of this process.

    It is relative in a clone and in a learner's folder, which JupyterLab shows, and in the folders
    directly below them. Anywhere else it leads to the installed page.
    """
    root = shipped_root()
    try:
        here = Path.cwd()
    except OSError:  # the folder was deleted
        return str(root / name)
    for folder in (here, here.parent):
        is_ours = folder == root or (folder / MANIFEST).is_file()
        if is_ours and (folder / name).is_file():
            return os.path.relpath(folder / name, here)
    return str(root / name)
