"""What a check is stated in: criteria that gate each other, and mistakes of three kinds."""

import numpy as np

from distlab.course.checks import (
    Check,
    Choice,
    Close,
    Cost,
    Equal,
    Fault,
    Form,
    Gate,
    Holds,
    Observed,
    Raises,
    Then,
)
from distlab.course.checks.run_check import run_check

SUM = Close("sum", "the sum", atol=1e-6, points=2)
FIRST = Equal("first", "the first number")
WHOLE = Holds("a whole number", lambda given, out: out["sum"] % 1 == 0, "yours is none")


def reference(given, *, times=1, first=0):
    return {"sum": sum(given["numbers"]) * times, "first": given["numbers"][first]}


def stated(*criteria, mistakes=(), **how):
    how = {"reference": reference, "call": lambda function, given: function(given), **how}
    return Check(
        name="probe",
        title="A probe",
        cost=Cost.PURE,
        inputs=lambda seed: {"numbers": np.random.default_rng(seed).permutation(9)[:3].tolist()},
        criteria=criteria,
        mistakes=mistakes,
        hint="",
        revisit="",
        **how,
    )


def asked(check, **wrong):
    """The report on an answer that is right but for what is given."""
    return run_check(check, lambda given: {**reference(given), **wrong})


def labels(report):
    return [criterion.label for criterion in report.criteria]


def test_points_are_those_of_the_criteria():
    check = stated(SUM, Then(FIRST, WHOLE))
    assert check.points == 4
    assert check.function == "probe"
    assert asked(check).earned == 4
    assert asked(check, first=None).earned == 3


def test_what_comes_then_counts_and_shows_only_if_all_above_is_right():
    report = asked(stated(SUM, FIRST, Then(WHOLE)), first=None)
    assert (report.earned, labels(report)) == (2, ["the sum", "the first number"])
    report = asked(stated(SUM, FIRST, Then(WHOLE, after=any)), first=None)
    assert (report.earned, len(report.criteria)) == (3, 3)


def test_a_gate_earns_nothing_and_shows_only_if_it_fails():
    check = stated(Gate(FIRST), SUM)
    assert (check.points, labels(asked(check))) == (2, ["the sum"])
    report = asked(check, first=None)
    assert (report.earned, labels(report)) == (0, ["the first number"])


def test_a_form_shows_what_was_returned():
    check = stated(Form("a dictionary", lambda given, out: isinstance(out, dict)), SUM)
    assert "yours returned [1, 2]" in repr(run_check(check, lambda given: [1, 2]))
    assert "nothing: is there a `return`?" in repr(run_check(check, lambda given: None))


def test_a_choice_asks_and_does_not_say_the_answer():
    row = Choice("case", "case A", among=("right", "also", "wrong"), ask="who waits?")
    check = stated(row, reference=lambda given: {"case": ["right", "also"]})
    assert run_check(check, lambda given: {"case": "also"}).passed
    for answer, said in (("wrong", "who waits?"), ("x", "not one of"), (None, "a `return`?")):
        report = run_check(check, lambda given, answer=answer: {"case": answer})
        assert said in report.criteria[0].message
        assert report.criteria[0].expected == ""


def test_a_fault_is_known_by_what_its_change_moves():
    twice = Fault("twice", times=2).or_with(times=3)
    last = Fault("last", first=-1)
    check = stated(SUM, FIRST, mistakes=(twice, last))

    def answer(times=1, first=0, **wrong):
        return run_check(
            check, lambda given: {**reference(given, times=times, first=first), **wrong}
        )

    assert answer(times=2).mistake == answer(times=3).mistake == "twice"
    assert answer(times=2, first=-1).mistake == "twice"  # and the other one is there, too
    assert answer(first=-1).mistake == "last"
    assert answer(times=5).mistake == ""
    assert answer(times=2, sum=None).mistake == ""


def test_events_are_known_by_an_error_or_by_what_was_noted():
    noted = Observed("negative", lambda given, out: out["sum"] < 0).feedback("Below 0.")
    raised = Raises("divided", "ZeroDivisionError").feedback("By 0.")
    check = stated(SUM, mistakes=(noted, raised))
    assert asked(check, sum=-1).mistake_says == "Below 0."
    assert run_check(check, lambda given: 1 / 0).mistake_says == "By 0."


def test_what_is_read_is_what_criteria_and_mistakes_see():
    check = stated(
        SUM,
        read=lambda given, outputs: {"sum": outputs["sum"] / 2},
        mistakes=(Fault("twice", times=2),),
    )
    assert run_check(check, lambda given: reference(given, times=2)).passed
    assert run_check(check, lambda given: reference(given, times=4)).mistake == "twice"
