"""Each rule of the lint: a good notebook passes, one that breaks just this rule does not."""

from pathlib import Path

import pytest
from nbformat import v4

from distlab.notebooks.__main__ import main
from distlab.notebooks.build import build_pages
from distlab.notebooks.lint import lint_notebook, lint_tree, no_leak
from distlab.notebooks.lint_code import MAX_LINES
from distlab.notebooks.notebook_text import Finding
from distlab.notebooks.source import Page, draft_page, find_pages
from distlab.notebooks.storing import canonical


def text(source, **metadata):
    return v4.new_markdown_cell(source, metadata=metadata)


def code(source="x = 1", *, count=1, tags=(), outputs=()):
    metadata = {"tags": list(tags)} if tags else {}
    return v4.new_code_cell(source, execution_count=count, metadata=metadata, outputs=list(outputs))


def said(words):
    return v4.new_output("stream", name="stdout", text=words)


def error(evalue="e"):
    return v4.new_output("error", ename="ValueError", evalue=evalue, traceback=[])


def lesson(*cells, title="# Start here", opening="## Overview"):
    """A good lesson, with cells put before its last two sections."""
    return v4.new_notebook(
        cells=[text(title), text(opening), *cells, text("## Check yourself\n\n## Next steps")]
    )


def messages(notebook, root=Path(), edition="lesson"):
    return [str(finding) for finding in lint_notebook(notebook, edition=edition, root=root)]


def test_a_good_lesson_passes():
    fenced = "```\n# no heading\n```\n\n[web](https://www.tensorflow.org/guide)"
    good = lesson(
        text("## Split the batch with MirroredStrategy: `GlobalBatch`\n\n### 2 replicas"),
        text(fenced),
        code(outputs=[said("loss 0.648, 12 steps, 3.1 ms/step as recorded")]),
        code(count=2, tags=["raises-exception"], outputs=[error()]),
        code(count=None, tags=["nbval-skip"]),
        code(count=3, tags=["nbval-ignore-output"], outputs=[said("at 12:30:01")]),
    )
    assert messages(good) == []


def test_a_finding_is_one_line_with_file_and_cell():
    assert str(Finding(7, "too long", "notebooks/a.ipynb")) == "notebooks/a.ipynb: cell 7: too long"
    assert str(Finding(None, "too long", "a.ipynb")) == "a.ipynb: too long"


# Text


@pytest.mark.parametrize("title", ["## Start here", "Start here", "Words first\n\n# Start here"])
def test_the_first_cell_opens_with_the_title(title):
    expected = "cell 1: the first cell must open with the title, '# Title'"
    assert expected in messages(lesson(title=title))


def test_a_second_title_is_found():
    assert messages(lesson(text("# Again"))) == ["cell 3: a second title; use '##'"]


def test_a_skipped_level_is_found():
    assert messages(lesson(text("#### Deep"))) == ["cell 3: heading 'Deep' skips from H2 to H4"]


@pytest.mark.parametrize(
    ("markdown", "finding"),
    [
        ("That is 2 (N\n- 1) bytes.", "'- 1) bytes.' is drawn as a list: break elsewhere"),
        ("- kill it, - stop it", "'- stop it' is drawn as text: a new line"),
        ("1. save the weights. 2. Add it", "'2. Add it' is drawn as text: a new line"),
        ("- to\n  read. - [Lesson](x)", "'- [Lesson](x)' is drawn as text: a new line"),
    ],
)
def test_a_list_that_nobody_meant_is_found(markdown, finding):
    assert finding in "\n".join(messages(lesson(text(markdown))))


@pytest.mark.parametrize(
    "markdown",
    ["Text:\n\n- one,\n  still one\n- two", "```diff\nx\n- y\n```", "## Head\n- one", "A - b"],
)
def test_a_list_on_purpose_is_left_alone(markdown):
    assert not [one for one in messages(lesson(text(markdown))) if "is drawn as" in one]


@pytest.mark.parametrize(
    ("heading", "word"),
    [
        ("Split The batch", "the"),
        ("Split the All-reduce", "all"),
        ("`fit` Does it", "does"),
        ("What now? We Train", "train"),
        ("Keras's Own loop", "own"),
    ],
)
def test_title_case_is_found(heading, word):
    expected = heading.replace("`", "")
    assert messages(lesson(text(f"## {heading}"))) == [
        f"cell 3: heading {expected!r}: sentence case, so {word!r}"
    ]


