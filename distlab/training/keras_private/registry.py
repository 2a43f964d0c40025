"""The registry of what distlab replaces in Keras and TensorFlow, once in a process and for good.

    @replaces("keras.losses.Loss.__call__", when=current)
    def loss_of_own_rows(step, original, self, y_true, y_pred, sample_weight=None): ...

    install(losses)                  # all that this module declares
    print(described(DECLARED))       # what to look at for a new version of Keras or TensorFlow

The decorator alone holds the promise that everything else does what it did: where `when()` is None,
the original runs and the replacement does not. Names with a leading underscore, and those under
`keras.src` and `tensorflow.python`, are private there. All of them are in Keras 3.10 to 3.15 and
TensorFlow 2.19 to 2.21, unless a comment says otherwise.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Replacement:
    """A name of Keras's or TensorFlow's, and what is called in its place.

    Attributes:
        name: The dotted name of a function, a method or a property. One that does not exist is
            added, and has no original.
        function: Takes what `when` gave and the original, then what the original takes.
        when: Returns None where the original is to run alone.
        is_stored: Whether the name is an attribute that each object keeps.
    """

    name: str
    function: Function
    when: Callable[[], Any]
    is_stored: bool = False

    def place(self) -> tuple[Any, str]:
        """Returns the module or class that has the name, and the last part of the name."""
        *path, key = self.name.split(".")
        owner = importlib.import_module(path[0])
        for number, part in enumerate(path[1:], 2):
            # First what the package has by this name: a folder of TensorFlow's may have it, too.
            found = getattr(owner, part, None)
            owner = found or importlib.import_module(".".join(path[:number]))
        return owner, key

    def install(self) -> None:
        """Puts the replacement in its place."""
        owner, key = self.place()
        if self.is_stored:
            setattr(owner, key, _stored(key, self._around(functools.partial(_value_of, key))))
            return
        original = getattr(owner, key, None)
        if isinstance(original, property):
            setattr(owner, key, property(self._around(original.fget), original.fset))
        else:
            setattr(owner, key, self._around(original))

    def _around(self, original: Function | None) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = self.when()
            if given is None and original is not None:
                return original(*args, **kwargs)
            return self.function(given, original, *args, **kwargs)

        # A stack shows the name that was called.
        call.__code__ = call.__code__.replace(co_name=self.name.rpartition(".")[2])
        return functools.update_wrapper(call, original or self.function)


DECLARED: list[Replacement] = []


def replaces(
    *names: str, when: Callable[[], Any], is_stored: bool = False
) -> Callable[[Function], Function]:
    """Declares that a function replaces these names, once its module is installed."""

    def declare(function: Function) -> Function:
        DECLARED.extend(Replacement(name, function, when, is_stored) for name in names)
        return function

    return declare


@functools.cache
def install(module: ModuleType) -> None:
    """Replaces all that a module declares, the first time that it is called for it."""
    for replacement in declared_in(module):
        replacement.install()


def declared_in(*modules: ModuleType) -> list[Replacement]:
    """Returns what these modules declare, in their order."""
    names = [module.__name__ for module in modules]
    return [each for each in DECLARED if _plain(each.function).__module__ in names]


def described(replacements: Iterable[Replacement]) -> str:
    """Returns a line for each replacement: its name, its function and what that says of itself."""
    rows = []
    for each in replacements:
        function = _plain(each.function)
        module = function.__module__.rpartition(".")[2]
        says = (inspect.getdoc(function) or "").partition("\n")[0]
        rows.append((each.name, f"{module}.{function.__name__}", says))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(part.ljust(width) for part, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _plain(function: Any) -> Any:
    """A function without the arguments that a partial has given it."""
    return getattr(function, "func", function)


def _value_of(key: str, self: Any) -> Any:
    if key not in vars(self):
        raise AttributeError(key)
    return vars(self)[key]


def _stored(key: str, get: Function) -> property:
    return property(get, lambda self, value: vars(self).__setitem__(key, value))
