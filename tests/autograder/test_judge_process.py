"""What is judged is judged in a process of its own, which nothing that an answer gives can end."""

import os

import numpy as np
import psutil
import pytest

from distlab.autograder.isolation.judge_process import COULD_NOT_JUDGE, Judge
from distlab.course.checks.registry import find_check
from distlab.course.checks.run_check import Called, call_check, run_check
from distlab.course.results.failures import Failure, FailureKind
from distlab.course.results.plain_values import encode
from distlab.warm.process import can_fork
from tests.support.questions import wait_until

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")

# Checks whose judges show where they are, and do what a broken one might.
STRANGE = """
import os, sys, time
from distlab.course.checks import Check, Criterion, Observed
from distlab.course.checks.criteria import Expectation

class Strange(Expectation):
    def look(self, inputs, outputs, right):
        what = outputs["what"]
        if what == "hang": time.sleep(600)
        if what == "end": os._exit(0)
        if what == "leave": sys.exit(3)
        if what == "nothing": return None
        if what == "grow": bytearray(16 * 2**30)
        if what == "print": print("for the pipe", flush=True); os.write(1, b"more")
        if what == "long": return Criterion("x" * 2_000_000, False)
        names = [repr(module) for module in sys.modules.values()]
        told = f"{os.getpid()} {any('handed_in' in name for name in names)} {os.environ}"
        return Criterion(told, what != "fail")

CHECKS = (
    Check(
        name="strange", function="f", title="Strange", points=2, hint="", revisit="",
        inputs=lambda seed: {"seed": seed}, call=lambda f, inputs: f(inputs),
        criteria=(Strange(points=2),),
        mistakes=(Observed("failing", lambda i, o: o["what"] == "fail").feedback("It fails."),),
    ),
)
"""


@pytest.fixture(scope="module")
def judge():
    with Judge() as judge:
        yield judge


@pytest.fixture
def strange(tmp_path):
    private = tmp_path / "private.py"
    private.write_text(STRANGE)
    with Judge(extra_checks=private, limit_secs=10) as judge:
        yield lambda what, **other: judge.report("strange", [called_with(what, **other)])


def called_with(what, seed=1, **other):
    return Called(seed, encode({"what": what, **other}))


def judged_in(report):
    """The process that judged."""
    return int(report.criteria[0].label.split()[0])


def right(examples, replicas):
    piece = -(-examples // replicas)
    return [max(0, min(piece, examples - piece * replica)) for replica in range(replicas)]


def whole(examples, replicas):
    return [examples] * replicas


def stub(examples, replicas):
    raise NotImplementedError


def broken(examples, replicas):
    return 1 / 0


def printing(examples, replicas):
    print("here \ud800")  # noqa: T201
    return [0] * replicas


def three_right(examples, replicas):
    return right(examples, replicas) if examples % replicas == 0 else [np.nan]


def test_a_report_is_the_one_that_the_notebook_gives(judge):
    check = find_check("slices")
    for function in (right, whole, stub, broken, printing, three_right):
        called = [call_check(check, function, seed) for seed in (1, 2, 3)]
        called = called[:1] if called[0].failure else called
        assert judge.report("slices", called) == run_check(check, function), function.__name__


def test_one_failed_call_costs_the_points(judge):
    called = [call_check(find_check("slices"), right, seed) for seed in (1, 2)]
    assert judge.report("slices", called).earned == 2
    late = Called(3, failure=Failure(FailureKind.ERROR, "Stopped: late"))
    report = judge.report("slices", [*called, late])
    assert (report.status, report.earned) == ("error in your code", 0)


def test_judging_is_elsewhere_and_always_in_the_same_process(strange):
    first, second = strange("pass"), strange("pass")
    assert first.passed
    assert judged_in(first) == judged_in(second) != os.getpid()
    assert "False" in first.criteria[0].label
    wrong = strange("fail")
    assert (wrong.status, wrong.earned, wrong.mistake) == ("not yet", 0, "failing")


def test_a_judge_that_does_not_answer_is_replaced(strange):
    for what in ("hang", "end", "leave", "long"):
        before = judged_in(strange("pass"))
        report = strange(what)
        assert (report.status, report.earned, report.points) == ("not yet", 0, 2), what
        assert report.message == COULD_NOT_JUDGE == "The check could not judge this answer."
        assert (report.name, report.function, report.title) == ("strange", "f", "Strange")
        assert not psutil.pid_exists(before)
        after = strange("pass")
        assert after.passed and judged_in(after) != before


def test_what_a_judge_raises_or_prints_or_takes_ends_nothing(strange):
    before = judged_in(strange("pass"))
    raised = strange("nothing")
    assert raised.earned == 0
    assert raised.message.startswith(f"{COULD_NOT_JUDGE} (AttributeError: 'NoneType'")
    grown = strange("grow")
    assert grown.earned == 0
    assert grown.criteria[0].message == "the check cannot read it (MemoryError: )"
    assert strange("print").passed
    assert judged_in(strange("pass", array=np.zeros(4_000_000))) == before


def test_bytes_that_no_answer_gives_earn_nothing(judge):
    payloads = (
        b"",
        b"distlab1",
        b"no bytes of encode",
        encode([np.zeros(3)])[:-5],
        encode([np.zeros(3)]).replace(b"(3,)", b"(9" + b"9" * 12 + b",)")[:200],
        b"distlab1" + (100_000).to_bytes(8, "big") + b"[" * 100_000,
        b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.",
    )
    for payload in payloads:
        report = judge.report("slices", [Called(1, payload)])
        assert (report.status, report.earned) == ("not yet", 0), payload[:20]


def test_a_closed_judge_leaves_no_process_and_can_be_used_again(tmp_path):
    private = tmp_path / "private.py"
    private.write_text(STRANGE)
    judge = Judge(extra_checks=private)
    pid = judged_in(judge.report("strange", [called_with("pass")]))
    assert psutil.pid_exists(pid)
    judge.close()
    judge.close()
    wait_until(lambda: not psutil.pid_exists(pid))
    with judge:
        assert judge.report("strange", [called_with("pass")]).passed
