"""What a report that a teacher reads is made of."""

from types import ModuleType

import pytest

from distlab import errors
from distlab.checks import registry
from distlab.checks.registry import lesson_modules, reports_of
from distlab.checks.rubric import RubricRow, WrittenReport

ROWS = (RubricRow("what_jumps", 2, "says what jumps"), RubricRow("why", 3.5, "says why"))


def test_a_report_earns_what_its_rubric_adds_up_to():
    assert WrittenReport("speed", "One against many", ROWS).points == 5.5


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: RubricRow("two words", 1, "says it"), "a name that is not an identifier"),
        (lambda: RubricRow("one", 0, "says it"), "points=0"),
        (lambda: RubricRow("one", float("nan"), "says it"), "points=nan"),
        (lambda: WrittenReport("a-b", "", ROWS), "a name that is not an identifier"),
        (lambda: WrittenReport("a", "", ()), "no rubric, so it can earn nothing"),
        (
            lambda: WrittenReport("a", "", (ROWS[0], ROWS[0])),
            "rubric rows named ['what_jumps', 'what_jumps']",
        ),
    ],
)
def test_a_rubric_that_nobody_could_use_is_refused(make, found):
    with pytest.raises(errors.InvalidArgument) as caught:
        make()
    assert caught.value.found == found


def test_a_lesson_has_the_reports_that_its_package_holds(monkeypatch):
    lesson = ModuleType("lesson")
    lesson.REPORTS = (WrittenReport("speed", "", ROWS),)
    monkeypatch.setattr(registry.importlib, "import_module", lambda name: lesson)
    assert reports_of("09_multi_worker") == lesson.REPORTS
    del lesson.REPORTS
    assert reports_of("09_multi_worker") == ()


def test_names_of_reports_and_checks_of_a_lesson_are_told_apart():
    for stem in (module.removeprefix("lesson_") for module in lesson_modules()):
        names = [one.name for one in (*registry.checks_of(stem), *reports_of(stem))]
        assert len(set(names)) == len(names), stem


def test_an_unknown_lesson_is_told():
    with pytest.raises(errors.InvalidArgument) as caught:
        reports_of("09_multi_workers")
    assert caught.value.asked == "reports_of('09_multi_workers')"
    assert "did you mean '09_multi_worker'?" in caught.value.do
