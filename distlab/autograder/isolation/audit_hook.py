"""Watches a learner's code from inside its process, and notes what no honest answer does.

    observe(note, is_theirs=..., folder=Path(...), private=None)      # before their first line

Python tells its audit hooks of files, imports and frames, and no code can take a hook away. The
modules of the checks tell who reads an attribute of theirs. What is asked for by a library, and not
by the learner's own lines, is the library's affair.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import FrameType, ModuleType
from typing import Any

import numpy

import distlab
from distlab.autograder.isolation.process_tree import above
from distlab.autograder.isolation.static_scan import CHECKS, CLOSED_ROOMS, FRAMES, is_of_checks

_WATCHED = {
    *("open", "import", "os.kill", "os.killpg"),
    *("sys._getframe", "sys._current_frames", "sys.settrace", "sys.setprofile"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
    *("ctypes.dlopen", "ctypes.dlsym", "ctypes.addressof", "ctypes.cdata", "ctypes.string_at"),
    *("object.__getattr__", "sys.monitoring.register_callback"),
}
# What changes files, with the places of their names among the arguments.
_CHANGES = {
    **dict.fromkeys(("os.mkdir", "os.rmdir", "os.remove", "os.truncate"), (0,)),
    **dict.fromkeys(("os.chmod", "os.chown", "os.utime"), (0,)),
    **dict.fromkeys(("os.rename", "os.link"), (0, 1)),
    "os.symlink": (1,),
}
# Ways to a frame, by attribute, and by functions of the standard library that hand one out.
_FRAME_ATTRIBUTES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
_HAND_OUT_FRAMES = {
    *(inspect.currentframe.__code__, logging.currentframe.__code__),
    *(traceback.walk_stack.__code__, traceback.walk_tb.__code__),
}
_TRACING = {"sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CLOSED_FOLDERS = tuple(str(Path(str(distlab.__file__)).with_name(room)) for room in CLOSED_ROOMS)
_STDLIB = sysconfig.get_path("stdlib")
_SITE = "site-packages"
_FROZEN = "<frozen"
_NUMPY = str(Path(str(numpy.__file__)).parent)  # it reads and writes files as open does

Note = Callable[[str], None]


def observe(
    note: Note, *, is_theirs: Callable[[str], bool], folder: Path, private: Path | None
) -> None:
    """Begins to look on; there is no end to it."""
    where = str(folder.resolve())
    secret = (*_CLOSED_FOLDERS, *([str(private.resolve())] if private else []))

    looking: set[int] = set()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if (event not in _WATCHED and event not in _CHANGES) or get_ident() in looking:
            return
        reason = _reason(event, args, where, secret)
        if reason:
            # Of frames only their code counts: namedtuple looks at frames too.
            inside = reason == FRAMES and event not in _TRACING
            _note_if_theirs(reason, through="inspect" if inside else "")

    def _note_if_theirs(reason: str, *, through: str = "") -> None:
        looking.add(get_ident())  # at frames, which calls the hook
        frame = _asking(through)
        looking.discard(get_ident())
        if frame is not None and is_theirs(frame.f_code.co_filename):
            note(f"{reason} (line {frame.f_lineno} of {frame.f_code.co_filename.strip('<>')})")

    class Watched(ModuleType):
        """A module that tells when the learner's lines reach into it."""

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)  # pickle asks every module for what it has not
            if name == "__dict__" or not name.startswith("__"):
                _note_if_theirs(CHECKS)
            return value

        def __setattr__(self, name: str, value: object) -> None:
            if value is not sys.modules.get(f"{super().__getattribute__('__name__')}.{name}"):
                _note_if_theirs(CHECKS)  # and not what an import of a module below does
            super().__setattr__(name, value)

    for name, module in list(sys.modules.items()):
        if is_of_checks(name):
            module.__class__ = Watched
    sys.addaudithook(hook)


def _reason(event: str, args: tuple[Any, ...], where: str, secret: tuple[str, ...]) -> str:
    if event == "open":
        return _of_open(args[0], args[2] or 0, where, secret)
    if event == "import":
        return CHECKS if is_of_checks(str(args[0])) else ""
    if event in _CHANGES:
        return _of_change(event, args, where)
    if event == "object.__getattr__":
        return FRAMES if args[1] in _FRAME_ATTRIBUTES else ""
    if event.startswith("os.kill"):
        watching = above(os.getpid())
        return "it signals the process that watches over it" if args[0] in watching else ""
    return FRAMES


def _of_open(path: object, flags: int, where: str, secret: tuple[str, ...]) -> str:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""  # a file descriptor
    full = os.path.realpath(os.fsdecode(path))
    if full.startswith(secret):
        return CHECKS
    return _outside(full, where) if flags & _WRITES else ""


def _of_change(event: str, args: tuple[Any, ...], where: str) -> str:
    """A file made, moved, altered or removed; of a name in an open folder nothing is said."""
    if event != "os.truncate" and args[-1] != -1:
        return ""
    paths = [args[at] for at in _CHANGES[event] if isinstance(args[at], (str, bytes, os.PathLike))]
    parts = [os.path.split(os.fsdecode(path)) for path in paths]
    above = [os.path.realpath(up) if up else _here(where) for up, _ in parts]
    reasons = [_outside(f"{up}/{name}", where) for up, (_, name) in zip(above, parts, strict=True)]
    return next(filter(None, reasons), "")


def _here(where: str) -> str:
    """Returns the current folder, and `where` when it has no name, such as for being too deep."""
    try:
        return str(Path("/proc/self/cwd").readlink())  # os.getcwd takes ever longer in deep ones
    except OSError:
        return where


def _outside(full: str, where: str) -> str:
    inside = full.startswith(where) or (full.startswith("/dev/") and "/dev/shm/" not in full)
    return "" if inside else f"it writes outside of its folder: {full}"


def _asking(through: str) -> FrameType | None:
    """Returns the innermost frame that is neither ours nor of the standard library."""
    try:
        raise LookupError
    except LookupError as error:
        frame = error.__traceback__ and error.__traceback__.tb_frame
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__:
            name = frame.f_globals.get("__name__")
            skipped = name == through if through else _is_library(file)
            skipped = skipped or frame.f_code in _HAND_OUT_FRAMES
            if not (skipped or file.startswith(_FROZEN)):
                return frame
        frame = frame.f_back
    return None


def _is_library(file: str) -> bool:
    return (file.startswith(_STDLIB) and _SITE not in file) or file.startswith(_NUMPY)


def patched(before: dict[str, dict[str, Any]]) -> list[str]:
    """Returns which functions of libraries are others than they were."""
    now = functions_of_libraries()
    return [
        f"it replaced {module}.{name}"
        for module, names in before.items()
        for name, value in names.items()
        if now.get(module, {}).get(name) is not value
    ]


def functions_of_libraries() -> dict[str, dict[str, Any]]:
    """Returns what the libraries that answers use hold now, by module and name."""
    modules = ("builtins", "json", "os", "numpy", "tensorflow", "keras", "numpy.testing")
    return {
        name: {key: value for key, value in vars(sys.modules[name]).items() if callable(value)}
        for name in modules
        if name in sys.modules
    }
