"""The schedules of all-reduces, over a simulated network that counts as theory does."""

from math import ceil, log2

import numpy as np
import pytest

from distlab.course.lesson_12_ring_all_reduce.ring_schedule import (
    ALGORITHMS,
    all_reduce_steps,
    holdings,
    reduce_scatter_steps,
)
from distlab.course.lesson_12_ring_all_reduce.simulated_network import Message, Network
from distlab.errors import InvalidArgument

RANKS = (2, 3, 4, 7, 8)
ROW = np.arange(3, dtype=np.float32)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_after_an_all_reduce_each_chunk_contains_the_values_of_all_ranks_once(algorithm):
    for ranks in RANKS:
        steps = all_reduce_steps(algorithm, ranks)
        held = holdings(steps, ranks)
        assert held.shape == (len(steps) + 1, ranks, ranks, ranks)
        assert not held[-2].all() and held[-1].all(), ranks
        for before, step in zip(held, steps, strict=False):
            for transfer in step:
                if transfer.adds:
                    both = before[transfer.source] & before[transfer.target]
                    assert not both[list(transfer.chunks)].any(), (ranks, transfer)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_network_carries_each_step(algorithm):
    """No rank sends or receives twice in a step, and the bytes are those that theory says."""
    for ranks in RANKS:
        network, steps = Network(ranks), all_reduce_steps(algorithm, ranks)
        for step in steps:
            network.step({(t.source, t.target): np.ones(len(t.chunks), np.int8) for t in step})
        theory = {
            "naive": (2 * (ranks - 1), ranks - 1),
            "tree": (2 * ceil(log2(ranks)), ceil(log2(ranks))),
            "ring": (2 * (ranks - 1), 2 * (ranks - 1) / ranks),
        }
        assert network.steps == theory[algorithm][0], ranks
        assert network.busiest_link_bytes / ranks == pytest.approx(theory[algorithm][1]), ranks


def test_after_a_reduce_scatter_rank_r_has_the_sum_of_chunk_r_plus_1_and_of_no_other():
    for ranks in RANKS:
        finished = holdings(reduce_scatter_steps(ranks), ranks)[-1].all(axis=-1)
        np.testing.assert_array_equal(finished, np.roll(np.eye(ranks, dtype=bool), 1, axis=1))


def test_what_there_is_no_schedule_for_is_refused():
    for arguments, problem in ((("star", 4), "'star'"), (("ring", 1), "fewer than 2 ranks")):
        with pytest.raises(InvalidArgument, match=f"(?s){problem}.*naive, tree, ring"):
            all_reduce_steps(*arguments)


def test_a_network_delivers_copies_and_counts_bytes_and_steps():
    network, mine = Network(3), ROW.copy()
    assert (network.busiest_link_bytes, network.steps) == (0, 0)
    received = network.step({(0, 1): mine, (1, 0): [mine[:1]]})
    mine += 1
    np.testing.assert_array_equal(received[1], ROW)
    np.testing.assert_array_equal(received[0], [ROW[:1]])
    network.step({(0, 2): {"a": [ROW, ROW]}})
    assert network.steps == 2
    assert network.bytes_sent.tolist() == [36, 4, 0]
    assert network.bytes_received.tolist() == [4, 12, 24]
    assert network.messages[-1] == Message(step=1, source=0, target=2, bytes=24)


def test_what_no_cable_can_carry_is_refused_and_not_counted():
    cases = {
        "rank 0 sends 2 messages in one step": [(0, 1), (0, 2)],
        "rank 1 receives 2 messages in one step": [(0, 1), (2, 1)],
        "(0, 3) with 3 ranks": [(0, 3)],
    }
    for problem, pairs in cases.items():
        network = Network(3)
        with pytest.raises(InvalidArgument) as refused:
            network.step(dict.fromkeys(pairs, ROW))
        assert refused.value.found == problem
        assert (network.steps, network.messages) == (0, [])
