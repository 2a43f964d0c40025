"""How long a task of a cluster on this machine may be silent before the others give it up.

By heartbeats hosts learn of each other's end. On one machine whoever started a task sees it end, so
a task that is silent is most likely one for which the machine has no time.
"""

from __future__ import annotations

import functools

SECS = 10.0  # TensorFlow's own
HERE_SECS = 100.0


def lengthen() -> None:
    """Has TensorFlow's own strategies bear such a silence; before it is used in this process."""
    from tensorflow.python.eager import context

    here = context.context()
    here.configure_coordination_service = functools.partial(
        here.configure_coordination_service, heartbeat_timeout_in_ms=int(HERE_SECS * 1000)
    )
