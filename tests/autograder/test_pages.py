"""The pages for learners and teachers say what was earned, and nothing in them can run."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import expect

from distlab.autograder.gradebook.gradebook_csv import mistakes_in
from distlab.autograder.gradebook.markdown import section_html, to_html
from distlab.autograder.gradebook.pages import (
    class_page,
    feedback_page,
    write_feedback,
    write_page,
)
from distlab.autograder.gradebook.scores import Given, Graded, Policy, score_of
from distlab.autograder.intake.exercises import Exercises
from distlab.autograder.intake.notebook import open_notebook
from distlab.autograder.intake.submissions import Submission
from distlab.autograder.intake.written_reports import find_written
from distlab.course.checks import Criterion
from distlab.course.checks.difference import mark_difference
from distlab.course.checks.help_steps import section_to_revisit
from distlab.course.checks.registry import all_checks, checks_of, find_check, reports_of, stems
from distlab.course.checks.report import Ending, Report
from distlab.course.checks.rubric import RubricRow, WrittenReport
from distlab.course.results.failures import Failure, FailureKind
from tests.support.browser import open_browser, open_page, violations
from tests.support.repository import ROOT

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"
STEM = "00_start_here"
SPEED = WrittenReport("speed", "Speed", (RubricRow("why", 2, "says why"),))
ONE = Graded(
    submission=Submission(learner="jane", path=Path("jane/one.ipynb"), name="one", is_late=True),
    stem=STEM,
    reports=(
        Report("first", "f", "Shares", Ending.PASSED, 2.0, 2.0),
        Report("second", "g", "Sums", Ending.NOT_YET, 0.5, 2.0, hint="Count them."),
    ),
)


def page(graded, policy=Policy()):  # noqa: B008 - frozen
    return feedback_page(graded, score_of(graded, policy), policy=policy)


def written_to(graded, folder):
    return write_feedback(graded, score_of(graded, Policy()), folder)


def assert_nothing_runs(html):
    class Tags(HTMLParser):
        tags, attributes = set(), set()

        def handle_starttag(self, tag, attributes):
            self.tags.add(tag)
            self.attributes |= {name for name, _ in attributes}

    tags = Tags()
    tags.feed(html)
    assert tags.tags and not tags.tags & {"script", "img", "form", "iframe"}
    assert not {name for name in tags.attributes if name.startswith("on") or name == "src"}
    assert "default-src 'none'" in html


# A learner's page


def test_a_page_says_what_was_earned_and_what_to_think_about():
    text = page(ONE, Policy(late_factor=0.5))
    assert "1 of 4 <small>points, late: 50% of the points" in text
    assert '<a class="partial" href="#second">second: partial</a>' in text
    assert '<section id="second">' in text and "<h1>Exercise 00: Start here</h1>" in text
    assert "<h2>Shares</h2>" in text and "second: not yet (0.5 of 2 points)" in text
    assert "<b>Hint:</b> Count them." in text
    broken = page(replace(ONE, reports=(), stem="", problem="an empty file"))
    assert "<b>Not graded:</b> an empty file" in broken and "hand in that file" in broken


def test_what_a_teacher_decides_is_told():
    override = Given(points=1.5, comment="right <idea>")
    text = page(ONE, Policy(overrides={("jane", "", "second"): override}))
    assert "Your teacher gives 1.5 points." in text
    assert "<b>Your teacher says:</b> right &lt;idea&gt;" in text


def test_the_section_to_read_again_is_in_the_page_itself():
    check = find_check("slices")
    report = Report(check.name, "split", check.title, Ending.NOT_YET, 0.0, 2.0, revisit="a section")
    text = page(replace(ONE, stem=STEM, reports=(report, report)))
    assert text.count('<a href="#section-1">a section</a>') == 2
    assert text.count('id="section-1"') == 1 and 'id="section-2"' not in text
    heading = section_to_revisit(check).heading
    assert f"<summary>&#34;{heading}&#34; in lesson 00</summary>" in text
    short = [c.name for c in all_checks() if len(section_html(section_to_revisit(c))) <= 200]
    assert short == []


@pytest.mark.parametrize(
    ("yours", "expected", "marked"),
    [
        ("[[1, 2], [9, 7]]", "[[1, 2], [3, 4]]", ["9", "3"]),
        ("{&#x27;a&#x27;: 1}", "{&#x27;a&#x27;: 2}", ["1", "2"]),
        ("[0.30001, 1]", "[0.3, 2]", ["1", "2"]),
        ("[1]", "[1, 2]", ["2"]),
        ("[0.5, nan]", "[0.5, nan]", []),
    ],
)
def test_the_first_value_that_differs_is_marked(yours, expected, marked):
    html = f"<pre>they differ\nyours:    {yours}\nexpected: {expected}</pre>"
    text = mark_difference(html)
    assert re.findall("<mark[^>]*>(.*?)</mark>", text) == marked
    assert re.sub("</?mark[^>]*>", "", text) == html


def test_nothing_of_a_learners_is_markup(tmp_path):
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
    broken = Graded(submission=handed, stem=EVIL, problem=EVIL)
    assert_nothing_runs(page(evil))
    html = class_page([(one, score_of(one, Policy())) for one in (evil, broken)])
    sorts = ROOT / "distlab" / "autograder" / "templates" / "sort.js"
    ours = f"<script>{sorts.read_text('utf-8')}</script>"
    assert html.count(ours) == 1
    assert_nothing_runs(html.replace(ours, ""))
    odd = replace(ONE.reports[0], ending=Ending.NOT_YET, printed="\ud800")
    path = written_to(replace(ONE, reports=(odd,), notes=("\ud800",)), tmp_path)
    assert "\\ud800" in path.read_text(encoding="utf-8")


def test_a_page_lies_in_the_learners_folder_and_nowhere_else(tmp_path):
    folders = {
        "jane": "jane",
        "Zoë": "Zoë",
        "../../etc": "_.._etc-",
        "a/b\x00c": "a_b_c-",
        "..": "-",
        "x" * 300: "x" * 80 + "-",
    }

    def folder_of(**handed):
        path = written_to(replace(ONE, submission=replace(ONE.submission, **handed)), tmp_path)
        own, name = path.relative_to(tmp_path).parts
        assert name == f"{STEM}.html"
        return own

    for learner, folder in folders.items():
        own = folder_of(learner=learner)
        assert own.startswith(folder) and (own == folder) is (learner == folder)
    assert folder_of(learner="a:b") != folder_of(learner="a;b")
    assert folder_of(user="7") != folder_of(user="8")
    alike = [folder_of(learner=learner, is_alike=True) for learner in ("Jane", "jane")]
    assert alike[0].casefold() != alike[1].casefold()


def test_markdown_becomes_html_in_which_every_text_is_escaped():
    cases = {
        "# A `b`": "<h4>A <code>b</code></h4>",
        "a *b* c_d_e 2 * 3 * 4": "<p>a <em>b</em> c_d_e 2 * 3 * 4</p>",
        "```python\na < b\n\n**c**\n```": '<pre><code class="language-python">a &lt; b\n\n**c**\n'
        "</code></pre>",
        "[a](javascript:x) ![b](http://c.d)": "<p>[a](javascript:x) ![b](http://c.d)</p>",
        '<img src="x" onerror=y>': "<p>&lt;img src=&quot;x&quot; onerror=y&gt;</p>",
    }
    assert {text: to_html(text) for text in cases} == cases
    assert "<td><code>2</code></td>" in to_html("|a|b|\n|-|-|\n|1|`2`|")


# A report that a learner writes

DRAW = "# report: speed\ndraw()"


def text(source):
    return {"cell_type": "markdown", "source": source.splitlines(True)}


def code(source, *outputs):
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def picture(data, kind="image/png"):
    return {"output_type": "display_data", "data": {kind: data, "text/plain": "<Figure>"}}


def written_in(*cells):
    (report,) = find_written(cells, (SPEED,), handed_out=set())
    return report


def test_anything_but_a_png_is_refused_with_a_word():
    cases = [
        picture("<svg/>", "image/svg+xml"),
        picture("x", "text/html"),
        picture("x" * 41),
        picture(["QUJD", 3]),
    ]
    for output in cases:
        report = written_in(text("<!-- report: speed -->\nx"), code(DRAW, output))
        assert report.pictures == () and "some are not shown: only 4 PNG" in report.notes[0], output


def test_of_an_untouched_exercise_nothing_is_written_and_of_the_solution_all():
    wrong = []
    for stem in stems():
        for edition, is_written in (("exercises", False), ("solutions", True)):
            cells = open_notebook(ROOT / edition / f"{stem}.ipynb").cells
            given = Exercises().text_of(stem)
            for report in find_written(cells, reports_of(stem), handed_out=given):
                is_whole = bool(report.text) is is_written and report.is_marked
                if not is_whole or (is_written and not report.pictures):
                    wrong.append((edition, stem, report.notes))
    assert wrong == []


OWN_REPORT = """\
# %% [markdown]
# <!-- report: speed -->
# **Which is slower?**
#
# <!-- BEGIN SOLUTION -->
# Four replicas.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
"""


def test_what_a_learner_wrote_is_told_from_the_source_of_a_teachers_own_report(tmp_path):
    checks = tmp_path / "lesson_20_own.py"
    checks.write_text("CHECKS = ()\n")
    (tmp_path / "20_own.py").write_text(OWN_REPORT)
    given = Exercises(checks).text_of("20_own")

    def written(answer):
        cell = text(f"<!-- report: speed -->\n**Which is slower?**\n\n{answer}")
        (report,) = find_written([cell], (SPEED,), handed_out=given)
        return report.text

    assert written("*Your answer.*") == ""
    assert written("Four replicas.") == "**Which is slower?**\n\nFour replicas."


# The page of the class

FIRST, SECOND, *_ = checks_of(STEM)


def report_on(check, status, earned=0.0, mistake="", says=""):
    more = {"mistake": mistake, "mistake_says": says}
    return Report(check.name, "f", check.title, status, earned, 2, **more)


def graded(learner, *reports, late=False, **more):
    handed = Submission(learner=learner, path=Path(learner, "a.ipynb"), name="a", is_late=late)
    return Graded(submission=handed, **{"stem": STEM, "reports": reports, **more})


HALVED = report_on(FIRST, Ending.NOT_YET, 1, "halved", "Not half.")
CLASS = [
    graded("a", report_on(FIRST, Ending.PASSED, 2), report_on(SECOND, Ending.NOT_STARTED)),
    graded("b", HALVED, report_on(SECOND, Ending.PASSED, 2)),
    graded("c", replace(HALVED, earned=0), report_on(SECOND, Ending.NOT_STARTED)),
    graded(
        "d",
        report_on(FIRST, Ending.TIMED_OUT),
        report_on(SECOND, Ending.ERROR, 0, "doubled", "Not twice."),
        late=True,
    ),
    graded("e", stem="", problem="an <empty> file"),
]


def test_the_class_page_shows_each_answer_and_says_what_to_teach_again():
    given = Policy(overrides={("c", "", FIRST.name): Given(points=1.5)})
    html = class_page([(one, score_of(one, given)) for one in CLASS])
    table = re.search(r'<table class="learners">(.*?)</table>', html, re.DOTALL)[1]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    cells = [re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for row in rows]
    head, *rows = [[re.sub("<[^>]*>", " ", cell).split() for cell in row] for row in cells]
    assert head[2] == [FIRST.name, "1", "passed"]
    assert [" ".join(row[2]) for row in rows] == ["passed", "1 of 2", "1.5 of 2", "ran out of time"]
    assert f'<a class="partial" href="feedback/b/{STEM}.html#{FIRST.name}">1 of 2</a>' in html
    assert "<h2>Exercise 00: Start here</h2>" in html
    items = re.findall(r"<li>(.*?)</li>", html.partition("To teach again")[2])
    section = f"&#34;{FIRST.revisit}&#34; in lesson 00"
    assert items[0] == (
        f"<b>2 learners, {FIRST.name}:</b> Not half. Section to revisit: {section}."
    )
    assert items[1].startswith(f"<b>1 learner, {SECOND.name}:</b> Not twice.")
    assert "halved" not in html, "the names of mistakes are codes for programs"
    assert "4 graded, 1 of them late" in html
    assert "</a>: an &lt;empty&gt; file" in html
    assert f'<a href="feedback/a/{STEM}.html"><bdi>a</bdi></a>' in html
    labels = re.findall(r'<th scope="row">([^<]*)</th>', html.partition('class="bars"')[2])
    assert labels == ["0 to 1.5", "2 to 3.5", "4"]
    twice = [CLASS[1], CLASS[1], CLASS[2]]
    assert [(one.name, one.learners) for one in mistakes_in(twice)] == [("halved", 2)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_a_cell_of_the_class_leads_to_the_answer_and_can_be_read(scheme, tmp_path):
    scored = [(notebook, score_of(notebook, Policy())) for notebook in CLASS]
    write_page(tmp_path / "class.html", class_page(scored))
    for notebook, score in scored:
        write_feedback(notebook, score, tmp_path / "feedback")
    phone = {"color_scheme": scheme, "viewport": {"width": 390, "height": 844}}
    with open_browser() as browser, open_page(browser, **phone) as page:
        page.goto((tmp_path / "class.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        cells = page.locator(".learners td a").all()
        assert len(cells) == 8
        assert violations(page) == []
        for cell in cells[:2]:  # both tasks fit beside the name and the points
            box = cell.bounding_box()
            assert box["x"] + box["width"] <= 390
        cells[1].click()
        expect(page.locator(f"#{SECOND.name}")).to_be_in_viewport()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert violations(page) == []


def test_the_class_page_begins_with_what_it_holds_and_sorts():
    html = class_page([(one, score_of(one, Policy())) for one in CLASS], to_review=2)
    top = re.sub("<[^>]*>", "", html.partition("<main>")[2].partition("<section")[0])
    assert "review.csv lists what you should look at: 2 rows." in " ".join(top.split())
    assert "Exercise 00: Start here: 4 graded, mean 1.2 and median 1 of 4 points" in top
    strange = replace(CLASS[0], submission=replace(CLASS[0].submission, learner=f"\u202ea{EVIL}"))
    html = class_page([(one, score_of(one, Policy())) for one in (*CLASS[1:4], strange)])
    with open_browser() as browser, open_page(browser) as page:
        page.set_content(html)
        names = page.locator(".learners tbody th")
        for column, first, last in (("points", "c", "b"), ("points", "b", "c")):
            page.get_by_role("button", name=column).click()
            assert first in names.first.inner_text() and last in names.last.inner_text()
        assert page.locator("bdi script, bdi img").count() == 0


def test_a_link_to_the_section_to_read_again_opens_it():
    check = find_check("slices")
    report = Report(check.name, "split", check.title, Ending.NOT_YET, 0.0, 2.0, revisit="a section")
    with open_browser() as browser, open_page(browser) as shown:
        shown.set_content(page(replace(ONE, stem=STEM, reports=(report,))))
        text = shown.locator("#section-1 p").first
        expect(text).to_be_hidden()
        shown.get_by_role("link", name="a section").click()
        expect(text).to_be_visible()
