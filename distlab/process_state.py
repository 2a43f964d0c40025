"""Keeps what a process has only once, such as its generators, as it was before a block.

with kept_state():
    builder.download_and_prepare()      # draws from Python's generator, adds a log handler
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def kept_state() -> Iterator[None]:
    """Puts back what the block moves: generators, Keras's settings, warning filters and so on.

    Kept are the generators of Python, NumPy, TensorFlow and Keras, Keras's settings and names, the
    warning filters, the root logger, the environment and the working folder; of libraries only
    what is loaded before the block. A seed that the block gives to TensorFlow also restarts eager
    operations that have a seed of their own, which nobody can put back.
    """
    restores = [part() for part in _PARTS]
    try:
        yield
    finally:
        for restore in restores:
            restore()


def _python() -> Callable[[], None]:
    state = random.getstate()
    return lambda: random.setstate(state)


def _numpy() -> Callable[[], None]:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return _nothing
    state = numpy.random.get_state()
    return lambda: numpy.random.set_state(state)


def _tensorflow() -> Callable[[], None]:
    eager = sys.modules.get("tensorflow.python.eager.context")
    context: Any = eager and eager.context_safe()
    if context is None:
        return _nothing
    seed, generator = context._seed, getattr(context, "_rng", None)  # there is no public way to ask
    state = generator and generator.getstate()

    def restore() -> None:
        context._seed = seed
        if generator is not None:
            context._rng = generator
            generator.setstate(state)

    return restore


def _keras() -> Callable[[], None]:
    if "keras" not in sys.modules:
        return _nothing
    from distlab.training.keras_private.global_state import save_global_state

    return save_global_state()


def _warning_filters() -> Callable[[], None]:
    filters, printer = list(warnings.filters), warnings.showwarning

    def restore() -> None:
        if warnings.filters != filters:
            # Entering it lets Python forget by which filters it chose so far.
            with warnings.catch_warnings():
                pass
            warnings.filters[:] = filters  # type: ignore[index]
        warnings.showwarning = printer

    return restore


def _root_logger() -> Callable[[], None]:
    root = logging.getLogger()
    level, handlers, filters = root.level, list(root.handlers), list(root.filters)

    def restore() -> None:
        if root.level != level:
            root.setLevel(level)
        root.handlers[:], root.filters[:] = handlers, filters

    return restore


def _environment() -> Callable[[], None]:
    environ = dict(os.environ)

    def restore() -> None:
        if environ != os.environ:
            for name in os.environ.keys() - environ:
                del os.environ[name]
            os.environ.update(environ)

    return restore


def _working_folder() -> Callable[[], None]:
    try:
        folder = os.open(".", os.O_RDONLY)
    except OSError:  # it was removed
        return _nothing

    def restore() -> None:
        os.fchdir(folder)
        os.close(folder)

    return restore


def _nothing() -> None:
    """Puts nothing back, where there is no state."""


_PARTS = (
    *(_python, _numpy, _tensorflow, _keras),
    *(_warning_filters, _root_logger, _environment, _working_folder),
)
