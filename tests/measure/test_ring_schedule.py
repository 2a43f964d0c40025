"""The schedules of all-reduces: everyone ends with everything, in as many steps as theory says."""

from math import ceil, log2

import numpy as np
import pytest

from distlab.errors import InvalidArgument
from distlab.measure.ring_schedule import (
    ALGORITHMS,
    Transfer,
    all_gather_steps,
    all_reduce_steps,
    holdings,
    reduce_scatter_steps,
)
from distlab.measure.simulated_network import Network

RANKS = (2, 3, 4, 7, 8)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", RANKS)
def test_after_an_all_reduce_each_chunk_contains_the_values_of_all_ranks(algorithm, ranks):
    steps = all_reduce_steps(algorithm, ranks)
    held = holdings(steps, ranks)
    assert held.shape == (len(steps) + 1, ranks, ranks, ranks)
    assert not held[-2].all()
    assert held[-1].all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", RANKS)
def test_no_value_is_added_twice(algorithm, ranks):
    steps = all_reduce_steps(algorithm, ranks)
    held = holdings(steps, ranks)
    for before, step in zip(held, steps, strict=False):
        for one in step:
            if one.adds:
                both = before[one.source] & before[one.target]
                assert not both[list(one.chunks)].any()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", RANKS)
def test_a_network_carries_each_step(algorithm, ranks):
    """No rank sends or receives twice in a step, and the bytes are those that theory says."""
    network, steps = Network(ranks), all_reduce_steps(algorithm, ranks)
    for step in steps:
        network.step({(t.source, t.target): np.ones(len(t.chunks), np.int8) for t in step})
    theory = {
        "naive": (2 * (ranks - 1), ranks - 1),
        "tree": (2 * ceil(log2(ranks)), ceil(log2(ranks))),
        "ring": (2 * (ranks - 1), 2 * (ranks - 1) / ranks),
    }
    assert network.steps == theory[algorithm][0]
    assert network.busiest_link_bytes / ranks == pytest.approx(theory[algorithm][1])


@pytest.mark.parametrize("ranks", RANKS)
def test_after_a_reduce_scatter_rank_r_has_the_sum_of_chunk_r_plus_1_and_of_no_other(ranks):
    finished = holdings(reduce_scatter_steps(ranks), ranks)[-1].all(axis=-1)
    np.testing.assert_array_equal(finished, np.roll(np.eye(ranks, dtype=bool), 1, axis=1))


def test_the_ring_is_a_reduce_scatter_and_then_an_all_gather():
    steps = reduce_scatter_steps(4) + all_gather_steps(4)
    assert all_reduce_steps("ring", 4) == steps
    assert steps[0][0] == Transfer(source=0, target=1, chunks=(0,), adds=True)
    assert steps[3][0] == Transfer(source=0, target=1, chunks=(1,), adds=False)


@pytest.mark.parametrize(
    ("algorithm", "ranks", "found"),
    [("star", 4, "no algorithm 'star'"), ("ring", 1, "fewer than 2 ranks")],
)
def test_what_there_is_no_schedule_for_is_refused(algorithm, ranks, found):
    with pytest.raises(InvalidArgument) as refused:
        all_reduce_steps(algorithm, ranks)
    assert refused.value.found == found
    assert "naive, tree, ring" in refused.value.do
