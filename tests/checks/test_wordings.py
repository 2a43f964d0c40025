"""Codes are stored and compared: you can edit every sentence, and old sentences are read."""

import csv
import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import nbformat
import pytest
from IPython.core.formatters import DisplayFormatter
from nbformat import v4

import distlab as dl
from distlab.autograder.grade_one import GradingOptions
from distlab.autograder.gradebook import class_counts
from distlab.autograder.gradebook.class_page import class_page
from distlab.autograder.gradebook.feedback_page import page_of
from distlab.autograder.gradebook.gradebook_csv import write_gradebook
from distlab.autograder.gradebook.lms_export import gradescope_results
from distlab.autograder.gradebook.reading_status import READING_WORDINGS, ReadingStatus
from distlab.autograder.gradebook.rubric_csv import RubricMarks, write_marks
from distlab.autograder.gradebook.scores import Given, Graded, Policy, score_of
from distlab.autograder.intake.report_submission import Written
from distlab.autograder.intake.submissions import Submission
from distlab.autograder.isolation import stops
from distlab.autograder.isolation.limits import Limits, Sampler
from distlab.autograder.isolation.monitor import Monitor
from distlab.autograder.isolation.stops import SENTENCES, Stop, StopReason, stop_of
from distlab.autograder.output.saved_records import Saved
from distlab.autograder.run import grade
from distlab.checks import lesson_00_start_here, progress, report
from distlab.checks.check import Check, Verdict
from distlab.checks.endings import (
    ENDING_OF_FAILURE,
    FAILURE_OPENINGS,
    OLD_LABELS,
    WORDINGS,
    Ending,
)
from distlab.checks.matchers import expect_equal
from distlab.checks.registry import checks_of
from distlab.checks.report import Report
from distlab.checks.rubric import RubricRow, WrittenReport
from distlab.checks.run_check import Called, judge_called, report_on, run_check
from distlab.notebooks.storing import stable_outputs
from distlab.results.failures import OLD_KINDS, Failure, FailureKind
from tests.support.questions import asked
from tests.support.repository import ROOT

STEM = "00_start_here"
CHECK = Check(
    name=checks_of(STEM)[0].name,
    function="one",
    title="One",
    points=checks_of(STEM)[0].points,
    inputs=lambda seed: {},
    call=lambda function, inputs: function(),
    judge=lambda inputs, outputs: Verdict.of(expect_equal("it", yours=outputs, expected=1)),
    hint="",
    revisit="",
)
SPEED = WrittenReport("speed", "Speed", (RubricRow("why", 2, "says why"),))
TABLES = (WORDINGS, FAILURE_OPENINGS, SENTENCES, READING_WORDINGS)
ENTRIES = [(table, key) for table in TABLES for key in table]


def stub():
    raise NotImplementedError


ANSWERS = {
    Ending.PASSED: lambda: 1,
    Ending.NOT_YET: lambda: 2,
    Ending.NOT_STARTED: stub,
    Ending.ERROR: lambda: 1 / 0,
}


def answered(ending):
    """A report with this ending, made as `dl.check` and the autograder make it."""
    if ending is Ending.TIMED_OUT:
        late = Called(1, failure=Stop(StopReason.TIME, "3").failure(("line 1 in one",)))
        return report_on(CHECK, [judge_called(CHECK, late)])
    return run_check(CHECK, ANSWERS[ending])


def edited(text, key):
    """A different sentence with the same places to fill in, which looks like a heading."""
    places = " ".join(re.findall(r"\{\w*\}", text))
    return f"«{key}» anders (1 of 1 point): {places}"


def edit(monkeypatch, table, key):
    entry = table[key]
    if isinstance(entry, str):
        new = edited(entry, key)
    else:
        new = type(entry)(*(edited(text, key) for text in vars(entry).values()))
    monkeypatch.setitem(table, key, new)


@pytest.fixture
def all_edited(monkeypatch):
    for table, key in ENTRIES:
        edit(monkeypatch, table, key)
    for module, name in (
        (report, "AT_THIS_LINE"),
        (stops, "STOPPED"),
        (stops, "TIMED_OUT"),
        (class_counts, "PARTIAL_LABEL"),
    ):
        monkeypatch.setattr(module, name, edited(getattr(module, name), name))


@pytest.fixture(autouse=True)
def new_kernel(monkeypatch):
    monkeypatch.setattr(progress, "_of_this_kernel", {})


