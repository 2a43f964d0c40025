"""Checks of lesson 12: reduce-scatter by halving, all-gather by doubling, routes, messages."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Criterion,
    Equal,
    Fault,
    Form,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)
from distlab.course.checks.matchers import same_plain
from distlab.course.lesson_12_ring_all_reduce.simulated_network import Network

# --- reduce_scatter: reduce-scatter in which each exchange halves what a rank must finish


def _scatter_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    ranks = (8, 4)[seed % 2]
    lengths = draw.permutation(np.arange(2, 2 + ranks))  # all different, so that a swap is seen
    return {
        # Whole numbers: their sums are exact in any order, in float32 and not in float16.
        "chunks": [
            [draw.integers(-5000, 5000, size=length).astype(np.float32) for length in lengths]
            for _ in range(ranks)
        ]
    }


def _scatter_call(reduce_scatter: Callable[..., Any], inputs: Inputs) -> Plain:
    chunks = [[chunk.copy() for chunk in own_chunks] for own_chunks in inputs["chunks"]]
    network = Network(len(chunks))
    sums = reduce_scatter(network, chunks)
    sums = None if sums is None else list(sums)
    return {"sums": sums, "sent": network.bytes_sent, "steps": network.steps}


def _scatter_reference(
    given: Inputs,
    *,
    near_first: bool = False,
    keeps_partners_half: bool = False,
    sends_what_it_keeps: bool = False,
    adds: bool = True,
    steps_left_out: int = 0,
) -> Plain:
    """Each rank keeps a half of the chunks that it has left, and returns the last one."""
    ranks = len(given["chunks"])
    held = [[chunk.copy() for chunk in own_chunks] for own_chunks in given["chunks"]]
    left = [list(range(ranks)) for _ in range(ranks)]
    network, steps = Network(ranks), round(log2(ranks))
    powers = range(steps) if near_first else range(steps)[::-1]
    for power in powers[: steps - steps_left_out]:
        sends = {}
        for rank in range(ranks):
            half = len(left[rank]) // 2
            low, high = left[rank][:half], left[rank][half:]
            upper = bool(rank >> power & 1) is not keeps_partners_half
            left[rank], given_away = (high, low) if upper else (low, high)
            given_away = left[rank] if sends_what_it_keeps else given_away
            sends[rank, rank ^ 2**power] = {number: held[rank][number] for number in given_away}
        for rank, arrived in network.step(sends).items():
            for number, chunk in arrived.items():
                held[rank][number] = held[rank][number] + chunk if adds else chunk
    last = [rank if rank in left[rank] else left[rank][0] for rank in range(ranks)]
    sums = [held[rank][number] for rank, number in enumerate(last)]
    return {"sums": sums, "sent": network.bytes_sent, "steps": network.steps}


def _enough(given: Inputs) -> int:
    """Returns the bytes that all ranks send if each sends every chunk but its own."""
    chunks = given["chunks"]
    return int((len(chunks) - 1) * sum(chunk.nbytes for chunk in chunks[0]))


def _sends_all_chunks(given: Inputs, out: Plain) -> bool:
    is_too_much = sum(out["sent"]) > _enough(given)
    right = _scatter_reference(given)
    return is_too_much and out["steps"] == right["steps"] and same_plain(out["sums"], right["sums"])


class _Sums(Close):
    """The chunks differ in length, so each rank's is compared by itself."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        rows = (super(_Sums, self).compare(a, b) for a, b in zip(yours, expected, strict=True))
        results = list(rows)
        return next((row for row in results if not row.passed), results[0])


