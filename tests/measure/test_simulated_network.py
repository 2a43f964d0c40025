"""A simulated network delivers copies, counts bytes and steps, and refuses what a cable cannot."""

import numpy as np
import pytest

from distlab.errors import InvalidArgument
from distlab.measure.simulated_network import Message, Network

ROW = np.arange(3, dtype=np.float32)


def test_a_step_delivers_to_each_target_a_copy_of_what_its_source_had():
    network, mine = Network(3), ROW.copy()
    received = network.step({(0, 1): mine, (1, 2): [mine, 2 * mine], (2, 0): {"a": mine}})
    mine += 1
    np.testing.assert_array_equal(received[1], ROW)
    np.testing.assert_array_equal(received[2], [ROW, 2 * ROW])
    np.testing.assert_array_equal(received[0]["a"], ROW)


def test_bytes_and_steps_are_counted():
    network = Network(3)
    network.step({(0, 1): ROW, (1, 0): ROW[:1]})
    network.step({(0, 2): [ROW, ROW]})
    network.step({})
    assert network.steps == 3
    assert network.bytes_sent.tolist() == [36, 4, 0]
    assert network.bytes_received.tolist() == [4, 12, 24]
    assert network.busiest_link_bytes == 36
    assert network.messages[-1] == Message(step=1, source=0, target=2, bytes=24)


def test_a_network_that_was_not_used_has_carried_nothing():
    assert (Network(2).busiest_link_bytes, Network(2).steps) == (0, 0)


@pytest.mark.parametrize(
    ("pairs", "found", "do"),
    [
        ([(0, 1), (0, 2)], "rank 0 sends 2 messages in one step", "spread them over several steps"),
        ([(0, 1), (2, 1)], "rank 1 receives 2 messages in one step", "spread them over"),
        ([(1, 1)], "rank 1 sends to itself", "send to a different rank"),
        ([(0, 3)], "(0, 3) with 3 ranks", "use ranks from 0 to 2"),
        ([(-1, 0)], "(-1, 0) with 3 ranks", "use ranks from 0 to 2"),
    ],
)
def test_what_no_cable_can_carry_is_refused_and_not_counted(pairs, found, do):
    network = Network(3)
    with pytest.raises(InvalidArgument) as refused:
        network.step(dict.fromkeys(pairs, ROW))
    assert refused.value.found == found
    assert refused.value.do.startswith(do)
    assert (network.steps, network.messages) == (0, [])


def test_a_network_needs_a_rank():
    with pytest.raises(InvalidArgument, match="no rank"):
        Network(0)
