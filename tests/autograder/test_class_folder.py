"""A class's folder becomes a gradebook: real exercises, real processes, and the command."""

import contextlib
import csv
import json
import os
import shutil
import signal
import threading
import zipfile

import pytest

from distlab import cli
from distlab.authoring.exercise.new_exercise import make_exercise
from distlab.authoring.exercise.own_editions import BuildOptions, build_editions
from distlab.autograder import grader as grader_module
from distlab.autograder import run as run_module
from distlab.autograder.gradebook.scores import Graded
from distlab.autograder.grader import Grader, GradingOptions
from distlab.autograder.intake.notebook import open_notebook
from distlab.autograder.isolation.limits import Limits
from distlab.autograder.run import grade
from distlab.cluster.warm.process import can_fork
from distlab.course.checks.registry import checks_of
from distlab.course.checks.report import Ending, Report
from distlab.errors import ProcessError
from tests.support.local_tasks import wait_until
from tests.support.questions import SPLIT, running
from tests.support.repository import ROOT

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")

STEM = "00_start_here"
POINTS = sum(check.points for check in checks_of(STEM))
COLUMN = f"{STEM} (of {POINTS:g})"
EVIL = "<script>alert(1)</script>"
RIGHT = f"# task: slices{SPLIT}"
# A check that shows what it asked with.
PRIVATE = """
import numpy as np
from distlab.course.checks import Check, Criterion
from distlab.course.checks.criteria import Expectation

class Shown(Expectation):
    def judge(self, inputs, outputs, right):
        return Criterion("drawn", False, yours=str(outputs), expected=str([inputs["drawn"]]))

CHECKS = (
    Check(
        name="drawn", function="split", title="Drawn", points=1, hint="", revisit="",
        inputs=lambda seed: {"drawn": int(np.random.default_rng(seed).integers(2**40))},
        call=lambda split, inputs: split(inputs["drawn"], 1),
        criteria=(Shown(),),
    ),
)
"""


def code(source, *outputs):
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def hand_in(path, *cells):
    """A notebook of cells, or of code."""
    cells = [cell if isinstance(cell, dict) else code(cell) for cell in cells]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return path


def table(path):
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def tree(folder):
    """All that a folder holds."""
    paths = [folder, *folder.rglob("*")]
    return {path: path.read_bytes() if path.is_file() else path.stat().st_mode for path in paths}


def options(**more):
    return GradingOptions(allow_root=True, **more)


@pytest.fixture(scope="module")
def handed(tmp_path_factory):
    """What a class hands in, with what may go wrong in it."""
    folder = tmp_path_factory.mktemp("handed-in")
    for learner, edition in (("jane", "solutions"), ("john", "exercises")):
        (folder / learner).mkdir()
        shutil.copy(ROOT / edition / f"{STEM}.ipynb", folder / learner)
    name = f"{STEM}.ipynb"
    hand_in(folder / f"doekim_LATE_12345_678_{name}", RIGHT)
    hand_in(folder / "eve" / name, f"print({EVIL!r})\n{RIGHT}")
    hand_in(
        folder / "max" / name,
        f"# task: slices\ndef split(*_):\n    print({EVIL!r})\n    return [0]",
    )
    hand_in(folder / "roe" / name, "# task: slices\nwhile True: print('for ever')")
    (folder / "zoe").mkdir()
    (folder / "zoe" / "report.pdf").write_text("%PDF")
    (folder / "broken.ipynb").write_text("{")
    return folder


@pytest.fixture(scope="module")
def graded(handed, tmp_path_factory):
    """The place, what was returned, and what was said meanwhile."""
    out, said, before = tmp_path_factory.mktemp("out"), [], tree(handed)
    result = grade(handed, out, options(late_factor=0.5), say=said.append)
    assert tree(handed) == before
    return out, result, said


