"""Answers are found in what learners hand in, whatever became of the notebook around them."""

import json
import random

import pytest

from distlab import errors
from distlab.autograder.intake.extract_answers import find_answers, misplaced
from distlab.autograder.intake.notebook_file import open_notebook
from distlab.checks.check import Check, Verdict
from distlab.checks.registry import checks_of, lesson_modules
from tests.support.repository import ROOT


def check(name, function):
    return Check(
        name=name,
        function=function,
        title="",
        points=1,
        inputs=lambda seed: {},
        call=lambda function, inputs: None,
        judge=lambda inputs, outputs: Verdict(()),
        hint="",
        revisit="",
    )


LESSONS = {
    "00_one": (check("first", "f"), check("second", "g")),
    "01_two": (check("third", "h"),),
}
SETUP = "import math"
FIRST = "# task: first\ndef f(x):\n    return math.floor(x)"
SECOND = "# task: second\ndef g(x):\n    return f(x) + 1"
ALL = (SETUP, FIRST, 'dl.check("first")', SECOND, 'dl.check("second")')


def notebook(path, *sources):
    cells = [{"cell_type": "markdown", "source": "# Text"}]
    cells += [{"cell_type": "code", "source": source.splitlines(True)} for source in sources]
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    return path


@pytest.fixture
def found(tmp_path):
    def find(*sources, lessons=LESSONS):
        return find_answers(open_notebook(notebook(tmp_path / "one.ipynb", *sources)).code, lessons)

    return find


def places(answers):
    return {one.check: one.cell for one in answers.answers}


def run(answers, name):
    names = {}
    for cell in answers.program(name):
        exec(compile(cell.source, cell.name, "exec"), names)
    return names


def test_answers_are_found_by_their_marker_lines(found):
    answers = found(*ALL)
    assert answers.stem == "00_one"
    assert places(answers) == {"first": 1, "second": 3}
    assert not any(one.notes for one in answers.answers)


def test_a_program_has_what_the_answer_needs(found):
    answers = found(*ALL, "1 / 0")
    assert [cell.name for cell in answers.program("first")] == ["cell 2", "cell 3"]
    assert [cell.name for cell in answers.program("second")] == ["cell 2", "cell 3", "cell 5"]
    assert run(answers, "second")["g"](2.5) == 3


def test_an_answers_cell_runs_whole(found):
    answers = found("# task: first\nseen = []\nseen.append(1)\ndef f(x):\n    return 1\nf(1)")
    assert run(answers, "first")["seen"] == [1]


def test_trials_of_a_name_that_the_answer_has_for_itself_do_not_run(found):
    answers = found("model = 1 / 0", "# task: first\ndef f(x):\n    model = x\n    return model")
    assert run(answers, "first")["f"](4) == 4


def test_what_is_bound_after_the_check_does_not_count(found):
    helper = "def helper():\n    return {}"
    own = "# task: first\ndef f(x):\n    return helper()"
    answers = found(helper.format(1), own, "dl.check('first')", helper.format(2))
    assert run(answers, "first")["f"](0) == 1


def test_check_cells_may_be_gone_or_doubled(found):
    for sources in (ALL[:2] + ALL[3:4], ALL + ALL[2:3] * 3):
        answers = found(*sources)
        assert run(answers, "second")["g"](2.5) == 3


def test_a_marker_that_is_gone_is_noted(found):
    answers = found(SETUP, FIRST.split("\n", 1)[1], SECOND)
    assert places(answers) == {"first": 1, "second": 2}
    assert answers.answers[0].notes == ("the line '# task: first' is gone",)


def test_of_several_answers_the_last_counts_and_it_is_noted(found):
    other = "# task: first\ndef f(x):\n    return 5"
    answers = found(SETUP, FIRST, other, "# task: first\n# nothing")
    assert places(answers)["first"] == 2
    assert answers.answers[0].notes == (
        "3 cells have the line '# task: first' (cell 3, cell 4, cell 5)",
        "cell 4 counts, because it is the last",
    )


def test_an_answer_that_is_not_there_has_no_program(found):
    answers = found(SETUP, FIRST)
    assert places(answers) == {"first": 1, "second": None}
    assert answers.program("second") == ()


def test_a_half_written_answer_is_still_the_answer(found):
    answers = found(SETUP, "# task: first\ndef f(x):\n    return (x")
    (cell,) = answers.program("first")
    assert cell.name == "cell 3" and cell.source.endswith("return (x")


def test_the_lesson_is_the_one_whose_tasks_are_there(found):
    assert found("# task: third\ndef h(): pass", "def f(): pass").stem == "01_two"
    assert found("def f(): pass\ndef g(): pass", "def h(): pass").stem == "00_one"


