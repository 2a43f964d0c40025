"""What `dl.check` says of an answer, held by the very check that its documentation shows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import re
import sys
import textwrap
import types

import numpy as np
import pytest
from IPython.core.events import EventManager, available_events

import distlab
import distlab.course
from distlab import errors
from distlab.course.checks import (
    Check,
    Close,
    Criterion,
    Fault,
    Holds,
    Then,
    Verdict,
    notebook_check,
)
from distlab.course.checks.criteria import Form
from distlab.course.checks.notebook_check import check
from distlab.course.checks.registry import checks_of
from distlab.course.checks.rubric import RubricRow, WrittenReport
from distlab.course.runs.replicas import mirrored

# The documentation's own example is the check of these tests, so it cannot rot.
DOCUMENTED = "".join(
    textwrap.dedent(part) + "\n"
    for part in re.findall(r"(?m)(?:^    .*\n|^\n)+", distlab.course.checks.__doc__ or "")
)
_namespace: dict = {"__name__": "documented"}
exec(compile(DOCUMENTED, "<documented>", "exec"), _namespace)
CHECK: Check = _namespace["CHECKS"][0]

MEAN_OF_MEANS = (
    "You averaged the replicas' means, so an example counts more if its replica has few of them. "
    "How much should each example count?"
)
say = functools.partial(print)  # what a learner prints, which a test otherwise must not


def combine(sums, counts):
    return sums.sum() / counts.sum()


def mean_of_means(sums, counts):
    return np.mean(sums / counts)


def stub(sums, counts):
    raise NotImplementedError("your code here")


def refusal(make):
    """What is wrong with a call, as its error says it."""
    with pytest.raises(errors.InvalidArgument) as caught:
        make()
    return str(caught.value)


@pytest.fixture(autouse=True)
def fresh_attempts():
    notebook_check._failed_tries.clear()


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """The documented check, as a lesson's module in the room."""
    lesson = tmp_path / "lesson_98_documented"
    lesson.mkdir()
    (lesson / "checks.py").write_text(DOCUMENTED)
    monkeypatch.setattr(distlab.course, "__path__", [str(tmp_path), *distlab.course.__path__])
    yield CHECK
    sys.modules.pop("distlab.course.lesson_98_documented.checks", None)


# The report


def test_a_right_answer_passes_and_a_wrong_one_is_shown_beside_the_expected_with_its_mistake():
    right = check(CHECK, combine)
    assert (right.status, right.earned, right.passed) == ("passed", 2, True)
    assert repr(right) == "combine_means: passed (2 of 2 points)\n  Well done.\n  [x] the mean"

    wrong = check(CHECK, mean_of_means)
    assert (wrong.status, wrong.earned, wrong.seed) == ("not yet", 0, 1)
    assert wrong.mistake == "mean_of_means"
    text = repr(wrong)
    assert text.startswith("combine_means: not yet (0 of 2 points)\n")
    assert "  [ ] not yet: the mean\n        off by 0.00967\n" in text
    assert "        yours:    0.00978181\n        expected: 0.0194482\n" in text
    assert text.endswith(f"  What this looks like: {MEAN_OF_MEANS}")
    # The code of a mistake is for programs.
    assert wrong.mistake not in (text + wrong._repr_html_()).replace("combine_means", "")


def test_a_mistake_is_named_only_when_it_explains_every_failed_draw():
    inputs = CHECK.inputs(1)
    first = mean_of_means(inputs["sums"], inputs["counts"])

    def half_and_half(sums, counts):
        mean = mean_of_means(sums, counts)
        return mean if np.isclose(mean, first) else -mean

    assert check(CHECK, lambda sums, counts: 1.0).mistake == ""
    assert check(CHECK, half_and_half).mistake == ""
    assert check(CHECK, half_and_half, seed=1).mistake == "mean_of_means"


def test_a_hard_coded_answer_passes_one_draw_and_not_the_check():
    inputs = CHECK.inputs(1)
    value = combine(inputs["sums"], inputs["counts"])
    assert check(CHECK, lambda sums, counts: value, seed=1).passed
    report = check(CHECK, lambda sums, counts: value)
    assert (report.status, report.earned, report.seed) == ("not yet", 0, 2)