def notebook_with(folder, *reports):
    """Saves a notebook as Jupyter does: what the outputs show, and their metadata."""
    cells = []
    for one in reports:
        data, metadata = DisplayFormatter().format(one)
        shown = v4.new_output("execute_result", data=data, metadata=metadata, execution_count=1)
        cells.append(v4.new_code_cell("", outputs=[shown]))
    (folder / "a.ipynb").write_text(nbformat.writes(v4.new_notebook(cells=cells)))


def lesson(folder):
    return next(one for one in progress.progress(folder).lessons if one.stem == STEM)


def handed_in(learner="jane"):
    return Submission(learner=learner, path=Path(learner, "a.ipynb"), name=STEM)


# Every sentence can be edited


@pytest.mark.parametrize(("table", "key"), ENTRIES, ids=lambda one: getattr(one, "name", ""))
def test_each_sentence_can_be_edited(tmp_path, monkeypatch, table, key):
    before = {ending: answered(ending) for ending in Ending}
    notebooks = {ending: tmp_path / ending for ending in Ending}
    for ending, folder in notebooks.items():
        folder.mkdir()
        notebook_with(folder, before[ending])
    graded = Graded(submission=handed_in(), stem=STEM, reports=tuple(before.values()))
    Saved(tmp_path / "records", key="1").keep(graded)

    edit(monkeypatch, table, key)

    # Running a check gives the same codes, and a report can be shown.
    after = {ending: answered(ending) for ending in Ending}
    assert [one.ending for one in after.values()] == list(Ending)
    assert [one.passed for one in after.values()] == [True, False, False, False, False]
    assert all(repr(one) and one._repr_html_() for one in after.values())
    # What was saved before is read as it was, and so is what is saved now.
    assert Saved(tmp_path / "records", key="1").find(handed_in()) == graded
    again = dataclasses.replace(graded, reports=tuple(after.values()))
    Saved(tmp_path / "records", key="1").keep(again)
    assert Saved(tmp_path / "records", key="1").find(handed_in()) == again
    # A learner's progress is that of the notebook, whenever it was saved.
    for one in (before, after):
        for ending, folder in notebooks.items():
            notebook_with(folder, one[ending])
            there = lesson(folder)
            assert bool(there.tried) is (ending is not Ending.NOT_STARTED)
            assert there.passed == ((CHECK.name,) if ending is Ending.PASSED else ())
    # Counts and points are the same.
    assert class_counts.tasks_in([graded]) == class_counts.tasks_in([again])
    assert score_of(graded, Policy()) == score_of(again, Policy())


@pytest.mark.usefixtures("all_edited")
def test_a_folder_is_graded_and_graded_again_with_all_sentences_edited(tmp_path):
    for learner, edition in (("jane", "solutions"), ("john", "exercises")):
        (tmp_path / "in" / learner).mkdir(parents=True)
        shutil.copy(ROOT / edition / f"{STEM}.ipynb", tmp_path / "in" / learner)
    lines, options = [], GradingOptions(allow_root=True, limits=Limits(secs=60))
    for _ in range(2):
        results = grade(tmp_path / "in", tmp_path / "out", options, say=lines.append)
        jane, john = results.graded
        assert {one.ending for one in jane.reports} == {Ending.PASSED}
        assert {one.ending for one in john.reports} == {Ending.NOT_STARTED}
        assert [score.earned for _, score in results.scored] == [
            sum(check.points for check in checks_of(STEM)),
            0,
        ]
    assert lines[-1].startswith("0 notebooks to grade, 2 graded before")
    record = json.loads(next((tmp_path / "out" / "records").glob("*.json")).read_text())
    assert {one["ending"] for one in record["reports"]} <= set(Ending)


@pytest.mark.usefixtures("all_edited")
def test_an_answer_is_ended_by_the_code_of_the_reason():
    outcome = asked("while True: pass", secs=3)
    assert outcome.stop == Stop(StopReason.TIME, "3")
    assert outcome.called[-1].failure.kind is FailureKind.TIMED_OUT
    assert outcome.stopped == "«time» anders (1 of 1 point): 3"


@pytest.mark.usefixtures("all_edited")
def test_the_monitor_needs_no_sentence(tmp_path):
    job = {"limits": vars(Limits(secs=0.2)), "seeds": [1], "cells": []}
    pipes = [os.pipe() for _ in range(3)]
    with (
        subprocess.Popen(["sleep", "60"], stdout=pipes[1][1]) as asleep,
        socket.socket() as tasks,
    ):
        monitor = Monitor(
            job,
            "token",
            asked=asleep.pid,
            results=pipes[0][0],
            prints=pipes[1][0],
            notes=pipes[2][0],
            tasks=tasks,
            sampler=Sampler(Limits(secs=0.2), tmp_path),
        )
        monitor._poll.unregister(tasks.fileno())
        assert not monitor.run()
        asleep.kill()
    for fd in sum(pipes, ()):
        os.close(fd)
    assert monitor.stopped == Stop(StopReason.TIME, "0.2")
    assert monitor.called[-1].failure.kind is FailureKind.TIMED_OUT


