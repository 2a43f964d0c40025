"""A report's picture waits for the learner's answers, and says so."""

import sys

import pytest

from distlab.coursework.unfinished_answers import waits_for
from distlab.errors import InvalidArgument


def ended(error, *tasks):
    with waits_for(*tasks):
        raise error


def test_a_stub_is_waited_for_by_name(capsys):
    ended(NotImplementedError("your code here"), "loop", "scale")
    assert capsys.readouterr().out == (
        "This cell waits for loop and scale: write them above, then run this cell again.\n"
    )


def test_an_answer_that_fails_is_told_with_the_check_that_says_more(capsys):
    ended(TypeError("no such thing"), "loop")
    assert capsys.readouterr().out == (
        'No result: your code ended with TypeError: no such thing\ndl.check("loop") says more.\n'
    )


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), InvalidArgument(asked="a", found="b", do="c")], ids=type
)
def test_what_is_no_fault_of_the_answer_is_raised(error):
    with pytest.raises(type(error)):
        ended(error, "loop")


def test_an_answer_that_works_is_left_alone(capsys):
    with waits_for("loop"):
        sys.stdout.write("a picture")
    assert capsys.readouterr().out == "a picture"