def test_a_stub_is_not_started_and_an_error_shows_the_learners_lines_only():
    assert repr(check(CHECK, stub)) == (
        "combine_means: not started (0 of 2 points)\n"
        "  Ready when you are. Write `combine`, then check again."
    )
    calls = []

    def helper(x):
        return x + undefined_name  # noqa: F821

    def broken(sums, counts):
        calls.append(1)
        return helper(sums)

    report = check(CHECK, broken)
    assert (report.status, len(calls)) == ("error in your code", 1)
    text = re.sub(r"line \d+", "line N", repr(report))
    assert text == textwrap.dedent("""\
        combine_means: error in your code (0 of 2 points)
          Your code stopped with an error.
            line N in broken: return helper(sums)
            line N in helper: return x + undefined_name  # noqa: F821
            NameError: name 'undefined_name' is not defined""")


def test_errors_of_every_kind_are_told_as_the_learners():
    library = {"__name__": "library"}
    exec("def refuse():\n    raise NotImplementedError('not on this device')", library)

    def forever(sums, counts):
        return forever(sums, counts)

    def raising(error):
        def answer(sums, counts):
            raise error

        return answer

    device = errors.DeviceError(asked="2 devices", found="1", do="restart the kernel")
    in_graph = ValueError(
        'in user code:\n\n    File "/tmp/cell.py", line 3, in step  *\n        layer(x)\n'
        '    File "/env/site-packages/keras/layer.py", line 9, in call\n        self.go()\n\n'
        "    ValueError: wrong rank\n"
    )
    answers = {
        "of a library": (lambda sums, counts: library["refuse"](), "not on this device"),
        "recursion": (forever, "RecursionError"),
        "exit": (lambda sums, counts: sys.exit(3), "SystemExit"),
        "devices": (raising(device), "restart the kernel"),
        "autograph": (raising(in_graph), "line 3 in step: layer(x)"),
        "an address": (raising(ValueError(f"odd {object()!r}")), "at 0x...>"),
    }
    reports = {name: repr(check(CHECK, answer)) for name, (answer, _) in answers.items()}
    assert [
        f"{name}: {reports[name]}"
        for name, (_, told) in answers.items()
        if "error in your code" not in reports[name] or told not in reports[name]
    ] == []
    assert "self.go()" not in reports["autograph"]
    with pytest.raises(KeyboardInterrupt):
        check(CHECK, raising(KeyboardInterrupt()))


def test_answers_that_cannot_be_used_are_not_yet_and_say_why():
    answers = {
        "NaN at 1 of 1 places": float("nan"),
        "the shape is [3], expected [] (one number)": np.ones(3),
        "numbers were expected here, yours is a str: '0.5'": "0.5",
        "numbers were expected here, yours is a bool: True": True,
        "the answer of `combine`['mean']: found a set": {1, 2},
    }
    reports = {told: check(CHECK, lambda s, c, answer=a: answer) for told, a in answers.items()}
    assert [
        f"{told}: {report!r}"
        for told, report in reports.items()
        if (report.status, report.earned) != ("not yet", 0) or told not in repr(report)
    ] == []

    one_parameter = repr(check(CHECK, lambda sums: 1))
    assert "The check cannot use what `combine` takes or returns." in one_parameter
    assert "takes 1 positional argument but 2 were given" in one_parameter


def test_what_goes_wrong_in_the_check_is_not_told_as_the_learners():
    def call(function, inputs):
        return float(function(**inputs))

    report = check(dataclasses.replace(CHECK, call=call), lambda sums, counts: None)
    assert report.status == "not yet"
    assert "return float" not in repr(report) and "NoneType" in repr(report)

    def without_devices(function, inputs):
        raise errors.DeviceError(asked="2 devices", found="1", do="restart the kernel")

    with pytest.raises(errors.DeviceError, match="restart the kernel"):
        check(dataclasses.replace(CHECK, call=without_devices), combine)


def test_an_answer_that_changes_its_inputs_is_judged_on_the_true_ones():
    def cheat(sums, counts):
        sums[:] = 0
        counts[:] = 1
        return 0.0

    assert check(CHECK, cheat).status == "not yet"
    assert check(CHECK, combine).passed


def test_partial_credit_is_weighted_and_must_hold_in_every_draw():
    criteria = (
        Holds("one number", lambda given, out: np.ndim(out["mean"]) == 0, "no number", points=0.5),
        Close("mean", "the mean", atol=1e-6, points=1.5),
    )
    weighted = dataclasses.replace(CHECK, criteria=criteria)

    def luck(sums, counts):  # right in one draw, of another shape in the others
        mean = combine(sums, counts)
        return mean if np.isclose(mean, 0.0194482) else np.array([mean])

    assert check(weighted, luck, seed=1).earned == 2
    assert check(weighted, luck).earned == 0
    conditional = dataclasses.replace(CHECK, criteria=(criteria[0], Then(criteria[1])))
    assert check(conditional, luck).earned == 0, "a draw that does not look at it does not earn it"


