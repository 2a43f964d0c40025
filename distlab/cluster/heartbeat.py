"""How long a task of a cluster on this machine may be silent before the others give it up.

By heartbeats hosts learn of each other's end. On one machine the process that started a task sees
it end, so a task that is silent is most likely one for which the machine has no time.
"""

from __future__ import annotations

import functools

from distlab.cluster.spec import ClusterSpec

_SECS, _HERE_SECS = 10.0, 100.0  # the first is TensorFlow's own


def default_secs(cluster: ClusterSpec) -> float:
    """Returns how long a task may be silent where nobody says it."""
    return _HERE_SECS if cluster.is_here else _SECS


def lengthen() -> None:
    """Has TensorFlow's own strategies bear such a silence; before it is used in this process."""
    from tensorflow.python.eager import context

    here = context.context()
    here.configure_coordination_service = functools.partial(
        here.configure_coordination_service, heartbeat_timeout_in_ms=int(_HERE_SECS * 1000)
    )
