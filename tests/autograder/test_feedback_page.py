"""The page that a learner gets back is theirs to read, and nobody's to run."""

import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from distlab.autograder.gradebook import section_html as section_html_module
from distlab.autograder.gradebook.feedback_page import page_of, write_feedback
from distlab.autograder.gradebook.markdown_html import to_html
from distlab.autograder.gradebook.scores import Given, Graded, Held, Policy, score_of
from distlab.autograder.gradebook.section_html import section_html
from distlab.autograder.intake.gradable_exercises import Lessons
from distlab.autograder.intake.report_submission import Written
from distlab.autograder.intake.submissions import Submission
from distlab.checks import lesson_00_start_here
from distlab.checks.check import Criterion
from distlab.checks.endings import Ending
from distlab.checks.registry import all_checks, find_check
from distlab.checks.report import Report
from distlab.checks.rubric import RubricRow, WrittenReport
from distlab.checks.sections import Section, section_to_revisit
from distlab.results.failures import Failure, FailureKind

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"
ONE = Graded(
    submission=Submission(learner="jane", path=Path("jane/one.ipynb"), name="one", is_late=True),
    stem="00_one",
    reports=(
        Report("first", "f", "Shares", Ending.PASSED, 2.0, 2.0),
        Report("second", "g", "Sums", Ending.NOT_YET, 0.5, 2.0, hint="Count them."),
    ),
)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes = set(), set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}


def page(graded, policy=Policy()):  # noqa: B008 - frozen
    return page_of(graded, score_of(graded, policy), policy=policy)


def written(graded, folder):
    return write_feedback(graded, score_of(graded, Policy()), folder)


def test_a_page_says_what_was_earned_and_what_to_think_about():
    text = page(ONE, Policy(late_factor=0.5))
    assert "<b>1 of 4 points</b>, late: 50% of the points" in text
    assert "<h2>Shares</h2>" in text and "second: not yet (0.5 of 2 points)" in text
    assert "<b>Hint:</b> Count them." in text


def test_what_a_teacher_decides_and_what_is_held_is_told():
    held = replace(ONE, held=(Held(check="first", reason="cell 3: imports ctypes"),))
    override = Given(points=1.5, comment="right <idea>")
    text = page(held, Policy(overrides={("jane", "", "second"): override}))
    assert "Your teacher gives 1.5 points." in text
    assert "<b>Your teacher says:</b> right &lt;idea&gt;" in text
    assert text.count("<b>Held for review.</b> These 2 points do not count yet.") == 1
    assert "2 more points are held for review, as explained below." in text
    assert "ctypes" not in text, "what was suspected is for the teacher"


def test_the_learners_code_is_there_with_its_lines_open_where_something_is_wrong():
    code = {"first": "def f():\n    return 1 < 2", "second": "def g(): ..."}
    first, second = page(replace(ONE, code=code)).split("<section>")[1:]
    assert "<details><summary>Your code</summary>" in first
    assert "<span>def f():</span>\n<span>    return 1 &lt; 2</span>\n" in first
    assert "<details open><summary>Your code</summary>" in second


def test_code_that_was_not_started_is_not_shown():
    stub = replace(ONE.reports[1], ending=Ending.NOT_STARTED, earned=0.0)
    assert "pass_me" not in page(replace(ONE, reports=(stub,), code={"second": "pass_me = 0"}))


def test_the_section_to_read_again_is_in_the_page_itself():
    check = find_check("slices")
    report = Report(check.name, "split", check.title, Ending.NOT_YET, 0.0, 2.0, revisit="a section")
    text = page(replace(ONE, stem="00_start_here", reports=(report, report)))
    assert text.count('<a href="#section-0">a section</a>') == 2
    assert text.count('id="section-0"') == 1 and 'id="section-1"' not in text
    section = section_to_revisit(check)
    assert f"<summary>&quot;{section.heading}&quot; in lesson 00</summary>" in text
    lesson = text.partition('id="section-0"')[2]
    assert "experimental_distribute_dataset" in lesson and "<pre>" in lesson


def test_a_section_ends_at_the_next_heading_and_shows_no_code_of_a_prediction(
    tmp_path, monkeypatch
):
    fence = "```python\n# no heading\n```"
    cells = [
        v4.new_markdown_cell("## First\n\nbefore"),
        v4.new_markdown_cell(f"## The `one`\n\ninside\n\n{fence}\n\n### Below"),
        v4.new_code_cell("dl.predict()", metadata={"tags": ["predict"]}),
        v4.new_code_cell("1 < 2", outputs=[v4.new_output("stream", text="shown\n")]),
        v4.new_markdown_cell("last\n\n## Next\n\nafter"),
        v4.new_code_cell("after()"),
    ]
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "98_a.ipynb").write_text(
        nbformat.writes(v4.new_notebook(cells=cells))
    )
    monkeypatch.setattr(section_html_module, "course_root", lambda: tmp_path)
    html = section_html(Section("98_a", "The one"))
    for shown in ("inside", "no heading", "Below", "1 &lt; 2", "shown", "last"):
        assert shown in html
    for left_out in ("before", "after", "Next", "dl.predict"):
        assert left_out not in html
    assert section_html(Section("98_a", "None")) == ""


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_each_section_can_be_shown(check):
    assert len(section_html(section_to_revisit(check))) > 200


SPEED = WrittenReport("speed", "Speed", (RubricRow("why", 2, "says why"),))
ASKED = "Answer below each question.\n\n**1. Which one jumps?**\n\n"
SECOND = "\n\n**2. And why\nso late?**\n\n*Your answer.*"


