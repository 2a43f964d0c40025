"""The minutes that a lesson states: counted from its words and its code, and never typed."""

from nbformat import v4

from distlab.authoring.__main__ import main
from distlab.authoring.minutes import MOST_CORE_HOURS, count_minutes, count_words
from distlab.authoring.source import Page, draft_page
from tests.support.repository import ROOT


def text(source):
    return v4.new_markdown_cell(source)


def code(source, *tags):
    return v4.new_code_cell(source, metadata={"tags": list(tags)})


def words(count):
    return " ".join(["word"] * count)


FOLD = "<details><summary>three words shown</summary>\n\n{}\n\n</details>"
ASK = 'guess = dl.predict("How many copies?", ["one", "two"])'
REVEAL = 'guess.reveal(f"{n} copies", {"one": "Then it would be shared."}, within=2)'
# Cells, and what is counted of them: words and lines, with folds closed and with folds open.
COUNTED = (
    ([text("# Two words\n\n| a | b |\n|---|---|\n")], (4, 0), (4, 0)),
    ([text("[two words](a b c d) <b>and</b> <!-- no word -->")], (3, 0), (3, 0)),
    ([text(FOLD.format(words(7)))], (3, 0), (10, 0)),
    ([text("See\n\n```python\na = 1\n\nb = 2\n```\n\n```text\na: 1\n```")], (1, 2), (1, 2)),
    ([text(FOLD.format("```python\na = 1\n```"))], (3, 0), (3, 1)),
    ([code("import keras\n\n# why\na = 1")], (0, 3), (0, 3)),
    ([code("a = 1\nb = 2", "hide-input")], (0, 0), (0, 2)),
    # A question is read as a card; the keys of an answer are its choices again.
    ([code(ASK, "predict"), code(REVEAL, "reveal")], (5, 0), (11, 0)),
)


def test_words_and_lines_of_code_are_counted_with_folds_closed_and_open():
    for cells, closed, opened in COUNTED:
        counted = count_minutes(cells)
        shown = [(amount.words, amount.lines) for amount in (counted.closed, counted.opened)]
        assert shown == [closed, opened], cells


def test_minutes_are_rounded_to_fives_and_a_range_is_never_empty():
    lines = "x = 1\n" * 60  # 11 minutes
    for cells, stated in (
        ([text(words(10))], "5 to 10 minutes"),
        ([text(words(3000))], "20 to 25 minutes"),
        ([text(words(2600)), code(lines), code(lines, "hide-input")], "30 to 40 minutes"),
    ):
        assert str(count_minutes(cells)) == stated


def test_an_extra_section_does_not_count_for_the_core():
    fenced = "```bash\n## Extra: a comment\n```"
    cells = [text(f"# One\n\n{words(2998)}\n\n{fenced}\n\n## Extra: two\n\n{words(1500)}")]
    cells += [code("x = 1"), text("## Three")]
    counted = count_minutes(cells)
    assert (counted.extra_closed.words, counted.extra_closed.lines) == (1502, 1)
    assert str(counted) == "20 to 25 minutes (and 10 to 15 for its extra section)"
    assert counted.notes() == {"minutes": [20, 25], "extra_minutes": [10, 15]}


def test_the_builder_fills_them_in_and_stores_them(tmp_path):
    folder = tmp_path / "distlab/course/lesson_00_a"
    folder.mkdir(parents=True)
    for name in ("lesson.py", "exercise.py"):
        (folder / name).write_text("# %% [markdown]\n# # A\n#\n# **Time:** {minutes}.\n")
    lesson = draft_page(Page(tmp_path, "00_a", "lesson")).notebook
    assert lesson.cells[0].source == "# A\n\n**Time:** 5 to 10 minutes."
    assert lesson.metadata["distlab"]["minutes"] == [5, 10]
    exercise = draft_page(Page(tmp_path, "00_a", "exercise")).notebook
    assert "{minutes}" in exercise.cells[0].source  # its tasks' minutes are an author's estimates
    assert "minutes" not in exercise.metadata["distlab"]


def test_every_lesson_leaves_its_minutes_to_the_builder():
    sources = sorted((ROOT / "distlab/course").glob("lesson_*/lesson.py"))
    assert sources
    assert [path.parent.name for path in sources if "{minutes}" not in path.read_text()] == []


def test_words_are_what_is_read():
    assert count_words("**Two** words - `x = 1` [here](https://a.b)") == 5


def test_the_command_prints_what_each_lesson_and_its_exercise_take(capsys):
    status = main(["minutes", "--root", str(ROOT)])
    *rows, _, verdict = capsys.readouterr().out.splitlines()
    first, total = rows[1].split(), rows[-1].split()
    assert (first[0], total[0]) == ("00_start_here", "all")
    hours = int(total[3].partition("-")[2]) / 60
    is_too_long = hours > MOST_CORE_HOURS
    assert status == is_too_long and ("too long" in verdict) == is_too_long
    assert verdict.startswith(f"core path: {hours:.1f} hours")
