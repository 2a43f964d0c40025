"""A call that a prediction asks about ends with its result or its error."""

import pytest

from distlab.coursework.what_happens import what_happens


def test_a_result_comes_back():
    assert what_happens(lambda: 40 + 2) == 42
    assert what_happens(lambda: None) is None


def test_an_error_comes_back_with_its_text():
    error = what_happens(lambda: [] * "10")
    assert isinstance(error, TypeError)
    assert "can't multiply" in str(error)


def test_an_interrupt_is_no_outcome():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        what_happens(interrupt)
