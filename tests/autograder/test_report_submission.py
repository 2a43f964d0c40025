"""What learners write for a report is taken from their notebook, as it was saved."""

import base64
import io
import json

import pytest
from PIL import Image

from distlab.autograder.intake import report_submission
from distlab.autograder.intake.notebook_file import open_notebook
from distlab.autograder.intake.report_submission import Written, find_written, handed_out
from distlab.checks.registry import lesson_modules, reports_of
from distlab.checks.rubric import RubricRow, WrittenReport

SPEED = WrittenReport("speed", "Speed", (RubricRow("why", 2, "says why"),))
ASKED = "<!-- report: speed -->\n**1. What jumps?**\n\n*Your answer.*\n"
HANDED_OUT = {*ASKED.splitlines(), "## Next steps"}
DRAW = "# report: speed\ndraw()"


def png(colour="red"):
    file = io.BytesIO()
    Image.new("RGB", (3, 2), colour).save(file, "PNG")
    return base64.encodebytes(file.getvalue()).decode()


def text(source):
    return {"cell_type": "markdown", "source": source.splitlines(True)}


def code(source, *outputs):
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def picture(data, kind="image/png"):
    return {"output_type": "display_data", "data": {kind: data, "text/plain": "<Figure>"}}


def found(*cells):
    (one,) = find_written(cells, (SPEED,), handed_out=HANDED_OUT)
    return one


def test_text_and_picture_are_found_by_their_markers():
    one = found(
        text("# Speed"),
        code("# report: other", picture(png("blue"))),
        code(DRAW, {"output_type": "stream", "text": "hello"}, picture(png())),
        text(ASKED.replace("*Your answer.*", "The <b>third</b>.")),
    )
    assert one.text == "**1. What jumps?**\n\nThe <b>third</b>."
    assert one.notes == ()
    (shown,) = one.pictures
    assert Image.open(io.BytesIO(base64.b64decode(shown))).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("untouched", [ASKED, ASKED + "\n\n", "<!-- report: speed -->"])
def test_questions_alone_are_nothing_written(untouched):
    one = found(code(DRAW, picture(png())), text(untouched))
    assert one.text == "" and one.pictures


def test_an_answer_in_the_line_of_its_question_is_an_answer():
    assert found(text("<!-- report: speed -->\n**1. What jumps?** The third.")).text


def test_what_is_missing_is_told():
    assert found(code("x = 1")) == Written(
        report="speed",
        notes=("The cell '# report: speed' has no picture among its saved outputs.",),
        is_marked=False,
    )


def test_an_answer_in_a_cell_of_its_own_below_is_read():
    below = text(""), text("The third."), text("## Next steps"), text("And the fourth.")
    one = found(text(ASKED), *below, code("x = 1"), text("Not this one."))
    asked = ASKED.partition("\n")[2].strip()
    assert one.text == f"{asked}\n\nThe third.\n\nAnd the fourth."


def test_what_stands_below_another_report_is_not_of_this_one():
    assert not found(text(ASKED), text("<!-- report: other -->"), text("The third.")).text


def test_two_cells_of_one_report_are_both_read():
    cells = [text(f"<!--report: speed-->\n{part}") for part in ("one", "two", "one")]
    assert found(*cells).text == "one\n\ntwo"


@pytest.mark.parametrize(
    ("output", "note"),
    [
        (picture("<svg/>", "image/svg+xml"), "An output (image/svg+xml) is not shown: only PNG"),
        (picture("x", "text/html"), "An output (text/html) is not shown: only PNG pictures are."),
        (picture("x" * 41), "A picture is not shown: it is not base64."),
        (picture("QUJD"), "A picture is not shown: it is not a PNG."),
        (picture(["QUJD", 3]), "A picture is not shown: it is not a PNG."),
        (picture({"a": 1}), "A picture is not shown: it is not a PNG."),
        ({"data": 3}, "The cell '# report: speed' has no picture among its saved outputs."),
        (7, "The cell '# report: speed' has no picture among its saved outputs."),
    ],
)
def test_anything_but_a_png_is_refused_with_a_word(output, note):
    one = found(text("<!-- report: speed -->\nx"), code(DRAW, output))
    assert one.pictures == ()
    assert one.notes[0].startswith(note)


def test_a_picture_that_is_no_valid_image_is_shown_as_it_is():
    broken = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(40)  # the browser shows nothing
    one = found(code(DRAW, picture(base64.b64encode(broken).decode())))
    assert [base64.b64decode(shown) for shown in one.pictures] == [broken] and not one.notes


@pytest.mark.parametrize(
    ("name", "most", "note"),
    [
        ("_MOST_BYTES", 10, "A picture is not shown: more than 10 bytes."),
        ("_MOST_PIXELS", 5, "A picture is not shown: 3 x 2 pixels; at most 5 are shown."),
    ],
)
def test_a_picture_that_is_too_large_is_left_out_with_a_note(monkeypatch, name, most, note):
    monkeypatch.setattr(report_submission, name, most)
    one = found(text(ASKED), code(DRAW, picture(png())))
    assert (one.pictures, one.notes) == ((), (note,))


def test_very_much_is_cut_off_and_told(monkeypatch):
    monkeypatch.setattr(report_submission, "_MOST_LETTERS", 10)
    pictures = [picture(png(colour)) for colour in ("red", "blue", "green", "gray")]
    pictures.append(picture("QUJD"))  # not even read
    one = found(text("<!-- report: speed -->\n" + "x" * 11), code(DRAW, *pictures))
    assert one.text == "x" * 10 and len(one.pictures) == 4
    assert one.notes == (
        "Only the first 10 letters are shown.",
        "Of 5 pictures the first 4 are shown.",
    )


def test_cells_that_are_none_are_passed_over(tmp_path):
    path = tmp_path / "one.ipynb"
    cells = [3, {}, {"cell_type": "markdown", "source": 3}, {"cell_type": "code", "outputs": 3}]
    path.write_text(json.dumps({"cells": [*cells, code("x = 1"), code(DRAW) | {"outputs": 3}]}))
    assert found(*open_notebook(path).cells).text == ""


@pytest.mark.parametrize("module", lesson_modules())
def test_of_an_untouched_exercise_nothing_is_written_and_of_the_solution_all(module):
    stem = module.removeprefix("lesson_")
    root = report_submission.course_root()
    for edition, is_written in (("exercises", False), ("solutions", True)):
        cells = open_notebook(root / edition / f"{stem}.ipynb").cells
        for one in find_written(cells, reports_of(stem), handed_out=handed_out(stem)):
            assert bool(one.text) is is_written, (edition, one.report)
            assert one.is_marked
            assert not is_written or one.pictures, (edition, one.report, one.notes)
