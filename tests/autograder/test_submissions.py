"""Submissions are found in the folders that teachers get, and nothing outside of them is read."""

import os

import pytest

from distlab import errors
from distlab.autograder.intake import submissions
from distlab.autograder.intake.submissions import find_submissions


def lay(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return root


def told(found):
    return [(one.learner, one.name, one.is_late, one.path.name) for one in found.submissions]


CANVAS = [
    "doejane_12345_678901_09_multi_worker.ipynb",
    "doejohn_LATE_12346_678902_09_multi_worker-1.ipynb",
    "doejohn_LATE_12346_678950_09_multi_worker-2.ipynb",
    "doejohn_12346_678802_09_multi_worker.ipynb",
    "roeadam_12347_678903_Copy of 09_multi_worker (1).ipynb",
]


def test_a_canvas_download_gives_the_newest_of_each_learner(tmp_path):
    found = find_submissions(lay(tmp_path, *CANVAS))
    assert told(found) == [
        ("doejane", "09_multi_worker", False, CANVAS[0]),
        ("doejohn", "09_multi_worker", True, CANVAS[2]),
        ("roeadam", "09_multi_worker", False, CANVAS[4]),
    ]
    assert [one.user for one in found.submissions] == ["12345", "12346", "12347"]
    assert [one.path.name for one in found.replaced] == [CANVAS[3], CANVAS[1]]
    assert found.problems == ()


def test_a_learner_without_a_notebook_is_found_once_with_what_was_handed_in(tmp_path):
    root = lay(
        tmp_path,
        "jane/00_start_here.ipynb",
        "jane/notes.txt",
        "john/homework.pdf",
        "john/photo.jpg",
        "doejane_LATE_123_456_scan.pdf",
        "submitted/max/00_start_here/answers.docx",
        "roster.csv",
    )
    found = find_submissions(root)
    assert [(one.learner, one.user, one.is_late, one.path.name) for one, _ in found.unusable] == [
        ("doejane", "123", True, "doejane_LATE_123_456_scan.pdf"),
        ("john", "", False, "homework.pdf"),
        ("max", "", False, "answers.docx"),
    ]
    left_out = {one.path.name for one in found.problems}
    assert left_out == {"notes.txt", "photo.jpg", "roster.csv"}


def test_a_moodle_download_gives_each_learner_once_and_a_course_folder_its_exercises(tmp_path):
    names = [
        "Ana-María Doe_123400_assignsubmission_file_/00_start_here.ipynb",
        "Ana-María Doe_123400_assignsubmission_onlinetext_/onlinetext.html",
        "jane/exercises/00_start_here.ipynb",
        "jane/notebooks/00_start_here.ipynb",
    ]
    found = find_submissions(lay(tmp_path, *names))
    ana, jane = found.submissions
    assert (ana.person, jane.person) == (("Ana-María Doe", "123400"), ("jane", ""))
    assert jane.path.parent.name == "exercises" and found.unusable == ()


def test_a_folder_or_a_file_names_the_learner(tmp_path):
    names = ["jane/00_start_here.ipynb", "jane/01_mirrored_strategy.ipynb", "john.ipynb"]
    found = find_submissions(lay(tmp_path, *names))
    assert told(found) == [
        ("jane", "00_start_here", False, "00_start_here.ipynb"),
        ("jane", "01_mirrored_strategy", False, "01_mirrored_strategy.ipynb"),
        ("john", "john", False, "john.ipynb"),
    ]


def test_what_systems_add_to_a_name_is_taken_off(tmp_path):
    names = [
        "Copy of 03_custom_training_loop.ipynb",
        "Copy of Copy of 03_custom_training_loop.ipynb",
        "Kopie von 03_custom_training_loop (2).ipynb",
        "03_custom_training_loop-3.ipynb",
        "03_custom_training_loop (1) (1).ipynb",
        "03_custom_training_loop.IPYNB",
    ]
    for name in names:
        root = lay(tmp_path / name, f"jane/{name}")
        (handed,) = find_submissions(root).submissions
        assert (handed.learner, handed.name) == ("jane", "03_custom_training_loop"), name


def test_other_files_and_links_are_told_and_links_are_not_followed(tmp_path):
    outside = lay(tmp_path / "outside", "secret.ipynb")
    names = ["jane/00_start_here.ipynb", "jane/report.pdf"]
    names += ["jane/.ipynb_checkpoints/00_start_here-checkpoint.ipynb", "__MACOSX/jane/._x.ipynb"]
    root = lay(tmp_path / "in", *names)
    (root / "folder").symlink_to(outside)
    (root / "jane" / "01.ipynb").symlink_to(outside / "secret.ipynb")
    os.mkfifo(root / "pipe.ipynb")
    found = find_submissions(root)
    assert len(found.submissions) == 1
    assert {one.path.name: one.says for one in found.problems} == {
        "folder": "a link, which may lead anywhere",
        "01.ipynb": "a link, which may lead anywhere",
        "pipe.ipynb": "neither a file nor a folder",
        "report.pdf": "not a notebook (.ipynb)",
    }


def test_a_wrong_folder_is_told(tmp_path, monkeypatch):
    lay(tmp_path, "one/all.zip", "pdf/jane/report.pdf", "many/1.ipynb", "many/2.ipynb")
    monkeypatch.setattr(submissions, "MOST_FILES", 1)  # noticed before all of it is read
    cases = {
        "nowhere": ("no folder of that name", ""),
        "one/all.zip": ("a file", "unpack a zip file first"),
        "many/1.ipynb": ("a file", f"give the folder that it lies in: {tmp_path / 'many'}"),
        "pdf": ("no notebooks among 1 files", ""),
        "many": ("more than 1 files", ""),
    }
    for name, (problem, do) in cases.items():
        with pytest.raises(errors.InvalidArgument) as caught:
            find_submissions(tmp_path / name)
        assert caught.value.found == problem
        assert do in caught.value.do


def test_a_folder_of_sections_is_not_taken_for_one_learner(tmp_path):
    names = ["monday/jane/one.ipynb", "monday/john/one.ipynb", "tuesday/roe/one.ipynb"]
    with pytest.raises(errors.InvalidArgument) as caught:
        find_submissions(lay(tmp_path, *names))
    assert caught.value.found == (
        "monday holds 2 folders with a one.ipynb: monday/jane, monday/john"
    )
    assert caught.value.do == (
        f"if these are learners, give {tmp_path / 'monday'} as the folder; "
        "otherwise delete all but one of each"
    )