SCATTER = Check(
    name="reduce_scatter",
    title="Reduce-scatter by halving",
    question="After the first exchange, which chunks does rank r never need again?",
    direction="Follow rank 0 of four: with whom does it exchange first, which two chunks does it "
    "give away, and which one in the second step?",
    cost=Cost.PURE,
    inputs=_scatter_inputs,
    call=_scatter_call,
    reference=_scatter_reference,
    criteria=(
        Form(
            "it returns a list with one chunk for each rank",
            lambda given, out: (
                isinstance(out["sums"], (list, np.ndarray))
                and len(out["sums"]) == len(given["chunks"])
            ),
            key="sums",
        ),
        _Sums("sums", "rank r ends with the sum of chunk r", atol=1e-3, points=1.5),
        Then(
            Equal("steps", "log2 N steps", points=1),
            Holds(
                "no chunk is sent that its receiver does not need",
                lambda given, out: sum(out["sent"]) <= _enough(given),
                lambda given, out: (
                    f"all ranks sent {sum(out['sent'])} bytes; {_enough(given)} are enough"
                ),
                points=1,
            ),
        ),
    ),
    hint="Let `apart` go from N / 2 down to 1. Rank r sends rank `r ^ apart` the chunks n with "
    "`n // apart == (r ^ apart) // apart` as a dictionary, and adds what it receives to its own.",
    revisit="Reduce-scatter: each rank finishes one chunk",
    mistakes=(
        Fault("wrong_chunk", sees="sums", near_first=True)
        .or_with(keeps_partners_half=True)
        .feedback(
            "Your ranks finish a chunk each, and rank r does not finish chunk r. If the next "
            "operation updates the weights of chunk r there, it updates them with a different sum. "
            "Which half of the chunks must rank 1 keep if its partner is far away, and which if it "
            "is rank 0?"
        ),
        Fault("sends_what_it_keeps", sees="sums", sends_what_it_keeps=True).feedback(
            "Rank 0 sent chunk 0, which it must finish itself, and the other ranks did the same "
            "with their own. So nothing that arrives belongs to a chunk that the rank keeps, and "
            "it ends with its own values. Which half will the partner finish?"
        ),
        Fault("overwrites_before_send", sees="sums", adds=False).feedback(
            "You put the chunks that arrived in place of the rank's own. The rank's own values are "
            "then gone before it has sent them, and only one rank's values arrive. What should a "
            "rank do with its own values before it passes a chunk on?"
        ),
        Fault("one_step_short", sees="sums", steps_left_out=1).feedback(
            "You stopped one step too early. Each rank and its last partner have half of the sum "
            "of chunk r each. How many times can N chunks be halved until one is left?"
        ),
        Observed("sends_all_chunks", _sends_all_chunks).feedback(
            "The sums are right after log2 N steps, but your ranks send chunks that their partner "
            "never finishes. On 64 ranks that's up to six vectors from each rank, where halving "
            "needs less than one. Which chunks does a rank's partner still have to finish?"
        ),
        Observed(
            "ring_again", lambda given, out: out["steps"] == len(given["chunks"]) - 1
        ).feedback(
            "You sent the chunks around a ring. The sums are right after N - 1 steps, and with 64 "
            "ranks these are 63 waits instead of 6. With whom must a rank exchange so that what "
            "it still has to finish is halved?"
        ),
    ),
)


# --- all_gather: all-gather in which the partner is twice as far away in each step


def _gather_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    ranks = (8, 16)[seed % 2]
    return {"mine": draw.integers(-50, 50, size=(ranks, 5)).astype(np.float32)}


def _gather_call(all_gather: Callable[..., Any], inputs: Inputs) -> Plain:
    network = Network(len(inputs["mine"]))
    have = all_gather(network, [row.copy() for row in inputs["mine"]])
    if not isinstance(have, (list, tuple)) or not all(isinstance(arrays, dict) for arrays in have):
        return {"other": have}
    return {
        "other": "",
        "who": [sorted(int(rank) for rank in arrays) for arrays in have],
        "values": [[arrays[rank] for rank in sorted(arrays)] for arrays in have],
        "steps": network.steps,
        "sent": int(network.bytes_sent.max()),
    }


def _gather_reference(given: Inputs, *, own_only: bool = False, steps_left_out: int = 0) -> Plain:
    """Returns the arrays of each rank in the end, if it sends all that it has, or only its own."""
    ranks = len(given["mine"])
    have: list[dict[int, Any]] = [{rank: row} for rank, row in enumerate(given["mine"])]
    first, network = [dict(own) for own in have], Network(ranks)
    for step in range(round(log2(ranks)) - steps_left_out):
        outgoing = first if own_only else have
        received = network.step({(rank, rank ^ 2**step): outgoing[rank] for rank in range(ranks)})
        for rank, arrays in received.items():
            have[rank] |= arrays
    return {
        "other": "",
        "who": [sorted(arrays) for arrays in have],
        "values": [[arrays[rank] for rank in sorted(arrays)] for arrays in have],
        "steps": network.steps,
        "sent": int(network.bytes_sent.max()),
    }


def _arrays_are_right(given: Inputs, outputs: Plain) -> bool:
    return all(
        np.array_equal(np.asarray(row), given["mine"][rank])
        for ranks, rows in zip(outputs["who"], outputs["values"], strict=True)
        for rank, row in zip(ranks, rows, strict=True)
    )


