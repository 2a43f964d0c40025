"""Asks from outside whether the tasks of a cluster answer, and why one does not.

probe("host2:2222", timeout_secs=1)              # Probe(address='host2:2222', state='refused')
unanswering({"worker:1": "host2:2222"})          # {'worker:1': Probe(...)}; empty when all answer

A server of TensorFlow says something as soon as it is spoken to, whatever its Python is doing:
also one that waits for others, and not one that is stopped. Nothing is asked of it.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from distlab.cluster.tf_config import parse_address

State = Literal[
    "answers", "refused", "no route", "unknown name", "silent", "mute", "closed", "other"
]

# What is known, and what to check; the most telling first, of what the addresses of a name say.
_WORDS: dict[State, tuple[str, str]] = {
    "answers": ("a TensorFlow server answers", ""),
    "mute": (
        "the port is open and whoever holds it says nothing",
        "is the process stopped, or its machine overloaded?",
    ),
    "other": (
        "something that is no TensorFlow server answers",
        "which program holds the port (ss -ltnp on that machine)?",
    ),
    "closed": (
        "the connection is closed at once",
        "does something forward the port (docker, kubectl) to where nothing listens?",
    ),
    "refused": (
        "the machine is there and nothing listens on that port",
        "has the task been started, and does it still run?",
    ),
    "silent": (
        "nothing comes back",
        "does a firewall drop what is sent to that port? Is the machine on?",
    ),
    "no route": ("there is no way to that machine", "is it on, and on the same network?"),
    "unknown name": (
        "no machine of that name is known here",
        "is the name right, and known to DNS or /etc/hosts?",
    ),
}

# How HTTP/2 opens, which gRPC speaks: a greeting and an empty frame of settings. The server
# answers with its own settings, frame type 4.
HTTP2_PREFACE, HTTP2_SETTINGS = b"PRI * HTTP/2.0\r", b"\0\0\0\4\0\0\0\0\0"
_GREETING = HTTP2_PREFACE + b"\n\r\nSM\r\n\r\n" + HTTP2_SETTINGS
_FRAME_HEADER_BYTES, _SETTINGS = 9, 4

_Name = TypeVar("_Name")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The result of asking an address, "host:port", whether a server answers."""

    address: str
    state: State

    @property
    def answers(self) -> bool:
        """Whether a TensorFlow server is there."""
        return self.state == "answers"

    @property
    def found(self) -> str:
        """The state in words."""
        return _WORDS[self.state][0]

    @property
    def check(self) -> str:
        """The thing to check next; empty where all is well."""
        return _WORDS[self.state][1]

    def __str__(self) -> str:
        return f"{self.address}: {self.found}"


def probe(address: str, *, timeout_secs: float = 2.0) -> Probe:
    """Speaks to an address and says what came back; changes nothing there."""
    where = parse_address(address)
    deadline = time.monotonic() + timeout_secs
    try:
        resolved = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return Probe(address=address, state="unknown name")
    states = []
    for tried, (family, _, _, _, sockaddr) in enumerate(resolved):
        # A name may have several addresses: each gets its share of the time.
        share = max((deadline - time.monotonic()) / (len(resolved) - tried), 0.001)
        state = _state(family, sockaddr, share)
        if state == "closed":  # perhaps at this moment only, by a process that is ending
            state = _state(family, sockaddr, share)
        states.append(state)
        if states[-1] == "answers":
            break
    return Probe(address=address, state=min(states, key=list(_WORDS).index))


def unanswering(addresses: Mapping[_Name, str], *, timeout_secs: float = 2.0) -> dict[_Name, Probe]:
    """Probes many addresses at once and returns those that do not answer, in order."""
    if not addresses:
        return {}
    with ThreadPoolExecutor(max_workers=min(len(addresses), 32)) as threads:
        probes = threads.map(
            functools.partial(probe, timeout_secs=timeout_secs), addresses.values()
        )
        named = zip(addresses, probes, strict=True)
        return {name: answer for name, answer in named if not answer.answers}


def doubt_of(address: str) -> str:
    """Returns a doubt where a task's own address is no address of this machine; else ""."""
    try:
        resolved = socket.getaddrinfo(parse_address(address).host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return ""  # only others need to know the name
    if any(_can_bind(family, sockaddr) for family, _, _, _, sockaddr in resolved):
        return ""
    return f"{address} is no address of this machine: is this the TF_CONFIG of another task?"


def _can_bind(family: int, sockaddr: Any) -> bool:
    with socket.socket(family) as bound:
        try:
            bound.bind(sockaddr)
        except OSError:
            return False
    return True


def _state(family: int, sockaddr: Any, timeout_secs: float) -> State:
    with socket.socket(family) as connection:
        connection.settimeout(timeout_secs)
        try:
            connection.connect(sockaddr)
        except TimeoutError:
            return "silent"
        except ConnectionRefusedError:
            return "refused"
        except OSError:
            return "no route"
        try:
            connection.sendall(_GREETING)
            header = connection.recv(_FRAME_HEADER_BYTES)
        except TimeoutError:
            return "mute"
        except OSError:
            return "closed"
    if not header:
        return "closed"
    is_settings = len(header) == _FRAME_HEADER_BYTES and header[3] == _SETTINGS
    return "answers" if is_settings else "other"
