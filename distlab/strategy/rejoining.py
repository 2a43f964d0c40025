"""A worker's second strategy, and all later ones: in the cluster that it is in already.

    strategy = rejoin(cluster, make, patience=Patience(timeout_secs=300, heartbeat_secs=10))

TensorFlow starts this process's collectives anew for each strategy, which also clears an error in
them. But a worker that still computes with the old strategy, or already with the new one, then
finds nothing of what the two had agreed on: "group 1 not found", "Delete called on non-empty
BufRendezvous". So the workers wait for each other, before and after; one that makes another
strategy alone is told so. Each strategy has all-reduces of its own, so the one before can still be
used.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.framework import errors

from distlab.cluster.probing import probe
from distlab.cluster.spec import ClusterSpec, TaskName
from distlab.strategy import c_interface, collective_keys, meeting_errors
from distlab.strategy.meeting import Patience

# How long to ask the store for a key, and how often to look whether the others are still there.
_ASK_MS, _LOOK_SECS = 20, 1.0

# How often the workers have made another strategy together.
_rounds: list[int] = []


def rejoin(cluster: ClusterSpec, make: Callable[[], Any], *, patience: Patience) -> Any:
    """Returns what `make` returns, once all workers make another strategy."""
    this_round, secs = len(_rounds) + 1, patience.timeout_secs
    _wait_for_others(cluster, f"distlab/round {this_round} begins", secs)
    _rounds.append(this_round)
    with collective_keys.separate_workers(round_number=this_round):
        strategy = make()
    _wait_for_others(cluster, f"distlab/round {this_round} ends", secs)
    return strategy


def _wait_for_others(cluster: ClusterSpec, point: str, secs: float) -> None:
    """Waits until all workers have come to a point. Each point needs a name of its own."""
    handle, deadline = context.context()._context_handle, time.monotonic() + secs
    try:
        c_interface.put(handle, f"{point}/{cluster.task}", "here")
    except errors.OpError as error:
        raise meeting_errors.refused(cluster, error.message) from error
    missing = deque(task for task in cluster.trainers if task != cluster.task)
    next_look = time.monotonic() + _LOOK_SECS
    try:
        while missing:
            if c_interface.get(handle, f"{point}/{missing[0]}", timeout_ms=_ASK_MS) is not None:
                missing.popleft()
                continue
            missing.rotate(-1)  # so that all have been asked when the time is over
            if time.monotonic() > deadline:
                silent = [task for task in cluster.trainers if task in missing]
                raise meeting_errors.who_makes_no_other(cluster, silent, secs)
            if time.monotonic() > next_look:
                _check_that_all_are_there(cluster, missing)
                next_look = time.monotonic() + _LOOK_SECS
    except BaseException:
        c_interface.remove(handle, f"{point}/{cluster.task}")  # it waits no more
        raise


def _check_that_all_are_there(cluster: ClusterSpec, missing: Iterable[TaskName]) -> None:
    addresses = [cluster.address_of(task) for task in (cluster.leader, *missing)]
    if any(probe(address).state == "refused" for address in addresses if address):
        raise meeting_errors.ended(cluster, "it was there before")
