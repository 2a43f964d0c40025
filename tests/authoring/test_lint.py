"""Each rule of the lint: a good notebook passes, one that breaks just this rule does not."""

from pathlib import Path

import pytest
from nbformat import v4

from distlab.authoring.__main__ import main
from distlab.authoring.build import build_pages
from distlab.authoring.lint.lint import lint_notebook, lint_tree, no_leak
from distlab.authoring.lint.lint_rules import MAX_LINES, MAX_PROGRAM_LINES
from distlab.authoring.source import Page, draft_page, find_pages
from distlab.authoring.stored_form import canonical


def text(source):
    return v4.new_markdown_cell(source)


def code(source="x = 1", *, count=1, tags=(), outputs=()):
    metadata = {"tags": list(tags)} if tags else {}
    return v4.new_code_cell(source, execution_count=count, metadata=metadata, outputs=list(outputs))


def said(words):
    return v4.new_output("stream", name="stdout", text=words)


def displayed(data):
    return v4.new_output("display_data", data=data)


def error(evalue="e"):
    return v4.new_output("error", ename="ValueError", evalue=evalue, traceback=[])


OPENING = """After this lesson you can

- share a batch.

**Time:** 20 to 30 minutes. **Needs:** lesson 00."""


TASKS = """| task | what you do | minutes | difficulty | path |
|---|---|---|---|---|
| 1. `mean` | a mean | 5 | easy | core |
| your own model | try it (no points) | 10 | open | extra |"""


def lesson(*cells, title="# Start here", opening=f"## Overview\n\n{OPENING}"):
    """A good lesson, with cells put before its last two sections."""
    return v4.new_notebook(
        cells=[text(title), text(opening), *cells, text("## Check yourself\n\n## Next steps")],
        metadata={"distlab": {"minutes": [20, 30]}},
    )


def messages(notebook, root=Path(), edition="lesson"):
    return [str(finding) for finding in lint_notebook(notebook, edition=edition, root=root)]


MACHINES_OWN = {
    "saved /home/ann/model": "a path of this machine",
    "to /tmp/x1": "a path of this machine",
    "<function f at 0x7f3a2c10>": "a memory address",
    "at 12:30:01": "a time",
    "on 2026-11-20": "a time",
    "8/8 - 3ms/step": "a time",
    "/job:localhost/replica:0/task:0/device:CPU:0": "a device name",
}
# A text, or a code cell, put into a good lesson, and how its finding begins.
BROKEN = (
    ("# Again", "a second title; use '##'"),
    ("#### Deep", "heading 'Deep' skips from H2 to H4"),
    ("## Split The batch", "heading 'Split The batch': sentence case, so 'the'"),
    ("## `fit` Does it", "heading 'fit Does it': sentence case, so 'does'"),
    ("## What now? We Train", "heading 'What now? We Train': sentence case, so 'train'"),
    ("## split it", "heading 'split it': capital first"),
    ("That is 2 (N\n- 1) bytes.", "'- 1) bytes.' is drawn as a list: break elsewhere"),
    ("- kill it, - stop it", "'- stop it' is drawn as text: a new line"),
    ("1. save it. 2. Add it", "'2. Add it' is drawn as text: a new line"),
    (code("x\n" * (MAX_LINES + 1)), "31 lines of code; at most 30"),
    (code("x\n" * (MAX_PROGRAM_LINES + 1), tags=["whole-program"]), "61 lines of code; at most 60"),
    (code("x\n" * (MAX_PROGRAM_LINES + 1), tags=["whole-program"]), "61 lines of code; at most 60"),
    (code(count=None), "was never run; run 'make notebooks'"),
    (code(count=2), "run as [2], must be [1]"),
    (code(tags=["nbval-skipp"]), "unknown tag 'nbval-skipp'; known are "),
    (code(outputs=[error()]), "ends in ValueError; tag it raises-exception if that is meant"),
    *(
        (code(outputs=[output], tags=["raises-exception"]), f"output holds {what}: {line!r}")
        for line, what in MACHINES_OWN.items()
        for output in (said(f"fine\n{line}\nfine"), displayed({"text/plain": line}), error(line))
    ),
    (
        code(outputs=[said("/home/ann/x at 12:30:01")], tags=["nbval-ignore-output"]),
        "output holds a path of this machine",
    ),
)