def test_help_comes_in_three_steps_and_begins_again_after_a_pass(registered):
    def unknown(sums, counts):
        return 1.0

    check(CHECK, stub)  # which is no try
    first, second, third, fourth = (check(CHECK, unknown) for _ in range(4))
    assert (first.question, first.hint, first.revisit) == (CHECK.question, "", "")
    assert (second.question, second.hint, second.revisit) == (CHECK.question, CHECK.direction, "")
    assert (third.question, third.hint) == ("", CHECK.hint)
    assert 'Read again: "When a mean of means is wrong" in lesson 01' in repr(third)
    assert repr(fourth) == repr(third)
    check(CHECK, combine)
    # The feedback on a mistake asks a question of its own, and an error is answered first.
    assert (check(CHECK, mean_of_means).question, check(CHECK, mean_of_means).hint) == (
        "",
        CHECK.direction,
    )
    check(CHECK, combine)
    assert check(CHECK, lambda sums, counts: sums.nothing).question == ""


def test_an_answer_of_a_wrong_form_gets_no_question_about_its_content():
    form = Form("a number", lambda given, out: np.ndim(out["mean"]) == 0, key="mean")
    formed = dataclasses.replace(CHECK, criteria=(form, *CHECK.criteria))
    assert check(formed, lambda sums, counts: [1.0, 2.0]).question == ""
    assert check(formed, lambda sums, counts: 1.0).question == CHECK.question

    def unread(given, out):
        return out["mean"]["missing"]

    unreadable = dataclasses.replace(CHECK, criteria=(Holds("a sum", unread, "none"),))
    assert check(unreadable, lambda sums, counts: 1.0).question == ""


def test_what_is_printed_is_in_the_report_only_and_html_is_escaped(capsys):
    def broken(sums, counts):
        say("<script>in `ticks`\n  below")
        raise ValueError("<b>bold & odd</b>")

    report = check(CHECK, broken)
    assert capsys.readouterr().out == ""
    assert "Your code printed: <script>in `ticks`" in repr(report)
    html = report._repr_html_()
    assert "<script>" not in html and "in `ticks`\n  below</pre>" in html
    assert "&lt;b&gt;bold &amp; odd&lt;/b&gt;" in html
    wrong = check(CHECK, mean_of_means)._repr_html_()
    wrong = re.sub("<mark[^>]*>", "<mark>", wrong)
    yours = "yours:    <mark>0.00978181</mark>"
    for part in ("not yet:</b> the mean", yours, "What this looks like"):
        assert part in wrong
    odd = check(CHECK, lambda sums, counts: say("\udcff") or "\udcff")
    assert repr(odd).encode() and odd._repr_html_().encode()


def test_an_error_on_replicas_is_told_at_the_line_of_the_replica_that_made_it():
    import tensorflow as tf

    def meet(value):
        context = tf.distribute.get_replica_context()
        if context.replica_id_in_sync_group == 1:
            raise ValueError("only here")
        return context.all_reduce("SUM", value)

    def swapped(value):
        return tf.distribute.get_replica_context().all_reduce(value, "SUM")  # the other way round

    def caught_before(sums, counts):
        with contextlib.suppress(AttributeError):
            mirrored(2).run(swapped, args=(sums,))
        raise ValueError("later")

    def last_line(answer):
        return check(CHECK, answer).failure.lines[-1].partition(" in ")[2]

    waiting = last_line(lambda sums, counts: mirrored(2).run(meet, args=(sums,)))
    assert waiting == 'meet: raise ValueError("only here")'
    both = last_line(lambda sums, counts: mirrored(2).run(swapped, args=(sums,)))
    assert both.startswith("swapped: return tf.distribute.get_replica_context().all_reduce(")
    assert last_line(caught_before) == 'caught_before: raise ValueError("later")'


