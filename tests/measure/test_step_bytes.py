"""The bytes of a step are those that the papers count, and nonsense is refused."""

from typing import get_args

import pytest

from distlab.errors import InvalidArgument
from distlab.measure.step_bytes import Optimizer, Precision, Sharding, held_bytes, sent_bytes

SEVEN_BILLION = 7_000_000_000


def total_gb(**how):
    return sum(held_bytes(SEVEN_BILLION, **how).values()) / 1e9


def test_adam_in_mixed_precision_takes_the_16_bytes_of_the_zero_paper():
    assert total_gb(precision="mixed") == 112
    held = held_bytes(1, precision="mixed")
    assert held == {"weights": 2, "gradients": 2, "optimizer state": 12}


@pytest.mark.parametrize(
    ("precision", "each"), [("float32", 16), ("mixed in Keras", 18), ("bfloat16", 8)]
)
def test_other_precisions_take_their_bytes(precision, each):
    assert sum(held_bytes(10, precision=precision).values()) == 10 * each


@pytest.mark.parametrize(
    ("sharding", "gb"),
    # The paper's table for 7.5 billion parameters on 64 GPUs: 120, 31.4, 16.6 and 1.9 GB.
    [("mirrored", 120), ("ZeRO 1", 31.4), ("ZeRO 2", 16.6), ("ZeRO 3, FSDP", 1.9)],
)
def test_the_stages_hold_what_the_zero_paper_says(sharding, gb):
    held = held_bytes(7_500_000_000, replicas=64, sharding=sharding, precision="mixed")
    assert sum(held.values()) / 1e9 == pytest.approx(gb, abs=0.05)


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_one_replica_divides_nothing(precision, optimizer):
    alike = {"precision": precision, "optimizer": optimizer}
    held = [held_bytes(1001, sharding=kind, **alike) for kind in get_args(Sharding)]
    assert held == [held[0]] * 4


def test_a_piece_is_rounded_up_to_whole_parameters():
    assert held_bytes(10, replicas=4, sharding="ZeRO 1")["optimizer state"] == 3 * 8


def test_optimizers_keep_their_numbers():
    states = [held_bytes(10, optimizer=name)["optimizer state"] for name in get_args(Optimizer)]
    assert states == [0, 40, 80]


def test_zero_1_sends_what_an_all_reduce_sends_and_zero_3_half_more():
    sent = {kind: sent_bytes(1000, replicas=8, sharding=kind) for kind in get_args(Sharding)}
    assert sent["mirrored"] == 2 * 7 / 8 * 4000
    assert sent["ZeRO 1"] == sent["ZeRO 2"] == sent["mirrored"]
    assert sent["ZeRO 3, FSDP"] == 1.5 * sent["mirrored"]


def test_one_replica_sends_nothing():
    assert sent_bytes(1000, replicas=1, sharding="ZeRO 3, FSDP") == 0


@pytest.mark.parametrize(
    ("how", "found", "do"),
    [
        ({"replicas": 0}, "nothing to count", "pass at least 1 parameter and 1 replica"),
        ({"replicas": 2, "sharding": "ZeRO 4"}, "'ZeRO 4'", "pass one of mirrored, ZeRO 1"),
        ({"replicas": 2, "precision": "int8"}, "'int8'", "pass one of float32, mixed"),
    ],
)
@pytest.mark.parametrize("count", [held_bytes, sent_bytes])
def test_nonsense_is_refused(count, how, found, do):
    with pytest.raises(InvalidArgument) as caught:
        count(5, **how)
    assert caught.value.found == found
    assert do in caught.value.do


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(InvalidArgument, match="to do: pass one of SGD, SGD with momentum, Adam"):
        held_bytes(5, optimizer="adamw")
