"""A check of lesson 12: one ring over all GPUs, or two levels, for servers of several GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Form, Inputs, Observed, Plain, Then

_WORDS = ("flat", "two levels")
# How many times the size at which both take the same time.
_FACTORS = (1 / 200, 1 / 1.4, 1.4, 5, 200)
_NAMES = ("servers", "gpus", "size_bytes", "inside", "between")


def _inputs(seed: int) -> Inputs:
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


def _call(choose_route: Callable[..., Any], inputs: Inputs) -> Plain:
    cases = (dict(zip(_NAMES, case, strict=True)) for case in inputs["cases"])
    return {
        "chosen": [
            choose_route(
                **{**case, "inside": tuple(case["inside"]), "between": tuple(case["between"])}
            )
            for case in cases
        ]
    }


def _read(given: Inputs, outputs: Plain) -> Plain:
    """The choices, apart for the cases that are far from even and for those that are near."""
    found: dict[str, list[Plain]] = {"far": [], "near": []}
    for (servers, gpus, size, *networks), word in zip(
        given["cases"], outputs["chosen"], strict=True
    ):
        ratio = size / _even_at(servers, gpus, *networks)
        found["far" if max(ratio, 1 / ratio) > 10 else "near"].append(word)
    return {"chosen": outputs["chosen"], **found}


def _reference(
    given: Inputs,
    *,
    passes: tuple[int, int, int] = (2, 2, 2),
    cut: bool = True,
    bits: float = 8,
    latency: bool = True,
) -> Plain:
    """The quicker route of each case; `passes` through the flat ring, inside and between."""
    words = []
    for servers, gpus, size, inside, between in given["cases"]:

        def secs(network: list[float], steps: int, message: float) -> float:
            return steps * (network[0] * latency + message * bits / (network[1] * 1e9))

        ranks = servers * gpus
        flat = secs(between, passes[0] * (ranks - 1), size / (ranks if cut else 1))
        levels = secs(inside, passes[1] * (gpus - 1), size / gpus)
        levels += secs(between, passes[2] * (servers - 1), size / servers)
        words.append("two levels" if flat > levels else "flat")
    return _read(given, {"chosen": words})


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
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form(
            'each answer is "flat" or "two levels"',
            lambda given, out: all(isinstance(w, str) and w in _WORDS for w in out["chosen"]),
            key="chosen",
        ),
        Equal("far", "the route where one of them is many times quicker", points=1.5),
        Then(Equal("near", "the route where both take nearly the same time", points=1.5)),
    ),
    hint="Flat: 2 (N - 1) steps between servers with size / N, where N = servers * gpus. Two "
    "levels: 2 (gpus - 1) steps inside with size / gpus, and 2 (servers - 1) steps between "
    "servers, in which the link carries size / servers. Bytes per second: gbit_per_s * 1e9 / 8.",
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
            "and two levels win where they should not. How many bits has a byte?"
        ),
        Fault("one_way_only", sees=("far", "near"), passes=(1, 2, 2))
        .or_with(passes=(2, 1, 2))
        .feedback(
            "In one of the rings you counted only one of its two halves. An all-reduce adds up "
            "and then hands the sum to all ranks. How many steps have both halves together?"
        ),
        Observed("by_size_alone", _by_size_alone).feedback(
            "Your choices follow from the size alone. Where the two routes take the same time "
            "depends on the network and on the number of servers, too. What happens to that size "
            "if the latency grows tenfold?"
        ),
    ),
)
