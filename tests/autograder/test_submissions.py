"""Submissions are found in what platforms download, and nothing outside of it is read."""

import os
import tracemalloc
import zipfile

import pytest

from distlab import errors
from distlab.autograder.intake import unpack
from distlab.autograder.intake.submissions import find_submissions
from tests.support.downloads import FORMS, LAST, METADATA, MOODLE


def lay(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return root


@pytest.fixture
def find(tmp_path_factory):
    return lambda folder: find_submissions(folder, tmp_path_factory.mktemp("unpacked"))


def refusal(find, folder):
    with pytest.raises(errors.InvalidArgument) as caught:
        find(folder)
    return caught.value


def pack(path, *names, **contents):
    """Writes a zip of small notebooks, and returns its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, "{}")
        for name, content in contents.items():
            file.writestr(name, content)
    return path


ODD = {"09_2026_final", "task_09_2026_final"}  # names with numbers that are none of a platform


def write_names(folder):
    """Writes what Blackboard and Gradescope write about learners."""
    for path in folder.rglob("*_jdoe_*.txt"):
        path.write_text("Name: Jane Doe (jdoe)\nAssignment: Exercise 00\n")
    for path in folder.rglob("submission_metadata.yml"):
        path.write_text(METADATA)


@pytest.mark.parametrize("packed", ["folder", "zip", "zipped folder", "zip in a folder"])
@pytest.mark.parametrize("form", FORMS)
def test_each_learner_is_one_row_in_what_a_platform_downloads(tmp_path, find, form, packed):
    names, graded, without = FORMS[form]
    given = lay(tmp_path / "class", *names)
    write_names(given)
    if packed != "folder":
        place = tmp_path / "in" / "class.zip"
        place.parent.mkdir()
        with zipfile.ZipFile(place, "w") as file:
            for path in sorted(given.rglob("*")):
                inside = path.relative_to(tmp_path if packed == "zipped folder" else given)
                if path.is_file():
                    file.write(path, inside)
        given = place.parent if packed == "zip in a folder" else place
    found = find(given)
    assert {handed.person: handed.path.name for handed in found.submissions} == graded
    assert {handed.person: says for handed, says in found.unusable} == without
    known = tuple(sorted({name for name, _ in graded | without}))
    assert found.forms == {form.partition(",")[0]: known}
    assert all(handed.path.read_text() == "{}" for handed in found.submissions)
    named = {handed.name for handed in found.submissions}
    assert named <= {"00_start_here", "final", "jane", "john", *ODD}
    late = {handed.person for handed in found.submissions if handed.is_late}
    assert late == {person for person, name in graded.items() if "LATE" in name or "_late_" in name}


def test_repositories_are_those_of_learners_even_outside_of_a_folder_of_the_classroom(
    tmp_path, find
):
    names = [f"ps-1-{name}/one.ipynb" for name in ("jane", "jane-doe", "joe")]
    users = ["jane", "jane-doe", "joe"]
    assert [handed.user for handed in find(lay(tmp_path / "in", *names)).submissions] == users
    alike = [f"assignment-1-jane-{name}" for name in ("doe", "roe")]
    clones = lay(tmp_path / "alike", *(f"{name}/one.ipynb" for name in alike))
    for name in alike:
        (clones / name / ".git").mkdir()
    assert [handed.user for handed in find(clones).submissions] == ["jane-doe", "jane-roe"]
    kim = ["ps-submissions/ps-kim/old/one.ipynb", "ps-submissions/ps-kim/one.ipynb"]
    mixed = lay(tmp_path / "mixed", *names[:2], *kim, "zoe/one.ipynb")
    for name in names[:2]:
        (mixed / name).with_name(".git").mkdir()
    learners = [handed.learner for handed in find(mixed).submissions]
    assert learners == ["jane", "jane-doe", "kim", "zoe"]


def test_what_a_learner_hands_in_as_a_zip_is_looked_at_and_leads_nowhere(tmp_path, find):
    folder = tmp_path / "in"
    pack(folder / "jane.zip", "exercises/one.ipynb", "exercises/data.csv", "__MACOSX/._one.ipynb")
    pack(folder / "doejohn_12346_678902_homework.zip", "homework\\one.ipynb")
    inner = pack(tmp_path / "inner.zip", "one.ipynb").read_bytes()
    nested = pack(tmp_path / "nested.zip", **{"inner.zip": inner}).read_bytes()
    pack(folder / "kim" / "work.zip", **{"inner.zip": inner})
    pack(folder / "max" / "work.zip", **{"nested.zip": nested})
    pack(folder / "eve.zip", "../../evil.ipynb", "/evil.ipynb", "C:/evil.ipynb")
    pack(folder / "joe.zip", "a_1" * 20_000 + ".ipynb")
    link = zipfile.ZipInfo("link.ipynb")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(folder / "lee.zip", "w") as file:
        file.writestr(link, "/etc/passwd")
    (folder / "roe.zip").write_text("not a zip")
    found = find(folder)
    assert [handed.learner for handed in found.submissions] == ["doejohn", "jane", "kim"]
    assert {handed.learner: says for handed, says in found.unusable} == {
        "eve": "a name that leads out of the zip: ../../evil.ipynb",
        "joe": "a name of 60,006 letters",
        "lee": "a link, which may lead anywhere",
        "max": "a zip inside a zip inside a zip",
        "roe": "a zip that cannot be read (File is not a zip file)",
    }
    assert not list(tmp_path.rglob("evil*"))
    pack(tmp_path / "sole" / "zoe.zip", "exercises/one.ipynb")
    assert [handed.learner for handed in find(tmp_path / "sole").submissions] == ["zoe"]


def test_a_zip_that_is_too_large_costs_its_learner_alone(tmp_path, find, monkeypatch):
    monkeypatch.setattr(unpack, "MOST_UNPACKED", 1_000_000)
    large = {"one.ipynb": b"0" * 700_000, "two.ipynb": b"0" * 700_000}
    pack(tmp_path / "in" / "jane.zip", **large)
    pack(tmp_path / "in" / "joe.zip", **{"one.ipynb": b"{}", "data.csv": b"0" * 2_000_000})
    found = find(tmp_path / "in")
    assert [handed.learner for handed in found.submissions] == ["joe"]
    says = "a zip with more than 1,000,000 bytes of notebooks"
    assert [says for _, says in found.unusable] == [says]
    assert refusal(find, tmp_path / "in" / "jane.zip").found == says


def test_of_a_learner_with_thousands_of_other_files_a_few_are_listed(tmp_path, find):
    names = [f"jane/data/{number}.png" for number in range(300)]
    venv = ["jane/env/pyvenv.cfg", "jane/env/lib/some.ipynb"]
    found = find(lay(tmp_path, "jane/one.ipynb", *names, *venv))
    assert len(found.submissions) == 1
    assert len(found.problems) == 4
    assert (
        found.problems[-1].says
        == "not a notebook (.ipynb); 297 more files of jane are left out as well"
    )


def test_a_name_that_a_learner_gives_to_a_file_makes_it_nobody_elses(tmp_path, find):
    forged = {
        f"Ex_eve_{LAST}_Ex_jdoe_{LAST}_one.ipynb": "eve",
        f"Eve_66{MOODLE}Jane Doe_1{MOODLE}one.ipynb": "Eve",
        "eve_66_77_doejane_1_2_one.ipynb": "eve",
        "eve_66_77_hw.zip/doejane_1_2_one.ipynb": "eve",
        "eve_66_77_anon_aB3dE_900001_one.ipynb": "eve",
        "anon_eV3eV_77_anon_aB3dE_900001_one.ipynb": "anon_eV3eV",
        "Takeout/Classroom/ML/Exercise 00/Eve - hw.zip/Jane - one.ipynb": "Eve",
        "Submitted files/Eve/Exercise 00/Version 1/Jane/Exercise 00/Version 9/one.ipynb": "Eve",
        "66-1 - Eve - May 1, 2026 130 PM/7-1 - Jane - May 1, 2026 130 PM/one.ipynb": "Eve",
    }
    for name, learner in forged.items():
        place = lay(tmp_path / learner / name.partition(".")[0], name)
        assert [handed.learner for handed in find(place).submissions] == [learner]
    names = ["a_eve_attempt_2026-05-01-10-30-00.txt", "submission_1/submission_metadata.yml"]
    place = lay(tmp_path / "names", "submission_501/one.ipynb", *names)
    (place / "submission_1" / "submission_metadata.yml").write_text(METADATA)
    (place / names[0]).unlink()
    os.mkfifo(place / names[0])  # which nobody reads
    assert [handed.learner for handed in find(place).submissions] == ["submission_501"]


def test_what_systems_add_to_a_name_is_taken_off(tmp_path, find):
    names = [
        "Copy of 03_custom_training_loop.ipynb",
        "Copy of Copy of 03_custom_training_loop.ipynb",
        "Kopie von 03_custom_training_loop (2).ipynb",
        "03_custom_training_loop-3.ipynb",
        "03_custom_training_loop (1) (1).ipynb",
        "03_custom_training_loop.IPYNB",
        "03_custom_training_loop.ipynb.json",
    ]
    for name in names:
        root = lay(tmp_path / name, f"jane/{name}")
        (handed,) = find(root).submissions
        assert (handed.learner, handed.name) == ("jane", "03_custom_training_loop"), name


def test_names_that_a_disk_may_take_for_one_are_known_as_such(tmp_path, find):
    names = ["Jane/one.ipynb", "jane/two.ipynb", "Jane/report.pdf", "john/one.ipynb"]
    found = find(lay(tmp_path, *names))
    alike = {handed.learner: handed.is_alike for handed in found.submissions}
    assert alike == {"Jane": True, "jane": True, "john": False}


def test_other_files_and_links_are_told_and_links_are_not_followed(tmp_path, find):
    outside = lay(tmp_path / "outside", "secret.ipynb")
    names = ["jane/00_start_here.ipynb", "jane/report.pdf"]
    names += ["jane/.ipynb_checkpoints/00_start_here-checkpoint.ipynb", "__MACOSX/jane/._x.ipynb"]
    root = lay(tmp_path / "in", *names)
    (root / "folder").symlink_to(outside)
    (root / "jane" / "01.ipynb").symlink_to(outside / "secret.ipynb")
    os.mkfifo(root / "pipe.ipynb")
    found = find(root)
    assert len(found.submissions) == 1
    assert {problem.path.name: problem.says for problem in found.problems} == {
        "folder": "a link, which may lead anywhere",
        "01.ipynb": "a link, which may lead anywhere",
        "pipe.ipynb": "neither a file nor a folder",
        "report.pdf": "not a notebook (.ipynb)",
    }


def test_a_wrong_folder_is_told(tmp_path, find, monkeypatch):
    lay(tmp_path, "one/all.tar", "pdf/jane/report.pdf", "many/1.ipynb", "many/2.ipynb")
    lay(tmp_path, "laid/course.md", "laid/exercises/00_start_here.ipynb")
    inner = pack(tmp_path / "1.zip", "jane/one.ipynb", "joe/one.ipynb").read_bytes()
    for number in (2, 3):
        inner = pack(tmp_path / f"{number}.zip", **{"inner.zip": inner}).read_bytes()
    assert [handed.learner for handed in find(tmp_path / "2.zip").submissions] == ["jane", "joe"]
    monkeypatch.setattr(unpack, "MOST_FILES", 1)
    cases = {
        "nowhere": ("no folder of that name", ""),
        "one/all.tar": ("a file", "give the folder or the zip"),
        "many/1.ipynb": ("a file", f"give the folder that it lies in: {tmp_path / 'many'}"),
        "laid": (
            "a folder of the course itself, as `distlab lab` lays it",
            "a folder of their name",
        ),
        "pdf": ("no notebooks among 1 files", ""),
        "many": ("more than 1 files", ""),
        "3.zip": ("a zip inside a zip inside a zip", "unpack it yourself"),
    }
    for name, (problem, do) in cases.items():
        error = refusal(find, tmp_path / name)
        assert error.found == problem
        assert do in error.do


def test_a_folder_of_sections_is_not_taken_for_learners_and_two_copies_cost_one(tmp_path, find):
    names = ["monday/jane/one.ipynb", "monday/john/one.ipynb"]
    names += ["tuesday/roe/one.ipynb", "tuesday/zoe/one.ipynb"]
    root = lay(tmp_path / "sections", *names)
    error = refusal(find, root)
    clash = "monday holds 2 folders with a one.ipynb: monday/jane, monday/john"
    assert error.found == clash
    assert error.do == (
        f"if these are learners, give {root / 'monday'} as the folder; "
        "otherwise delete all but one of each"
    )
    found = find(lay(tmp_path / "class", *names[:2], "zoe/one.ipynb"))
    assert [handed.learner for handed in found.submissions] == ["zoe"]
    assert [says for _, says in found.unusable] == [f"{clash}; delete all but one"]
    # The only section there is has all learners.
    found = find(lay(tmp_path / "around", *names[:2]))
    assert [handed.learner for handed in found.submissions] == ["jane", "john"]


def test_a_zip_that_is_small_and_becomes_large_takes_little_memory(tmp_path, find):
    """Of what is not deflated, zipfile unpacks all that it reads, however much that becomes."""
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in" / "class.zip", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("jane/one.ipynb", bytes(200 * 2**20))
        file.writestr("kim/one.ipynb", "{}")
    tracemalloc.start()
    try:
        handed_in = find(tmp_path / "in" / "class.zip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {handed.learner for handed in handed_in.submissions} == {"jane", "kim"}
    assert peak < 150 * 2**20
