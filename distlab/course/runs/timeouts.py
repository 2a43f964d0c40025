"""How long a check waits for an answer: longer on a busy machine, so that no right one is late."""

from __future__ import annotations

import os

# On a machine that is busier than this a limit does not grow any more.
MOST_TIMES = 4.0


def scale_timeout(secs: float) -> float:
    """Returns a limit for this machine as busy as it is now.

    With twice as many running processes as cores, each of them takes twice as long.
    """
    if not hasattr(os, "getloadavg"):
        return secs
    for_each_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return secs * min(max(for_each_core, 1.0), MOST_TIMES)
