"""A simulated network of ranks, which counts the bytes on each link and the steps.

    network = Network(4)
    received = network.step({(0, 1): gradient, (1, 2): other})    # {1: gradient, 2: other}
    network.steps, network.bytes_sent                             # 1, [40, 40, 0, 0]

Each rank has one link to the network. In a step it sends at most one message and receives at most
one, both at the same time. This is the model in which the literature counts collectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distlab.errors import InvalidArgument


@dataclass(frozen=True)
class Message:
    """One message that a network has carried.

    Attributes:
        step: In which step, from 0.
        source: The rank that sent it.
        target: The rank that received it.
        bytes: Its size.
    """

    step: int
    source: int
    target: int
    bytes: int


class Network:
    """Ranks that send each other arrays, all at once in each step."""

    def __init__(self, ranks: int) -> None:
        if ranks < 1:
            raise InvalidArgument(
                asked=f"Network({ranks})",
                found="no rank",
                do="pass how many ranks there are, such as 4",
            )
        self.ranks = ranks
        self.steps = 0
        self.messages: list[Message] = []

    def step(self, messages: Mapping[tuple[int, int], Any]) -> dict[int, Any]:
        """Delivers the messages of one step."""
        self._check(list(messages))
        received = {}
        for (source, target), data in messages.items():
            received[target] = _copied(data)
            size = _bytes_of(data)
            self.messages.append(Message(self.steps, source, target, size))
        self.steps += 1
        return received

    @property
    def bytes_sent(self) -> NDArray[np.int64]:
        """The bytes that each rank has sent: shape (ranks,)."""
        return self._sums([message.source for message in self.messages])

    @property
    def bytes_received(self) -> NDArray[np.int64]:
        """The bytes that each rank has received: shape (ranks,)."""
        return self._sums([message.target for message in self.messages])

    @property
    def busiest_link_bytes(self) -> int:
        """The most that one link has carried in one direction, in bytes."""
        return int(max(self.bytes_sent.max(), self.bytes_received.max()))

    def _sums(self, ranks: list[int]) -> NDArray[np.int64]:
        counted = np.zeros(self.ranks, np.int64)
        np.add.at(counted, np.array(ranks, int), [message.bytes for message in self.messages])
        return counted

    def _check(self, pairs: list[tuple[int, int]]) -> None:
        def refuse(found: str, do: str) -> None:
            asked = f"a step {self.steps} with the messages {pairs}, as (source, target)"
            raise InvalidArgument(asked=asked, found=found, do=do)

        for pair in pairs:
            if not all(rank in range(self.ranks) for rank in pair):
                refuse(f"{pair} with {self.ranks} ranks", f"use ranks from 0 to {self.ranks - 1}")
            if pair[0] == pair[1]:
                refuse(f"rank {pair[0]} sends to itself", "send to a different rank")
        for ranks, does in ((0, "sends"), (1, "receives")):
            named = [pair[ranks] for pair in pairs]
            twice = sorted({rank for rank in named if named.count(rank) > 1})
            if twice:
                refuse(
                    f"rank {twice[0]} {does} {named.count(twice[0])} messages in one step",
                    "spread them over several steps",
                )


def _copied(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _copied(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_copied(value) for value in data]
    return np.array(data)


def _bytes_of(data: Any) -> int:
    if isinstance(data, Mapping):
        return sum(_bytes_of(value) for value in data.values())
    if isinstance(data, (list, tuple)):
        return sum(_bytes_of(value) for value in data)
    return int(np.asarray(data).nbytes)
