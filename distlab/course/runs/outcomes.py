"""Shows the outcome of code that may fail, or that isn't written yet.

    what_happens(lambda: answers * 10)    # its result, or the error that it raised
    with waits_for("recovers"):
        runs = run_and_kill(train)        # a stub raises NotImplementedError
        display(draw_resumed(...))

Until then the cell says what it waits for, and "run all" goes on.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from distlab.errors import DistlabError

_AUTOGRAPH_FRAME = re.compile(r'^ +File ".+", line \d+, in .+\n.*\n', re.MULTILINE)


def what_happens(call: Callable[[], Any]) -> Any:
    """Returns a call's result or error: a `try` would give away that an error comes."""
    try:
        return call()
    except Exception as error:
        return error


@contextlib.contextmanager
def waits_for(*tasks: str) -> Iterator[None]:
    """Inside, a function that is not written yet, or that fails, ends the block with a sentence."""
    names, pronoun = " and ".join(tasks), "it" if len(tasks) == 1 else "them"
    try:
        with quiet_tensorflow():
            yield
    except NotImplementedError:
        print(f"This cell waits for {names}: write {pronoun} above, then run this cell again.")  # noqa: T201
    except DistlabError:
        raise
    except Exception as error:
        checks = " and ".join(f'dl.check("{task}")' for task in tasks)
        print(f"No result: your code ended with {_without_frames(error)}")  # noqa: T201
        print(f"{checks} says more.")  # noqa: T201


def _without_frames(error: Exception) -> str:
    """An error's name and text, without the lines of code that AutoGraph writes into the text."""
    *frames, said = _AUTOGRAPH_FRAME.split(str(error))
    return said.strip() if frames else f"{type(error).__name__}: {said}"


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Keeps TensorFlow's remarks out of notebooks: it logs a stub's error with all its stack."""

    def serious(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    logger = logging.getLogger("tensorflow")
    logger.addFilter(serious)
    try:
        yield
    finally:
        logger.removeFilter(serious)
