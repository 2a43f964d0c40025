"""The grading core, held by the very check that its documentation shows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import distlab
import distlab.checks
from distlab.checks import (
    Check,
    Criterion,
    Fault,
    Mistake,
    Verdict,
    expect_close,
    expect_equal,
    expect_shape,
    expect_true,
    notebook_check,
)
from distlab.checks.matchers import same_plain, shown
from distlab.checks.notebook_check import check
from distlab.checks.registry import all_checks, checks_of, find_check, lesson_modules
from distlab.checks.run_check import call_check, judge_called, report_on, run_check
from distlab.coursework.replicas import mirrored
from distlab.errors import DeviceError, InvalidArgument
from distlab.results.plain_values import decode, encode, to_plain
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
    problems_of,
)

# The documentation's own example is the check of these tests, so it cannot rot.
DOCUMENTED = "".join(
    textwrap.dedent(part) + "\n"
    for part in re.findall(r"(?m)(?:^    .*\n|^\n)+", distlab.checks.__doc__ or "")
)
_namespace: dict = {"__name__": "documented"}
exec(compile(DOCUMENTED, "<documented>", "exec"), _namespace)
CHECK: Check = _namespace["CHECKS"][0]

MEAN_OF_MEANS = (
    "You averaged the replicas' means, so an example counts more if its replica has few of them. "
    "How much should each example count?"
)
REGISTERED = list(all_checks())


def combine(sums, counts):
    return sums.sum() / counts.sum()


def mean_of_means(sums, counts):
    return np.mean(sums / counts)


say = functools.partial(print)  # what a learner prints, which a test otherwise must not


def stub(sums, counts):
    raise NotImplementedError("your code here")


@pytest.fixture(autouse=True)
def fresh_attempts():
    notebook_check._failed_tries.clear()


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """The documented check, as a lesson's module in the room."""
    (tmp_path / "lesson_98_documented.py").write_text(DOCUMENTED)
    monkeypatch.setattr(distlab.checks, "__path__", [str(tmp_path), *distlab.checks.__path__])
    yield CHECK
    sys.modules.pop("distlab.checks.lesson_98_documented", None)


# --- the report -----------------------------------------------------------------------------


def test_a_right_answer_passes_with_all_points():
    report = check(CHECK, combine)
    assert (report.status, report.earned, report.passed) == ("passed", 2, True)
    assert repr(report) == ("combine_means: passed (2 of 2 points)\n  Well done.\n  [x] the mean")


def test_a_wrong_answer_shows_yours_beside_the_expected_and_names_the_mistake():
    report = check(CHECK, mean_of_means)
    assert (report.status, report.earned, report.seed) == ("not yet", 0, 1)
    assert (
        repr(report)
        == textwrap.dedent("""\
        combine_means: not yet (0 of 2 points)
          Each row says what is right, and what is not yet.
          [ ] not yet: the mean
                off by 0.00967
                yours:    0.00978181
                expected: 0.0194482
          What this looks like: """)
        + MEAN_OF_MEANS
    )


def test_an_unknown_wrong_answer_names_no_mistake():
    report = check(CHECK, lambda sums, counts: 1.0)
    assert report.status == "not yet"
    assert report.mistake == ""


def test_a_mistake_is_named_only_when_it_explains_every_failed_draw():
    def half_and_half(sums, counts):
        mean = mean_of_means(sums, counts)
        return mean if np.isclose(mean, first) else -mean

    inputs = CHECK.inputs(1)
    first = mean_of_means(inputs["sums"], inputs["counts"])
    assert check(CHECK, half_and_half).mistake == ""
    assert check(CHECK, half_and_half, seed=1).mistake == "mean_of_means"


def test_a_hard_coded_answer_passes_one_draw_and_not_the_check():
    inputs = CHECK.inputs(1)
    value = combine(inputs["sums"], inputs["counts"])
    assert check(CHECK, lambda sums, counts: value, seed=1).passed
    report = check(CHECK, lambda sums, counts: value)
    assert (report.status, report.earned, report.seed) == ("not yet", 0, 2)
    assert "[ ] not yet: the mean" in repr(report)