def _most_bytes(given: Inputs) -> int:
    return int(given["mine"].nbytes - given["mine"][0].nbytes)


GATHER = Check(
    name="all_gather",
    title="All-gather by doubling",
    question="After the first step each rank has the arrays of two ranks. How many can it have "
    "after the second?",
    direction="Write down what ranks 0 to 3 have after each of two steps. Which arrays does the "
    "partner of the second step lack?",
    cost=Cost.PURE,
    inputs=_gather_inputs,
    call=_gather_call,
    reference=_gather_reference,
    criteria=(
        Form(
            "it returns a list with a dictionary for each rank",
            lambda given, out: isinstance(out["other"], str) and "who" in out,
            key="other",
        ),
        Equal("who", "each rank ends with the arrays of all ranks", points=1.5),
        Then(
            Holds(
                "under each rank's number stands its array",
                _arrays_are_right,
                "an array is there under the number of a different rank",
                points=0.5,
            )
        ),
        Then(
            Equal("steps", "log2 N steps", points=1),
            Holds(
                "no array is sent twice to the same rank",
                lambda given, out: out["sent"] <= _most_bytes(given),
                lambda given, out: (
                    f"a rank sent {out['sent']} bytes; {_most_bytes(given)} are enough"
                ),
                points=0.5,
            ),
        ),
    ),
    hint="Start with `apart = 1`. In each step rank r sends all that it has to rank `r ^ apart` "
    "and adds what it receives to its dictionary. Then double `apart`, as long as it is below N.",
    revisit="All-gather: the finished chunks go around",
    mistakes=(
        Fault("one_step_short", sees="who", steps_left_out=1).feedback(
            "You stopped one step too early, so each rank has the arrays of half of the ranks. How "
            "many steps does it take to double from 1 array to N?"
        ),
        Fault("own_array_only", sees="who", own_only=True).feedback(
            "Each rank sent only its own array in every step. After log2 N steps it has one array "
            "more for each step, which is too few. What else could a rank pass on in its second "
            "step?"
        ),
        Observed(
            "ring_again",
            lambda given, out: out["steps"] == len(given["mine"]) - 1,
        ).feedback(
            "You sent the arrays around a ring. All ranks have them in the end, after N - 1 steps, "
            "and with 64 ranks these are 63 waits instead of 6. With whom must a rank exchange so "
            "that the number of its arrays doubles?"
        ),
    ),
)


# --- choose_route: one ring over all GPUs, or two levels, for servers of several GPUs

_WORDS = ("flat", "two levels")
# How many times the size at which both take the same time.
_FACTORS = (1 / 200, 1 / 1.05, 1.05, 5, 200)  # the near ones tell 1e9 from 2^30
_NAMES = ("servers", "gpus", "size_bytes", "inside", "between")


def _route_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    cases = []
    # The last two: a large vector of one is smaller than a small vector of the other.
    for servers, inside_gbit, link, latency_s in (
        (2, 120, 100.0, float(draw.choice([1e-5, 2e-5]))),
        (8, 600, float(draw.choice([200, 400])), 2e-5),
        (16, 1200, 200.0, float(draw.choice([1e-5, 2e-5]))),
        (64, 2400, 100.0, 3e-5),
    ):
        gpus = int(draw.choice([4, 8]))
        networks = [[1e-6, float(inside_gbit)], [latency_s, link]]
        for factor in _FACTORS:
            size = round(factor * _even_at(servers, gpus, *networks))
            cases.append([servers, gpus, size, *networks])
    return {"cases": [cases[place] for place in draw.permutation(len(cases))]}


def _even_at(servers: int, gpus: int, inside: list[float], between: list[float]) -> float:
    """The size in bytes at which both routes take the same time."""
    waits = gpus * (servers * between[0] - inside[0])
    return waits * 1e9 / 8 / (1 / inside[1] - 1 / (servers * between[1]))


def _route_call(choose_route: Callable[..., Any], inputs: Inputs) -> Plain:
    cases = (dict(zip(_NAMES, case, strict=True)) for case in inputs["cases"])
    return {
        "chosen": [
            choose_route(
                **{**case, "inside": tuple(case["inside"]), "between": tuple(case["between"])}
            )
            for case in cases
        ]
    }


