"""The tool that holds full marks says of each check on how many seeds, and finds what is wrong."""

from tools import full_marks


def test_each_check_has_a_line_with_its_seeds(capsys):
    assert full_marks.main(["00", "--seeds", "2"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        *("slices", "file_slices", "brightness", "who_saw")
    ]
    assert all("   2 seeds " in line and line.endswith("full marks") for line in lines)
    assert last.startswith("0 checks with findings")


def test_a_check_without_time_left_says_on_how_few_seeds_it_was_held(capsys):
    full_marks.main(["00", "--seeds", "2", "--secs", "0"])
    assert capsys.readouterr().out.count("   1 seeds ") == 4


def test_an_answer_that_earns_less_and_a_stub_that_earns_something_are_found(capsys, monkeypatch):
    load = full_marks.load_edition

    def swapped(page):
        other = {"solution": "exercise", "exercise": "solution"}[page.edition]
        return load(full_marks.Page(page.root, page.stem, other))

    monkeypatch.setattr(full_marks, "load_edition", swapped)
    assert full_marks.main(["00", "--seeds", "1"]) == 1
    said = capsys.readouterr().out
    assert said.count("seed 0 earns 0 of 3; the exercise as handed out earns 3") >= 1
    assert "4 checks with findings" in said