def test_a_stub_is_not_started_and_earns_nothing():
    report = check(CHECK, stub)
    assert repr(report) == (
        "combine_means: not started (0 of 2 points)\n"
        "  Ready when you are. Write `combine`, then check again."
    )


def test_a_stub_of_dots_is_not_started():
    def dotted(sums, counts):
        total = ...
        return total / counts.sum()

    assert check(CHECK, dotted).status == "not started"


def test_the_first_call_that_stops_is_the_last():
    calls = []

    def broken(sums, counts):
        calls.append(1)
        raise ValueError("no")

    check(CHECK, broken)
    assert len(calls) == 1


def test_not_implemented_from_a_library_is_an_error_of_the_code():
    library = {"__name__": "library"}
    exec("def refuse():\n    raise NotImplementedError('not on this device')", library)
    report = check(CHECK, lambda sums, counts: library["refuse"]())
    assert report.status == "error in your code"
    assert "not on this device" in repr(report)


def test_an_error_shows_the_learners_lines_only():
    def helper(x):
        return x + undefined_name  # noqa: F821

    def broken(sums, counts):
        return helper(sums)

    report = check(CHECK, broken)
    assert report.status == "error in your code"
    text = re.sub(r"line \d+", "line N", repr(report))
    assert text == textwrap.dedent("""\
        combine_means: error in your code (0 of 2 points)
          Your code stopped with an error.
            line N in broken: return helper(sums)
            line N in helper: return x + undefined_name  # noqa: F821
            NameError: name 'undefined_name' is not defined""")


def test_a_decorated_answer_still_shows_its_own_lines():
    def broken(sums, counts, scale):
        return sums.nothing

    report = check(CHECK, functools.partial(broken, scale=2))
    assert report.status == "error in your code"
    assert "return sums.nothing" in repr(report)


def test_endless_recursion_is_an_error_of_few_lines():
    def forever(sums, counts):
        return forever(sums, counts)

    report = check(CHECK, forever)
    assert report.status == "error in your code"
    assert "RecursionError" in repr(report)
    assert len(repr(report).splitlines()) < 8


def test_exit_does_not_end_the_kernel():
    assert check(CHECK, lambda sums, counts: sys.exit(3)).status == "error in your code"


def test_an_interrupt_by_the_learner_passes_through():
    def interrupted(sums, counts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(CHECK, interrupted)


def test_a_wrong_signature_is_said_without_our_stack():
    report = check(CHECK, lambda sums: 1)
    assert report.status == "not yet"
    assert "The check cannot use what `combine` takes or returns." in repr(report)
    assert "takes 1 positional argument but 2 were given" in repr(report)
    assert "grading" not in repr(report)


def test_a_check_that_cannot_run_here_is_no_fault_of_the_answer():
    def call(function, inputs):
        raise DeviceError(asked="2 devices", found="1", do="restart the kernel")

    with pytest.raises(DeviceError, match="restart the kernel"):
        check(dataclasses.replace(CHECK, call=call), combine)

    def asks_too_much(sums, counts):
        raise DeviceError(asked="2 devices", found="1", do="restart the kernel")

    report = check(CHECK, asks_too_much)
    assert report.status == "error in your code"
    assert "restart the kernel" in repr(report)


def test_the_checks_own_code_is_never_shown_as_the_learners():
    def call(function, inputs):
        return float(function(**inputs))

    report = check(dataclasses.replace(CHECK, call=call), lambda sums, counts: None)
    assert report.status == "not yet"
    assert "return float" not in repr(report)
    assert "NoneType" in repr(report)


def test_frames_in_autographs_message_are_read_and_a_librarys_left_out():
    def broken(sums, counts):
        raise ValueError(
            'in user code:\n\n    File "/tmp/cell.py", line 3, in step  *\n        layer(x)\n'
            '    File "/env/site-packages/keras/layer.py", line 9, in call\n        self.go()\n\n'
            "    ValueError: wrong rank\n"
        )

    failure = check(CHECK, broken).failure
    assert failure.error == "ValueError: wrong rank"
    assert failure.lines[1:] == ("line 3 in step: layer(x)",)


def test_addresses_do_not_reach_a_report():
    def broken(sums, counts):
        raise ValueError(f"odd {object()!r}")

    assert "0x..." in repr(check(CHECK, broken))
    assert (
        repr(check(CHECK, broken, seed=1)).splitlines()[:4]
        == (repr(check(CHECK, broken, seed=1)).splitlines()[:4])
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "is there a `return`?"),
        (float("nan"), "NaN at 1 of 1 places"),
        (np.ones(3), "the shape is [3], expected [] (one number)"),
        ("0.5", "numbers were expected here, yours is a str: '0.5'"),
        (True, "numbers were expected here, yours is a bool: True"),
        ({1, 2}, "the answer of `combine`['mean']: found a set"),
        (2**80, "an integer of more than 64 bits"),
    ],
)
def test_an_answer_of_another_kind_is_not_yet(answer, said):
    report = check(CHECK, lambda sums, counts: answer)
    assert (report.status, report.earned) == ("not yet", 0)
    assert said in repr(report)


