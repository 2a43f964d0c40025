"""Notes where each replica of a MirroredStrategy stood when an all-reduce failed.

    with noted_stops() as stops:
        try: strategy.run(step)             # in which an all-reduce fails
        except Exception as error: frames_below(error, stops)     # those of replica 0

What goes wrong where replicas meet is raised in the thread that holds them together, so none of
their own lines is in its traceback. The replicas, which wait, are each stopped by an error.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

Frames = list[tuple[FrameType, int]]  # outermost first, each with its line

# Its function in which replicas meet; each replica itself is in another one, `run`.
_MODULE, _MEETS = "tensorflow.python.distribute.mirrored_run", "_call_for_each_replica"


@contextlib.contextmanager
def noted_stops() -> Iterator[list[Frames]]:
    """Gives a list that has, for each time that replica 0 is stopped meanwhile, its frames."""
    stops: list[Frames] = []
    mirrored_run: Any = sys.modules.get(_MODULE)
    if mirrored_run is None:  # nothing was distributed so far
        yield stops
        return
    plain: Any = mirrored_run._RequestedStop

    class Noted(plain):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            if getattr(threading.current_thread(), "replica_id", None) == 0:
                stops.append(list(traceback.walk_stack(sys._getframe(1)))[::-1])

    mirrored_run._RequestedStop = Noted
    try:
        yield stops
    finally:
        mirrored_run._RequestedStop = plain


def frames_below(error: BaseException, stops: list[Frames]) -> Frames:
    """Returns where replica 0 met the others, if that raised an error; else nothing.

    An error of a replica's own has its lines, and the others only happened to wait.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [one.f_code.co_name for one in frames if one.f_globals.get("__name__") == _MODULE]
    return stops[-1] if stops and names[-1:] == [_MEETS] else []
