"""Answers are found in what learners hand in, with the code that they need and no other."""

import json

import pytest

from distlab import errors
from distlab.autograder.intake.answers import find_answers
from distlab.autograder.intake.notebook import open_notebook, python_of
from distlab.course.checks import Check, Holds
from distlab.course.checks.registry import checks_of, stems
from tests.support.repository import ROOT


def check(name, function):
    return Check(
        name=name,
        function=function,
        title="",
        points=1,
        inputs=lambda seed: {},
        call=lambda function, inputs: None,
        criteria=(Holds("it", lambda given, out: True, ""),),
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
    unmarked = found(SETUP, FIRST.split("\n", 1)[1], SECOND)
    assert unmarked.answers[0].notes == ("the line '# task: first' is gone",)
    assert places(unmarked) == {"first": 1, "second": 2}
    assert not any(one.notes for one in answers.answers)


def test_what_runs_is_the_answers_cell_whole_and_what_it_needs_from_before_the_check(found):
    answers = found("# task: first\nseen = []\nseen.append(1)\ndef f(x):\n    return 1\nf(1)")
    assert run(answers, "first")["seen"] == [1]
    answers = found("model = 1 / 0", "# task: first\ndef f(x):\n    model = x\n    return model")
    assert run(answers, "first")["f"](4) == 4
    helper = "def helper():\n    return {}"
    own = "# task: first\ndef f(x):\n    return helper()"
    answers = found(helper.format(1), own, "dl.check('first')", helper.format(2))
    assert run(answers, "first")["f"](0) == 1
    for sources in (ALL[:2] + ALL[3:4], ALL + ALL[2:3] * 3):  # checks that are gone or doubled
        assert run(found(*sources), "second")["g"](2.5) == 3


def test_of_several_answers_the_last_counts_and_it_is_noted(found):
    other = "# task: first\ndef f(x):\n    return 5"
    answers = found(SETUP, FIRST, other, "# task: first\n# nothing")
    assert places(answers)["first"] == 2
    assert answers.answers[0].notes == (
        "3 cells have the line '# task: first' (cell 3, cell 4, cell 5)",
        "cell 4 counts, because it is the last",
    )


def test_an_answer_that_is_not_there_has_no_program_and_a_half_written_one_has(found):
    answers = found(SETUP, FIRST)
    assert places(answers) == {"first": 1, "second": None}
    assert answers.program("second") == ()
    (cell,) = found(SETUP, "# task: first\ndef f(x):\n    return (x").program("first")
    assert cell.name == "cell 3" and cell.source.endswith("return (x")


def test_another_notebook_is_told(found):
    with pytest.raises(errors.InvalidArgument) as caught:
        found("x = 1")
    assert caught.value.found == "no line '# task: ...', and no other mark of an exercise"
    with pytest.raises(errors.InvalidArgument, match="of your own needs --extra-checks") as own:
        found("# task: mine\nx = 1")
    assert own.value.found == "no check for its tasks (mine)"


def test_what_is_no_notebook_or_has_no_end_is_told(tmp_path):
    contents = {
        "an empty file": b"",
        "a file that is not JSON (Expecting property name enclosed in double quotes: ": b"{",
        "a file of no text": b"\xff\xfe\x00",
        "a zip with the name of a notebook": b"PK\x03\x04\xff",
        "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n",
        "a web page with the name": b"\n<!DOCTYPE html>\n<html><title>Log in</title></html>",
        "a notebook with a merge conflict": b'{"cells": [\n<<<<<<< HEAD\n1\n=======\n2\n>>>>>>> b',
        "Python code with the name": b"# %%\ndef split(n):\n    return n\n",
        "JSON that is not a notebook": b'{"cells": 3}',
        "a file that is not JSON (": b"[" * 100_000,
        "a notebook of format 3 or older": b'{"worksheets": []}',
        "a notebook without code cells": b'{"cells": [7, {"cell_type": "code", "source": [1]}]}',
    }
    path = tmp_path / "one.ipynb"

    def problem():
        with pytest.raises(errors.InvalidArgument) as caught:
            open_notebook(path)
        assert caught.value.asked == "read one.ipynb"
        return caught.value.found

    for told, content in contents.items():
        path.write_bytes(content)
        assert problem().startswith(told)
    with path.open("wb") as file:
        file.truncate(10**10)  # a file with a hole: it costs no room
    assert problem() == "10,000,000,000 bytes, more than a notebook of an exercise has"
    path.write_bytes(b'{"cells": [' + b"{}," * 2_600_000 + b"{}]}")
    assert problem() == "a file of 5,200,003 values"
    # 60 MB of outputs are no problem, nor is UTF-16, as editors on Windows save.
    output = {"output_type": "stream", "name": "stdout", "text": "x" * 60_000_000}
    cells = [{"cell_type": "code", "source": FIRST, "outputs": [output]}]
    path.write_text(json.dumps({"cells": cells}))
    assert open_notebook(path).code[0].source == FIRST
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": FIRST}]}), "utf-16")
    assert open_notebook(path).code[0].source == FIRST
    notebook(path, FIRST, "x = 1\n" * 40_000)
    assert problem() == "240,048 letters of code, more than 200,000"


def test_line_ends_of_other_systems_and_a_timed_cell_change_nothing(found):
    for end in ("\r\n", "\r"):
        answers = found(SETUP.replace("\n", end), FIRST.replace("\n", end))
        assert answers.answers[0].notes == ()
        assert run(answers, "first")["f"](2.5) == 2
    answers = found("%%time\n" + FIRST.replace("math.floor(x)", "(x\n        % 2)"))
    assert run(answers, "first")["f"](5) == 1


def test_each_exercise_is_known_as_its_own_and_all_its_answers_are_found():
    lessons = {stem: checks_of(stem) for stem in stems()}
    lost = {}
    for stem in lessons:
        for edition in ("exercises", "solutions"):
            answers = find_answers(open_notebook(ROOT / edition / f"{stem}.ipynb").code, lessons)
            assert answers.stem == stem
            unsure = [a.check for a in answers.answers if a.cell is None or a.notes]
            lost |= {f"{edition}/{stem}": unsure} if unsure else {}
    assert lost == {}


def test_what_runs_is_given_cells_and_imports_definitions_and_assignments_that_are_used(found):
    sources = (
        "import math, time\nimport no_such_module\ntime.sleep(600)",
        "1 / 0",
        "y = = 1",
        "unused = 1 / 0",
        "SIZES = [1]\nSIZES[0] = 2",
        "def helper():\n    return math.floor(SIZES[0] + total)",
        "# given\ntotal = 0\nfor n in range(3):\n    total += n",
        "# task: first\ndef f(x):\n    unused = x\n    return helper() + unused",
        "dl.check('first')",
        "def helper():\n    return 0",
    )
    assert run(found(*sources), "first")["f"](10) == 15


def test_what_only_a_notebook_understands_is_left_out():
    cases = {
        "%load_ext distlab\nx = 1": "pass\nx = 1",
        "!pip install x": "pass",
        "if x:\n    %time f()": "if x:\n    f()",
        "%time x = f(1)\ny = %time g()": "x = f(1)\ny = g()",
        "%timeit f()\nx = !ls -l\ny = %sql z": "pass\nx = None\ny = None",
        "%%time\nx = 1": "\nx = 1",
        "\n%%capture out\n%time x = 1": "\n\nx = 1",
        "%%timeit\nx = 1": "",
        "%%": "",
        "x = (7\n     % y)": "x = (7\n     % y)",
        "!ls\nx = (7\n     % y)": "pass\nx = (7\n     % y)",
        "x = '''\n%time\n!ls\n'''": "x = '''\n%time\n!ls\n'''",
        "f?": "pass",
        "np.mean??": "pass",
        "%%workers\nprint(1)": "",
        "x = 7 % 2\ny = '%d' % x": "x = 7 % 2\ny = '%d' % x",
    }
    assert {source: python_of(source) for source in cases} == cases