def test_an_answer_that_the_judge_cannot_read_is_not_yet():
    bare = dataclasses.replace(CHECK, call=lambda function, inputs: function(**inputs))
    report = check(bare, lambda sums, counts: [1, 2])
    assert report.status == "not yet"
    assert "the check cannot read it (TypeError" in repr(report)
    assert "yours:    [1, 2]" in repr(report)


def test_what_the_function_prints_is_shown_in_the_report_only(capsys):
    def chatty(sums, counts):
        say("sums are four")
        return 1.0

    report = check(CHECK, chatty)
    assert capsys.readouterr().out == ""
    assert "\n  Your code printed: sums are four\n" in repr(report)
    assert "printed" not in repr(check(CHECK, lambda s, c: say("hi") or combine(s, c)))


def test_an_answer_that_changes_its_inputs_is_judged_on_the_true_ones():
    def cheat(sums, counts):
        sums[:] = 0
        counts[:] = 1
        return 0.0

    report = check(CHECK, cheat)
    assert report.status == "not yet"
    assert check(CHECK, combine).passed


def test_partial_credit_is_weighted_and_must_hold_in_every_draw():
    def judge(inputs, outputs):
        mean = inputs["sums"].sum() / inputs["counts"].sum()
        return Verdict.of(
            expect_shape("one number", yours=outputs["mean"], shape=()),
            expect_close("the mean", yours=outputs["mean"], expected=mean, atol=1e-6, weight=3),
        )

    weighted = dataclasses.replace(CHECK, judge=judge)
    report = check(weighted, lambda sums, counts: 1.0)
    assert report.earned == 0.5
    assert "[x] one number\n  [ ] not yet: the mean" in repr(report)

    def luck(sums, counts):  # right in one draw, of another shape in the others
        mean = combine(sums, counts)
        return mean if np.isclose(mean, 0.0194482) else np.array([mean])

    assert check(weighted, luck, seed=1).earned == 2
    assert check(weighted, luck).earned == 0


def test_help_comes_in_three_steps_a_question_a_direction_and_the_way():
    def unknown(sums, counts):
        return 1.0

    first, second, third, fourth = (check(CHECK, unknown) for _ in range(4))
    assert (first.question, first.hint, first.revisit) == (CHECK.question, "", "")
    assert (second.question, second.hint, second.revisit) == (CHECK.question, CHECK.direction, "")
    assert (third.question, third.hint) == ("", CHECK.hint)
    assert "A question: How much does one example count, on each replica?" in repr(first)
    assert "Hint: Count the examples of all replicas first." in repr(second)
    assert "Hint: Add up all sums" in repr(third)
    assert 'Read again: "When a mean of means is wrong" in lesson 01' in repr(third)
    assert repr(fourth) == repr(third)


def test_the_feedback_on_a_mistake_asks_its_own_question():
    assert check(CHECK, mean_of_means).question == ""
    assert check(CHECK, mean_of_means).hint == CHECK.direction


def test_an_error_is_answered_before_a_question_is_asked():
    first, second = (check(CHECK, lambda sums, counts: sums.nothing) for _ in range(2))
    assert (first.question, first.hint) == ("", "")
    assert second.hint == CHECK.direction