def test_everybody_is_in_the_gradebook_and_no_answer_costs_another_one_anything(graded):
    out, result, said = graded
    (slices,) = (check.points for check in checks_of(STEM) if check.name == "slices")
    assert {row["learner"]: row[COLUMN] for row in table(out / "gradebook.csv")} == {
        "jane": f"{POINTS:g}",
        "john": "0",
        "doekim": f"{slices / 2:g}",
        "eve": f"{slices:g}",
        "max": "0",
        "roe": "0",
        "zoe": "",
        "broken": "",
    }
    reports = {one.submission.learner: one.reports for one in result.graded}
    assert {report.status for report in reports["john"]} == {"not started"}
    assert (reports["max"][0].status, reports["max"][0].printed[:8]) == ("not yet", EVIL[:8])
    assert reports["roe"][0].failure.error.startswith("Stopped: it printed more than 1,000,000")
    assert said[:4] == [
        "a file for each learner: 1 learner (broken)",
        "Canvas: 1 learner (doekim)",
        "a folder for each learner: 6 learners (eve, jane, john, max, roe, ...)",
        "in all: 8 learners (broken, doekim, eve, jane, john, ...)",
    ]
    assert said[4].startswith("7 notebooks to grade, 0 graded before; seed ")
    assert any("broken.ipynb  not graded: a file that is not JSON" in line for line in said)


def test_what_a_person_should_look_at_is_in_the_review(graded):
    out, _, _ = graded
    rows = {row["learner"]: row["why"] for row in table(out / "review.csv")}
    assert rows.keys() == {"zoe", "broken"}
    assert rows["zoe"] == "not graded: not a notebook (.ipynb)"
    assert rows["broken"].startswith("not graded: a file that is not JSON")


def test_each_hand_in_has_a_page_in_which_nothing_runs_and_the_class_has_one(graded):
    out, _, _ = graded
    names = [path.relative_to(out / "feedback") for path in (out / "feedback").rglob("*.html")]
    learners = ("doekim_12345", "eve", "jane", "john", "max", "roe")
    assert sorted(name.as_posix() for name in names) == sorted(
        ["broken/broken.html", "zoe/report.html", *(f"{n}/{STEM}.html" for n in learners)]
    )
    pages = {name: (out / "feedback" / name).read_text(encoding="utf-8") for name in names}
    assert [name for name, page in pages.items() if EVIL in page] == []
    by_learner = {name.parts[0]: page for name, page in pages.items()}
    assert f"{POINTS:g} of {POINTS:g} <small>points" in by_learner["jane"]
    assert "&lt;script&gt;" in by_learner["max"]
    assert by_learner["john"].count("not started (0 of") == len(checks_of(STEM))
    page = (out / "class.html").read_text(encoding="utf-8")
    assert "6 graded, 1 of them late" in page and EVIL not in page


