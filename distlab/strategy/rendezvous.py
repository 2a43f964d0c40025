"""Where the workers of a cluster wait for each other, before TensorFlow starts a server in any.

    meet(cluster, replicas=1, timeout_secs=300)        # returns when every worker is there

Each worker listens on its own port of the cluster, which TensorFlow's server takes over afterwards,
and calls the leader (the chief or worker:0). A worker sends one line of JSON: what it was told of
the cluster, its number of replicas, its versions. The leader answers each time who is missing, and
in the end "go" or the error to raise. TensorFlow's own wait holds the GIL for up to an hour: no
interrupt, no word of who is missing. It begins only when all are there, and is over in a moment.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

import distlab
from distlab.cluster.probing import HTTP2_PREFACE, HTTP2_SETTINGS, probe
from distlab.cluster.reading.addresses import Address, parse_address
from distlab.cluster.spec import ClusterSpec, TaskName
from distlab.errors import DistlabError
from distlab.strategy import cluster_errors

_SELECT_SECS, _CALL_AGAIN_SECS, _CONNECT_SECS = 0.1, 0.25, 1.0
_PROGRESS_SECS = 30.0
# How long the leader stays for workers to come that are to hear of a disagreement, too.
_LAST_CALL_SECS = 10.0
# How long TensorFlow may take to start its servers and connect them, once all workers are there.
SERVER_SECS = 120.0
_MAX_BYTES = 1 << 22


def meet(cluster: ClusterSpec, *, replicas: int, timeout_secs: float) -> None:
    """Returns when all workers are there and agree; raises an error that names those that don't."""
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
            raise cluster_errors.leader_lost(cluster)
        time.sleep(0.01)


class _Connection:
    """A socket on which each line is a JSON object."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(_CONNECT_SECS)
        self.socket, self._unread = sock, b""

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """Returns the lines that have come; ValueError or OSError where it is no use any more."""
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
        assert cluster.task is not None
        self._cluster, self._task, self._timeout_secs = cluster, cluster.task, timeout_secs
        self._hello = {
            "task": str(self._task),
            "cluster": {job: list(tasks) for job, tasks in cluster.addresses.items()},
            "replicas": replicas,
            "versions": {"distlab": distlab.__version__, "tensorflow": tf.__version__},
        }
        self._start = self._progress = time.monotonic()
        self._selector = selectors.DefaultSelector()
        try:
            self._listener = _listen(parse_address(str(cluster.address_of(self._task))))
        except OSError as error:
            raise cluster_errors.port_in_use(cluster, "multi_worker") from error
        self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Leaves the port to TensorFlow, and ends every connection."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def lead(self) -> None:
        """Waits for all other workers, compares what they were told, and tells all to go."""
        joined: dict[str, _Connection] = {}
        callers: list[_Connection] = []
        came: set[str] = set()
        problem: DistlabError | None = None
        while missing := [task for task in self._others() if str(task) not in joined]:
            for connection, messages in self._events():
                if messages is None:
                    joined = {name: one for name, one in joined.items() if one is not connection}
                for hello in messages or ():
                    name = str(hello.get("task"))
                    problem = problem or self._compare(hello, connection, joined.get(name))
                    joined[name] = connection
                    callers.append(connection)
                    came.add(name)
            if problem and self._has_passed(min(self._timeout_secs, _LAST_CALL_SECS)):
                break
            if self._has_passed(self._timeout_secs):
                never = [task for task in missing if str(task) not in came]
                problem = cluster_errors.missing(
                    self._cluster, never or missing, self._timeout_secs
                )
                break
            absent = [str(task) for task in self._others() if str(task) not in joined]
            if absent != [str(task) for task in missing]:
                self._tell(joined.values(), {"missing": absent})
            self._report(missing)
        if problem:
            self._tell(callers, {"error": cluster_errors.pack(problem)})
            raise problem
        # So that whoever goes finds nothing at the leader's port but TensorFlow.
        self._selector.unregister(self._listener)
        self._listener.close()
        self._tell(joined.values(), {"go": True})

    def follow(self) -> None:
        """Calls the leader, and waits for its word."""
        leader: _Connection | None = None
        answered, next_call = False, 0.0
        missing = [self._cluster.leader]
        while True:
            if leader is None and time.monotonic() > next_call:
                next_call = time.monotonic() + _CALL_AGAIN_SECS
                leader = self._call_leader()
            for connection, messages in self._events():
                if connection is not leader:
                    continue
                for message in messages or ():
                    answered = True
                    if "go" in message:
                        return
                    if "error" in message:
                        raise cluster_errors.unpack(self._cluster, message["error"])
                    names = message["missing"]
                    missing = [task for task in self._others() if str(task) in names]
                if messages is None:
                    leader = None
                    if answered:
                        raise cluster_errors.leader_lost(self._cluster)
            if self._has_passed(self._timeout_secs):
                if not answered:
                    missing = cluster_errors.silent(self._cluster) or missing
                raise cluster_errors.missing(self._cluster, missing, self._timeout_secs)
            self._report(missing)

    def _others(self) -> list[TaskName]:
        return [task for task in self._cluster.trainers if task != self._task]

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
        self._tell([connection], self._hello)
        return connection

    def _events(self) -> Iterator[tuple[_Connection, list[dict[str, Any]] | None]]:
        """Yields what comes within a moment; None where a connection has ended."""
        for key, _ in self._selector.select(_SELECT_SECS):
            if key.data is None:
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

    @staticmethod
    def _tell(connections: Any, message: dict[str, Any]) -> None:
        for connection in connections:
            try:
                connection.send(message)
            except OSError:  # it has ended, as the next event will say
                continue

    def _compare(
        self, hello: dict[str, Any], connection: _Connection, twin: _Connection | None
    ) -> DistlabError | None:
        if twin is not None and twin is not connection:
            hosts = [one.socket.getpeername()[0] for one in (twin, connection)]
            return cluster_errors.twins(self._cluster, hello["task"], hosts)
        return cluster_errors.disagreement(self._cluster, theirs=hello, ours=self._hello)

    def _report(self, missing: list[TaskName]) -> None:
        if time.monotonic() < self._progress + _PROGRESS_SECS:
            return
        self._progress = time.monotonic()
        names = ", ".join(f"{task} at {self._cluster.address_of(task)}" for task in missing)
        waited = f"{self._progress - self._start:.0f} of {self._timeout_secs:g} s"
        sys.stderr.write(f"distlab: {self._task} waits for {names}: {waited}\n")


def _listen(own: Address) -> socket.socket:
    """Returns a socket that listens on every interface, as TensorFlow's server does."""
    try:
        families = {found[0] for found in socket.getaddrinfo(own.host, own.port)}
        if socket.AF_INET6 in families and socket.has_dualstack_ipv6():
            family = socket.AF_INET6
            return socket.create_server(("", own.port), family=family, dualstack_ipv6=True)
    except OSError:  # a name that only others know, or a system without IPv6
        pass
    return socket.create_server(("", own.port))