def test_a_check_with_a_hint_only_gives_it_at_the_second_try():
    short = dataclasses.replace(CHECK, question="", direction="")
    first, second = (check(short, mean_of_means) for _ in range(2))
    assert (first.hint, second.hint) == ("", CHECK.hint)


def test_a_stub_is_no_failed_try_and_after_a_pass_the_count_begins_again():
    check(CHECK, stub)
    assert not check(CHECK, mean_of_means).hint
    assert check(CHECK, mean_of_means).hint
    check(CHECK, combine)
    assert not check(CHECK, mean_of_means).hint


def test_the_section_to_read_again_is_a_link_in_a_notebook(registered):
    linked = dataclasses.replace(find_check("scope"), call=CHECK.call, inputs=CHECK.inputs)
    *_, third = (check(linked, lambda *_: None) for _ in range(3))
    there = "../notebooks/01_mirrored_strategy.ipynb#heading=What-the-scope-does"
    assert f'<a href="{there}">' in third._repr_html_()
    assert there not in repr(third)


def test_no_report_shows_the_name_of_a_mistake():
    report = check(CHECK, mean_of_means)
    assert report.mistake == "mean_of_means"
    assert report.mistake not in repr(report).replace("combine_means", "")
    assert "\u2717" not in report._repr_html_() and "&#10007;" not in report._repr_html_()
    assert "not yet:</b> the mean" in report._repr_html_()


def test_html_says_the_same_and_is_escaped():
    def broken(sums, counts):
        say("<script>alert(1)</script>")
        raise ValueError("<b>bold & odd</b>")

    html = check(CHECK, broken)._repr_html_()
    assert "<script>" not in html
    assert "&lt;b&gt;bold &amp; odd&lt;/b&gt;" in html
    passed = check(CHECK, combine)
    assert passed._repr_html_() == check(CHECK, combine)._repr_html_()
    assert "combine_means: passed (2 of 2 points)" in passed._repr_html_()
    wrong = check(CHECK, mean_of_means)._repr_html_()
    for said in ("yours:    0.00978181", "expected: 0.0194482", "What this looks like"):
        assert said in wrong


def test_html_marks_code_of_ours_and_leaves_what_they_printed_as_it_is():
    def not_started(sums, counts):
        say("in `ticks`\n  below")
        raise NotImplementedError

    html = check(CHECK, not_started)._repr_html_()
    assert "Write <code>combine</code>, then check again." in html
    assert "in `ticks`\n  below</pre>" in html


def test_a_report_can_always_be_written_to_a_file():
    report = check(CHECK, lambda sums, counts: say("\udcff") or "\udcff")
    assert repr(report).encode()
    assert report._repr_html_().encode()


def test_an_error_where_replicas_meet_is_told_at_the_lines_of_a_replica():
    import tensorflow as tf

    def meet(value):
        context = tf.distribute.get_replica_context()
        return context.all_reduce(value, "SUM")  # the other way round

    def distributed(sums, counts):
        return mirrored(2).run(meet, args=(sums,))

    report = check(CHECK, distributed)
    assert report.status == "error in your code"
    lines = [line.partition(" in ")[2] for line in report.failure.lines]
    assert lines == [
        "distributed: return mirrored(2).run(meet, args=(sums,))",
        'meet: return context.all_reduce(value, "SUM")  # the other way round',
    ]


def test_an_error_of_one_replica_is_told_at_its_line_and_not_where_another_waits():
    import tensorflow as tf

    def meet(value):
        context = tf.distribute.get_replica_context()
        if context.replica_id_in_sync_group == 1:
            raise ValueError("only here")
        return context.all_reduce("SUM", value)

    def caught_before(value):
        with contextlib.suppress(AttributeError):
            mirrored(2).run(swapped, args=(value,))
        raise ValueError("later")

    def swapped(value):
        return tf.distribute.get_replica_context().all_reduce(value, "SUM")

    waiting = check(CHECK, lambda sums, counts: mirrored(2).run(meet, args=(sums,)))
    assert waiting.failure.lines[-1].endswith('in meet: raise ValueError("only here")')
    later = check(CHECK, lambda sums, counts: caught_before(sums))
    assert later.failure.lines[-1].endswith('in caught_before: raise ValueError("later")')


