"""Writes a file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file so that at every moment it is the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, since a rename is only atomic within one file system.
    fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