def test_a_small_first_letter_is_found():
    assert messages(lesson(text("## split it"))) == ["cell 3: heading 'split it': capital first"]


@pytest.mark.parametrize(
    "heading",
    [
        "How Keras's `fit` and TF_CONFIG meet on GPUs",
        "Step 1: Build it",
        "Step 1: build it",
        "`tf.function` first",
        "What I saw. What next?",
        "Python 3.11 and plan B",
    ],
)
def test_proper_names_code_and_new_sentences_keep_their_case(heading):
    assert messages(lesson(text(f"## {heading}"))) == []


def test_fixed_sections_must_open_and_close():
    assert messages(lesson(opening="## Set-up")) == ["the first section must be '## Overview'"]
    assert messages(lesson(text("## Next steps"), text("## Check yourself"))) == []
    ends_wrong = lesson()
    ends_wrong.cells[-1].source = "## Next steps\n\n## Check yourself"
    assert messages(ends_wrong) == ["must end with '## Check yourself' and '## Next steps'"]


def test_an_exercise_needs_no_check_yourself():
    exercise = v4.new_notebook(cells=[text("# A"), text("## Overview"), text("## Next steps")])
    assert messages(exercise, edition="exercise") == []
    assert messages(exercise) == ["must end with '## Check yourself' and '## Next steps'"]


# Code


def test_a_long_cell_is_found():
    assert messages(lesson(code("x\n" * MAX_LINES))) == []
    assert messages(lesson(code("x\n" * (MAX_LINES + 1)))) == [
        "cell 3: 31 lines of code; at most 30"
    ]


def test_a_cell_never_run_or_out_of_order_is_found():
    assert messages(lesson(code(count=None))) == ["cell 3: was never run; run 'make notebooks'"]
    assert messages(lesson(code(count=2))) == ["cell 3: run as [2], must be [1]"]


def test_an_unknown_tag_is_found():
    (message,) = messages(lesson(code(tags=["nbval-skipp"])))
    assert message.startswith(
        "cell 3: unknown tag 'nbval-skipp'; known are cpu-numbers, hide-cell, "
    )


def test_an_exception_that_is_not_meant_is_found():
    assert messages(lesson(code(outputs=[error()]))) == [
        "cell 3: ends in ValueError; tag it raises-exception if that is meant"
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("saved /home/ann/model", "a path of this machine"),
        ("saved /Users/ann/model", "a path of this machine"),
        ("saved /tmp/x1", "a path of this machine"),
        ("saved /root/.keras", "a path of this machine"),
        ("saved 'C:\\Users\\ann'", "a path of this machine"),
        ("<function f at 0x7f3a2c10>", "a memory address"),
        ("at 12:30:01", "a time"),
        ("on 2026-11-20", "a time"),
        ("8/8 - 3ms/step", "a time"),
        ("Wall time: 3 s", "a time"),
        ("/job:localhost/replica:0/task:0/device:CPU:0", "a device name"),
    ],
)
def test_output_of_one_machine_or_moment_is_found(line, what):
    found = [f"cell 3: output holds {what}: {line!r}"]
    assert messages(lesson(code(outputs=[said(f"fine\n{line}\nfine")]))) == found
    shown = v4.new_output("display_data", data={"text/plain": line})
    assert messages(lesson(code(outputs=[shown]))) == found
    assert messages(lesson(code(outputs=[error(line)], tags=["raises-exception"]))) == found


def test_a_path_is_found_also_where_output_is_not_compared():
    cell = code(outputs=[said("/home/ann/x at 12:30:01")], tags=["nbval-ignore-output"])
    (message,) = messages(lesson(cell))
    assert "a path of this machine" in message


@pytest.mark.parametrize("line", ["see docs/tmp/x", "ratio 4:30", "0x1F", "a 28x28 image"])
def test_harmless_output_passes(line):
    assert messages(lesson(code(outputs=[said(line)]))) == []