# --- finding --------------------------------------------------------------------------------


def test_a_check_is_found_by_name_and_its_function_in_the_notebook(registered, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "combine", combine, raising=False)
    assert check("combine_means").passed
    assert distlab.check is check


def test_the_function_is_looked_for_in_the_ipython_kernel(registered, monkeypatch):
    shell = type("Shell", (), {"user_ns": {"combine": combine}})()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    assert check("combine_means").passed


def test_a_function_not_yet_defined_says_which_cell_to_run(registered):
    report = check("combine_means")
    assert (report.status, report.earned) == ("not started", 0)
    assert "run the cell that defines it" in repr(report)


def test_a_name_that_is_no_function_is_said(registered, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "combine", 3, raising=False)
    assert "`combine` is a int, not a function." in repr(check("combine_means"))


def test_a_misspelt_name_suggests_the_near_one(registered):
    with pytest.raises(InvalidArgument, match="did you mean 'combine_means'"):
        check("combine_mean")


def test_lesson_modules_are_found_by_file_name(registered, tmp_path, monkeypatch):
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "lesson_00_aa.py").write_text("CHECKS = ()")
    path = [*distlab.checks.__path__, str(tmp_path / "late")]
    monkeypatch.setattr(distlab.checks, "__path__", path)
    assert lesson_modules()[0] == "lesson_00_aa"
    assert lesson_modules()[-1] == "lesson_98_documented"
    assert find_check("combine_means").points == 2
    assert [c.name for c in checks_of("98_documented")] == ["combine_means"]
    with pytest.raises(InvalidArgument, match="did you mean '98_documented'"):
        checks_of("98_document")


def test_checking_needs_no_tensorflow():
    code = DOCUMENTED + textwrap.dedent("""
        import sys, distlab as dl
        report = dl.check(CHECKS[0], lambda sums, counts: sums.sum() / counts.sum())
        assert report.passed, report
        from distlab.checks.registry import all_checks
        list(all_checks())
        assert "tensorflow" not in sys.modules and "keras" not in sys.modules
    """)
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the boundary ---------------------------------------------------------------------------


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
    assert check(CHECK, lambda sums, counts: Sly(9)).status == "not yet"
    assert check(CHECK, lambda sums, counts: np.array(9.0).view(SlyArray)).status == "not yet"


def test_the_judge_gets_what_went_through_bytes_and_never_the_object():
    seen = []

    def judge(inputs, outputs):
        seen.append(outputs)
        return Verdict.of(expect_true("fine", True, message=""))

    kept = np.ones(3)
    spied = dataclasses.replace(CHECK, judge=judge)
    check(spied, lambda sums, counts: kept, seed=1)
    assert type(seen[0]["mean"]) is np.ndarray
    assert seen[0]["mean"] is not kept
    assert not np.shares_memory(seen[0]["mean"], kept)


def test_call_and_judge_meet_in_bytes_only():
    called = call_check(CHECK, combine, 5)
    assert isinstance(called.payload, bytes)
    gone = dataclasses.replace(CHECK, call=None)
    report = report_on(gone, [judge_called(gone, called)])
    assert report.passed


def test_scalars_and_tuples_become_numbers_and_lists():
    assert to_plain((np.float32(0.5), np.int64(3), np.bool_(True))) == [0.5, 3, True]
    assert type(to_plain(np.float64(0.5))) is float


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [1, {2}]}, r"the answer\['a'\]\[1\]\n  found: a set"),
        (np.array([object()]), "an array of object"),
        ({1: 2}, "a dict with the key 1"),
        (b"bytes", "a bytes"),
        (object(), "a object"),
        (len, "a builtin_function_or_method"),
    ],
)
def test_anything_else_is_refused_with_its_place(value, said):
    with pytest.raises(InvalidArgument, match=said):
        to_plain(value)


