"""`make full-marks` says on how many seeds each check held, and names what is wrong."""

from distlab.course.checks.registry import checks_of
from tools import full_marks

NAMES = [check.name for check in checks_of("00_start_here")]


def test_each_check_has_a_line_with_its_seeds(capsys):
    assert full_marks.main(["00", "--seeds", "2"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert all("   2 seeds " in line and line.endswith("full marks") for line in lines)
    assert last.startswith("0 checks with findings")


def test_an_answer_that_earns_less_and_a_stub_that_earns_something_are_named(capsys, monkeypatch):
    load = full_marks.load_edition

    def swapped(page):
        other = {"solution": "exercise", "exercise": "solution"}[page.edition]
        return load(full_marks.Page(page.root, page.stem, other))

    monkeypatch.setattr(full_marks, "load_edition", swapped)
    # Without time left, a check is held on one seed of two, and its line says so.
    assert full_marks.main(["00", "--seeds", "2", "--secs", "0"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("   1 seeds ") == len(NAMES)
    assert printed.count("seed 0 earns 0 of 3; the exercise as handed out earns 3") >= 1
    assert f"{len(NAMES)} checks with findings" in printed
