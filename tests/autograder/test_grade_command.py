"""The command knows people by their names, with notebooks that need no process."""

import csv
import io
import os
import pty
import shutil
import unicodedata

import pytest

from distlab import cli
from distlab.cluster.warm.process import can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")


def run(folder, *more):
    return cli.main(["grade", str(folder / "in"), "--out", str(folder / "out"), *more])


@pytest.fixture
def broken(tmp_path):
    """A folder whose one notebook needs no process."""
    (tmp_path / "in" / "jane").mkdir(parents=True)
    (tmp_path / "in" / "jane" / "one.ipynb").write_text("{")
    return tmp_path


def test_several_notebooks_under_one_name_are_asked_about_before_anything_runs(
    broken, capsys, monkeypatch
):
    """Their tasks are seen in the file's text, so that files need not be notebooks."""
    for name in ("Jane Doe - task", "John Roe - task"):
        path = broken / "in" / "Exercise 00" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        path.write_text('"# task: slices')
    assert run(broken) == 2
    told = capsys.readouterr().err
    names = "Exercise 00 (Jane Doe - task.ipynb, John Roe - task.ipynb)"
    assert "a folder for each learner: 2 learners (Exercise 00, jane)" in told
    assert f"found: 1 name with several notebooks of one exercise: {names}" in told
    assert "if these are different people, give each a folder" in told and "add --yes" in told
    assert not (broken / "out").exists()
    ours, terminal = pty.openpty()
    with (
        os.fdopen(terminal, "r+b", buffering=0) as raw,
        io.TextIOWrapper(raw) as screen,
        monkeypatch.context() as patched,
    ):
        patched.setattr("sys.stdin", screen)
        patched.setattr("sys.stderr", screen)
        for answer, code in ((b"\n", 2), (b"y\n", 0)):
            os.write(ours, answer)
            assert run(broken) == code
    os.close(ours)
    assert run(broken, "--yes", "--again") == 0


def test_a_name_typed_on_a_keyboard_is_that_of_a_folder_from_a_mac(broken, capsys):
    names = [unicodedata.normalize("NFD", "José"), *(f"learner {n}" for n in range(11))]
    for name in names:
        shutil.copytree(broken / "in" / "jane", broken / "in" / name)
    (broken / "mine.csv").write_text("learner,check,points\nJosé,slices,1\n", encoding="utf-8")
    assert run(broken, "--only", "José", "--overrides", str(broken / "mine.csv")) == 0
    with (broken / "out" / "gradebook.csv").open(newline="", encoding="utf-8-sig") as file:
        jose = [row for row in csv.DictReader(file) if row["learner"] == "José"]
    assert [row["total"] for row in jose] == ["1"]
    capsys.readouterr()
    assert run(broken, "--only", "nobody") == 2
    assert "'learner 5', 'learner 6' and 3 more\n" in capsys.readouterr().err