def test_a_list_that_holds_itself_is_refused():
    endless: list = []
    endless.append(endless)
    with pytest.raises(InvalidArgument, match="more than 32 levels"):
        to_plain(endless)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"other",
        b"distlab0" + encode([1])[8:],
        encode([np.ones(3)])[:-4],
        encode([1]) + b"\x00",
        b"distlab1" + (12).to_bytes(8, "big") + b'["array", 7]',
        b"distlab1" + (12).to_bytes(8, "big") + b'["other", 7]',
    ],
)
def test_bytes_that_encode_did_not_make_are_refused(payload):
    with pytest.raises(InvalidArgument, match="bytes that encode did not make"):
        decode(payload)


def test_a_pickle_in_an_array_is_refused():
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    text = b'["array", 0]'
    payload = b"distlab1"
    for part in (text, buffer.getvalue()):
        payload += len(part).to_bytes(8, "big") + part
    with pytest.raises(InvalidArgument, match="allow_pickle=False"):
        decode(payload)


def test_tensors_and_variables_become_arrays_and_others_are_refused():
    import tensorflow as tf

    assert to_plain(tf.constant(2.5)) == 2.5 or to_plain(tf.constant(2.5)).shape == ()
    np.testing.assert_array_equal(to_plain(tf.Variable([1.0, 2.0])), [1.0, 2.0])
    half = to_plain(tf.constant([1.5, 2.5], tf.bfloat16))
    assert half.dtype == np.float32
    np.testing.assert_array_equal(half, [1.5, 2.5])

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        mirrored = tf.Variable(3.0)
    assert np.asarray(to_plain(mirrored)) == 3.0
    values = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    with pytest.raises(InvalidArgument, match=r"strategy\.experimental_local_results"):
        to_plain(values)

    @tf.function
    def inside(x):
        with pytest.raises(InvalidArgument, match="a symbolic tensor, which has no value"):
            to_plain(x)
        return x

    inside(tf.constant(1.0))


def test_answers_in_a_tf_function_show_their_own_lines_and_stubs():
    import tensorflow as tf

    compiled = dataclasses.replace(
        CHECK, call=lambda function, i: {"mean": tf.function(function)(i["sums"], i["counts"])}
    )
    assert check(compiled, stub).status == "not started"

    def broken(sums, counts):
        return tf.reshape(sums, [3, 3])

    report = check(compiled, broken)
    assert report.status == "error in your code"
    assert "in broken: return tf.reshape(sums, [3, 3])" in repr(report)
    assert "site-packages" not in repr(report)

    def branching(sums, counts):
        if tf.reduce_sum(sums) > 1e9:
            return sums + undefined_name  # noqa: F821
        return sums

    text = repr(check(compiled, branching))
    assert "in branching: if tf.reduce_sum(sums) > 1e9:" in text
    assert "NameError: name 'undefined_name' is not defined" in text
    assert "ag__" not in text
    assert "if_body" not in text


def test_a_stub_under_a_tf_function_and_strategy_is_quietly_not_started(capfd, caplog):
    import logging

    import tensorflow as tf

    heard = []
    handler = logging.Handler()
    handler.emit = heard.append
    logging.getLogger("tensorflow").addHandler(handler)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def call(function, inputs):
        args = (inputs["sums"], inputs["counts"])
        return {"mean": tf.function(lambda: strategy.run(function, args))()}

    spread = dataclasses.replace(CHECK, call=call)
    caplog.set_level(logging.INFO, logger="tensorflow")  # as it is in a notebook
    heard.clear()
    capfd.readouterr()
    assert check(spread, stub).status == "not started"
    report = check(spread, lambda sums, counts: tf.reshape(sums, [3, 3]))
    assert report.status == "error in your code"
    assert "{{" not in repr(report)
    assert heard == []
    assert "Coordinator" not in "".join(capfd.readouterr())
    logging.getLogger("tensorflow").warning("heard again")
    logging.getLogger("tensorflow").removeHandler(handler)
    assert [record.getMessage() for record in heard] == ["heard again"]


# --- matchers -------------------------------------------------------------------------------


def test_close_arrays_pass_and_far_ones_say_where():
    near = expect_close("w", yours=[1.0, 2.0], expected=np.array([1, 2 + 1e-7]), atol=1e-6)
    assert near.passed
    assert near.message == ""
    far = expect_close("w", yours=[[1.0, 2.0]], expected=[[1.0, 5.0]], atol=1e-6)
    assert not far.passed
    assert far.message == "1 of 2 places differ, by up to 3 (at [0, 1])"
    assert (far.yours, far.expected) == ("[[1., 2.]]", "[[1., 5.]]")