@pytest.mark.parametrize("reason", StopReason)
def test_a_stop_travels_between_processes_by_its_code(monkeypatch, reason):
    stop = Stop(reason, "7")
    told = json.loads(json.dumps(stop.told()))
    edit(monkeypatch, SENTENCES, reason)
    assert stop_of(told) == stop
    is_late = reason is StopReason.TIME
    assert stop.failure().kind is (FailureKind.TIMED_OUT if is_late else FailureKind.ERROR)


def test_what_a_teacher_has_read_is_known_by_its_code(tmp_path, monkeypatch, all_edited):
    monkeypatch.setattr(lesson_00_start_here, "REPORTS", (SPEED,), raising=False)
    scored, given = [], {("read", "", STEM, "speed", "why"): Given(points=2)}
    for learner in ("read", "wrote", "nothing"):
        written = (Written(report="speed", text="words" * (learner != "nothing")),)
        one = Graded(submission=handed_in(learner), stem=STEM, written=written)
        scored.append((one, score_of(one, Policy(rows=given))))
    statuses = [score.readings[0].status for _, score in scored]
    assert statuses == [
        ReadingStatus.READ,
        ReadingStatus.TO_BE_READ,
        ReadingStatus.NOTHING_WRITTEN,
    ]
    assert [score.to_be_read for _, score in scored] == [(), ("speed",), ()]
    # All that is written shows the edited words.
    write_gradebook(scored, tmp_path)
    with (tmp_path / "details.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    words = [READING_WORDINGS[status].in_tables for status in statuses]
    assert [(row["status"], row["earned"]) for row in rows] == list(
        zip(words, ["2", "", "0"], strict=True)
    )
    write_marks(tmp_path / "reports.csv", scored, RubricMarks())
    for (one, score), status in zip(scored, statuses, strict=True):
        assert READING_WORDINGS[status].in_tables in (tmp_path / "reports.csv").read_text()
        assert READING_WORDINGS[status].on_pages in page_of(one, score)
        assert READING_WORDINGS[status].in_tables in repr(gradescope_results(one, score))


def test_of_two_notebooks_the_one_with_text_is_in_the_table(tmp_path, monkeypatch, all_edited):
    monkeypatch.setattr(lesson_00_start_here, "REPORTS", (SPEED,), raising=False)
    for number, texts in enumerate([("", "words"), ("words", "")]):
        made = [
            Graded(submission=handed_in(), stem=STEM, written=(Written(report="speed", text=text),))
            for text in texts
        ]
        scored = [(one, score_of(one, Policy())) for one in made]
        write_marks(tmp_path / f"{number}.csv", scored, RubricMarks())
        to_be_read = READING_WORDINGS[ReadingStatus.TO_BE_READ].in_tables
        assert to_be_read in (tmp_path / f"{number}.csv").read_text()


@pytest.mark.usefixtures("all_edited")
def test_the_page_of_the_class_shows_the_edited_words():
    one = Graded(
        submission=handed_in(), stem=STEM, reports=tuple(answered(ending) for ending in Ending)
    )
    page = class_page([(one, score_of(one, Policy()))])
    labels = [WORDINGS[ending].label for ending in Ending] + [class_counts.PARTIAL_LABEL]
    assert all(label in page for label in labels)


# Every code has its words


def test_each_code_has_words():
    assert list(WORDINGS) == list(Ending)
    assert set(FAILURE_OPENINGS) == set(ENDING_OF_FAILURE) == set(FailureKind)
    assert set(SENTENCES) == set(StopReason)
    assert set(READING_WORDINGS) == set(ReadingStatus)
    assert {one.value for one in class_counts.AnswerOutcome} == {*Ending, "partial"}


def test_no_two_endings_have_the_same_label():
    assert len({wording.label for wording in WORDINGS.values()}) == len(Ending)


def test_codes_are_as_they_were_stored():
    assert [*Ending] == ["passed", "not_yet", "not_started", "error", "timed_out"]
    assert {*FailureKind} == {"not_started", "error", "timed_out", "unusable"}


# What a notebook keeps


@pytest.mark.parametrize("ending", Ending)
def test_an_output_shows_what_it_showed_and_keeps_the_code(ending):
    one = answered(ending)
    data, metadata = DisplayFormatter().format(one)
    assert data == {"text/plain": repr(one), "text/html": one._repr_html_()}
    assert metadata == {
        "distlab": {
            "check": CHECK.name,
            "ending": ending.value,
            "earned": one.earned,
            "points": CHECK.points,
        }
    }


def test_the_notebooks_of_the_course_do_not_keep_it():
    data, metadata = DisplayFormatter().format(answered(Ending.PASSED))
    shown = v4.new_output("execute_result", data=data, metadata=metadata, execution_count=1)
    (stored,) = stable_outputs([shown], execution_count=1)
    assert (stored.data, stored.metadata) == (data, {})


@pytest.mark.parametrize(
    "kept",
    [
        3,
        {},
        {"check": CHECK.name},
        {"check": CHECK.name, "ending": "won", "earned": 2},
        {"check": CHECK.name, "ending": [], "earned": 2},
        {"check": CHECK.name, "ending": "passed", "earned": "much"},
    ],
)
def test_where_what_is_kept_cannot_be_read_the_text_counts(tmp_path, kept):
    text = f"{CHECK.name}: not yet (0.5 of 2 points)"
    output = {"data": {"text/plain": text}, "metadata": {"distlab": kept}}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [{"outputs": [output]}]}))
    assert (lesson(tmp_path).earned, lesson(tmp_path).passed) == (0.5, ())


