"""How the workers of a cluster meet: within a time limit, and open to an interrupt.

    patience = Patience(timeout_secs=300, heartbeat_secs=10)
    strategy = meet(cluster, lambda: MultiWorkerMirroredStrategy(resolver), patience=patience)

TensorFlow waits for peers in one call, up to an hour and with the GIL held: no interrupt, no
other thread, no word of who is missing. Here that call runs in a thread without the GIL, and this
thread watches. The tasks also tell each other, through the key-value store of TensorFlow's
coordination service, of which cluster they were told: the leader compares, and all learn the
verdict, so that none trains in a cluster that another one does not know.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.eager import context
from tensorflow.python.framework import errors

from distlab.cluster.probing import probe
from distlab.cluster.spec import ClusterSpec, TaskName
from distlab.errors import DistlabError, InvalidArgument
from distlab.strategy import c_interface, local_devices, meeting_errors
from distlab.strategy.calling import Call, give_back_sigterm, give_up

# Keys of the store: what a task was told, that it has met all, and what the leader says.
_TOLD, _READY, _VERDICT = "distlab/told/", "distlab/ready/", "distlab/verdict"
_AGREED = "agreed"

# How long to look whether the call has ended, and to ask the store for a key.
_LOOK_SECS, _ASK_MS = 0.01, 20
# For how long the leader is looked for before TensorFlow is, which takes a second to look again.
_FIND_LEADER_SECS = 1.0
# How often to look whether the leader is still there.
_LOOK_FOR_LEADER_SECS = 1.0
# How long the others may take for their last words once all have met, and to hear ours before this
# process ends, and the store with it.
_LAST_WORDS_SECS, _HEARD_SECS = 30.0, 0.5

_MOST_SECS = 7 * 24 * 60 * 60


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for other tasks.

    Attributes:
        timeout_secs: For all to come.
        heartbeat_secs: For a sign of life, later, from a task that has come.
    """

    timeout_secs: float
    heartbeat_secs: float

    def __post_init__(self) -> None:
        for name, least in (("timeout_secs", 0), ("heartbeat_secs", 1)):
            secs = getattr(self, name)
            if isinstance(secs, bool) or not isinstance(secs, int | float):
                secs = math.nan
            if not least <= secs <= _MOST_SECS:
                raise InvalidArgument(
                    asked=f"make_strategy(..., {name}={getattr(self, name)!r})",
                    found=f"it is no number of seconds from {least} to {_MOST_SECS}",
                    do="leave it out, or give seconds: 60 is a minute",
                )


def meet(cluster: ClusterSpec, make: Callable[[], Any], *, patience: Patience) -> Any:
    """Returns what `make` returns, with a bound to TensorFlow's wait for the other workers."""
    _configure(cluster, patience)
    original = context.pywrap_tfe.TFE_EnableCollectiveOps
    context.pywrap_tfe.TFE_EnableCollectiveOps = _Meeting(cluster, patience).run
    try:
        return make()
    except DistlabError as error:  # without the way through TensorFlow, which tells nothing
        raise error.with_traceback(None) from error.__cause__
    finally:
        context.pywrap_tfe.TFE_EnableCollectiveOps = original


def _configure(cluster: ClusterSpec, patience: Patience) -> None:
    """Does what the strategy would do without us, with our limits instead of its own."""
    jobs = {task.job for task in cluster.trainers}
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{cluster.leader.job}/replica:0/task:0",
        coordinated_jobs=[
            CoordinatedJob(name=job, num_tasks=cluster.jobs[job]) for job in sorted(jobs)
        ],
        # We give up first, and say why.
        cluster_register_timeout_in_ms=int((patience.timeout_secs + 60) * 1000),
        heartbeat_timeout_in_ms=int(patience.heartbeat_secs * 1000),
    )


