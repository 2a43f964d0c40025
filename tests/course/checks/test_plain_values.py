"""Between an answer and its judge go plain values, as bytes, and matchers compare them."""

import io

import numpy as np
import pytest

from distlab.course.checks import Check, Close
from distlab.course.checks.matchers import expect_close, same_plain
from distlab.course.checks.run_check import run_check
from distlab.course.results.plain_values import decode, encode, to_plain
from distlab.errors import InvalidArgument

CHECK = Check(
    name="probe",
    function="probe",
    title="Anything",
    points=1,
    inputs=lambda seed: {},
    call=lambda function, inputs: function(),
    read=lambda inputs, outputs: {"it": outputs},
    reference=lambda inputs: {"it": 2.0},
    criteria=(Close("it", "it", atol=1e-6),),
    hint="",
    revisit="",
)


def refusal(make):
    """What is wrong with a call, as its error says it."""
    with pytest.raises(InvalidArgument) as caught:
        make()
    return str(caught.value)


def test_plain_values_come_back_equal_and_of_exact_types():
    value = {
        "a": np.arange(6, dtype=np.int32).reshape(2, 3),
        "b": [1, 2.5, True, None, "text", float("inf")],
        "array": {"list": ["array", 0]},
        "c": np.array([1 + 2j]),
        "empty": np.zeros((0, 3)),
    }
    back = decode(encode(to_plain(value)))
    assert same_plain(back, value)
    assert back["a"].dtype == np.int32
    assert back["b"][2] is True
    assert to_plain((np.float32(0.5), np.int64(3), np.bool_(True))) == [0.5, 3, True]
    assert type(to_plain(np.float64(0.5))) is float


def test_a_subclass_that_equals_everything_becomes_what_it_holds():
    class Sly(float):
        def __eq__(self, other):
            return True

        __hash__ = float.__hash__

    class SlyArray(np.ndarray):
        def __eq__(self, other):
            return True

        def __sub__(self, other):
            return np.zeros(())

    class SlyText(str):
        def __str__(self):
            return "right"

    plain = decode(encode(to_plain([Sly(2), np.ones(2).view(SlyArray), SlyText("wrong")])))
    assert [type(item) for item in plain] == [float, np.ndarray, str]
    assert plain[2] == "wrong"
    assert run_check(CHECK, lambda: Sly(9)).status == "not yet"
    assert run_check(CHECK, lambda: np.array(9.0).view(SlyArray)).status == "not yet"


def test_anything_else_is_refused_with_its_place():
    endless: list = []
    endless.append(endless)
    values = {
        "the answer['a'][1]\n  found: a set": {"a": [1, {2}]},
        "an array of object": np.array([object()]),
        "a dict with the key 1": {1: 2},
        "a bytes": b"bytes",
        "more than 32 levels": endless,
    }
    wrong = {told: refusal(lambda v=value: to_plain(v)) for told, value in values.items()}
    assert {told: text for told, text in wrong.items() if told not in text} == {}


def test_bytes_that_encode_did_not_make_are_refused():
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    pickled = b"distlab1"
    for part in (b'["array", 0]', buffer.getvalue()):
        pickled += len(part).to_bytes(8, "big") + part
    payloads = {
        "other": b"other",
        "another version": b"distlab0" + encode([1])[8:],
        "cut off": encode([np.ones(3)])[:-4],
        "more": encode([1]) + b"\x00",
        "a pickle": pickled,
    }
    wrong = {name: refusal(lambda p=payload: decode(p)) for name, payload in payloads.items()}
    assert "allow_pickle=False" in wrong["a pickle"]
    assert [n for n, text in wrong.items() if "bytes that encode did not make" not in text] == []


def test_tensors_and_variables_become_arrays_and_others_are_refused():
    import tensorflow as tf

    from distlab.course.runs.replicas import mirrored

    assert np.asarray(to_plain(tf.constant(2.5))) == 2.5
    np.testing.assert_array_equal(to_plain(tf.Variable([1.0, 2.0])), [1.0, 2.0])
    half = to_plain(tf.constant([1.5, 2.5], tf.bfloat16))
    assert half.dtype == np.float32
    np.testing.assert_array_equal(half, [1.5, 2.5])

    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable(3.0)
    assert np.asarray(to_plain(variable)) == 3.0
    values = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    assert "strategy.experimental_local_results" in refusal(lambda: to_plain(values))

    @tf.function
    def inside(x):
        assert "a symbolic tensor, which has no value" in refusal(lambda: to_plain(x))
        return x

    inside(tf.constant(1.0))


def test_close_arrays_pass_and_far_ones_say_where():
    inf, nan = float("inf"), float("nan")
    near = expect_close("w", yours=[1.0, 2.0], expected=np.array([1, 2 + 1e-7]), atol=1e-6)
    assert (near.passed, near.message) == (True, "")
    far = expect_close("w", yours=[[1.0, 2.0]], expected=[[1.0, 5.0]], atol=1e-6)
    assert (far.passed, far.message) == (False, "1 of 2 places differ, by up to 3 (at [0, 1])")
    assert (far.yours, far.expected) == ("[[1., 2.]]", "[[1., 5.]]")
    short = expect_close("w", yours=[1.0], expected=[1.0, 5.0, 2.0], atol=1e-6)
    assert short.message == "the length is 1, expected 3"
    assert expect_close("x", yours=[inf, nan], expected=[inf, nan], atol=1e-6).passed
    for yours, expected in ((1.0, nan), (inf, 1.0)):
        assert not expect_close("x", yours=[yours], expected=[expected], atol=1e-6).passed
