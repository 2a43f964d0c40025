"""A meeting point for a cluster's workers, before TensorFlow starts a server in any.

    meet(cluster, replicas=1, timeout_secs=300)        # returns when every worker is there

Each worker listens on its own port of the cluster, which TensorFlow's server takes over afterwards,
and calls the leader (the chief or worker:0). A worker sends one line of JSON: the cluster as it
knows it, its number of replicas, its versions. The leader answers each time who is missing, and in
the end "go" or the error to raise. TensorFlow's own wait holds the GIL for up to an hour: no
interrupt, no word of who is missing. It begins only when all are there, and is over in a moment.
Times are the clock's: what another host's worker waits for, nobody knows here.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from distlab import __version__
from distlab.cluster.probe import HTTP2_PREFACE, HTTP2_SETTINGS, probe
from distlab.cluster.spec import ClusterSpec, TaskName
from distlab.cluster.tf_config import parse_address
from distlab.errors import DistlabError, TaskTimeout, UnsupportedEnvironment
from distlab.strategy import cluster_errors

_SELECT_SECS, _CALL_AGAIN_SECS, _CONNECT_SECS = 0.1, 0.25, 1.0
_PROGRESS_SECS = 30.0
# How long the leader stays for workers to come that are to hear of a disagreement, too.
_LAST_CALL_SECS = 5.0
# How long TensorFlow may take to start its servers and connect them, once all workers are there.
SERVER_SECS = 120.0
_MAX_BYTES = 1 << 22


def meet(cluster: ClusterSpec, *, replicas: int, timeout_secs: float) -> None:
    """Returns once all workers have come and agree; raises an error that names those that don't."""
    rendezvous = _Rendezvous(cluster, replicas=replicas, timeout_secs=timeout_secs)
    try:
        if cluster.task == cluster.leader:
            rendezvous.lead()
            return
        rendezvous.follow()
    finally:
        rendezvous.close()
    # TensorFlow would look for the leader's server again only a second later.
    leader, deadline = str(cluster.address_of(cluster.leader)), time.monotonic() + SERVER_SECS
    while probe(leader).state == "refused":
        if time.monotonic() > deadline:
            raise cluster_errors.ended(cluster, f"{cluster.leader} was there before")
        time.sleep(0.01)


