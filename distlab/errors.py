"""The one family of errors: each says what was asked, what was found and what to do.

If the cause is an entry of docs/pitfalls.md, the error names this entry and the page's path.

Every error that distlab raises on purpose is a `DistlabError`, and also the builtin
error a caller would expect (`ValueError` for an argument, and so on):

    raise InvalidArgument(
        asked="make_strategy(kind='mirored')",
        found="no strategy of that name",
        do="did you mean 'mirrored'?",
    )
"""

from __future__ import annotations

import difflib
import functools
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from distlab.shipped import path_to_open

PITFALLS_PAGE = "docs/pitfalls.md"
_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parent),
)


def printable(text: str, *, keep: str = "") -> str:
    """Returns a text in which nothing is a terminal's command, since it may be of a learner's."""
    return "".join(letter if letter.isprintable() or letter in keep else " " for letter in text)


class DistlabError(Exception):
    """Base of all errors of distlab."""

    _is_shortened = False  # whether IPython has shown it without distlab's own frames

    def __init__(self, *, asked: str, found: str, do: str, pitfall: str = "") -> None:
        self.asked, self.found, self.do, self.pitfall = asked, found, do, pitfall
        see = f"\n  see: {path_to_open(PITFALLS_PAGE)}, {pitfall!r}" if pitfall else ""
        super().__init__(_text(asked, found, do) + see)

    @property
    def parts(self) -> dict[str, Any]:
        """The arguments that the error was made of, by name."""
        names = ("asked", "found", "do", "pitfall")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:
        """Keyword-only arguments do not survive pickle's default, and errors cross processes."""
        return functools.partial(type(self), **self.parts), ()

    def _render_traceback_(self) -> list[str]:
        """Returns IPython's traceback: the user's own lines and the parts; `%tb` shows all."""
        formatter = sys.modules["IPython"].get_ipython().InteractiveTB
        if self._is_shortened:
            return list(formatter.structured_traceback(type(self), self, self.__traceback__))
        self._is_shortened = True
        # Without what caused it, which `%tb` shows.
        bare = functools.partial(type(self), **self.parts)()
        own = _own_frames(self.__traceback__)
        lines = formatter.structured_traceback(type(self), bare, own, tb_offset=0)
        return [*lines, "%tb shows the whole traceback."]


class InvalidArgument(DistlabError, ValueError):
    """An argument is invalid."""


class ModelError(DistlabError, ValueError):
    """A model is not what the call needs: not compiled, not built where it must be."""


class DeviceError(DistlabError, RuntimeError):
    """Devices are missing, or were asked for too late."""


class DatasetError(DistlabError, RuntimeError):
    """A data set is unknown or cannot be had here."""


class UnsupportedEnvironment(DistlabError, RuntimeError):
    """The Python, a package or a setting of this process cannot work."""


class NotebookError(DistlabError, RuntimeError):
    """A notebook or its source is not what it must be."""


class ProcessError(DistlabError, RuntimeError):
    """A process could not be started, or ended when it should not have."""


class TaskFailed(ProcessError):
    """A task of a cluster failed: what it ran raised an error, its process ended, or it hangs."""

    def __init__(
        self,
        *,
        asked: str,
        found: str,
        do: str,
        pitfall: str = "",
        task: str,
        error: str = "",
        traceback: str = "",
        is_loss: bool = False,
    ) -> None:
        super().__init__(asked=asked, found=found, do=do, pitfall=pitfall)
        self.task, self.error, self.traceback, self.is_loss = task, error, traceback, is_loss

    @property
    def parts(self) -> dict[str, Any]:
        """As for every error, with what it knows of the task."""
        names = ("task", "error", "traceback", "is_loss")
        return super().parts | {name: getattr(self, name) for name in names}


class TaskTimeout(TaskFailed, TimeoutError):
    """A task of a cluster did not finish in time."""


class Interrupted(KeyboardInterrupt):
    """An interrupt ended what tasks ran; no `except Exception` catches it, as for any interrupt."""

    def __init__(self, *, asked: str, found: str, do: str) -> None:
        self.asked, self.found, self.do = asked, found, do
        super().__init__(_text(f"interrupted: {asked}", found, do))

    def _render_traceback_(self) -> list[str]:
        """Returns IPython's traceback: the parts alone, for the line is where you pressed stop."""
        return str(self).splitlines()


def _text(asked: str, found: str, do: str) -> str:
    return f"{asked}\n  found: {found}\n  to do: {do}"


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of installed code."""
    if trace is None:
        return None
    rest = _own_frames(trace.tb_next)
    if is_installed(trace.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def is_installed(file: str) -> bool:
    """Whether a file is Python's, a library's or distlab's, and not the user's own."""
    return file.startswith(_INSTALLED)


def did_you_mean(word: str, options: Iterable[str], *, most: int | None = None) -> str:
    """Returns the advice for a misspelt word: the near option first, then all or the first ones."""
    options = list(options)
    near = difflib.get_close_matches(word, options, n=1)
    listed = "choose one of " + ", ".join(repr(option) for option in options[:most])
    if more := len(options[most:]) if most else 0:
        listed += f" and {more} more"
    return f"did you mean {near[0]!r}? Or {listed}" if near else listed
