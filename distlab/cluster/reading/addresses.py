"""Addresses of tasks, as TensorFlow takes them: "host:port", and nothing more.

parse_address("host1:2222")              # Address(host='host1', port=2222)
parse_address("[::1]:2222").host         # '::1'
parse_address("grpc://host1:2222/")      # raises ClusterMistake: it has a scheme
"""

from __future__ import annotations

import ipaddress
import re
import reprlib
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

_FORM = "write host:port, as 'host1:2222'"
_CURE = "give the name or the IP address of the machine: letters, digits, dots and dashes"

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


class ClusterMistake(Exception):
    """A mistake in a description; whoever read it says in an error where it was."""

    def __init__(self, found: str, do: str) -> None:
        self.found, self.do = found, do
        super().__init__(found, do)


@dataclass(frozen=True)
class Address:
    """Where a task listens.

    Attributes:
        host: A name or an IP address, without brackets.
        port: 1 to 65535.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def machine(self) -> str:
        """The host, the same for each of its spellings; "localhost" for this machine."""
        return "localhost" if is_local(self.host) else self.host.lower().rstrip(".")


def parse_address(text: str) -> Address:
    """Splits "host:port"."""
    if _SCHEME.match(text.strip()):
        raise ClusterMistake(f"the address {shown(text)} has a scheme", _advice(text))
    if "/" in text:
        raise ClusterMistake(f"the address {shown(text)} has a path", _advice(text))
    if text.split() != [text]:
        what = "has a space in it" if text.strip() else "is empty"
        raise ClusterMistake(f"the address {shown(text)} {what}", _advice(text))
    host, _, port = text.rpartition(":")
    if ":" not in text or (text.startswith("[") and text.endswith("]")):
        raise ClusterMistake(f"the address {shown(text)} has no port", _advice(text))
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ClusterMistake(
            f"the address {shown(text)} has several colons",
            "write host:port, and an IPv6 address in brackets, as '[::1]:2222'",
        )
    digits = port.lstrip("0") if port.isascii() and port.isdigit() else ""
    if not digits or len(digits) > 5 or int(digits) > 65535:
        raise ClusterMistake(
            f"the address {shown(text)} has the port {shown(port)}",
            "give a port of 1 to 65535 that is free on that machine",
        )
    return Address(_host(host, text), int(digits))


def is_local(host: str) -> bool:
    """Whether a host means "this machine" on every machine: localhost, 127.0.0.1, 0.0.0.0."""
    name = host.lower().rstrip(".")
    if name in ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"):
        return True
    try:
        ip = ipaddress.ip_address(name)
    except ValueError:
        return False
    return ip.is_loopback or ip.is_unspecified


def shown(value: Any) -> str:
    """Returns a value as an error shows it: in quotes, and short."""
    return _SHORT.repr(value)


def _advice(text: str) -> str:
    cured = _SCHEME.sub("", text.strip()).partition("/")[0]
    try:
        return f"write {str(parse_address(cured))!r}" if cured != text else _FORM
    except ClusterMistake:
        return _FORM


def _host(host: str, text: str) -> str:
    """Returns a host without brackets, in the one spelling that an IP address has."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        if bare != host or re.fullmatch(r"[0-9.]+", host):
            return str(ipaddress.ip_address(bare))
    except ValueError as error:
        raise ClusterMistake(f"the address {shown(text)} has no host: {error}", _CURE) from error
    if len(host) > 253 or not all(_NAME.fullmatch(p) for p in host.removesuffix(".").split(".")):
        raise ClusterMistake(f"the address {shown(text)} has the host {shown(host)}", _CURE)
    return host
