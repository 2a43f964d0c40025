"""What a teacher fills in for reports counts, and is never written over or lost."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from distlab import errors
from distlab.autograder.gradebook.gradebook_csv import write_gradebook
from distlab.autograder.gradebook.people import People
from distlab.autograder.gradebook.rubric_csv import read_marks, write_marks
from distlab.autograder.gradebook.scores import Graded, Policy, score_of
from distlab.autograder.intake.report_submission import Written
from distlab.autograder.intake.submissions import Submission
from distlab.checks import lesson_00_start_here
from distlab.checks.endings import Ending
from distlab.checks.report import Report
from distlab.checks.rubric import RubricRow, WrittenReport

STEM = "00_start_here"
SPEED = WrittenReport(
    "speed", "Speed", (RubricRow("jump", 2, "names the jump"), RubricRow("why", 3, "explains it"))
)
HEADER = "learner,user,exercise,report,criterion,of,points,comment,status,what earns them"


def graded(learner, *, text="It jumps.", user="", **more):
    handed = Submission(learner=learner, path=Path(learner, "one.ipynb"), name="one", user=user)
    one = Graded(
        submission=handed,
        stem=STEM,
        reports=(Report("slices", "split", "Slices", Ending.PASSED, 4, 4),),
        written=(Written(report="speed", text=text),),
    )
    return replace(one, **more)


JANE, JOHN, ZOE = graded("jane"), graded("john", text=""), graded("=zoë", user="7")


@pytest.fixture(autouse=True)
def a_report(monkeypatch):
    monkeypatch.setattr(lesson_00_start_here, "REPORTS", (SPEED,), raising=False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "reports.csv"


def run(path, *everybody):
    """As a run does: read, score, write; returns the scores by learner."""
    marks = read_marks(path, People(one.submission for one in everybody))
    scored = [(one, score_of(one, Policy(rows=marks.given))) for one in everybody]
    write_marks(path, scored, marks)
    return {one.submission.learner: score for one, score in scored}


def lines(path):
    return path.read_text(encoding="utf-8-sig").splitlines()


def fill(path, *, learner, row, points="", comment=""):
    old = next(line for line in lines(path) if f"{learner}," in line and f",{row}," in line)
    cells = next(csv.reader([old]))
    cells[6:8] = points, comment
    new = ",".join(f'"{cell}"' for cell in cells)
    path.write_text(path.read_text(encoding="utf-8-sig").replace(old, new), encoding="utf-8")


def test_a_new_table_has_an_empty_row_for_each_row_of_a_rubric(path):
    scores = run(path, JANE, JOHN)
    assert lines(path) == [
        HEADER,
        "jane,,00_start_here,speed,jump,2,,,to be read,names the jump",
        "jane,,00_start_here,speed,why,3,,,to be read,explains it",
        "john,,00_start_here,speed,jump,2,,,nothing written,names the jump",
        "john,,00_start_here,speed,why,3,,,nothing written,explains it",
    ]
    assert (scores["jane"].earned, scores["jane"].points) == (4, 9)
    assert (scores["jane"].to_be_read, scores["john"].to_be_read) == (("speed",), ())


def test_what_is_filled_in_counts_and_stays(path):
    run(path, JANE, JOHN)
    fill(path, learner="jane", row="jump", points="1.5", comment="=1+1, nearly")
    assert run(path, JANE, JOHN)["jane"].to_be_read == ("speed",)
    fill(path, learner="jane", row="why", points="0")
    (reading,) = (jane := run(path, JANE, JOHN)["jane"]).readings
    assert (reading.status, reading.earned, jane.earned) == ("read", 1.5, 5.5)
    assert reading.rows[0][1].comment == "=1+1, nearly"
    assert lines(path)[1] == (
        'jane,,00_start_here,speed,jump,2,1.5,"=1+1, nearly",read,names the jump'
    )
    assert lines(path)[2] == "jane,,00_start_here,speed,why,3,0,,read,explains it"


def test_a_run_that_has_nothing_new_changes_no_letter(path):
    run(path, JANE, ZOE)
    fill(path, learner="jane", row="jump", points="1,5", comment=' a "word"; more ')
    run(path, JANE, ZOE)
    before = path.read_bytes()
    run(path, JANE, ZOE)
    assert path.read_bytes() == before


def test_who_is_new_is_added_and_nothing_else_changes(path):
    run(path, JOHN)
    fill(path, learner="john", row="why", points="2", comment="on paper")
    run(path, JOHN)
    before = lines(path)
    scores = run(path, JANE, JOHN, ZOE)
    assert lines(path)[: len(before)] == before
    assert [line.split(",")[0] for line in lines(path)[len(before) :]] == ["jane"] * 2 + [
        "'=zoë"
    ] * 2
    assert scores["john"].readings[0].earned == 2


def saved_otherwise(text, how):
    rows = list(csv.reader(text.splitlines()))
    if how == "another order":
        rows = [rows[0], *reversed(rows[1:])]
    if how == "columns moved, one's own added":
        rows = [[row[6], *row[:6], *row[7:], extra] for row, extra in zip(rows, OWN, strict=True)]
    quoting = csv.QUOTE_ALL if how == "all in quotes" else csv.QUOTE_MINIMAL
    delimiter = ";" if how == "semicolons" else ","
    made = []
    for row in rows:
        if how == "no status":
            row = row[:8]
        made.append(delimiter.join(f'"{c}"' if quoting or delimiter in c else c for c in row))
    ends = "\r\n".join(made) + "\r\n"
    return ends.encode("utf-8-sig" if how == "with a mark" else "utf-8")


OWN = ["my notes", "ask her", "", "", "", "", ""]


@pytest.mark.parametrize(
    "how",
    [
        "as it is",
        "another order",
        "semicolons",
        "all in quotes",
        "with a mark",
        "no status",
        "columns moved, one's own added",
    ],
)
def test_a_table_that_a_spreadsheet_has_saved_is_the_same(path, how):
    run(path, JANE, JOHN, ZOE)
    fill(path, learner="jane", row="jump", points="1", comment="näher, bitte")
    fill(path, learner="zoë", row="why", points="3")
    path.write_bytes(saved_otherwise(path.read_text(encoding="utf-8-sig"), how))
    earned = [score.readings[0].earned for score in run(path, JANE, JOHN, ZOE).values()]
    assert earned == [1, 0, 3]
    with path.open(newline="", encoding="utf-8-sig") as file:
        table = list(csv.DictReader(file, delimiter=";" if how == "semicolons" else ","))
    assert len(table) == 6
    (jane,) = (row for row in table if row["learner"] == "jane" and row["criterion"] == "jump")
    assert (jane["points"], jane["comment"], jane["status"]) == ("1", "näher, bitte", "to be read")
    if how == "another order":
        assert table[-1] == jane
    if how == "columns moved, one's own added":
        assert jane["my notes"] == "ask her"


def test_what_is_filled_in_for_whoever_is_not_graded_now_is_kept(path):
    run(path, JANE, JOHN)
    fill(path, learner="jane", row="jump", points="2")
    people = People([JANE.submission, JOHN.submission])
    marks = read_marks(path, people)
    broken = graded("jane", stem="", written=(), problem="an empty file")
    write_marks(path, [(one, score_of(one, Policy())) for one in (broken, JOHN)], marks)
    assert lines(path)[1].startswith("jane,,00_start_here,speed,jump,2,2,,not among what was")
    assert not any(",why," in line and "jane" in line for line in lines(path))
    assert run(path, JANE, JOHN)["jane"].readings[0].earned == 2


def test_empty_rows_of_whoever_is_gone_are_taken_out(path):
    run(path, JANE, JOHN)
    run(path, JANE)
    assert len(lines(path)) == 3


@pytest.mark.parametrize(
    ("row", "found", "do"),
    [
        ("jane,,00_start_here,speed,jump,2,2.5,", "points='2.5'", "give 0 to 2 for 'jump', or"),
        ("jane,,00_start_here,speed,jump,2,-1,", "points='-1'", "give 0 to 2 for 'jump', or"),
        ("jane,,00_start_here,speed,jump,2,two,", "points='two'", "give 0 to 2 for 'jump', or"),
        ("jan,,00_start_here,speed,jump,2,1,", "no such learner: 'jan'", "did you mean 'jane'?"),
        (
            "jan,,00_start_here,speed,jump,2,,hello",
            "no such learner: 'jan'",
            "did you mean 'jane'?",
        ),
        ("jane,,00_start_here,sped,jump,2,1,", "no report 'sped' there", "did you mean 'speed'?"),
        ("jane,,00_start_here,speed,jmp,2,1,", "no criterion 'jmp' there", "did you mean 'jump'?"),
        ("jane,,01_mirrored_strategy,a,b,2,1,", "no report 'a' there", "take the row out: nothing"),
        ("jane,,00_start,speed,jump,2,1,", "no exercise '00_start' there", "did you mean '00"),
    ],
)
def test_a_row_that_cannot_be_meant_is_told_by_its_line(path, row, found, do):
    path.write_text(f"{HEADER[:57]}\n\n{row}\n")
    with pytest.raises(errors.InvalidArgument) as caught:
        run(path, JANE)
    assert f"{caught.value.asked}: {caught.value.found}" == f"read {path}, line 3: {found}"
    assert caught.value.do.startswith(do)
    assert path.read_text() == f"{HEADER[:57]}\n\n{row}\n"


def test_a_row_that_is_filled_in_twice_is_told(path):
    row = "jane,,00_start_here,speed,jump,2,1,\n"
    path.write_text(f"{HEADER[:57]}\n{row}{row.replace(',1,', ',,')}{row}")
    with pytest.raises(errors.InvalidArgument) as caught:
        run(path, JANE)
    assert caught.value.found == "the same row twice"
    assert caught.value.asked.endswith("line 4")


def test_without_reports_there_is_no_table(path):
    run(path, graded("jane", written=()))
    assert not path.exists()


def test_the_gradebook_says_what_is_to_be_read(path, tmp_path):
    run(path, JANE, JOHN)
    fill(path, learner="john", row="jump", points="2", comment="on paper")
    fill(path, learner="john", row="why", points="1")
    marks = read_marks(path, People([JANE.submission, JOHN.submission]))
    scored = [(one, score_of(one, Policy(rows=marks.given))) for one in (JANE, JOHN)]
    write_gradebook(scored, tmp_path)
    tables = {}
    for name in ("gradebook", "details"):
        with (tmp_path / f"{name}.csv").open(newline="", encoding="utf-8-sig") as file:
            tables[name] = list(csv.DictReader(file))
    jane, john = tables["gradebook"]
    assert (jane["00_start_here (of 9)"], jane["to be read"]) == ("4", "00_start_here: speed")
    assert (john["00_start_here (of 9)"], john["to be read"]) == ("7", "")
    rows = [row for row in tables["details"] if row["check"] == "speed"]
    assert [(row["earned"], row["points"], row["status"], row["comment"]) for row in rows] == [
        ("", "5", "to be read", ""),
        ("3", "5", "read", "jump: on paper"),
    ]


def test_of_two_of_one_name_each_has_their_own_rows(path):
    one, two = graded("doe", user="1"), graded("doe", user="2")
    run(path, one, two)
    fill(path, learner="doe,2", row="jump", points="2")
    marks = read_marks(path, People([one.submission, two.submission]))
    earned = [score_of(x, Policy(rows=marks.given)).readings[0].earned for x in (one, two)]
    assert earned == [0, 2]
