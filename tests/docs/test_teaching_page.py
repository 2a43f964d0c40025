"""The page for teachers says what is so: points, minutes, options, and a report to copy."""

import json
import re

import pytest

from distlab import cli
from distlab.authoring.exercise.new_exercise import make_exercise
from distlab.authoring.exercise.own_editions import BuildOptions, build_editions
from distlab.autograder.intake.forms import FORMS, PLAIN_FILES, PLAIN_FOLDERS, read_label
from distlab.course import checks
from distlab.course.checks.criteria import Expectation
from distlab.course.checks.mistakes import NamedMistake
from distlab.course.checks.own_checks import load_own
from distlab.course.checks.registry import checks_of, reports_of, stems
from distlab.course.checks.run_check import run_check
from distlab.course.course_map import read_map
from tests.support.repository import ROOT
from tools.teaching_page import with_minutes
from tools.write_tables import with_lessons

TEXT = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())
# Of each lesson: its name, what it needs and its points.
ROWS = re.findall(r"(?m)^\| (\d\d .+?) \| .+? \| (.+?) \| ([\d. +]+) \|", TEXT)


def markdown_of(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def needed_lessons(lesson):
    words = " ".join(markdown_of(lesson).split())
    sentence = re.search(r"(?:\*\*Needs:\*\*|You need) (.+?)\. ", words)[1]
    return sorted(re.findall(r"\b\d\d\b", re.sub(r";[^;]+ helps", "", sentence)))


def test_each_example_of_a_platform_is_recognised_as_that_platforms():
    table = TEXT[TEXT.index("| from | recognised by |") :].partition("\n\n")[0]
    rows = re.findall(r"(?m)^\| (\w[^|]*) \| `([^`]+)`[^|]* \| ([^|]+) \|$", table)
    names = {form.name for form in FORMS} - {PLAIN_FOLDERS, PLAIN_FILES}
    assert {platform.partition(",")[0] for platform, *_ in rows} == {*names, "anything else"}
    for platform, example, learner in rows:
        label = read_label(f"in/{example.replace('FILE', 'one.ipynb')}")
        form = platform.partition(",")[0]
        assert label.form == (PLAIN_FOLDERS if form == "anything else" else form)
        named = {name for name in learner.split(", ") if " from " not in name}  # a file beside it
        assert named and named <= {label.learner, label.user}, platform


def test_each_row_has_the_points_and_the_needs_of_its_notebooks():
    entries = [entry for entry in read_map(ROOT) if entry.lesson]
    assert [name for name, *_ in ROWS] == [entry.name for entry in entries]
    for (name, needs, points), entry, stem in zip(ROWS, entries, stems(), strict=True):
        with_points = [some for some in (checks_of(stem), reports_of(stem)) if some]
        sums = [f"{sum(each.points for each in some):g}" for some in with_points]
        assert points == " + ".join(sums), name
        assert re.findall(r"\b\d\d\b", needs) == needed_lessons(ROOT / entry.lesson), name


def test_minutes_and_hours_are_those_of_the_notebooks_and_each_lesson_is_in_a_week():
    entries = read_map(ROOT)
    assert with_lessons(TEXT) == TEXT, "`make map` mends it"
    weeks = re.findall(r"(?m)^\| \d \| ([\d, ]+) \|", TEXT)
    there = [entry.number for entry in entries if entry.lesson]
    assert sorted(", ".join(weeks).split(", ")) == there
    blank = "| 00 Start here | x | y | 9 | | | |\n| 1 | 00, 00 | | | z |\n"
    (start,) = (entry for entry in entries if entry.number == "00")
    _, high = start.lesson_minutes
    row, week = with_minutes(blank, entries).splitlines()
    assert row.endswith(f"\u2013{high} | {start.exercise_minutes} | {start.extra_task_minutes} |")
    hours = [f"{round(2 * minutes / 60, 1):g}" for minutes in (high, start.exercise_minutes)]
    assert week == f"| 1 | 00, 00 | {hours[0]} | {hours[1]} | z |"


def test_every_option_that_is_named_is_an_option_of_its_command(capsys):
    (listed,) = re.findall(r"\n- \*\*Late\*\*.*?\n\n", TEXT, re.DOTALL)
    for command in ("grade", "exercise build", "exercise new"):
        with pytest.raises(SystemExit):
            cli.main([*command.split(), "--help"])
        options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        lines = re.findall(rf"distlab {command}\b[^\n`]*", TEXT)
        lines += [listed] if command == "grade" else []
        assert lines and set(re.findall(r"--[a-z-]+", " ".join(lines))) <= options, command


def test_the_report_that_is_shown_can_be_copied(tmp_path):
    cells, rubric = re.findall(r"```python\n((?:# %%|from distlab).*?)```", TEXT, re.DOTALL)
    own = make_exercise("20_my_topic", folder=tmp_path)
    for path, more in ((own.source, cells), (own.checks, rubric)):
        path.write_text(path.read_text(encoding="utf-8") + "\n" + more, encoding="utf-8")
    build_editions([own.source], BuildOptions(out=tmp_path / "out"))
    _, (report,) = load_own(own.checks)
    assert (report.name, report.points) == ("speed", 5)


def test_the_commands_for_an_exercise_are_those_that_new_prints(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = "distlab exercise new 20_my_topic --folder mine"
    assert cli.main(asked.split()[1:]) == 0
    printed = re.findall(r"(?m)^(?:test|build) it: +(.+)$", capsys.readouterr().out)
    assert len(printed) == 2
    assert [command for command in (asked, *printed) if f"\n{command}\n" not in TEXT] == []


def stated(*criteria, mistakes=()):
    """A check of an answer such as the page describes."""

    def reference(given, *, divided=True):
        total = sum(given["losses"])
        mean = total / given["batches"] if divided else total
        return {"mean": mean, "steps": given["batches"], "waits": "worker 0"}

    return checks.Check(
        name="probe",
        title="",
        cost=checks.Cost.PURE,
        inputs=lambda seed: {"losses": [1.0, 2.0, 3.0], "batches": 3},
        call=lambda function, given: function(given),
        reference=reference,
        criteria=(*criteria, checks.Equal("waits", "the row below", points=3)),
        mistakes=mistakes,
        hint="",
        revisit="",
    )


def test_every_criterion_and_every_mistake_is_listed_with_an_example_that_works():
    names = {name: getattr(checks, name) for name in checks.__all__}
    examples = dict(re.findall(r"(?m)^\| `(\w+)` \| `(\1\(.+\))` \| .+ \|$", TEXT))
    kinds = {name for name, kind in names.items() if isinstance(kind, type)}
    rows = {n for n in kinds if issubclass(names[n], (Expectation, checks.Then, checks.Gate))}
    mistakes = {n for n in kinds if issubclass(names[n], NamedMistake)}
    assert set(examples) == rows | mistakes

    right = {"mean": 2.0, "steps": 3, "waits": "worker 0"}
    wrong = {"mean": 6.0, "steps": 0, "waits": "worker 1"}
    for name in sorted(rows):
        check = stated(eval(examples[name], names))
        assert run_check(check, lambda given: right).passed, name
        refused = run_check(check, lambda given, name=name: [1] if name == "Form" else wrong)
        assert (refused.earned, refused.criteria[0].passed) == (0, False), name

    answers = {
        "Fault": lambda given: right | {"mean": 6.0},
        "Observed": lambda given: right | {"steps": 0},
        "Raises": lambda given: 1 / 0,
    }
    row = eval(examples["Close"], names), eval(examples["Equal"], names)
    for name in sorted(mistakes):
        mistake = eval(examples[name], names)
        assert run_check(stated(*row, mistakes=(mistake,)), answers[name]).mistake == mistake.name
