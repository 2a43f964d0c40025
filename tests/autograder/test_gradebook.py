"""What learners earned and teachers fill in: tables in which nothing is lost and nothing runs."""

import csv
import math
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from distlab import errors
from distlab.autograder.gradebook.gradebook_csv import write_gradebook
from distlab.autograder.gradebook.platforms import CANVAS, MOODLE, check_export, fill_sheet
from distlab.autograder.gradebook.scores import Given, Graded, Policy, score_of
from distlab.autograder.gradebook.tables import number_in, read_table, safe, write_table
from distlab.autograder.gradebook.teacher_tables import (
    People,
    check_overrides,
    read_marks,
    read_overrides,
    write_marks,
)
from distlab.autograder.intake.exercises import Exercises
from distlab.autograder.intake.submissions import Problem, Submission
from distlab.autograder.intake.written_reports import Written
from distlab.course.checks.report import Ending, Report
from distlab.course.checks.rubric import RubricRow, WrittenReport
from distlab.course.lesson_00_start_here import checks as lesson_00_start_here

STEM = "00_start_here"


def report(name, earned, *, mistake="", ending=Ending.NOT_YET):
    says = f"about {mistake}"
    return Report(name, name, "", ending, earned, 4, mistake=mistake, mistake_says=says)


def graded(learner, *reports, stem="00_one", late=False, file="one.ipynb", user="7", **more):
    path = Path(learner, file)
    handed = Submission(learner=learner, path=path, name="one", is_late=late, user=user)
    return Graded(submission=handed, stem=stem, reports=reports, **more)


FIRST, SECOND = report("first", 4, ending=Ending.PASSED), report("second", 3, mistake="by_half")
JANE = graded("jane", FIRST, SECOND)
JOHN = graded("john", report("first", 2, mistake="by_half"), report("second", 0), late=True)
BROKEN = graded("jane", stem="", problem="an empty file")


def scored(*everybody, policy=None):
    return [(one, score_of(one, policy or Policy())) for one in everybody]


def table(path):
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def tables(folder, *everybody, policy=None):
    write_gradebook(scored(*everybody, policy=policy), folder)
    return {path.stem: table(path) for path in folder.iterdir()}


def refusal(call, *arguments, **options):
    with pytest.raises(errors.InvalidArgument) as caught:
        call(*arguments, **options)
    return caught.value


# The gradebook


def test_a_learner_has_a_row_with_each_exercise_and_the_total(tmp_path):
    other = graded("jane", report("third", 1), stem="01_two")
    again = graded("jane", report("first", 1), file="other.ipynb")  # of two the better counts
    jane, john = tables(tmp_path, JANE, again, other, JOHN)["gradebook"]
    assert jane == {
        "learner": "jane",
        "user": "7",
        "00_one (of 8)": "7",
        "01_two (of 4)": "1",
        "total": "8",
        "late": "0",
        "to be read": "",
        "not graded": "",
    }
    assert (john["00_one (of 8)"], john["01_two (of 4)"], john["late"]) == ("2", "", "1")
    late = tables(tmp_path, JANE, JOHN, policy=Policy(late_factor=0.75))
    assert [row["total"] for row in late["gradebook"]] == ["7", "1.5"]


def test_what_could_not_be_graded_or_does_not_count_is_told(tmp_path):
    books = tables(tmp_path, BROKEN, JOHN)
    assert books["gradebook"][0]["not graded"] == "one.ipynb: an empty file"
    assert [(row["learner"], row["why"]) for row in books["review"]] == [
        ("jane", "not graded: an empty file")
    ]
    left_out = [Problem(path=Path("jane/old/one.ipynb"), says="jane/one.ipynb counts")]
    write_gradebook([], tmp_path, left_out=left_out)
    text = (tmp_path / "review.csv").read_text(encoding="utf-8-sig")
    assert ",,jane/old/one.ipynb,left out: jane/one.ipynb counts" in text
    named = replace(JANE, submission=replace(JANE.submission, name=STEM), stem="01_mirrored")
    (row,) = tables(tmp_path, named, replace(named, stem=STEM))["review"]
    assert row["why"] == f"named {STEM}, and the tasks are those of 01_mirrored"