def test_each_rule_that_is_broken_is_named():
    wrong = []
    for cell, expected in BROKEN:
        findings = messages(lesson(text(cell) if isinstance(cell, str) else cell))
        if len(findings) != 1 or not findings[0].startswith(f"cell 3: {expected}"):
            wrong.append((cell, findings))
    assert wrong == []


def test_a_good_lesson_passes():
    html = {"text/html": "<img src='data:image/png;base64,AA/tmp/AA/home/aa=='>"}
    good = lesson(
        text("## Split the batch with MirroredStrategy: `GlobalBatch`\n\n### 2 replicas"),
        text("## How Keras's `fit` and TF_CONFIG meet on GPUs\n\n## Step 1: Build it"),
        text("## `tf.function` first. What next? Plan B\n- one - b"),
        text("Text:\n\n- one,\n  still one\n- two\n\n```diff\n# x\n- y\n```"),
        code("x\n" * MAX_LINES, outputs=[said("loss 0.648, 12 steps, 3.1 ms/step as recorded")]),
        code(count=2, tags=["raises-exception"], outputs=[error()]),
        code(count=None, tags=["nbval-skip"]),
        code(count=3, tags=["nbval-ignore-output"], outputs=[said("at 12:30:01")]),
        code(count=4, outputs=[said("docs/tmp/x, ratio 4:30, 0x1F, 28x28"), displayed(html)]),
    )
    assert messages(good) == []


def test_titles_and_fixed_sections_are_held():
    title = "cell 1: the first cell must open with the title, '# Title'"
    for wrong in ("## Start here", "Start here", "Words first\n\n# Start here"):
        assert title in messages(lesson(title=wrong))
    ending = ["must end with '## Check yourself' and '## Next steps'"]
    swapped = lesson()
    swapped.cells[-1].source = "## Next steps\n\n## Check yourself"
    assert messages(swapped) == ending
    opening = text(f"## Overview\n\n{TASKS}")
    exercise = v4.new_notebook(cells=[text("# A"), opening, text("## Next steps")])
    assert messages(exercise, edition="exercise") == []
    opening.source = f"## Set-up\n\n{TASKS}"
    wrong = ["the first section must be '## Overview'"]
    assert messages(exercise, edition="exercise") == wrong


def test_the_opening_says_how_long_a_lesson_takes_and_what_for():
    told = "you can\n\n- share a batch.\n\nAllow 20 to\n30 minutes. You need lesson 00.\n\n## One"
    assert messages(lesson(opening=told)) == []
    asked = "the opening must say how long it takes: write '{minutes}'"
    for opening, message in (
        (OPENING.replace("20 to 30", "20 to 35"), f"{asked} in place of '20 to 35 minutes'"),
        (OPENING.replace("20 to 30", "about 25"), f"{asked} in place of '25 minutes'"),
        (f"## One\n\n{OPENING}", asked),
        (OPENING.replace("you can", "we can"), "what a learner can do afterwards: 'you can', "),
        (OPENING.replace("**Needs:**", "It wants"), "what a learner needs: '**Needs:** lesson NN'"),
    ):
        assert message in " ".join(messages(lesson(opening=opening))), message


def test_the_table_of_tasks_says_for_whom_each_is():
    for before, after, message in (
        (" path |\n", " who |\n", "the table of tasks must have | task | what you do | minutes | "),
        ("| task", "| work", "has no table of its tasks: | task | what you do | minutes | diff"),
        ("| core", "| both", "1. `mean`: path 'both'; write core or extra"),
        ("easy", "simple", "1. `mean`: difficulty 'simple'; write easy or medium or hard or open"),
        ("| 5 |", "| five |", "1. `mean`: no whole number of minutes"),
        ("| extra", "| core", "your own model: has no points, so it's extra"),
        ("| core", "| extra", "has no core task"),
    ):
        table = text(f"## Overview\n\n{TASKS.replace(before, after)}")
        cells = [text("# A"), table, text("## Next steps")]
        found = messages(v4.new_notebook(cells=cells), edition="solution")
        assert any(message in finding for finding in found), (message, found)


# Links


