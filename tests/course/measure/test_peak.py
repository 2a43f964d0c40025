"""Peaks of memory: what a call holds at once, beside what was there before."""

import pytest
import tensorflow as tf

from distlab.course.measure.peak import peak_bytes

MB = 2**20


def ones(megabytes):
    return tf.ones([megabytes, MB // 4])


def test_a_peak_is_what_a_call_holds_at_once_without_what_was_there_before():
    kept = ones(16)
    assert peak_bytes(lambda: ones(4)) == pytest.approx(4 * MB, rel=0.05)
    assert peak_bytes(lambda: [ones(4), ones(4)]) == pytest.approx(8 * MB, rel=0.05)
    assert peak_bytes(lambda: [ones(4).device, ones(4)]) == pytest.approx(4 * MB, rel=0.05)
    assert kept.shape == (16, MB // 4)


def test_calls_that_come_first_count_in_no_peak():
    sizes = iter([8, 1, 1, 1])
    assert peak_bytes(lambda: ones(next(sizes))) == pytest.approx(1 * MB, rel=0.05)
