"""Keeps TensorFlow's log out of a notebook while a learner's function runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


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