def _route_read(given: Inputs, outputs: Plain) -> Plain:
    """The choices, apart for the cases that are far from even and for those that are near."""
    by_distance: dict[str, list[Plain]] = {"far": [], "near": []}
    for (servers, gpus, size, *networks), word in zip(
        given["cases"], outputs["chosen"], strict=True
    ):
        ratio = size / _even_at(servers, gpus, *networks)
        by_distance["far" if max(ratio, 1 / ratio) > 10 else "near"].append(word)
    return {"chosen": outputs["chosen"], **by_distance}


def _route_reference(
    given: Inputs,
    *,
    cut: bool = True,
    bits: float = 8,
    latency: bool = True,
) -> Plain:
    """The quicker route of each case; a flat ring may be one that does not cut the vector."""
    words = []
    for servers, gpus, size, inside, between in given["cases"]:

        def secs(network: list[float], steps: int, message: float) -> float:
            return steps * (network[0] * latency + message * bits / (network[1] * 1e9))

        ranks = servers * gpus
        flat = secs(between, 2 * (ranks - 1), size / (ranks if cut else 1))
        levels = secs(inside, 2 * (gpus - 1), size / gpus)
        levels += secs(between, 2 * (servers - 1), size / servers)
        words.append("two levels" if flat > levels else "flat")
    return _route_read(given, {"chosen": words})


def _by_size_alone(given: Inputs, outputs: Plain) -> bool:
    """Whether one limit for the size explains all choices, and both words were used."""
    sizes: dict[str, list[float]] = {word: [] for word in _WORDS}
    for case, word in zip(given["cases"], outputs["chosen"], strict=True):
        sizes[word].append(case[2])
    return all(sizes.values()) and max(sizes["two levels"]) < min(sizes["flat"])


ROUTE = Check(
    name="choose_route",
    title="One ring or two levels",
    question="How many times does a vector's journey wait for the latency between two servers, on "
    "each of the two routes?",
    direction="Write each route as a sum of steps times the time of one step. Which link is the "
    "slowest in a step, and how many bytes does it carry then?",
    cost=Cost.PURE,
    inputs=_route_inputs,
    call=_route_call,
    read=_route_read,
    reference=_route_reference,
    criteria=(
        Form(
            'each answer is "flat" or "two levels"',
            lambda given, out: all(isinstance(w, str) and w in _WORDS for w in out["chosen"]),
            key="chosen",
        ),
        Equal("far", "the route where one of them is many times quicker", points=1.5),
        Then(Equal("near", "the route where both take nearly the same time", points=1.5)),
    ),
    hint="Flat: count the steps and the chunk of one ring over all GPUs, at the cost of the slow "
    "link. Two levels: add the two halves of a ring inside a server and one whole ring between "
    "servers, in whose steps the chunks of all GPUs of a server share its link. Turn bytes into "
    "bits before you divide by the bandwidth.",
    revisit="What a message costs",
    mistakes=(
        Fault("flat_always", sees=("far", "near"), latency=False).feedback(
            "You chose one ring in every case. On 16 servers with 8 GPUs it has 254 steps, and in "
            "each of them some message goes from one server to the next. What does a step cost if "
            "the message is tiny?"
        ),
        Fault("two_levels_always", sees=("far", "near"), cut=False).feedback(
            "You chose two levels in every case. All GPUs of a server use its one link at the same "
            "time, and the flat ring cuts the vector into as many chunks as there are GPUs. How "
            "many bytes does that link carry in one step of each route?"
        ),
        Fault("bits_as_bytes", sees=("far", "near"), bits=1).feedback(
            "You took gigabits for gigabytes. Each message then seems 8 times quicker than it is, "
            "and two levels win where they should not. How many bits are in a byte?"
        ),
        Observed("by_size_alone", _by_size_alone).feedback(
            "Your choices follow from the size alone. Where the two routes take the same time "
            "depends on the network and on the number of servers, too. What happens to that size "
            "if the latency grows tenfold?"
        ),
    ),
)


# --- pack_gradients: which gradients go together into one message


_LIMIT = 64


def _pack_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    layers = int(draw.integers(9, 13))
    sizes = [int(size) for size in draw.integers(1, 40, size=layers)]
    sizes[int(draw.integers(2, layers - 3))] = 120  # larger than a message may be
    # The first message fits exactly, and the next gradient would not have.
    sizes[-2] = _LIMIT - sizes[-1]
    return {"sizes": {f"layer_{n}": size for n, size in enumerate(sizes)}, "limit": _LIMIT}