@pytest.fixture
def root(tmp_path):
    for folder in ("notebooks", "exercises", "solutions", "distlab/course", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "README.md").write_text("x")
    glossary = "# Glossary\n\n### all-reduce\n\n### process ID\n\n### TF_CONFIG\n"
    (tmp_path / "docs" / "glossary.md").write_text(glossary)
    (tmp_path / "notebooks" / "a b.png").write_text("x")
    linked = lesson(text("## Split the `batch`"))
    (tmp_path / "exercises" / "00_a.ipynb").write_text(canonical(linked))
    return tmp_path


def test_links_that_do_not_resolve_are_found(root):
    good = """
[x](../exercises/00_a.ipynb) [x](../exercises/00_a.ipynb#Split-the-batch)
[x](../docs/glossary.md) [x](../docs/glossary.md#all-reduce) [y](../docs/glossary.md#process-id)
[x](../docs/glossary.md#tf_config) [x](#Here-it-is) [x](#mine) <a id='mine'></a>
![x](a%20b.png) <img src='a%20b.png'> [x](https://example.org/missing#y) <https://example.org>
`[x](nowhere)`

```
[x](nowhere)
```
"""
    assert messages(lesson(text(f"## Here it is\n\n{good}")), root) == []
    for link, message in (
        ("[x](../exercises/01_b.ipynb)", "leads nowhere"),
        ("![x](missing.png)", "leads nowhere"),
        ("| a |\n|---|\n| <img src='missing.png'> |", "leads nowhere"),
        ("[x](../exercises/00_a.ipynb#split)", "names no heading"),
        ("[x](../docs/glossary.md#all-to-all)", "names no heading"),
        ("[x](#here)", "names no heading"),
        ("[x]()", "is empty"),
        ("[x](/README.md)", "is absolute"),
        ("[x](file:///etc/passwd)", "is no web address"),
        ("[x](../README.md)", "leaves notebooks/, exercises/"),
        ("[x](../solutions/00_a.ipynb)", "leaves notebooks/, exercises/"),
    ):
        (finding,) = messages(lesson(text(f"## Here it is\n\n{link}")), root)
        assert finding.startswith("cell 3: link ") and message in finding
    cells = [text("# A"), text(f"## Overview\n\n[x](../README.md)\n\n{TASKS}")]
    cells += [text("## Next steps")]
    assert messages(v4.new_notebook(cells=cells), root, "solution") == []


# Leaks, and the whole tree

EXERCISE = """\
# %% [markdown]
# # Exercise
#
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `mean` | a mean | 5 | easy | core |

# %%
# task: mean
def mean(a, b):
    ### BEGIN SOLUTION
    return (a + b) / 2
    ### END SOLUTION

# %%
mean

# %% [markdown]
# ## Next steps
"""


@pytest.fixture
def page(root):
    (root / "distlab/course/lesson_00_a").mkdir()
    (root / "distlab/course/lesson_00_a/exercise.py").write_text(EXERCISE)
    return Page(root, "00_a", "exercise")


def test_an_answer_in_an_exercise_or_in_what_it_wrote_is_found(page):
    draft = draft_page(page)
    assert no_leak(draft.notebook, draft) == []
    solution = draft_page(Page(page.root, page.stem, "solution")).notebook
    assert [finding.cell for finding in no_leak(solution, draft)] == [2]
    draft.notebook.cells[2].outputs = [said("try \x1b[1mreturn (a + b) / 2\x1b[0m")]
    (finding,) = no_leak(draft.notebook, draft)
    assert str(finding) == "cell 3: gives the solution away: 'return (a + b) / 2'"


def run_nothing(notebook, *, on_cell):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = 1
    return notebook


def test_the_tree_is_read_whole_and_summed_up(page, capsys):
    build_pages(find_pages(page.root), execute=run_nothing)
    report = lint_tree(page.root)
    assert report.findings == ()
    assert report.summary == "2 notebooks, 4 code cells of 2.0 lines on average, 0 findings"
    (page.root / "exercises" / "01_b.ipynb").write_text("no json")
    solution = page.root / "solutions" / "00_a.ipynb"
    (page.root / "exercises" / "00_a.ipynb").write_bytes(solution.read_bytes())
    assert main(["lint", "--root", str(page.root)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "exercises/00_a.ipynb: cell 2: gives the solution away: 'return (a + b) / 2'"
    assert lines[1].startswith("exercises/01_b.ipynb: cannot be read: ")
    assert lines[2].endswith("2 findings")