# A worksheet as Moodle's languages write it, with `?` for the grades, and Canvas's export.
ENGLISH = (
    "Identifier,Full name,Status,Grade,Maximum Grade,Grade can be changed,Feedback comments\r\n"
    'Participant 7,"Doe, Jane",Submitted - ,?,9.00,Yes,"so ""far"""\r\n'
    "Participant 70,Joe,No submission,1.00,9.00,Yes,\r\n"
)
GERMAN = (
    "ID,Vollständiger Name,Abteilung,Telefon,Status,Bewertung,Bestwertung,"
    "Bewertung kann geändert werden,Feedback als Kommentar\n"
    'Teilnehmer/in7,N 7,,3,Zur Bewertung abgegeben - ,?,"9,00",Ja,\n'
    'Teilnehmer/in70,N 70,,3,Keine Abgabe,"1,00","9,00",Ja,\n'
)
EXCEL = GERMAN.replace('"', "").replace("9,00", "9:00").replace("1,00", "1:00").replace(",", ";")
EXCEL = EXCEL.replace(":00", ",00").replace("\n", "\r\n")
CHINESE = "标识符,全名,状态,成绩,最高分\n参与者7,简,已提交,?,100\n参与者70,乔,未提交,-,100\n"
QUOTED = '"Student","ID","Section","One (81)","Two (82)"\n"Points Possible","","","9.0","9.0"\n'
QUOTED += '"Doe, Jane","7","1","?","N/A"\n"Roe, Joe","70","1","1.0","N/A"\n'
SEMICOLONS = (
    "LastName;FirstName;ID;One (81)\nPoints Possible;;;9,00\nDoe;Jane;7;?\nRoe;Joe;70;1,00\n"
)
CUT = "Student,ID,One (81)\nDoe,7?\nRoe,70,1\n"  # the last empty cell is not there
SHEETS = {
    "Moodle in English": (MOODLE, ENGLISH, "7.5"),
    "Moodle in German": (MOODLE, GERMAN, '"7,5"'),
    "Moodle in German, saved by Excel": (MOODLE, EXCEL, "7,5"),
    "Moodle in Chinese": (MOODLE, CHINESE, "7.5"),
    "Moodle, tabs": (MOODLE, EXCEL.replace(";", "\t"), "7,5"),
    "Moodle, with the line of Excel": (MOODLE, "sep=;\r\n" + EXCEL, "7,5"),
    "Canvas, all in quotes": (CANVAS, QUOTED, "7.5"),
    "Canvas, with semicolons": (CANVAS, SEMICOLONS, "7,5"),
    "Canvas, a short row": (CANVAS, CUT, ",7.5"),
}


ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-be", "cp1252")  # the last has no Chinese
SAVED = [
    (form, code)
    for form in SHEETS
    for code in ENCODINGS
    if not (code == "cp1252" and "Chinese" in form)
]


@pytest.mark.parametrize(("form", "encoding"), SAVED)
def test_a_platforms_table_is_filled_and_otherwise_stays_as_it_was_saved(tmp_path, form, encoding):
    sheet, text, expected = SHEETS[form]
    mark = "\ufeff" if encoding == "utf-16-be" else ""  # which Python writes for the others
    exported, filled = tmp_path / "export.csv", tmp_path / "filled.csv"
    exported.write_bytes((mark + text.replace("?", "")).encode(encoding))
    half = graded("jane", FIRST, report("second", 3.5))
    broken = graded("joe", stem="", user="70", problem="an empty file")  # keeps the old grade
    handed = scored(half, broken, graded("roe", FIRST, user="8"))
    title = "" if sheet is MOODLE else "One"
    check_export(sheet, exported, title)
    assert fill_sheet(sheet, exported, handed, column=title, to=filled) == ["roe"]
    written = (mark + text.replace("?", expected)).encode(encoding)
    assert filled.read_bytes() == written


def test_a_table_of_another_kind_is_refused_with_what_it_lacks(tmp_path):
    cases = {
        "a table without a column of participants, such as 'Participant 123'": (
            *(MOODLE, "Name,Grade,Maximum Grade\nJane Doe,,9\nJohn Doe,,9\n"),
        ),
        "no column of grades, which are empty or numbers, with the highest grade beside it": (
            *(MOODLE, "Identifier,Grade,Scale\nParticipant 7,,good or bad\n"),
        ),
        "a table without a column ID": (CANVAS, "Student,One (81)\nJane,1\n"),
        "no assignment titled 'One'": (CANVAS, "Student,ID,Two (82)\nJane,7,1\n"),
        "an Excel workbook": (CANVAS, "PK\x03\x04"),
    }
    for found, (sheet, text) in cases.items():
        exported = tmp_path / "export.csv"
        exported.write_text(text)
        error = refusal(check_export, sheet, exported, "" if sheet is MOODLE else "One")
        assert error.found == found
        assert error.asked.endswith(str(exported)) and error.do


def test_no_cell_is_a_formula_and_a_table_is_replaced_whole(tmp_path):
    cells = {
        "=HYPERLINK(1)": "'=HYPERLINK(1)",
        "+1": "'+1",
        "-1": "'-1",
        "＝cmd|1": "'＝cmd|1",  # noqa: RUF001  # which a spreadsheet in Japanese may take for =
        "\t=1": "' =1",
        "\x00=1": "' =1",
        "a\r\n=1": "a  =1",
        "jane, doe": "jane, doe",
        "Zoë": "Zoë",
        -1.5: "-1.5",
        7.0: "7",
    }
    assert {cell: safe(cell) for cell in cells} == cells
    path = tmp_path / "one.csv"
    write_table(path, [["a"], [1]])

    def rows():
        yield ["b"]
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        write_table(path, rows())
    assert path.read_text(encoding="utf-8-sig").split() == ["a", "1"]


