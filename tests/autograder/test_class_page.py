"""The page of the class: how each exercise and each task went, and what to teach from it."""

import re
from pathlib import Path

import pytest

from distlab.autograder.gradebook.class_counts import mistakes_in, tasks_in
from distlab.autograder.gradebook.class_page import class_page, histogram
from distlab.autograder.gradebook.scores import Graded, Held, Policy, score_of
from distlab.autograder.intake.submissions import Submission
from distlab.checks.endings import Ending
from distlab.checks.registry import checks_of
from distlab.checks.report import Report
from tests.autograder.test_feedback_page import EVIL, Tags

STEM = "00_start_here"
FIRST, SECOND, *_ = checks_of(STEM)


def report(check, status, earned=0.0, mistake="", says=""):
    return Report(
        check.name, "f", check.title, status, earned, 2, mistake=mistake, mistake_says=says
    )


def graded(learner, *reports, late=False, **more):
    handed = Submission(learner=learner, path=Path(learner, "a.ipynb"), name="a", is_late=late)
    return Graded(submission=handed, **{"stem": STEM, "reports": reports, **more})


CLASS = [
    graded("a", report(FIRST, Ending.PASSED, 2), report(SECOND, Ending.NOT_STARTED)),
    graded(
        "b",
        report(FIRST, Ending.NOT_YET, 1, "halved", "Not half."),
        report(SECOND, Ending.PASSED, 2),
    ),
    graded(
        "c",
        report(FIRST, Ending.NOT_YET, 0, "halved", "Not half."),
        report(SECOND, Ending.NOT_STARTED),
    ),
    graded(
        "d",
        report(FIRST, Ending.TIMED_OUT),
        report(SECOND, Ending.ERROR, 0, "doubled", "Not twice."),
        held=(Held(check=FIRST.name, reason="ctypes"), Held(check=FIRST.name, reason="inspect")),
        late=True,
    ),
    graded("e", stem="", problem="an <empty> file"),
]


def page(everybody=CLASS):
    return class_page([(one, score_of(one, Policy())) for one in everybody])


def cells(html):
    """The tables of a page, each a list of rows."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_each_task_is_counted_by_its_outcome():
    head, first, second = cells(page())
    labels = ["passed", "partial", "not yet", "not started"]
    labels += ["error in your code", "ran out of time"]
    assert head == ["task", *labels, "held for review"]
    first = dict(zip(head, first, strict=True))
    assert first.pop("task") == f"{FIRST.name}: {FIRST.title}"
    assert {name: number for name, number in first.items() if number} == {
        "passed": "1",
        "partial": "1",
        "not yet": "1",
        "ran out of time": "1",
        "held for review": "1",
    }
    assert sum(bool(cell) for cell in second) == 4
    assert sum(tasks_in(CLASS)[1].counts.values()) == 4


def test_what_to_teach_from_has_the_most_common_mistake_first_and_its_section():
    html = page()
    items = re.findall(r"<li>(.*?)</li>", html.partition("To teach again")[2])
    section = f"&quot;{FIRST.revisit}&quot; in lesson 00"
    assert items[0] == (
        f"<b>2 learners, {FIRST.name}:</b> Not half. Section to revisit: {section}."
    )
    assert items[1].startswith(f"<b>1 learner, {SECOND.name}:</b> Not twice.")
    assert "halved" not in html, "the names of mistakes are codes for programs"


def test_how_many_handed_in_and_what_was_not_graded_is_told():
    html = page()
    assert "4 handed in, 1 of them late" in html
    assert "<li>e, a.ipynb: an &lt;empty&gt; file</li>" in html


def test_a_mistake_in_two_notebooks_of_a_learner_counts_once():
    twice = [CLASS[1], CLASS[1], CLASS[2]]
    assert [(one.name, one.learners) for one in mistakes_in(twice)] == [("halved", 2)]


def test_points_are_shown_as_a_histogram_without_a_script():
    svg = histogram([0, 1.5, 5, 10, 12, -1], 10)
    heights = [float(height) for height in re.findall(r'height="([\d.]+)"/>', svg)]
    assert heights == [120, 0, 40, 0, 0, 80]
    assert re.findall(r">(\d+)</text>", svg) == ["3", "1", "2", "10"]
    assert histogram([], 3).count("<rect") == 4


@pytest.mark.parametrize(
    ("most", "first", "last"),
    [
        (2, "0 to 0.5", "2"),
        (7, "0 to 0.5", "7"),
        (10, "0 to 1.5", "10"),
        (19, "0 to 1.5", "18 to 19"),
        (29, "0 to 2.5", "27 to 29"),
        (31, "0 to 3.5", "28 to 31"),
        (100, "0 to 19.5", "100"),
    ],
)
def test_the_bars_of_a_histogram_begin_at_whole_points(most, first, last):
    labels = re.findall(r">([\d.]+(?: to [\d.]+)?)</text>", histogram([], most))
    assert (labels[0], labels[-1]) == (first, last)
    assert len(labels) <= 10


def test_nothing_in_it_can_run():
    everybody = [
        graded(
            EVIL, Report(EVIL, EVIL, EVIL, Ending.NOT_YET, 0, 2, mistake=EVIL, mistake_says=EVIL)
        ),
        graded(EVIL, stem=EVIL, problem=EVIL),
    ]
    html, tags = page(everybody), Tags()
    tags.feed(html)
    assert not tags.tags & {"script", "img", "a", "form", "iframe"}
    assert not {name for name in tags.attributes if name.startswith("on")}
    assert "default-src 'none'" in html


def test_a_class_that_handed_in_nothing_that_could_be_graded_has_a_page():
    assert "Not graded" in page(CLASS[-1:])
