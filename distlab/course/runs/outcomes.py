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
from collections.abc import Callable, Iterator
from typing import Any

from distlab.errors import DistlabError


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
        print(f"No result: your code ended with {type(error).__name__}: {error}")  # noqa: T201
        print(f"{checks} says more.")  # noqa: T201


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
