"""A step holds and sends what the papers count, and nonsense is refused."""

from itertools import product
from typing import get_args

import pytest

from distlab.course.measure.step_bytes import (
    Optimizer,
    Precision,
    Sharding,
    held_bytes,
    sent_bytes,
)
from distlab.errors import InvalidArgument

SEVEN_BILLION = 7_000_000_000


def test_adam_in_mixed_precision_takes_the_16_bytes_of_the_zero_paper():
    assert sum(held_bytes(SEVEN_BILLION, precision="mixed").values()) / 1e9 == 112
    held = held_bytes(1, precision="mixed")
    assert held == {"weights": 2, "gradients": 2, "optimizer state": 12}


def test_other_precisions_take_their_bytes():
    for precision, each in {"float32": 16, "mixed in Keras": 18, "bfloat16": 8}.items():
        assert sum(held_bytes(10, precision=precision).values()) == 10 * each, precision


def test_the_stages_hold_what_the_zero_paper_says():
    # The paper's table for 7.5 billion parameters on 64 GPUs.
    stages = {"mirrored": 120, "ZeRO 1": 31.4, "ZeRO 2": 16.6, "ZeRO 3, FSDP": 1.9}
    for sharding, gb in stages.items():
        held = held_bytes(7_500_000_000, replicas=64, sharding=sharding, precision="mixed")
        assert sum(held.values()) / 1e9 == pytest.approx(gb, abs=0.05), sharding


def test_one_replica_divides_and_sends_nothing():
    for precision, optimizer in product(get_args(Precision), get_args(Optimizer)):
        alike = {"precision": precision, "optimizer": optimizer}
        held = [held_bytes(1001, sharding=kind, **alike) for kind in get_args(Sharding)]
        assert held == [held[0]] * 4, alike
    assert sent_bytes(1000, replicas=1, sharding="ZeRO 3, FSDP") == 0


def test_zero_1_sends_what_an_all_reduce_sends_and_zero_3_half_more():
    sent = {kind: sent_bytes(1000, replicas=8, sharding=kind) for kind in get_args(Sharding)}
    assert sent["mirrored"] == 2 * 7 / 8 * 4000
    assert sent["ZeRO 1"] == sent["ZeRO 2"] == sent["mirrored"]
    assert sent["ZeRO 3, FSDP"] == 1.5 * sent["mirrored"]


def test_nonsense_is_refused():
    cases = {
        "pass at least 1 parameter and 1 replica": {"replicas": 0},
        "pass one of mirrored, ZeRO 1": {"replicas": 2, "sharding": "ZeRO 4"},
        "pass one of float32, mixed": {"replicas": 2, "precision": "int8"},
    }
    for (do, options), count in product(cases.items(), (held_bytes, sent_bytes)):
        with pytest.raises(InvalidArgument, match=do):
            count(5, **options)
    with pytest.raises(InvalidArgument, match="pass one of SGD, SGD with momentum, Adam"):
        held_bytes(5, optimizer="adamw")