def test_base64_inside_html_is_no_text():
    html = {"text/html": "<img src='data:image/png;base64,AA/tmp/AA/home/aa=='>"}
    assert messages(lesson(code(outputs=[v4.new_output("display_data", data=html)]))) == []


# Links


@pytest.fixture
def root(tmp_path):
    for folder in ("notebooks", "exercises", "solutions", "lessons", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "README.md").write_text("x")
    glossary = "# Glossary\n\n### all-reduce\n\n### process ID\n\n### TF_CONFIG\n"
    (tmp_path / "docs" / "glossary.md").write_text(glossary)
    (tmp_path / "notebooks" / "a b.png").write_text("x")
    there = lesson(text("## Split the `batch`"))
    (tmp_path / "exercises" / "00_a.ipynb").write_text(canonical(there))
    return tmp_path


@pytest.mark.parametrize(
    "link",
    [
        "[x](../exercises/00_a.ipynb)",
        "[x](../exercises/00_a.ipynb#Split-the-batch)",
        "[x](../docs/glossary.md)",
        "[x](../docs/glossary.md#all-reduce) [y](../docs/glossary.md#process-id)",
        "[x](../docs/glossary.md#tf_config)",
        "[x](#Here-it-is)",
        "[x](#mine)",
        "![x](a%20b.png)",
        "<img src='a%20b.png'>",
        "[x](https://example.org/missing#y) <https://example.org>",
    ],
)
def test_links_that_resolve_pass(root, link):
    cell = text(f"## Here it is\n\n<a id='mine'></a> {link}")
    assert messages(lesson(cell), root) == []


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("[x](../exercises/01_b.ipynb)", "leads nowhere"),
        ("![x](missing.png)", "leads nowhere"),
        ("<img alt='' src='missing.png'>", "leads nowhere"),
        ("| a |\n|---|\n| [x](missing.png) |", "leads nowhere"),
        ("[x](../exercises/00_a.ipynb#split)", "names no heading"),
        ("[x](../docs/glossary.md#all-to-all)", "names no heading"),
        ("[x](#here)", "names no heading"),
        ("[x]()", "is empty"),
        ("[x](/README.md)", "is absolute"),
        ("[x](file:///etc/passwd)", "is no web address"),
        ("![x](attachment:a.png)", "is no web address"),
        ("[x](../README.md)", "leaves notebooks/, exercises/"),
        ("[x](../solutions/00_a.ipynb)", "leaves notebooks/, exercises/"),
        ("[x](../docs/distribute.md)", "leaves notebooks/, exercises/"),
        ("[x](../../elsewhere)", "leaves notebooks/, exercises/"),
    ],
)
def test_links_that_do_not_resolve_are_found(root, link, message):
    (found,) = messages(lesson(text(f"## Here it is\n\n{link}")), root)
    assert found.startswith("cell 3: link ") and message in found


def test_a_solution_may_link_into_the_repository(root):
    cells = [text("# A"), text("## Overview\n\n[x](../README.md)"), text("## Next steps")]
    assert messages(v4.new_notebook(cells=cells), root, "solution") == []


def test_code_that_looks_like_a_link_is_none(root):
    assert messages(lesson(text("`[x](nowhere)`\n\n```\n[x](nowhere)\n```")), root) == []


# Leaks, and the whole tree

EXERCISE = """\
# %% [markdown]
# # Exercise
#
# ## Overview

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
    (root / "lessons" / "00_a").mkdir()
    (root / "lessons" / "00_a" / "exercise.py").write_text(EXERCISE)
    return Page(root, "00_a", "exercise")


def test_an_untouched_exercise_leaks_nothing(page):
    draft = draft_page(page)
    assert no_leak(draft.notebook, draft) == []
    solution = draft_page(Page(page.root, page.stem, "solution")).notebook
    assert [finding.cell for finding in no_leak(solution, draft)] == [2]


def test_an_answer_in_what_an_exercise_wrote_is_found(page):
    draft = draft_page(page)
    draft.notebook.cells[2].outputs = [said("try \x1b[1mreturn (a + b) / 2\x1b[0m")]
    (finding,) = no_leak(draft.notebook, draft)
    assert str(finding) == "cell 3: gives the solution away: 'return (a + b) / 2'"


def run_nothing(notebook, *, on_cell):
    for _, cell in enumerate(notebook.cells):
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