# What version 0.1.0 saved


@pytest.mark.parametrize("label", OLD_LABELS)
@pytest.mark.parametrize("has_edited_words", [False, True])
def test_a_notebook_of_an_earlier_version_is_read(tmp_path, request, label, has_edited_words):
    if has_edited_words:
        request.getfixturevalue("all_edited")
    text = f"{CHECK.name}: {label} (1 of 2 points)\n  Its first sentence."
    cells = [{"outputs": [{"data": {"text/plain": text.splitlines(True)}, "metadata": {}}]}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    is_answer = OLD_LABELS[label] is not Ending.NOT_STARTED
    assert lesson(tmp_path).earned == (1 if is_answer else 0)
    assert bool(lesson(tmp_path).tried) is is_answer


OLD_REPORT = {
    "name": "slices", "function": "split", "title": "Slices", "status": "passed", "earned": 2.0,
    "points": 2.0, "criteria": [], "mistake": "", "mistake_says": "", "failure": None,
    "message": "", "hint": "", "revisit": "", "printed": "", "seed": None,
}  # fmt: skip


def old_record(folder, submission, told):
    """Writes a record where `Saved` looks for it, with a report as 0.1.0 wrote it."""
    saved = Saved(folder, key="1")
    saved.keep(Graded(submission=submission, stem=STEM))
    (path,) = folder.glob("*.json")
    record = json.loads(path.read_text()) | {"reports": [told]}
    path.write_text(json.dumps(record))
    return saved.find(submission)


@pytest.mark.parametrize("label", OLD_LABELS)
def test_a_record_of_an_earlier_version_is_read(tmp_path, label):
    found = old_record(tmp_path, handed_in(), OLD_REPORT | {"status": label})
    ending = OLD_LABELS[label]
    assert found.reports == (Report("slices", "split", "Slices", ending, 2.0, 2.0),)
    assert type(found.reports[0].ending) is Ending


@pytest.mark.parametrize("kind", OLD_KINDS)
def test_a_failure_in_a_record_of_an_earlier_version_is_read(tmp_path, kind):
    failure = {"kind": kind, "error": "ValueError: 1", "lines": ["line 1 in split"]}
    told = OLD_REPORT | {"status": "not yet", "failure": failure}
    found = old_record(tmp_path, handed_in(), told)
    expected = Failure(OLD_KINDS[kind], "ValueError: 1", ("line 1 in split",))
    assert found.reports[0].failure == expected
    assert type(found.reports[0].failure.kind) is FailureKind


@pytest.mark.parametrize(
    "told",
    [
        OLD_REPORT | {"status": "won"},
        OLD_REPORT | {"failure": {"kind": "won", "error": "", "lines": []}},
    ],
)
def test_a_record_with_unknown_words_is_graded_again(tmp_path, told):
    assert old_record(tmp_path, handed_in(), told) is None


def test_a_learner_sees_the_label():
    assert dl.check(CHECK, lambda: 2).status == "not yet"
