import os
import threading

import numpy as np
import psutil
import pytest

from distlab.autograder.isolation.judge_process import COULD_NOT_JUDGE, Judge
from distlab.autograder.isolation.run_isolated import Question, ask
from distlab.checks.registry import find_check
from distlab.checks.run_check import Called, call_check, judge_called, report_on, run_check
from distlab.errors import InvalidArgument
from distlab.results.failures import Failure, FailureKind
from distlab.results.plain_values import encode
from distlab.warm.process import can_fork
from tests.support.questions import SPLIT, asked, cells_of, wait_until

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")

# Checks whose judges show where they are, and do what a broken one might.
STRANGE = """
import os, sys, time
from distlab.checks import Check, Mistake, Verdict, expect_true

def judge(inputs, outputs):
    what = outputs["what"]
    if what == "hang": time.sleep(600)
    if what == "end": os._exit(0)
    if what == "leave": sys.exit(3)
    if what == "nothing": return None
    if what == "grow": bytearray(16 * 2**30)
    if what == "print": print("for the pipe", flush=True); os.write(1, b"more")
    if what == "long": return Verdict.of(expect_true("x" * 2_000_000, False, message=""))
    names = [repr(module) for module in sys.modules.values()]
    told = f"{os.getpid()} {any('handed_in' in name for name in names)} {os.environ}"
    return Verdict.of(expect_true(told, what != "fail", message="no"))

CHECKS = (
    Check(
        name="strange", function="f", title="Strange", points=2, hint="", revisit="",
        inputs=lambda seed: {"seed": seed}, call=lambda f, inputs: f(inputs), judge=judge,
        mistakes=(Mistake("failing", "It fails.", when=lambda i, o: o["what"] == "fail"),),
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
    with Judge(extra_checks=private, limit_secs=2) as judge:
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


@pytest.mark.parametrize("function", [right, whole, stub, broken, printing, three_right])
def test_a_report_is_the_one_that_the_notebook_gives(judge, function):
    check = find_check("slices")
    called = [call_check(check, function, seed) for seed in (1, 2, 3)]
    called = called[:1] if called[0].failure else called
    assert judge.report("slices", called) == run_check(check, function)


def test_numbers_of_numpy_in_a_report_come_through(judge):
    check = find_check("combine_shares")
    called = [Called(1, encode({"nothing": np.float32(1).item()}))]
    assert judge.report(check.name, called) == report_on(check, [judge_called(check, called[0])])


def test_an_answer_that_was_asked_for_is_judged(judge):
    report = judge.report("slices", asked(SPLIT).called)
    assert (report.status, report.earned, report.points) == ("passed", 2, 2)


@pytest.mark.parametrize(
    ("exercise", "check"),
    [
        *(("00_start_here", check) for check in ("slices", "file_slices", "brightness", "who_saw")),
        *(("03_custom_training_loop", check) for check in ("repair_losses", "exact_loss")),
        *(("03_custom_training_loop", check) for check in ("train_in_calls", "train")),
    ],
)
def test_honest_answers_of_exercises_earn_all_points_and_no_suspicion(judge, exercise, check):
    question = Question(check=check, cells=cells_of(f"solutions/{exercise}.ipynb"), seeds=(4,))
    outcome = ask(question, allow_root=True)
    report = judge.report(check, outcome.called)
    assert (report.status, report.earned) == ("passed", report.points)
    assert (outcome.stopped, outcome.review) == ("", ())


def test_judging_is_elsewhere_and_always_in_the_same_process(strange):
    first, second = strange("pass"), strange("pass")
    assert first.passed
    assert judged_in(first) == judged_in(second) != os.getpid()
    assert "False" in first.criteria[0].label


def test_a_mistake_of_a_teachers_own_check_is_named(strange):
    report = strange("fail")
    assert (report.status, report.earned, report.mistake) == ("not yet", 0, "failing")


@pytest.mark.parametrize("what", ["hang", "end", "leave", "long"])
def test_a_judge_that_does_not_answer_is_replaced(strange, what):
    before = judged_in(strange("pass"))
    report = strange(what)
    assert (report.status, report.earned, report.points) == ("not yet", 0, 2)
    assert report.message == COULD_NOT_JUDGE == "The check could not judge this answer."
    assert (report.name, report.function, report.title) == ("strange", "f", "Strange")
    assert not psutil.pid_exists(before)
    after = strange("pass")
    assert after.passed
    assert judged_in(after) != before


def test_what_a_judge_raises_is_told(strange):
    report = strange("nothing")
    assert report.earned == 0
    assert report.message.startswith(
        f"{COULD_NOT_JUDGE} (InvalidArgument: the verdict of check 'strange'\n  found: a NoneType"
    )


def test_an_answer_that_grows_as_it_is_judged_has_a_limit(strange):
    before = judged_in(strange("pass"))
    report = strange("grow")
    assert report.earned == 0
    assert report.criteria[0].message == "the check cannot read it (MemoryError: )"
    assert judged_in(strange("pass")) == before


def test_what_a_judge_prints_is_no_matter(strange):
    assert strange("print").passed


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"distlab1",
        b"no bytes of encode",
        encode([np.zeros(3)])[:-5],
        encode([np.zeros(3)]).replace(b"(3,)", b"(9" + b"9" * 12 + b",)")[:200],
        b"distlab1" + (100_000).to_bytes(8, "big") + b"[" * 100_000,
        b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.",
    ],
)
def test_bytes_that_no_answer_gives_earn_nothing(judge, payload):
    report = judge.report("slices", [Called(1, payload)])
    assert report.earned == 0
    assert report.status == "not yet"
    assert (
        judge.report("slices", [Called(1, failure=Failure(FailureKind.ERROR, "x"))]).failure.error
        == "x"
    )


def test_large_answers_are_judged(strange):
    assert strange("pass", array=np.zeros(4_000_000)).passed


def test_one_failed_call_costs_the_points(judge):
    called = [*asked(SPLIT).called, Called(3, failure=Failure(FailureKind.ERROR, "Stopped: late"))]
    report = judge.report("slices", called)
    assert (report.status, report.earned) == ("error in your code", 0)


def test_threads_share_a_judge(judge):
    check = find_check("slices")
    called = {f: [call_check(check, f, 1)] for f in (right, whole)}
    found = []

    def ask(function):
        for _ in range(10):
            found.append((function, judge.report("slices", called[function]).passed))

    threads = [threading.Thread(target=ask, args=(function,)) for function in (right, whole)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found, key=str) == sorted([(right, True), (whole, False)] * 10, key=str)


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


def test_nothing_to_judge_and_unknown_checks_are_refused(judge):
    with pytest.raises(InvalidArgument) as caught:
        judge.report("slices", [])
    assert str(caught.value) == (
        "the report on 'slices'\n  found: no calls, so anything would pass\n"
        "  to do: give what ask returned"
    )
    with pytest.raises(InvalidArgument, match="no check of that name"):
        judge.report("strange", [called_with("pass")])