def test_another_notebook_is_told(found):
    with pytest.raises(errors.InvalidArgument) as caught:
        found("x = 1")
    assert caught.value.found == "no line '# task: ...', and no function of an exercise"
    with pytest.raises(errors.InvalidArgument, match="of your own needs --extra-checks") as own:
        found("# task: mine\nx = 1")
    assert own.value.found == "no check for its tasks (mine)"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"{", "a file that is not JSON (Expecting property name enclosed in double quotes: "),
        (b"\xff\xfe\x00", "a file that is not UTF-8 text"),
        (b"[1]", "JSON that is not a notebook"),
        (b"[" * 100_000, "a file that is not JSON ("),
        (b'{"cells": 3}', "JSON that is not a notebook"),
        (b'{"worksheets": []}', "a notebook of format 3 or older"),
        (b'{"cells": [7, {"cell_type": "code", "source": [1]}]}', "a notebook without code cells"),
    ],
)
def test_what_is_no_notebook_is_told(tmp_path, content, found):
    path = tmp_path / "one.ipynb"
    path.write_bytes(content)
    with pytest.raises(errors.InvalidArgument) as caught:
        open_notebook(path)
    assert caught.value.asked == "read one.ipynb"
    assert caught.value.found.startswith(found)


def test_a_file_without_end_is_not_read(tmp_path):
    path = tmp_path / "one.ipynb"
    with path.open("wb") as file:
        file.truncate(10**10)  # a file with a hole: it costs no room
    with pytest.raises(errors.InvalidArgument) as caught:
        open_notebook(path)
    assert caught.value.found == "10,000,000,000 bytes, more than a notebook of an exercise has"


def test_code_without_end_is_not_read(tmp_path):
    path = notebook(tmp_path / "one.ipynb", FIRST, "x = 1\n" * 40_000)
    with pytest.raises(errors.InvalidArgument) as caught:
        open_notebook(path)
    assert caught.value.found == "240,048 letters of code, more than 200,000"


# Each took hours where every name was looked for in every line.
LONG = {
    "empty lines": "\n" * 150_000,
    "names": "g(" + ",".join(f"n{number}" for number in range(10_000)) + ")\n" + "y = 1\n" * 15_000,
    "changes": "x = 1\n" + "if a: x = x + 1\n" * 10_000,
    "calls": "x = 1\n" + "x.a(x)\n" * 20_000,
    "stars": "from math import *\n" * 4_000
    + "g("
    + ",".join(f"n{n}" for n in range(9_000))
    + ")\n",
}


@pytest.mark.parametrize("long", LONG.values(), ids=LONG)
def test_code_that_is_made_to_take_hours_to_read_is_read(found, long):
    answers = found("# task: first\n" + long + "\ndef f(z):\n    return x")
    assert answers.program("first")


def test_a_task_where_no_code_is_is_noted(tmp_path):
    path = notebook(tmp_path / "one.ipynb", SETUP, SECOND, "%%bash\n" + FIRST)
    content = json.loads(path.read_text())
    content["cells"] += [{"cell_type": kind, "source": FIRST + SECOND} for kind in ("raw", "x")]
    path.write_text(json.dumps(content))
    opened = open_notebook(path)
    answers = find_answers(opened.code, LESSONS)
    assert answers.program("first") == ()
    assert answers.answers[0].notes == ("cell 4 begins with %%bash, so it is not Python",)
    assert misplaced(opened.cells, answers) == []
    content["cells"][3]["source"] = "# Text"
    path.write_text(json.dumps(content))
    opened = open_notebook(path)
    answers = find_answers(opened.code, LESSONS)
    assert misplaced(opened.cells, answers) == [
        "cell 5 has the line '# task: first', and is not a code cell"
    ]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_of_other_systems_are_line_ends(found, end):
    answers = found(SETUP.replace("\n", end), FIRST.replace("\n", end))
    assert answers.answers[0].notes == ()
    assert run(answers, "first")["f"](2.5) == 2


def test_a_cell_that_is_timed_is_still_an_answer(found):
    answers = found("%%time\n" + FIRST.replace("math.floor(x)", "(x\n        % 2)"))
    assert run(answers, "first")["f"](5) == 1


def test_damaged_notebooks_are_read_or_explained(tmp_path):
    whole = notebook(tmp_path / "whole.ipynb", *ALL).read_bytes()
    path = tmp_path / "one.ipynb"
    for seed in range(300):
        draw = random.Random(seed)
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 8)):
            at = draw.randrange(len(damaged))
            damaged[at : at + draw.randint(0, 5)] = draw.randbytes(draw.randint(0, 5))
        path.write_bytes(damaged)
        try:
            answers = find_answers(open_notebook(path).code, LESSONS)
            for one in answers.answers:
                answers.program(one.check)
        except errors.InvalidArgument:
            continue


@pytest.mark.parametrize("module", lesson_modules())
def test_each_exercise_is_known_as_its_own_and_all_its_answers_are_found(module):
    stem = module.removeprefix("lesson_")
    lessons = {
        one.removeprefix("lesson_"): checks_of(one.removeprefix("lesson_"))
        for one in lesson_modules()
    }
    for edition in ("exercises", "solutions"):
        answers = find_answers(open_notebook(ROOT / edition / f"{stem}.ipynb").code, lessons)
        assert answers.stem == stem
        assert [one.check for one in answers.answers if one.cell is None or one.notes] == []