class _Meeting:
    """One call into TensorFlow, and what this task hears from the others meanwhile."""

    def __init__(self, cluster: ClusterSpec, patience: Patience) -> None:
        self._cluster, self._secs = cluster, patience.timeout_secs
        self._devices = local_devices.count()
        self._is_leader = self._has_told = cluster.task == cluster.leader
        self._next_look = time.monotonic() + _LOOK_FOR_LEADER_SECS
        # Keys still to come, and from whom: the leader hears from all others, they from it.
        others = [task for task in cluster.trainers if task != cluster.leader]
        self._expected: deque[tuple[str, TaskName]] = deque([(_VERDICT, cluster.leader)])
        if self._is_leader:
            keys = [(f"{kind}{task}", task) for kind in (_TOLD, _READY) for task in others]
            self._expected = deque(keys)

    def run(self, handle: Any, server: bytes) -> None:
        """Stands in for TensorFlow's `TFE_EnableCollectiveOps`."""
        deadline = time.monotonic() + self._secs
        try:
            self._find_leader()
            call = Call(lambda: c_interface.enable_collective_ops(handle, server))
            while not call.ended(_LOOK_SECS):
                give_back_sigterm()
                self._listen(handle)
                self._look_for_leader()
                if time.monotonic() > deadline:
                    raise meeting_errors.who_is_missing(self._cluster, self._joined(), self._secs)
            give_back_sigterm()
            call.check()
            self._conclude(handle)
        except BaseException as error:
            give_up(handle)
            if isinstance(error, errors.OpError):
                raise meeting_errors.refused(self._cluster, error.message) from error
            raise

    def _find_leader(self) -> None:
        address = self._cluster.address_of(self._cluster.leader)
        until = time.monotonic() + min(self._secs, _FIND_LEADER_SECS)
        while not self._is_leader and address and time.monotonic() < until:
            if probe(address, timeout_secs=_FIND_LEADER_SECS).state != "refused":
                return
            time.sleep(_LOOK_SECS)

    def _look_for_leader(self) -> None:
        """Raises where the leader was there and is no more, which TensorFlow may not notice."""
        if self._is_leader or not self._has_told or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_FOR_LEADER_SECS
        address = self._cluster.address_of(self._cluster.leader)
        if address and probe(address).state == "refused":
            raise meeting_errors.ended(self._cluster, "it was there before")

    def _conclude(self, handle: Any) -> None:
        """Waits for what the others say once all have met."""
        deadline = time.monotonic() + _LAST_WORDS_SECS
        if not self._is_leader:
            c_interface.put(handle, f"{_READY}{self._cluster.task}", "yes")
        while self._expected:
            self._listen(handle)
            if time.monotonic() > deadline:
                silent = dict.fromkeys(task for _, task in self._expected)
                raise meeting_errors.who_has_left(self._cluster, list(silent), self._secs)
        if self._is_leader:
            c_interface.put(handle, _VERDICT, _AGREED)

    def _listen(self, handle: Any) -> None:
        """Tells the others what they do not know yet, or asks for one key of those to come."""
        if not self._has_told:
            self._tell(handle)
        elif self._expected:
            key, task = self._expected[0]
            if (value := c_interface.get(handle, key, timeout_ms=_ASK_MS)) is None:
                self._expected.rotate(-1)
            else:
                self._expected.popleft()
                self._hear(handle, key, task, value)

    def _tell(self, handle: Any) -> None:
        with contextlib.suppress(errors.OpError):  # until TensorFlow has found the leader
            c_interface.put(handle, f"{_TOLD}{self._cluster.task}", self._told())
            self._has_told = True

    def _hear(self, handle: Any, key: str, task: TaskName, value: str) -> None:
        if key.startswith(_TOLD):
            addresses, devices = json.loads(value)
            difference = meeting_errors.difference(
                self._cluster, task, addresses
            ) or meeting_errors.inequality(self._cluster, task, theirs=devices, ours=self._devices)
            if difference:
                c_interface.put(handle, _VERDICT, json.dumps(difference))
                time.sleep(_HEARD_SECS)
                raise meeting_errors.disagreement(self._cluster, *difference)
        elif key == _VERDICT and value != _AGREED:
            raise meeting_errors.disagreement(self._cluster, *json.loads(value))

    def _told(self) -> str:
        addresses = {job: list(tasks) for job, tasks in self._cluster.addresses.items()}
        return json.dumps([addresses, self._devices])

    def _joined(self) -> set[TaskName] | None:
        """Returns who has told the leader of itself; None where this task is not the leader."""
        silent = {task for key, task in self._expected if key.startswith(_TOLD)}
        return set(self._cluster.trainers) - silent if self._is_leader else None