def _pack_call(pack: Callable[..., Any], inputs: Inputs) -> Plain:
    return {"messages": pack(dict(inputs["sizes"]), inputs["limit"])}


def _pack_read(given: Inputs, outputs: Plain) -> Plain:
    messages = outputs["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, list) for message in messages):
        return {"messages": messages, "form": False}
    return _judged(given, messages)


def _judged(given: Inputs, messages: list[list[str]]) -> Plain:
    names = [name for message in messages for name in message]
    return {
        "messages": messages,
        "form": True,
        "order": names,
        "bytes": [sum(given["sizes"].get(name, 0) for name in message) for message in messages],
    }


def _pack_reference(
    given: Inputs,
    *,
    backward: bool = True,
    closed_too_late: bool = False,
    last_is_sent: bool = True,
) -> Plain:
    """Gradients in the order in which they are ready; a new message if the next does not fit."""
    sizes, limit = given["sizes"], given["limit"]
    names = list(sizes)[::-1] if backward else list(sizes)
    messages = _packed(sizes, limit, names, closed_too_late=closed_too_late)
    return _judged(given, messages if last_is_sent else messages[:-1])


def _packed(
    sizes: dict[str, int], limit: int, names: list[str], *, closed_too_late: bool = False
) -> list[list[str]]:
    messages: list[list[str]] = [[]]
    for name in names:
        full = sum(sizes[other] for other in messages[-1])
        fits = full < limit if closed_too_late else full + sizes[name] <= limit
        if messages[-1] and not fits:
            messages.append([])
        messages[-1].append(name)
    return messages


class _BytesInOwnOrder(Equal):
    """A wrong order is charged once: messages are compared with the right ones in that order."""

    def judge(self, inputs: Inputs, outputs: Plain, expected: Plain) -> Criterion:
        """As for every expectation."""
        sizes, order = inputs["sizes"], outputs["order"]
        if sorted(order) == sorted(sizes):
            expected = _judged(inputs, _packed(sizes, inputs["limit"], order))
        return super().judge(inputs, outputs, expected)


def _within_the_limit(given: Inputs, outputs: Plain) -> bool:
    return all(
        size <= given["limit"] or len(message) == 1
        for size, message in zip(outputs["bytes"], outputs["messages"], strict=True)
    )


MESSAGES = Check(
    name="pack_gradients",
    title="Which gradients go into one message",
    question="Which gradient is ready first in the backward pass?",
    direction="Go through the layers from the last to the first, and ask before each gradient "
    "whether it still fits.",
    cost=Cost.PURE,
    inputs=_pack_inputs,
    call=_pack_call,
    read=_pack_read,
    reference=_pack_reference,
    criteria=(
        Form(
            "it returns a list of messages, each a list of names",
            lambda given, out: out["form"],
            key="messages",
        ),
        Equal("order", "each gradient is sent once, as soon as it is ready", points=1.5),
        _BytesInOwnOrder(
            "bytes", "each message holds as many gradients as fit (bytes of each message)", points=1
        ),
        Then(
            Holds(
                "a message of several gradients is not larger than the limit",
                _within_the_limit,
                lambda given, out: f"the messages have {out['bytes']} bytes",
                points=0.5,
            ),
            after=any,  # a gradient for each message is within the limit, too
        ),
    ),
    hint="Go through `reversed(sizes)`. Start a new message if there is none, or if `sizes[name]` "
    "is larger than the room that is left.",
    revisit="Many small gradients",
    mistakes=(
        Fault("forward_order", sees="order", backward=False).feedback(
            "You packed the gradients from the first layer on. The backward pass computes the "
            "first layer's gradient last, so the first message has to wait for it. Which gradient "
            "is ready first?"
        ),
        Fault("closed_too_late", sees=("order", "bytes"), closed_too_late=True).feedback(
            "You closed a message only after it had grown beyond the limit. The buffer that it is "
            "copied into would be too small. When do you compare with the limit, before or after "
            "you append?"
        ),
        Fault("last_message_lost", sees=("order", "bytes"), last_is_sent=False).feedback(
            "The message that was still open at the end is not in your list. Its gradients are "
            "never added up, so the replicas' copies of those layers drift apart. What happens to "
            "the open message after the loop?"
        ),
    ),
)


CHECKS = (SCATTER, GATHER, ROUTE, MESSAGES)