def test_answers_in_a_tf_function_show_their_own_lines_and_a_stub_is_quiet(capfd, caplog):
    import tensorflow as tf

    heard = []
    handler = logging.Handler()
    handler.emit = heard.append
    strategy = mirrored(2)

    def call(function, inputs):
        given = (inputs["sums"], inputs["counts"])
        return {"mean": tf.function(lambda: strategy.run(function, given))()}

    def broken(sums, counts):
        return tf.reshape(sums, [3, 3])

    def branching(sums, counts):
        if tf.reduce_sum(sums) > 1e9:
            return sums + undefined_name  # noqa: F821
        return sums

    compiled = dataclasses.replace(
        CHECK, call=lambda function, i: {"mean": tf.function(function)(i["sums"], i["counts"])}
    )
    spread = dataclasses.replace(CHECK, call=call)
    caplog.set_level(logging.INFO, logger="tensorflow")  # as it is in a notebook
    logging.getLogger("tensorflow").addHandler(handler)
    try:
        capfd.readouterr()
        assert check(compiled, stub).status == check(spread, stub).status == "not started"
        in_graph, on_replicas = (repr(check(kind, broken)) for kind in (compiled, spread))
        branched = repr(check(compiled, branching))
        assert heard == [] and "Coordinator" not in "".join(capfd.readouterr())
        logging.getLogger("tensorflow").warning("heard again")
    finally:
        logging.getLogger("tensorflow").removeHandler(handler)
    assert [record.getMessage() for record in heard] == ["heard again"]
    assert "in broken: return tf.reshape(sums, [3, 3])" in in_graph
    assert "site-packages" not in in_graph and "{{" not in on_replicas
    assert "in branching: if tf.reduce_sum(sums) > 1e9:" in branched
    assert "NameError: name 'undefined_name' is not defined" in branched
    assert "ag__" not in branched and "if_body" not in branched


# Finding


def test_a_check_is_found_by_name_and_its_function_in_the_notebook(registered, monkeypatch):
    main = sys.modules["__main__"]
    report = check("combine_means")
    assert (report.status, report.earned) == ("not started", 0)
    assert "run the cell that defines it" in repr(report)
    monkeypatch.setattr(main, "combine", 3, raising=False)
    assert "`combine` is a int, not a function." in repr(check("combine_means"))
    monkeypatch.setattr(main, "combine", combine)
    assert distlab.check("combine_means").passed
    monkeypatch.delattr(main, "combine")
    events = EventManager(None, available_events)
    shell = types.SimpleNamespace(user_ns={"combine": combine}, events=events)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    assert check("combine_means").passed
    assert "did you mean 'combine_means'" in refusal(lambda: check("combine_mean"))
    assert "did you mean '98_documented'" in refusal(lambda: checks_of("98_document"))


def test_checking_needs_no_tensorflow(run_python):
    code = DOCUMENTED + textwrap.dedent("""
        import sys, distlab as dl
        report = dl.check(CHECKS[0], lambda sums, counts: sums.sum() / counts.sum())
        assert report.passed, report
        from distlab.course.checks.registry import all_checks
        for check in all_checks():
            if check.reference is not None:
                check.expected(check.inputs(1))
        assert "tensorflow" not in sys.modules and "keras" not in sys.modules
    """)
    run_python(code)


# Making checks


def test_what_makes_no_check_is_refused():
    row = RubricRow("what_jumps", 2, "says what jumps")
    replace = functools.partial(dataclasses.replace, CHECK)
    cases = {
        "not an identifier": lambda: replace(name="two words"),
        "function='my function'": lambda: replace(function="my function"),
        "points=0": lambda: replace(points=0),
        "name each mistake once": lambda: replace(mistakes=CHECK.mistakes * 2),
        "no criteria": lambda: replace(criteria=()),
        "criteria=(Close(...)): a comma is missing": lambda: replace(criteria=CHECK.criteria[0]),
        "mistakes=(Fault(...)): a comma is missing": lambda: replace(mistakes=Fault("a")),
        "Fault('a'), and no reference": lambda: replace(mistakes=(Fault("a"),), reference=None),
        "weight=0": lambda: Criterion("x", True, weight=0),
        "RubricRow('two words', 1)": lambda: RubricRow("two words", 1, "says it"),
        "rubric rows named []": lambda: WrittenReport("a", "", ()),
        "rubric rows named ['what_jumps', ": lambda: WrittenReport("a", "", (row, row)),
    }
    wrong = {told: refusal(make) for told, make in cases.items()}
    assert {told: text for told, text in wrong.items() if told not in text} == {}
    assert Verdict.of(Criterion("a", True, weight=3), Criterion("b", False)).share == 0.75
    assert WrittenReport("a", "", (row, RubricRow("why", 3.5, "says why"))).points == 5.5
