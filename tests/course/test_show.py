import numpy as np

import distlab as dl

CASES = [
    (0.693147, {"digits": 3}, "0.693"),
    (-1e-9, {}, "0"),
    (1200.0, {"digits": 0}, "1200"),
    (True, {}, "True"),
    ("text", {}, "text"),
    ({1}, {}, "{1}"),
    ([1, 2.5], {}, "[1, 2.5]"),
    ({"a": 1.23456}, {"digits": 2}, "a 1.23"),
    (np.float32(0.1), {}, "0.1"),
    (np.eye(2), {}, "\n[1, 0]\n[0, 1]"),
    (0.5, {"expected": 0.5}, "0.5 = 0.5 expected"),
    (0.5, {"expected": 0.51}, "0.5 is NOT 0.51 expected"),
    (0.50004, {"expected": 0.5}, "0.5 = 0.5 expected"),
    ([8, 8], {"expected": (8, 8)}, "[8, 8] = [8, 8] expected"),
    ([8, 8], {"expected": [8]}, "[8, 8] is NOT [8] expected"),
    ("a", {"expected": "b"}, "a is NOT b expected"),
    (1.2e-7, {"below": 1e-6}, "less than 1e-06"),
    (0.5, {"below": 1e-6}, "0.5, NOT below 1e-06"),
    (float("nan"), {"below": 1e-6}, "nan, NOT below 1e-06"),
]


def printed(capsys, value, **options):
    dl.show("x", value, **options)
    return capsys.readouterr().out


def test_values_are_printed_rounded_beside_what_they_should_be(capsys):
    for value, options, text in CASES:
        assert printed(capsys, value, **options) == f"x: {text}\n"


def test_tensors_and_values_of_replicas_are_printed_as_their_values(capsys):
    import tensorflow as tf

    assert printed(capsys, tf.constant([1.0, 2.00001])) == "x: [1, 2]\n"
    strategy = dl.make_strategy("mirrored", devices=2)
    ids = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    assert printed(capsys, ids) == "x: [0, 1]\n"