def test_nan_and_infinity_are_close_only_to_themselves():
    inf, nan = float("inf"), float("nan")
    assert expect_close("x", yours=[inf, nan], expected=[inf, nan], atol=1e-6).passed
    assert not expect_close("x", yours=[1.0], expected=[nan], atol=1e-6).passed
    assert not expect_close("x", yours=[inf], expected=[1.0], atol=1e-6).passed
    assert not expect_close("x", yours=[-inf], expected=[inf], atol=1e-6).passed


def test_equal_values_pass_across_arrays_and_lists_but_not_across_kinds():
    assert expect_equal("x", yours=np.array([1, 2]), expected=[1, 2]).passed
    assert expect_equal("x", yours={"a": ["b", 1]}, expected={"a": ["b", 1]}).passed
    assert not expect_equal("x", yours=True, expected=1).passed
    assert not expect_equal("x", yours=[1, 1], expected=1).passed
    assert not expect_equal("x", yours="1", expected=1).passed
    assert not expect_equal("x", yours={"a": 1}, expected={"a": 1, "b": 2}).passed
    assert "is there a `return`?" in expect_equal("x", yours=None, expected=1).message


def test_shapes_are_compared_and_shown():
    assert expect_shape("x", yours=np.ones((2, 3)), shape=(2, 3)).passed
    wrong = expect_shape("x", yours=np.ones(6), shape=(2, 3))
    assert (wrong.passed, wrong.yours, wrong.expected) == (False, "[6]", "[2, 3]")
    assert expect_shape("x", yours=None, shape=(1,)).yours == "None"


def test_long_values_are_shown_short():
    assert len(shown(list(range(1000)))) < 60
    assert len(shown("x" * 1000)) == 88  # with "expected: " before it, a line of a notebook
    assert shown([[0.5, 1.0, -2.25]]) == "[[0.5, 1., -2.25]]"  # without NumPy's columns
    cut = shown([[number + 0.12345 for number in range(12)]])
    assert cut.endswith("8.12345, ...")  # after a whole number
    assert shown(np.array([1, 2])) == "[1, 2]"
    assert shown([np.array([0, 1]), [2], "x"]) == "[[0, 1], [2], 'x']"


# --- making checks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "two words"}, "not an identifier"),
        ({"function": "my function"}, "function='my function'"),
        ({"points": 0}, "points=0"),
        ({"mistakes": CHECK.mistakes * 2}, "name each mistake once"),
    ],
)
def test_a_check_that_cannot_be_meant_is_refused(change, said):
    with pytest.raises(InvalidArgument, match=said):
        dataclasses.replace(CHECK, **change)


def test_a_mistake_is_recognised_in_exactly_one_way():
    for ways in ({}, {"error": "x", "when": lambda inputs, outputs: True}):
        with pytest.raises(InvalidArgument, match="exactly one of yields, when and error"):
            Mistake("name", "says", **ways)


def test_a_verdict_or_criterion_that_counts_for_nothing_is_refused():
    with pytest.raises(InvalidArgument, match="no criterion"):
        Verdict.of()
    with pytest.raises(InvalidArgument, match="weight=0"):
        Criterion("x", True, weight=0)


def test_a_verdicts_share_is_weighted():
    verdict = Verdict.of(Criterion("a", True, weight=3), Criterion("b", False))
    assert (verdict.share, verdict.passed) == (0.75, False)


def test_a_judge_that_gives_no_verdict_is_the_authors_error():
    with pytest.raises(InvalidArgument, match=r"return Verdict\.of"):
        check(dataclasses.replace(CHECK, judge=lambda inputs, outputs: True), combine)