# Tables that a teacher has saved

PLAIN = "name,points,comment\nZoë,1.5,well done\n"


def sheet(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_table(path, needs=("name", "points"), begins="name,points,comment")


def test_all_that_spreadsheets_save_is_the_same_table(tmp_path):
    saved = [
        PLAIN,
        PLAIN.encode("utf-8-sig"),
        PLAIN.encode("utf-16"),
        PLAIN.encode("cp1252"),
        PLAIN.replace(",", "\t"),
        "sep=;\r\n" + PLAIN.replace(",", ";").replace("\n", "\r\n"),
        '"name","points","comment"\n"Zoë","1.5","well done"\n',
        "Name, POINTS ,comment\nZoë,1.5,well done\n",
        "name,points,comment,,\n,,,,\nZoë,1.5,well done,,\n\n",
    ]
    for data in saved:
        read = sheet(tmp_path / "a.csv", data)
        rows = [{name: row[name] for name in ("name", "points", "comment")} for _, row in read.rows]
        assert rows == [{"name": "Zoë", "points": "1.5", "comment": "well done"}], data
    moved = sheet(tmp_path / "a.csv", 'points;name;\n1;"two\nlines";mine\n\n3;b\n')
    assert [(line, row["name"]) for line, row in moved.rows] == [(3, "two\nlines"), (5, "b")]
    numbers = {"2": 2, " 2.5 ": 2.5, "2,5": 2.5, "": None, "  ": None, "0": 0}
    assert {cell: number_in(cell) for cell in numbers} == numbers
    wrong = ["two", "nan", "inf", "1,000,000", "2 of 3"]
    assert [cell for cell in wrong if not math.isnan(number_in(cell))] == []


# A teacher's own points

TWO = [report("first", 2), report("second", 0)]
ANN, BOB = graded("ann", *TWO, user=""), graded("bob", *TWO, user="")


@pytest.fixture
def overrides(tmp_path):
    def read(text, *everybody):
        path = tmp_path / "overrides.csv"
        path.write_text(text)
        return read_overrides(path, People(one.submission for one in everybody or (ANN, BOB)))

    return read


def test_a_teachers_points_take_the_place_of_the_checks(overrides):
    given = overrides(
        "learner,check,points,comment\nbob,second,3.5,right idea\nbob,first,,look at line 3\n"
    )
    score = score_of(BOB, Policy(overrides=given))
    assert (score.earned, score.by_check) == (5.5, {"first": 2, "second": 3.5})
    assert score.comments == {"second": "right idea", "first": "look at line 3"}
    assert score_of(ANN, Policy(overrides=given)).earned == 2


def test_of_two_learners_of_one_name_the_user_tells_who_is_meant(overrides):
    doe = [graded("doe", *TWO, user=user) for user in ("1", "2")]
    given = overrides("learner,user,check,points\ndoe,2,first,4\n", *doe)
    policy = Policy(overrides=given)
    assert [score_of(each, policy).by_check["first"] for each in doe] == [2, 4]
    named = graded("José", *TWO, user=""), graded("   ", *TWO, user="")
    typed = f"learner,check,points\n{unicodedata.normalize('NFD', 'José')},first,4\n,first,3\n"
    assert {key[0] for key in overrides(typed, *named)} == {"José", "   "}
    error = refusal(overrides, "learner,check,points\ndoe,first,4\n", *doe)
    assert error.found == "2 learners named 'doe'"
    assert error.do == "write one of their numbers in the column 'user': 1, 2"


def test_rows_that_cannot_be_meant_are_told_by_their_line(overrides):
    cases = {
        "bob,first,3\nann,first,many\n": (3, "points='many'"),
        "bob,first,nan\n": (2, "points='nan'"),
        "bob,first\n": (2, "points=''"),
        "bob,first,1\nbob,first,2\n": (3, "two rows for bob and first"),
        "bo,first,1\n": (2, "no such learner: 'bo'"),
    }
    for rows, (line, told) in cases.items():
        error = refusal(overrides, f"learner,check,points\n{rows}")
        assert (error.asked.rpartition(", ")[2], error.found) == (f"line {line}", told)
    wrong = {("ann", "", "frist"): Given(points=1)}
    assert "did you mean 'first'?" in refusal(check_overrides, wrong, [ANN]).do
    check_overrides({("bob", "", "first"): Given(points=1)}, [ANN])  # who may be graded later
    reporting = replace(ANN, written=(Written(report="speed"),))
    error = refusal(check_overrides, {("ann", "", "speed"): Given(points=1)}, [reporting])
    assert error.do == "enter its points in reports.csv, because it is a report"


# Points for reports, which a teacher fills in

SPEED = WrittenReport(
    "speed", "Speed", (RubricRow("jump", 2, "names the jump"), RubricRow("why", 3, "explains it"))
)
HEADER = "learner,user,exercise,report,criterion,of,points,comment,status,what earns them"


def writer(learner, text="It jumps.", user=""):
    slices = Report("slices", "split", "Slices", Ending.PASSED, 4, 4)
    written = (Written(report="speed", text=text),)
    return graded(learner, slices, stem=STEM, user=user, written=written)


KIM, LEE, ZOE = writer("kim"), writer("lee", text=""), writer("=zoë", user="7")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(lesson_00_start_here, "REPORTS", (SPEED,), raising=False)
    return tmp_path / "reports.csv"


def run(path, *everybody):
    """As a run does: read, score, write; returns the scores by learner."""
    marks = read_marks(path, People(one.submission for one in everybody), Exercises())
    rated = scored(*everybody, policy=Policy(rows=marks.given))
    write_marks(path, rated, marks)
    return {one.submission.learner: score for one, score in rated}


def lines(path):
    return path.read_text(encoding="utf-8-sig").splitlines()


def fill(path, *, learner, row, points="", comment=""):
    old = next(line for line in lines(path) if f"{learner}," in line and f",{row}," in line)
    cells = next(csv.reader([old]))
    cells[6:8] = points, comment
    new = ",".join(f'"{cell}"' for cell in cells)
    path.write_text(path.read_text(encoding="utf-8-sig").replace(old, new), encoding="utf-8")


def test_what_is_filled_in_for_a_report_counts_and_stays(path):
    first = run(path, KIM, LEE)
    assert lines(path) == [
        HEADER,
        f"kim,,{STEM},speed,jump,2,,,to be read,names the jump",
        f"kim,,{STEM},speed,why,3,,,to be read,explains it",
        f"lee,,{STEM},speed,jump,2,,,nothing written,names the jump",
        f"lee,,{STEM},speed,why,3,,,nothing written,explains it",
    ]
    assert (first["kim"].earned, first["kim"].points) == (4, 9)
    assert (first["kim"].to_be_read, first["lee"].to_be_read) == (("speed",), ())
    fill(path, learner="kim", row="jump", points="1,5", comment="=1+1, nearly")
    assert run(path, KIM, LEE)["kim"].to_be_read == ("speed",)
    fill(path, learner="kim", row="why", points="0")
    (reading,) = (kim := run(path, KIM, LEE)["kim"]).readings
    assert (reading.status, reading.earned, kim.earned) == ("read", 1.5, 5.5)
    assert reading.rows[0][1].comment == "=1+1, nearly"
    before = path.read_bytes()
    run(path, KIM, LEE)
    assert path.read_bytes() == before
    # Who is new is added, and who is not graded now keeps what was filled in.
    run(path, KIM, LEE, ZOE)
    assert path.read_bytes().startswith(before)
    assert [line.split(",")[0] for line in lines(path)[5:]] == ["'=zoë"] * 2
    people = People([KIM.submission, LEE.submission])
    broken = replace(KIM, stem="", written=(), problem="an empty file")
    write_marks(path, scored(broken, LEE), read_marks(path, people, Exercises()))
    assert ["not among what was" in line for line in lines(path)[1:]] == [False] * 2 + [True] * 2
    assert run(path, KIM)["kim"].readings[0].earned == 1.5


def test_a_row_of_reports_that_cannot_be_meant_is_told_by_its_line_and_stays(path):
    cases = {
        f"kim,,{STEM},speed,jump,2,2.5,": "points='2.5'",
        f"kim,,{STEM},speed,jump,2,-1,": "points='-1'",
        f"kim,,{STEM},speed,jump,2,two,": "points='two'",
        f"ki,,{STEM},speed,jump,2,1,": "no such learner: 'ki'",
        f"kim,,{STEM},sped,jump,2,1,": "no report 'sped' there",
        f"kim,,{STEM},speed,jmp,2,1,": "no criterion 'jmp' there",
        "kim,,00_start,speed,jump,2,1,": "no exercise '00_start' there",
    }
    for row, told in cases.items():
        path.write_text(f"{HEADER[:57]}\n\n{row}\n")
        error = refusal(run, path, KIM)
        assert f"{error.asked}: {error.found}" == f"read {path}, line 3: {told}"
        assert path.read_text() == f"{HEADER[:57]}\n\n{row}\n"
    row = f"kim,,{STEM},speed,jump,2,1,\n"
    path.write_text(f"{HEADER[:57]}\n{row}{row}")
    assert refusal(run, path, KIM).found == "the same row twice"
