"""The one family of errors: each says what was asked, what was found and what to do.

If the cause is an entry of docs/pitfalls.md, the error names this entry.

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
from collections.abc import Iterable
from typing import Any

PITFALLS_PAGE = "docs/pitfalls.md"


class DistlabError(Exception):
    """Base of all errors of distlab."""

    def __init__(self, *, asked: str, found: str, do: str, pitfall: str = "") -> None:
        self.asked, self.found, self.do, self.pitfall = asked, found, do, pitfall
        see = f"\n  see: {PITFALLS_PAGE}, {pitfall!r}" if pitfall else ""
        super().__init__(f"{asked}\n  found: {found}\n  to do: {do}{see}")

    @property
    def parts(self) -> dict[str, Any]:
        """What the error was made of, by the names of its arguments."""
        names = ("asked", "found", "do", "pitfall")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:
        """Keyword-only arguments do not survive pickle's default, and errors cross processes."""
        return functools.partial(type(self), **self.parts), ()


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


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Returns the advice for a misspelt word: the near option first, then all of them."""
    options = list(options)
    near = difflib.get_close_matches(word, options, n=1)
    listed = "choose one of " + ", ".join(repr(option) for option in options)
    return f"did you mean {near[0]!r}? Or {listed}" if near else listed