def test_mistakes_are_recognised_by_predicate_and_by_error():
    knowing = dataclasses.replace(
        CHECK,
        mistakes=(
            Mistake("negative", "Mind the sign.", when=lambda i, o: o["mean"] <= -7),
            Mistake("made_in_step", "Create it once.", error="ValueError: .*singleton"),
        ),
    )

    def made_in_step(sums, counts):
        raise ValueError("only singleton variables")

    assert_mistake_is_caught(knowing, lambda sums, counts: -7, "negative")
    report = assert_mistake_is_caught(knowing, made_in_step, "made_in_step")
    assert report.status == "error in your code"
    assert "Create it once." in repr(report)
    # A predicate that trips over an answer of another form is not a match.
    assert check(knowing, lambda sums, counts: {"mean": []}).mistake == ""


# --- the helpers for lessons ----------------------------------------------------------------


def test_the_lesson_helpers_hold_for_the_documented_check():
    assert_solution_passes(CHECK, combine)
    assert_stub_earns_nothing(CHECK, stub)
    assert_stub_earns_nothing(CHECK, mean_of_means, status="not yet")
    assert_mistake_is_caught(CHECK, mean_of_means, "mean_of_means")
    assert problems_of(WHOLE) == []


def test_the_lesson_helpers_notice_what_does_not_hold():
    gutted = dataclasses.replace(
        CHECK, judge=lambda inputs, outputs: Verdict.of(Criterion("fine", True))
    )
    unnamed = dataclasses.replace(CHECK, mistakes=())
    for broken in (
        lambda: assert_mistake_is_caught(gutted, mean_of_means, "mean_of_means"),
        lambda: assert_mistake_is_caught(unnamed, mean_of_means, "mean_of_means"),
        lambda: assert_mistake_is_caught(CHECK, lambda s, c: 1.0, "mean_of_means"),
        lambda: assert_mistake_is_caught(CHECK, combine, "mean_of_means"),
        lambda: assert_solution_passes(CHECK, mean_of_means),
        lambda: assert_stub_earns_nothing(CHECK, combine),
        lambda: assert_stub_earns_nothing(CHECK, mean_of_means),
    ):
        with pytest.raises(AssertionError):
            broken()


# The documented check is short: of a lesson's, three mistakes are asked for.
WHOLE = dataclasses.replace(
    CHECK, mistakes=tuple(Fault(name, of_means=True).feedback("Which weighs?") for name in "abc")
)


def test_an_incomplete_check_is_noticed():
    def careless(seed):
        return {"x": np.random.rand()}

    bad = dataclasses.replace(CHECK, hint=" ", revisit="", mistakes=(), inputs=careless)
    found = " ".join(problems_of(bad))
    for said in ("no hint", "no revisit", "names 0 mistakes", "differ for the same seed"):
        assert said in found
    assert problems_of(CHECK) == ["combine_means names 1 mistakes, and 3 are asked for"]
    constant = dataclasses.replace(WHOLE, inputs=lambda seed: {"x": 1})
    assert problems_of(constant) == ["combine_means: inputs are the same for every seed"]


EXERCISE = '''\
# %% [markdown]
# # Exercise

# %%
import numpy as np
boom = 1 / 0

# %%
# given
SCALE = np.float64(2)

# %%
# task: combine
def combine(sums, counts):
    """The mean."""
    ### BEGIN SOLUTION
    total = sums.sum() * SCALE
    return total / counts.sum() / 2
    ### END SOLUTION

# %%
combine(1, 2)
'''


def test_solution_and_stub_are_read_from_the_exercises_source(tmp_path):
    folder = tmp_path / "lessons" / "97_tiny"
    folder.mkdir(parents=True)
    (folder / "exercise.py").write_text(EXERCISE)
    solution = load_solution("97_tiny", root=tmp_path)
    assert "boom" not in solution
    assert_solution_passes(CHECK, solution["combine"])
    assert_stub_earns_nothing(CHECK, load_stub("97_tiny", root=tmp_path)["combine"])

    import inspect

    assert "return total" in inspect.getsource(solution["combine"])


# --- every check of every lesson ------------------------------------------------------------


def test_names_are_unique_over_all_lessons():
    names = [registered.name for registered in REGISTERED]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("lesson_check", REGISTERED, ids=lambda c: c.name)
def test_every_registered_check_is_complete(lesson_check):
    assert problems_of(lesson_check) == []
    assert run_check(lesson_check, stub).earned == 0
