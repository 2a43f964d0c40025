"""Where the replicas of a MirroredStrategy stood when it stopped them.

    with noted_stops() as stops:
        strategy.run(step)                  # in which an all-reduce fails
    stops[0]                                # of a replica: its frames with their lines

What goes wrong where replicas meet is raised in the thread that holds them together, so none of
their own lines is in its traceback. The replicas, which wait, are each stopped by an error.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

Frames = list[tuple[FrameType, int]]  # outermost first, each with its line

_MODULE = "tensorflow.python.distribute.mirrored_run"


@contextlib.contextmanager
def noted_stops() -> Iterator[list[Frames]]:
    """Gives a list that has, for each replica that is stopped meanwhile, its frames."""
    stops: list[Frames] = []
    mirrored_run: Any = sys.modules.get(_MODULE)
    if mirrored_run is None:  # nothing was distributed so far
        yield stops
        return
    plain: Any = mirrored_run._RequestedStop

    class Noted(plain):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            stops.append(list(traceback.walk_stack(sys._getframe(1)))[::-1])

    mirrored_run._RequestedStop = Noted
    try:
        yield stops
    finally:
        mirrored_run._RequestedStop = plain
