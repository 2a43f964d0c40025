"""A check of lesson 12: ring or tree, by the size of the vector, the ranks and the network."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np

from distlab.checks import Check, Cost, Equal, Fault, Form, Inputs, Observed, Plain, Then

_WORDS = ("ring", "tree")
# How many times the size at which both take the same time.
_FACTORS = (1 / 200, 1 / 1.4, 1.4, 5, 200)


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    cases = []
    latencies = [2e-6, *draw.choice([4e-6, 1e-5, 2e-5], size=2), 5e-5]
    links = [10, *draw.choice([25, 100, 200], size=2), 400]
    # At the first a large vector is smaller than a small one at the last: no limit fits both.
    for ranks, latency, link in zip((4, 8, 64, 256), latencies, links, strict=True):
        latency_s, gbit_per_s = float(latency), float(link)
        for factor in _FACTORS:
            size = factor * _even_at(ranks, latency_s, gbit_per_s)
            cases.append([ranks, round(size), latency_s, gbit_per_s])
    return {"cases": [cases[place] for place in draw.permutation(len(cases))]}


def _even_at(ranks: int, latency_s: float, gbit_per_s: float) -> float:
    """The size in bytes at which ring and tree take the same time."""
    ring, tree = 2 * (ranks - 1), 2 * log2(ranks)
    return (ring - tree) * latency_s * gbit_per_s * 1e9 / 8 / (tree - ring / ranks)


def _call(choose_route: Callable[..., Any], inputs: Inputs) -> Plain:
    names = ("ranks", "size_bytes", "latency_s", "gbit_per_s")
    return {
        "chosen": [choose_route(**dict(zip(names, case, strict=True))) for case in inputs["cases"]]
    }


def _read(given: Inputs, outputs: Plain) -> Plain:
    """The choices, apart for the cases that are far from even and for those that are near."""
    words = dict(zip(map(_key, given["cases"]), outputs["chosen"], strict=True))
    return {"chosen": outputs["chosen"], **_in_two(given, words)}


def _key(case: Any) -> tuple[Any, ...]:
    return tuple(case)


def _in_two(given: Inputs, words: dict[tuple[Any, ...], Plain]) -> dict[str, list[Plain]]:
    found: dict[str, list[Plain]] = {"far": [], "near": []}
    for case in given["cases"]:
        ranks, size, latency_s, gbit_per_s = case
        ratio = size / _even_at(ranks, latency_s, gbit_per_s)
        far = max(ratio, 1 / ratio) > 10
        found["far" if far else "near"].append(words[_key(case)])
    return found


def _reference(
    given: Inputs,
    *,
    ring_steps: Callable[[int], float] = lambda ranks: 2 * (ranks - 1),
    tree_steps: Callable[[int], float] = lambda ranks: 2 * log2(ranks),
    ring_part: Callable[[int], float] = lambda ranks: 1 / ranks,
    bits: float = 8,
    latency: bool = True,
    swapped: bool = False,
) -> Plain:
    """The quicker route of each case, by steps times (latency + message / bandwidth)."""
    words = {}
    for case in given["cases"]:
        ranks, size, latency_s, gbit_per_s = case
        waits, message = latency_s * latency, size * bits / (gbit_per_s * 1e9)
        ring = ring_steps(ranks) * (waits + message * ring_part(ranks))
        tree = tree_steps(ranks) * (waits + message)
        words[_key(case)] = "ring" if (ring < tree) is not swapped else "tree"
    return {"chosen": [words[_key(case)] for case in given["cases"]], **_in_two(given, words)}


def _by_size_alone(given: Inputs, outputs: Plain) -> bool:
    """Whether one limit for the size explains all choices, and both words were used."""
    sizes: dict[str, list[float]] = {word: [] for word in _WORDS}
    for case, word in zip(given["cases"], outputs["chosen"], strict=True):
        sizes[word].append(case[1])
    return all(sizes.values()) and max(sizes["tree"]) < min(sizes["ring"])


ROUTE = Check(
    name="choose_route",
    title="Ring or tree",
    question="How many times does a vector's journey wait for the latency, on the ring and on the "
    "tree?",
    direction="Write the time of each route as its number of steps times the time of one step. How "
    "large is one message of each?",
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form(
            'each answer is "ring" or "tree"',
            lambda given, out: all(isinstance(w, str) and w in _WORDS for w in out["chosen"]),
            key="chosen",
        ),
        Equal("far", "the route where one of them is many times quicker", points=1.5),
        Then(Equal("near", "the route where both take nearly the same time", points=1.5)),
    ),
    hint="Ring: 2 (N - 1) steps of latency + size / N / bandwidth. Tree: 2 log2 N steps of latency "
    "+ size / bandwidth. The bandwidth in bytes per second is gbit_per_s * 1e9 / 8.",
    revisit="When the message is small",
    mistakes=(
        Fault("ring_always", sees=("far", "near"), latency=False).feedback(
            "You chose the ring in every case. It sends the fewest bytes, but with 64 ranks it "
            "waits 126 times for the latency. What does a vector of 1 KB cost, besides its bytes?"
        ),
        Fault("tree_always", sees=("far", "near"), ring_part=lambda ranks: 1).feedback(
            "You chose the tree in every case. It has the fewest steps, but each of its messages "
            "is the whole vector. How large is one message of the ring?"
        ),
        Fault("swapped", sees=("far", "near"), swapped=True).feedback(
            "You named the slower route in every case. The formulas seem to be right. Which of the "
            "two times should be the smaller one?"
        ),
        Fault("bits_as_bytes", sees=("far", "near"), bits=1).feedback(
            "You took gigabits for gigabytes. Each message then seems 8 times quicker than it is, "
            "and the tree wins where it should not. How many bits has a byte?"
        ),
        Fault("one_way_only", sees=("far", "near"), tree_steps=log2)
        .or_with(ring_steps=lambda ranks: ranks - 1)
        .feedback(
            "For one of the routes you counted only one of its two halves. An all-reduce adds up "
            "and then hands the sum to all ranks. How many steps have both halves together?"
        ),
        Observed("by_size_alone", _by_size_alone).feedback(
            "Your choices follow from the size alone. Where ring and tree take the same time "
            "depends on the network and on the number of ranks, too. What happens to that size if "
            "the latency grows tenfold?"
        ),
    ),
)