def test_a_report_is_rendered_and_its_questions_are_folded(monkeypatch):
    monkeypatch.setattr(lesson_00_start_here, "REPORTS", (SPEED,), raising=False)
    lines = frozenset(line.strip() for line in (ASKED + SECOND).splitlines() if line.strip())
    monkeypatch.setattr(Lessons, "handed_out", lambda self, stem: lines)
    own = "It is **four** <replicas>, see `step`.\n\n- one\n- two"
    wrote = Written(report="speed", text=ASKED + own + SECOND)
    text = page(replace(ONE, stem="00_start_here", reports=(), written=(wrote,)))
    assert "It is <b>four</b> &lt;replicas&gt;, see <code>step</code>." in text
    assert "<ul><li>one</li><li>two</li></ul>" in text
    assert "<summary>1. Which one jumps?</summary>" in text
    assert "<summary>2. And why so late?</summary>" in text
    assert "Answer below" not in text and "Your answer" not in text and "**" not in text
    assert text.count("Nothing is written here.") == 1


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("# A `b`", "<h4>A <code>b</code></h4>"),
        ("a *b* c_d_e _f_ 2 * 3 * 4", "<p>a <i>b</i> c_d_e <i>f</i> 2 * 3 * 4</p>"),
        ("**a `x * y` b**", "<p><b>a <code>x * y</code> b</b></p>"),
        ("see\n1. a\n   b\n2. c", "<p>see</p><ol><li>a\nb</li><li>c</li></ol>"),
        ("```python\na < b\n\n**c**\n```", "<pre>a &lt; b\n\n**c**</pre>"),
        (
            "|a|b|\n|-|-|\n|1|`2`|",
            "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td><code>2</code></td></tr></table>",
        ),
        ("> q", "<blockquote><p>q</p></blockquote>"),
        ("[a](javascript:x) ![b](http://c.d)", "<p>a b (http://c.d)</p>"),
        ('<img src="x" onerror=y>', '<p>&lt;img src="x" onerror=y&gt;</p>'),
        ("\x000\x00 `a`", "<p>0 <code>a</code></p>"),
    ],
)
def test_markdown_becomes_html_in_which_every_text_is_escaped(text, html):
    assert to_html(text) == html


@pytest.mark.parametrize("text", ["*", "**a", "`", "[a](", "|-", "- ", "_a", " ", "> ", "#", "# "])
def test_no_text_takes_long(text):
    # In such a text a slow pattern tries each pair of places, or each three of them.
    began = time.process_time()
    to_html(text * (20_000 // len(text)) + "x#-")
    assert time.process_time() - began < 5


def test_what_was_not_graded_says_why():
    text = page(replace(ONE, reports=(), stem="", problem="an empty file"))
    assert "<b>Not graded:</b> an empty file" in text and "points" not in text
    assert "hand in that file" in text


def test_nothing_of_a_learners_is_markup():
    handed = Submission(learner=EVIL, path=Path(f"{EVIL[8:16]}.ipynb"), name=EVIL)
    report = Report(
        "first",
        EVIL,
        "Shares",
        Ending.ERROR,
        0.0,
        2.0,
        criteria=(Criterion(EVIL, False, EVIL, EVIL, EVIL),),
        mistake_says=EVIL,
        mistake=EVIL,
        failure=Failure(FailureKind.ERROR, EVIL, (EVIL,)),
        message=EVIL,
        printed=EVIL,
    )
    evil = Graded(
        submission=handed, stem=EVIL, reports=(report,), notes=(EVIL,), code={"first": EVIL}
    )
    tags = Tags()
    tags.feed(page(evil))
    assert not tags.tags & {"script", "img", "a", "form", "iframe"}
    assert not {name for name in tags.attributes if name.startswith("on") or name == "src"}


def test_the_page_itself_allows_no_script():
    assert "default-src 'none'" in page(ONE)


@pytest.mark.parametrize(
    ("learner", "folder"),
    [
        ("jane", "jane"),
        ("Zoë", "Zoë"),
        ("../../etc", "_.._etc-"),
        ("a/b\x00c", "a_b_c-"),
        ("..", "-"),
        ("x" * 300, "x" * 80 + "-"),
    ],
)
def test_a_page_lies_in_the_learners_folder_and_nowhere_else(tmp_path, learner, folder):
    one = replace(ONE, submission=replace(ONE.submission, learner=learner))
    path = written(one, tmp_path)
    own, page = path.relative_to(tmp_path).parts
    assert own.startswith(folder) and page == "00_one.html"
    assert (own == folder) is (learner == folder)


def test_two_learners_whose_names_look_alike_have_two_folders(tmp_path):
    first, second = (
        replace(ONE, submission=replace(ONE.submission, learner=name)) for name in ("a:b", "a;b")
    )
    assert written(first, tmp_path) != written(second, tmp_path)


def test_two_learners_of_one_name_have_two_folders(tmp_path):
    first, second = (
        replace(ONE, submission=replace(ONE.submission, user=user)) for user in ("7", "8")
    )
    assert written(first, tmp_path) != written(second, tmp_path)


def test_text_that_is_no_unicode_can_be_written(tmp_path):
    odd = replace(ONE.reports[0], ending=Ending.NOT_YET, printed="\ud800")
    path = written(replace(ONE, reports=(odd,), notes=("\ud800",)), tmp_path)
    assert "\\ud800" in path.read_text(encoding="utf-8")