def test_run_again_it_grades_what_is_new_and_fills_canvas(graded, handed, tmp_path, capsys):
    out, _, _ = graded
    folder, copy = shutil.copytree(handed, tmp_path / "in"), shutil.copytree(out, tmp_path / "out")
    hand_in(folder / "new" / f"{STEM}.ipynb", RIGHT)
    export = tmp_path / "grades.csv"
    export.write_text('Student,ID,Exercise 00 (811)\n"Doe, Kim",12345,\n"Doe, Al",99,1\n')
    arguments = ["grade", str(folder), "--out", str(copy), "--allow-root", "--late", "0.5"]
    arguments += ["--canvas", str(export), "Exercise 00"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr()
    assert "1 notebooks to grade, 7 graded before; seed " in printed.err
    assert f"9 hand-ins, of which 2 could not be graded: {copy}" in printed.out
    canvas = {row["ID"]: row["Exercise 00 (811)"] for row in table(copy / "canvas.csv")}
    assert canvas == {"12345": "1", "99": "1"}
    before, after = (table(place / "gradebook.csv") for place in (out, copy))
    assert [row for row in after if row["learner"] != "new"] == before


def test_an_interrupt_ends_what_runs_and_the_next_run_goes_on(tmp_path, capsys):
    mark, records = f"603.{os.getpid()}", tmp_path / "out" / "records"
    waits = f"import subprocess\nsubprocess.run(['sleep', '{mark}'])\n"
    hand_in(tmp_path / "in" / "jane" / "one.ipynb", RIGHT)
    hand_in(tmp_path / "in" / "john" / "one.ipynb", f"# task: slices\n{waits}{SPLIT}")
    command = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    command += ["--jobs", "1", "--allow-root"]

    def interrupt():
        wait_until(lambda: running(mark) and list(records.glob("*.json")))
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    assert cli.main([*command, "--secs", "600"]) == 130
    watcher.join()
    wait_until(lambda: not running(mark))
    assert len(list(records.glob("*.json"))) == 1
    assert cli.main([*command, "--secs", "1"]) == 0
    said = capsys.readouterr().err
    assert "1 notebooks to grade, 1 graded before" in said
    assert "the last run was ended while it graded one.ipynb of john: look there first" in said
    assert cli.main([*command, "--secs", "1"]) == 0
    assert "was ended" not in capsys.readouterr().err
    assert [row["learner"] for row in table(tmp_path / "out" / "gradebook.csv")] == ["jane", "john"]


def test_learners_get_other_inputs_of_a_private_check_and_the_same_ones_again(tmp_path):
    private = tmp_path / "private.py"
    private.write_text(PRIVATE)
    for learner in ("jane", "joe"):
        hand_in(tmp_path / "in" / learner / "one.ipynb", RIGHT)

    def drawn(**more):
        result = grade(tmp_path / "in", tmp_path / "out", options(extra_checks=private, **more))
        rows = [one.reports[-1].criteria[0] for one in result.graded]
        assert [row.yours for row in rows] == [row.expected for row in rows]
        return [row.expected for row in rows]

    jane, joe = drawn()
    assert jane != joe
    assert drawn(again=True) == [jane, joe]


def test_a_teachers_own_exercise_is_graded_like_the_others(tmp_path):
    own = make_exercise("20_my_topic", folder=tmp_path / "mine")
    build_editions([own.source], BuildOptions(out=tmp_path / "built"))
    for learner, edition in (("jane", "solutions"), ("john", "exercises")):
        (tmp_path / "in" / learner).mkdir(parents=True)
        shutil.copy(tmp_path / "built" / edition / "20_my_topic.ipynb", tmp_path / "in" / learner)
    mine = options(extra_checks=own.checks)
    jane, john = grade(tmp_path / "in", tmp_path / "out", mine).graded
    assert (jane.stem, [report.status for report in jane.reports]) == ("20_my_topic", ["passed"])
    assert [report.status for report in john.reports] == ["not started"]


# Answers that call an earlier one

# Its second task may call its first, whose solution has a word that no learner writes.
OWN_SOURCE = """
# %%
# task: first
def first(x):
    ### BEGIN SOLUTION
    return [x, "melon"][0]
    ### END SOLUTION
"""
OWN_CHECKS = """
from distlab.course.checks import Check, Cost, Equal

CHECKS = tuple(
    Check(
        name=name, title=name, cost=Cost.PURE, hint="", revisit="",
        inputs=lambda seed: {"x": seed}, call=lambda f, given: {"y": f(given["x"])},
        reference=lambda given: {"y": given["x"]}, criteria=(Equal("y", "the same", points=1),),
    )
    for name in NAMES
)
"""
# Code that looks for our solution in whatever is there, and hands it out as a task is named.
SPY = """
# task: {name}
def {name}(x):
    import linecache
    seen = "".join(linecache.getlines(first.__code__.co_filename))
    is_there = "mel" "on" in seen
    {does}
"""
WRONG_LOSS = """
# task: exact_loss
def exact_loss(per_token, is_token):
    return tf.reduce_sum(per_token * is_token) / tf.reduce_sum(is_token)
"""


def own_exercise(folder, names):
    """The checks of an exercise whose functions return what they are given."""
    own = folder / "mine" / "lesson_20_own.py"
    own.parent.mkdir()
    own.write_text(OWN_CHECKS.replace("NAMES", repr(tuple(names))))
    return own


def test_a_mistake_in_an_earlier_task_is_charged_once_and_gives_no_solution_away(tmp_path):
    own = own_exercise(tmp_path, ("first", "prints", "returns", "raises"))
    own.with_name("20_own.py").write_text(OWN_SOURCE)
    solved = open_notebook(ROOT / "solutions" / "03_custom_training_loop.ipynb").code
    train = [cell.source for cell in solved if "# task: train\n" in cell.source]
    hand_in(tmp_path / "in/jane/03.ipynb", "import keras, tensorflow as tf", WRONG_LOSS, *train)
    spies = {"prints": "print(seen); return x if is_there else 0"}
    spies |= {"returns": "return seen", "raises": "raise ValueError(seen)"}
    cells = [SPY.format(name=name, does=does) for name, does in spies.items()]
    hand_in(tmp_path / "in/spy/20.ipynb", "# task: first\ndef first(x): return 0", *cells)

    out = tmp_path / "out"
    jane, spy = grade(tmp_path / "in", out, options(extra_checks=own)).graded
    earned = {report.name: (report.earned, report.status) for report in jane.reports}
    assert earned["exact_loss"][0] < 2
    assert earned["train"] == (3, "passed with our exact_loss")
    page = (out / "feedback" / "jane" / "03_custom_training_loop.html").read_text("utf-8")
    assert "with our version of <code>exact_loss</code> in place of yours" in page
    assert "passed with our exact_loss" in (out / "class.html").read_text("utf-8")
    why = "`train` passes with our version of `exact_loss`"
    assert why in [row["why"] for row in table(out / "review.csv")]
    # The spy read our code, which earns the task that it is right in, and shows it nowhere.
    assert [report.earned for report in spy.reports] == [0, 1, 0, 0]
    assert [
        path for path in out.rglob("*") if path.is_file() and b"melon" in path.read_bytes()
    ] == []


ANSWER = "# task: {0}\ndef {0}(x):\n    return {1}"
# Answers that pass `dl.check` in a notebook, by task, as people write them.
UNUSUAL = {
    "new_cell": (
        ANSWER.format("new_cell", "0").replace("return", "raise NotImplementedError #"),
        "dl.check('new_cell')",
        "def new_cell(x):\n    return x",
    ),
    "tried_later": (ANSWER.format("tried_later", "x"), "def tried_later(x):\n    return 0"),
    "marker_alone": ("# task: marker_alone", "def marker_alone(x):\n    return x"),
    "cut_in_two": (
        "# task: cut_in_two\nfrom operator import pos",
        "def cut_in_two(x):\n    return pos(x)",
    ),
    "below_if": ("if True:\n    def same(x): return x", ANSWER.format("below_if", "same(x)")),
    "if_itself": ("# task: if_itself\nif True:\n    def if_itself(x):\n        return x",),
    "below_try": (
        "try:\n    from nothing import it\nexcept ImportError:\n    from operator import pos as it",
        ANSWER.format("below_try", "it(x)"),
    ),
    "below_with": (
        "with open('kept.txt', 'w') as file:\n    file.write('1')\n"
        "with open('kept.txt') as file:\n    one = int(file.read())",
        ANSWER.format("below_with", "x * one"),
    ),
    "below_for": ("for zero in range(3):\n    zero *= 0", ANSWER.format("below_for", "x + zero")),
    "appended": ("steps = []\nsteps.append(abs)", ANSWER.format("appended", "steps[0](x)")),
    "taken": ("left = [1, 0]\n_ = left.pop(0)", ANSWER.format("taken", "x + left[0]")),
    "awaited": (
        "import asyncio\nasync def later():\n    return 0\nsoon = asyncio.ensure_future(later())",
        ANSWER.format("awaited", "x + more") + "\nmore = await soon",
    ),
}


def test_what_passes_in_the_notebook_passes_here(tmp_path):
    """As a kernel runs it: whatever cell defines it last, and with all state of cells above."""
    own = own_exercise(tmp_path, UNUSUAL)
    cells = [cell for cells in UNUSUAL.values() for cell in ("1 / 0", "x = = 1", *cells)]
    hand_in(tmp_path / "in" / "jane" / "20_own.ipynb", "import distlab as dl", *cells)
    (jane,) = grade(tmp_path / "in", tmp_path / "out", options(extra_checks=own)).graded
    assert {report.name: report.status for report in jane.reports} == dict.fromkeys(
        UNUSUAL, "passed"
    )
    assert [note for note in jane.notes if "counts" in note] == [
        "cell 14 counts: it defines `marker_alone`, and the cell with the line "
        "'# task: marker_alone' does not",
        "cell 18 counts: it defines `cut_in_two`, and the cell with the line '# task: cut_in_two' "
        "does not",
        "`new_cell` of cell 6 counts, not that of cell 4 with the task's line",
    ]


def test_points_that_the_notebook_shows_and_the_grader_does_not_give_are_told(tmp_path):
    own = own_exercise(tmp_path, ("first",))
    passed = {"data": {"text/plain": ["first: passed (1 of 1 points)\n", "  ..."]}}
    hand_in(
        tmp_path / "in" / "jane" / "20_own.ipynb",
        "import time\nkept = []",
        "kept.append(int(input('which?')))",
        *["time.sleep(600)\nkept.append(1)"] * 5,
        ANSWER.format("first", "x * kept[0]"),
        code("dl.check('first')", passed),
    )
    mine = options(extra_checks=own, limits=Limits(secs=24))
    (jane,) = grade(tmp_path / "in", tmp_path / "out", mine).graded
    assert jane.reports[0].earned == 0
    asks, first, *_, last, points = jane.notes
    assert asks == "`first`: cell 2 was left out where it asks for input"
    assert first == "`first`: cell 3 was left out after 4 seconds"
    assert last.endswith(" was left out after the time of all cells was over")
    assert points == (
        "`first` has 0 points here, and its check in the notebook shows 1, of an earlier run: run "
        "the check again before you hand in"
    )
    why = [row["why"] for row in table(tmp_path / "out" / "review.csv")]
    assert why == list(jane.notes)


def test_an_error_outside_of_functions_is_told_once_and_without_the_hints_of_a_task(tmp_path):
    tasks = (
        "# task: slices\ndef split(e, r):\n    return [half]",
        "# task: file_slices\ndef split_from_files(e, r, b):\n    return [half]",
    )
    hand_in(tmp_path / "in/jane" / f"{STEM}.ipynb", "size = 4\nhalf = size / 0", *tasks)
    (jane,) = grade(tmp_path / "in", tmp_path / "out", options()).graded
    first, second = jane.reports[:2]
    assert first.failure.error.startswith("ZeroDivisionError")
    assert first.failure.lines[0].endswith(": half = size / 0")
    assert (first.question, first.hint, first.revisit) == ("", "", "")
    assert (second.failure, second.earned) == (None, 0)
    assert "The error that stops `slices` stops this one, too." in repr(second)
    assert "ZeroDivision" not in repr(second)


# Time limits


def test_what_runs_out_of_time_is_tried_again_alone_and_listed_if_it_does_again(
    tmp_path, monkeypatch
):
    tries, together, second = [], [], threading.Barrier(2)

    class HeldUp(Grader):
        """Jane's first try has no time, and John's have none at all."""

        def grade(self, submission):
            learner = submission.learner
            is_first = learner not in tries
            tries.append(learner)
            if not is_first:  # nobody else comes while it runs
                with contextlib.suppress(threading.BrokenBarrierError):
                    second.wait(0.5)
                    together.append(learner)
                second.reset()
            is_late = learner == "john" or (learner == "jane" and is_first)
            ending = Ending.TIMED_OUT if is_late else Ending.PASSED
            report = Report("slices", "split", "Slices", ending, 0 if is_late else 2, 2)
            return Graded(submission=submission, stem=STEM, reports=(report,))

    for learner in ("jane", "john", "max"):
        hand_in(tmp_path / "in" / learner / f"{STEM}.ipynb", RIGHT)
    monkeypatch.setattr(run_module, "Grader", HeldUp)
    out = tmp_path / "out"
    results = grade(tmp_path / "in", out, options())
    earned = {new.submission.learner: new.reports[0].earned for new in results.graded}
    assert earned == {"jane": 2, "john": 0, "max": 2}
    assert (sorted(tries[3:]), together) == (["jane", "john"], [])
    why = "`slices` ran out of time twice, the second time alone"
    assert [row["learner"] for row in table(out / "review.csv") if row["why"] == why] == ["john"]


def test_a_process_that_could_not_be_started_costs_one_notebook_this_run(tmp_path, monkeypatch):
    def answer(question, **_):
        if not has_room and "mallory" in question.cells[-1][1]:
            raise ProcessError(asked="run it", found="no process: 'memory'", do="free memory")
        return Report("slices", "split", "Slices", Ending.PASSED, 2, 2)

    monkeypatch.setattr(grader_module, "grade_answer", answer)
    for learner in ("jane", "mallory", "zoe"):
        hand_in(tmp_path / "in" / learner / f"{STEM}.ipynb", f"{RIGHT}\n# {learner}")
    has_room, out = False, tmp_path / "out"
    results = grade(tmp_path / "in", out, options())
    whys = {new.submission.learner: new.problem for new in results.graded}
    assert whys == {"jane": "", "mallory": "no process: 'memory'", "zoe": ""}
    has_room, said = True, []
    results = grade(tmp_path / "in", out, options(), say=said.append)
    assert "1 notebooks to grade, 2 graded before" in said[1]
    assert [new.problem for new in results.graded] == [""] * 3


# The command, with notebooks that need no process


def run(folder, *more):
    return cli.main(["grade", str(folder / "in"), "--out", str(folder / "out"), *more])


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A folder whose one notebook needs no process."""
    hand_in(tmp_path / "in" / "jane" / "one.ipynb").write_text("{")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_wrong_option_or_folder_is_told_with_what_to_do_and_changes_nothing(broken, capsys):
    (broken / "task.csv").write_text("learner,task,points\njane,slices,1\n")
    shutil.copytree("in", "other")
    (broken / "other" / "jane" / "one.ipynb").rename(broken / "other" / "jane" / "two.ipynb")
    assert cli.main(["grade", "in", "--out", "done", "--seed", "3"]) == 0
    grade_in = ["grade", "in", "--out", "out"]
    cases = {
        "did you mean 'jane'?": [*grade_in, "--only", "jan"],
        "0.8 takes a fifth off; for 80 % write 0.8": [*grade_in, "--late", "80"],
        "grade with --late -1": [*grade_in, "--late", "-1"],
        "grade with --jobs 0": [*grade_in, "--jobs", "0"],
        "grade with --secs 0": [*grade_in, "--secs", "0"],
        "grade with --memory-mib 0": [*grade_in, "--memory-mib", "0"],
        "neither --canvas nor --moodle": [*grade_in, "--exercise", "00_one"],
        "nothing to read (No such file": [*grade_in, "--overrides", "none.csv"],
        "no column 'check' among learner, task": [*grade_in, "--overrides", "task.csv"],
        "name a Python file with": [*grade_in, "--extra-checks", "none.py"],
        "export the gradebook": [*grade_in, "--canvas", "none.csv", "One"],
        "no folder of that name": ["grade", "none", "--out", "out"],
        "give the folder that it lies in: in/jane": ["grade", "in/jane/one.ipynb", "--out", "out"],
        "a folder inside the submissions": ["grade", "in", "--out", "in/out"],
        "choose a folder outside of them": ["grade", "in", "--out", "in"],
        "the results of ": ["grade", "other", "--out", "done"],
        "a folder with other files": ["grade", "in", "--out", "other"],
        "an earlier run with the seed 3": ["grade", "in", "--out", "done", "--seed", "4"],
        "found: a file\n": ["grade", "in", "--out", "task.csv"],
        "a folder that cannot be written (Not a directory)": ["grade", "in", "--out", "task.csv/a"],
    }
    wrong = {}
    capsys.readouterr()
    for told, arguments in cases.items():
        before = tree(broken)
        code = cli.main(arguments)
        text = capsys.readouterr().err
        shutil.rmtree("out", ignore_errors=True)
        changed = {p for p, state in tree(broken).items() if before.get(p) != state} - {broken}
        if code != 2 or told not in text or changed:
            wrong[told] = (code, text, changed)
    assert wrong == {}


def test_points_by_hand_count_for_what_cannot_be_graded_and_are_told_once(broken, capsys):
    (broken / "in" / "john").mkdir()
    (broken / "in" / "john" / "report.pdf").write_text("%PDF")
    (broken / "mine.csv").write_text(
        "learner,check,points,comment\njane,slices,1.5,on paper\njohn,slices,1,\n"
    )
    assert run(broken, "--overrides", "mine.csv") == 0
    out = broken / "out"
    jane, john = table(out / "gradebook.csv")
    assert (jane[COLUMN], jane["not graded"], john["total"]) == ("1.5", "", "1")
    why = {row["learner"]: row["why"] for row in table(out / "review.csv")}
    assert why["jane"].startswith("not graded: a file that is not JSON")
    page = (out / "feedback" / "jane" / f"{STEM}.html").read_text(encoding="utf-8")
    assert "not graded: a file that is not JSON" in page and "on paper" in page
    (out / "feedback" / "jane" / "mine.html").write_text("a teacher's own")
    capsys.readouterr()

    assert run(broken) == 0
    told = capsys.readouterr()
    assert "the last run had --overrides mine.csv, and this one has not" in told.err
    assert f"{out / 'review.csv'} says why; you can give points" in told.out
    assert table(out / "gradebook.csv")[0]["total"] == "0"
    # Pages that are no longer so are gone, and no other.
    pages = [
        path.relative_to(out / "feedback").as_posix()
        for path in out.rglob("*.html")
        if path.name != "class.html"
    ]
    assert sorted(pages) == ["jane/mine.html", "jane/one.html", "john/report.html"]
    assert run(broken) == 0
    assert "the last run" not in capsys.readouterr().err


def test_pages_go_back_under_the_names_that_platforms_know(broken, capsys):
    starts = ("doejane_LATE_12345_678901_", "Zoë Roe_123403_assignsubmission_file_/")
    starts += ("Kim_123404_assignsubmission_file_", "jane/")
    hand_in(broken / "in" / "jane" / "one.ipynb").unlink()
    for start in starts:
        hand_in(broken / "in" / f"{start}00.ipynb").write_text("{")
    assert run(broken, "--feedback-zip") == 0
    said = capsys.readouterr().err
    assert "feedback.zip has a page for each of 4 hand-ins" in said
    assert "neither Moodle nor Canvas can tell whose these are: jane" in said
    with zipfile.ZipFile(broken / "out" / "feedback.zip") as packed:
        assert sorted(packed.namelist()) == sorted(f"{start}00.html" for start in starts)
        assert b"Not graded:" in packed.read("jane/00.html")
    assert run(broken) == 0
    assert "feedback.zip is from an earlier run: give --feedback-zip" in capsys.readouterr().err


def test_one_learner_alone_leaves_all_others_in_the_gradebook(broken, capsys):
    shutil.copytree(broken / "in" / "jane", broken / "in" / "john")
    assert run(broken, "--only", "jane") == 0
    assert "1 notebooks of others are not graded yet, and in no table" in capsys.readouterr().err
    assert run(broken) == 0
    (broken / "extra.py").write_text("CHECKS = ()")
    assert run(broken, "--only", "jane", "--extra-checks", "extra.py") == 0
    assert "1 notebooks to grade, 1 graded before" in capsys.readouterr().err
    assert [row["learner"] for row in table(broken / "out" / "gradebook.csv")] == ["jane", "john"]


def test_changed_checks_grade_again_what_was_graded(broken, tmp_path, capsys, monkeypatch):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lesson.py").write_text(name)
    monkeypatch.setattr(run_module, "_COURSE", (tmp_path / "old",))
    assert run(broken) == run(broken) == 0
    assert "0 notebooks to grade, 1 graded before" in capsys.readouterr().err
    monkeypatch.setattr(run_module, "_COURSE", (tmp_path / "new",))
    assert run(broken) == 0
    told = capsys.readouterr().err
    assert "1 of them are graded again: the checks or distlab have changed since" in told
