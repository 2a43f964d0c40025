"""`distlab example`: scripts that a wheel brings, written where the user is."""

import os

from distlab import cli
from distlab.course.example_command import examples
from tests.support.repository import ROOT


def test_each_example_is_written_as_it_is_in_the_repository(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["example"]) == 0
    listed = capsys.readouterr().out
    assert cli.main(["example", *examples()]) == 0
    theirs = [path for path in (ROOT / "examples").rglob("*") if "__pycache__" not in path.parts]
    files = [path.relative_to(ROOT) for path in theirs if path.is_file()]
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(written) == sorted(files)
    for file in files:
        assert str(file) in listed
        assert file.read_bytes() == (ROOT / file).read_bytes()
        assert os.access(file, os.X_OK) == os.access(ROOT / file, os.X_OK), file


def test_nothing_of_a_user_is_overwritten_and_then_nothing_is_written(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "examples" / "train.py"
    own.parent.mkdir()
    own.write_text("mine")
    assert cli.main(["example", "ray_train", "train"]) == 2
    said = capsys.readouterr().err
    assert "write examples/train.py\n  found: a file or a folder of that name, which dif" in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own]
    assert own.read_text() == "mine"
    own.write_bytes((ROOT / "examples" / "train.py").read_bytes())
    assert cli.main(["example", "train"]) == 0
    assert capsys.readouterr().out == "current  examples/train.py\n"
