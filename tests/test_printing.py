import numpy as np
import pytest

import distlab as dl


@pytest.mark.parametrize(
    ("value", "options", "printed"),
    [
        (0.693147, {"digits": 3}, "x: 0.693"),
        (-1e-9, {}, "x: 0"),
        (1200.0, {"digits": 0}, "x: 1200"),
        (True, {}, "x: True"),
        ("text", {}, "x: text"),
        ([1, 2.5], {}, "x: [1, 2.5]"),
        ({"a": 1.23456}, {"digits": 2}, "x: a 1.23"),
        (np.float32(0.1), {}, "x: 0.1"),
        (np.eye(2), {}, "x: \n[1, 0]\n[0, 1]"),
        (0.5, {"expected": 0.5}, "x: 0.5 = 0.5 expected"),
        (0.5, {"expected": 0.51}, "x: 0.5 is NOT 0.51 expected"),
        (0.50004, {"expected": 0.5}, "x: 0.5 = 0.5 expected"),
        ([8, 8], {"expected": (8, 8)}, "x: [8, 8] = [8, 8] expected"),
        ([8, 8], {"expected": [8]}, "x: [8, 8] is NOT [8] expected"),
        ("a", {"expected": "b"}, "x: a is NOT b expected"),
        (1.2e-7, {"below": 1e-6}, "x: less than 1e-06"),
        (0.5, {"below": 1e-6}, "x: 0.5, NOT below 1e-06"),
        (float("nan"), {"below": 1e-6}, "x: nan, NOT below 1e-06"),
    ],
)
def test_values_are_printed_rounded_beside_what_they_should_be(capsys, value, options, printed):
    dl.show("x", value, **options)
    assert capsys.readouterr().out == printed + "\n"


def test_tensors_are_printed_as_their_values(capsys):
    import tensorflow as tf

    dl.show("x", tf.constant([1.0, 2.00001]))
    assert capsys.readouterr().out == "x: [1, 2]\n"


def test_values_of_replicas_are_printed_in_their_order(capsys):
    import tensorflow as tf

    strategy = dl.make_strategy("mirrored", devices=2)
    ids = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    dl.show("x", ids)
    assert capsys.readouterr().out == "x: [0, 1]\n"


def test_what_is_no_number_is_printed_as_it_is(capsys):
    dl.show("x", {1})
    assert capsys.readouterr().out == "x: {1}\n"
