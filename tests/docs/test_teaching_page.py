"""The page for teachers says what is so: points, options, and a report to copy."""

import json
import re

import pytest

from distlab import cli
from distlab.autograder.intake.private_checks import load_reports
from distlab.checks.registry import checks_of, reports_of, stems
from distlab.course_map import read_map
from distlab.exercise.building import BuildOptions, build_editions
from distlab.exercise.new_exercise import make_exercise
from tests.support.repository import ROOT

PAGE = ROOT / "docs" / "teaching.md"
TEXT = PAGE.read_text(encoding="utf-8")


def markdown_of(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("stem", stems())
def test_the_points_of_each_exercise_are_right(stem):
    row = re.search(rf"(?m)^\| {stem[:2]} .+ \| ([\d. +]+) \| \d+ \| \**\d+\** \|$", TEXT)
    points = [checks_of(stem), reports_of(stem)]
    sums = [f"{sum(one.points for one in some):g}" for some in points if some]
    assert row[1] == " + ".join(sums)


def minutes_of(exercise):
    """What an exercise's table says of its tasks: the minutes of those with points, of all."""
    table = re.findall(
        r"^\| (.+?) \| (.+?) \| (\d+) \| (?:easy|medium|hard|open) \|$", exercise, re.M
    )
    graded = [int(minutes) for _, what, minutes in table if "no points" not in what]
    return sum(graded), sum(int(minutes) for _, _, minutes in table)


def test_each_row_has_the_title_and_the_minutes_of_its_notebooks():
    rows = re.findall(r"(?m)^\| (\d\d .+?) \| .+ \| (\d+) \| \**(\d+)\** \|$", TEXT)
    entries, with_open, in_all = read_map(ROOT), [], [0, 0]
    assert [name for name, _, _ in rows] == [entry.name for entry in entries]
    for (_, lesson, exercise), entry in zip(rows, entries, strict=True):
        graded, total = minutes_of(markdown_of(ROOT / entry.exercise))
        assert (int(lesson), int(exercise)) == (entry.lesson_minutes, graded), entry.name
        assert total == entry.exercise_minutes
        in_all = [in_all[0] + graded, in_all[1] + total]
        if total > graded:
            with_open.append(entry.number)
            assert 10 <= total - graded <= 20
    text = " ".join(TEXT.split())
    assert f"in exercises {', '.join(with_open[:-1])} and {with_open[-1]}" in text
    less, more = (f"{round(minutes / 30) / 2:g}" for minutes in in_all)
    assert f"about {more} hours in all instead of {less}" in text


def test_each_lesson_needs_the_lessons_that_it_says_it_needs():
    rows = re.findall(r"(?m)^\| (\d\d) .+? \| .+? \| (.+?) \| [\d. +]+ \| \d", TEXT)
    assert len(rows) == len(read_map(ROOT))
    for number, needs in rows:
        (lesson,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        words = " ".join(markdown_of(lesson).split())
        sentence = re.search(r"(?:\*\*Needs:\*\*|You need) (.+?)\. ", words)[1]
        needed = re.sub(r";[^;]+ helps", "", sentence)
        assert re.findall(r"\b\d\d\b", needs) == sorted(re.findall(r"\b\d\d\b", needed)), number


def hours(lessons: str, *columns: int) -> str:
    """What these lessons take by the table: column 0 has the lessons, column 1 the exercises."""
    rows = re.findall(r"(?m)^\| (\d\d) .+ \| (\d+) \| \**(\d+)\** \|$", TEXT)
    minutes = {stem: (int(lesson), int(exercise)) for stem, lesson, exercise in rows}
    total = sum(minutes[stem][column] for stem in lessons.split() for column in columns)
    return f"{round(total / 60, 1):g}"


def test_the_hours_of_each_way_through_are_those_of_its_lessons():
    weeks = re.findall(r"(?m)^\| \d \| ([\d, ]+) \|", TEXT)
    assert sum(len(week.split(", ")) for week in weeks) == len(stems())
    *first, last = (hours(week.replace(",", ""), 0, 1) for week in weeks)
    assert f"take about {', '.join(first)} and {last} hours" in " ".join(TEXT.split())
    evenings = ("00 01 02 03", "05 09 11")
    lessons, exercises = ([hours(one, column) for one in evenings] for column in (0, 1))
    assert f"about {lessons[0]} hours (00, 01, 02 and 03) and {lessons[1]} hours" in TEXT
    assert f"as homework: {exercises[0]} and {exercises[1]} hours" in TEXT


@pytest.mark.parametrize("command", [("grade",), ("exercise", "build"), ("exercise", "new")])
def test_every_option_that_is_named_is_there(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([*command, "--help"])
    there = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    named = re.findall(rf"distlab {' '.join(command)}\b[^\n`]*", TEXT)
    asked = {option for line in named for option in re.findall(r"--[a-z-]+", line)}
    assert named and asked <= there


def test_the_options_of_the_list_are_those_of_the_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["grade", "--help"])
    there = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    (listed,) = re.findall(r"\n- \*\*Late\*\*.*?\n\n", TEXT, re.DOTALL)
    asked = set(re.findall(r"--[a-z-]+", listed))
    assert {"--late", "--overrides", "--canvas"} <= asked <= there


def test_the_report_that_is_shown_can_be_copied(tmp_path):
    cells, rubric = re.findall(r"```python\n((?:# %%|from distlab).*?)```", TEXT, re.DOTALL)
    own = make_exercise("20_my_topic", folder=tmp_path)
    for path, more in ((own.source, cells), (own.checks, rubric)):
        path.write_text(path.read_text(encoding="utf-8") + "\n" + more, encoding="utf-8")
    build_editions([own.source], BuildOptions(out=tmp_path / "out"))
    (report,) = load_reports(own.checks)
    assert (report.name, report.points) == ("speed", 5)