class _Connection:
    """A socket on which each line is a JSON object."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(_CONNECT_SECS)
        self.socket, self._unread = sock, b""

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has ended, as `receive` will say
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """Returns the lines that have come; OSError or ValueError where no more will."""
        data = self.socket.recv(1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        if lines and lines[0].startswith(HTTP2_PREFACE):  # `probe` asks who listens here
            self.socket.sendall(HTTP2_SETTINGS)
        if not data or len(self._unread) > _MAX_BYTES:
            raise ConnectionError
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError
        return messages


class _Rendezvous:
    """One worker's part, from its first call to "go" or an error."""

    def __init__(self, cluster: ClusterSpec, *, replicas: int, timeout_secs: float) -> None:
        self._cluster, self._timeout_secs = cluster, timeout_secs
        self._peers = [task for task in cluster.trainers if task != cluster.task]
        self._hello = {
            "task": str(cluster.task),
            "cluster": {job: list(tasks) for job, tasks in cluster.addresses.items()},
            "replicas": replicas,
            "versions": f"distlab {__version__}, tensorflow {tf.__version__}",
        }
        self._start = self._reported_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        try:
            self._listener = _listen(str(cluster_errors.own_address(cluster)))
        except OSError as error:
            raise cluster_errors.port_in_use(cluster, "multi_worker") from error
        self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Leaves the port to TensorFlow, and ends every connection."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def lead(self) -> None:
        """Waits for all other workers, compares their clusters, and tells all to go."""
        callers: dict[_Connection, str] = {}
        joined: dict[str, _Connection] = {}
        problem: DistlabError | None = None
        missing, answered = self._peers, 0
        while missing:
            for connection, messages in self._events():
                for hello in messages or ():
                    if hello.keys() != self._hello.keys():
                        continue
                    name = str(hello["task"])
                    problem = problem or self._compare(hello, connection, joined.get(name))
                    callers[connection], joined[name] = name, connection
                name = callers.get(connection, "")
                if messages is None and joined.get(name) is connection:
                    del joined[name]
            missing = [task for task in self._peers if str(task) not in joined]
            if problem and self._has_passed(min(self._timeout_secs, _LAST_CALL_SECS)):
                break
            if missing and self._has_passed(self._timeout_secs):
                never_came = [task for task in missing if str(task) not in callers.values()]
                problem = cluster_errors.absent(
                    self._cluster, never_came or missing, self._timeout_secs
                )
                break
            if len(callers) > answered:
                answered = len(callers)
                _send_all(joined.values(), {"missing": [str(task) for task in missing]})
            self._report_progress(missing)
        if problem:
            parts = {"found": problem.found, "do": problem.do, "task": problem.parts.get("task")}
            _send_all(callers, {"problem": parts})
            raise problem
        # So that a worker that goes finds nothing at the leader's port but TensorFlow.
        self._selector.unregister(self._listener)
        self._listener.close()
        _send_all(joined.values(), {"go": True})

    def follow(self) -> None:
        """Calls the leader, and waits for its word."""
        leader: _Connection | None = None
        answer: dict[str, Any] = {}
        next_call = self._start
        while "go" not in answer:
            if leader is None and time.monotonic() >= next_call:
                next_call = time.monotonic() + _CALL_AGAIN_SECS
                leader = self._call_leader()
            for connection, messages in self._events():
                if connection is leader and messages is None:
                    leader = None
                elif connection is leader and messages:
                    answer = messages[-1]
            if "problem" in answer:
                raise self._problem(**answer["problem"])
            if answer and leader is None and "go" not in answer:
                evidence = f"{self._cluster.leader} was there before"
                raise cluster_errors.ended(self._cluster, evidence)
            names = answer.get("missing", [str(self._cluster.leader)])
            missing = [task for task in self._peers if str(task) in names]
            if self._has_passed(self._timeout_secs):
                if not answer:
                    texts, _ = cluster_errors.silent(self._cluster, self._peers)
                    missing = list(texts) or missing
                raise cluster_errors.absent(self._cluster, missing, self._timeout_secs)
            self._report_progress(missing)

    def _has_passed(self, secs: float) -> bool:
        return time.monotonic() > self._start + secs

    def _call_leader(self) -> _Connection | None:
        leader = parse_address(str(self._cluster.address_of(self._cluster.leader)))
        try:
            sock = socket.create_connection((leader.host, leader.port), timeout=_CONNECT_SECS)
        except OSError:
            return None
        if sock.getsockname() == sock.getpeername():  # the system can connect a port to itself
            sock.close()
            return None
        connection = _Connection(sock)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        connection.send(self._hello)
        return connection

    def _events(self) -> Iterator[tuple[_Connection, list[dict[str, Any]] | None]]:
        """Yields what comes within a moment; None where a connection has ended."""
        for key, _ in self._selector.select(_SELECT_SECS):
            if key.fileobj is self._listener:
                sock, _ = self._listener.accept()
                self._selector.register(sock, selectors.EVENT_READ, _Connection(sock))
                continue
            try:
                messages = key.data.receive()
            except (OSError, ValueError):
                messages = None
                self._selector.unregister(key.fileobj)
                key.data.socket.close()
            yield key.data, messages

    def _compare(
        self, hello: dict[str, Any], connection: _Connection, twin: _Connection | None
    ) -> DistlabError | None:
        if twin is not None and twin is not connection:
            hosts = [caller.socket.getpeername()[0] for caller in (twin, connection)]
            return cluster_errors.duplicate_task(self._cluster, hello["task"], hosts)
        return cluster_errors.disagreement(self._cluster, theirs=hello, ours=self._hello)

    def _problem(self, found: str, do: str, task: str | None) -> DistlabError:
        """The leader's error, as this worker's own."""
        call = cluster_errors.call_text(self._cluster)
        if task is None:
            return UnsupportedEnvironment(asked=call, found=found, do=do)
        return TaskTimeout(asked=call, found=found, do=do, task=task)

    def _report_progress(self, missing: list[TaskName]) -> None:
        if time.monotonic() < self._reported_at + _PROGRESS_SECS:
            return
        self._reported_at = time.monotonic()
        names = ", ".join(f"{task} at {self._cluster.address_of(task)}" for task in missing)
        waited = f"{self._reported_at - self._start:.0f} of {self._timeout_secs:g} s"
        sys.stderr.write(f"distlab: {self._cluster.task} waits for {names}: {waited}\n")


def _send_all(connections: Iterable[_Connection], message: dict[str, Any]) -> None:
    for connection in connections:
        connection.send(message)


def _listen(address: str) -> socket.socket:
    """Returns a socket that listens on every interface, as TensorFlow's server does."""
    own = parse_address(address)
    try:
        families = {family for family, *_ in socket.getaddrinfo(own.host, own.port)}
        if socket.AF_INET6 in families and socket.has_dualstack_ipv6():
            family = socket.AF_INET6
            return socket.create_server(("", own.port), family=family, dualstack_ipv6=True)
    except OSError:  # a name that only others know, or a system without IPv6
        pass
    return socket.create_server(("", own.port))
