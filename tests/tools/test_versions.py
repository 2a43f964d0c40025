"""tools/versions.py: which rows there are, what is run of each, and what is told."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from distlab import environment
from tools import versions
from tools.versions import ROWS, Row

ROOT = Path(versions.__file__).resolve().parents[1]


def test_the_rows_reach_from_the_oldest_versions_to_the_newest():
    for name, kept in (("tensorflow", "tensorflow"), ("keras", "keras")):
        oldest, below = environment.BOUNDS[name]
        found = sorted(tuple(map(int, getattr(row, kept).split("."))) for row in ROWS)
        assert found[0] == oldest
        assert found[-1] == (below[0], below[1] - 1)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    offered = {one.split(" :: ")[-1] for one in project["classifiers"] if "Python :: 3." in one}
    assert {row.python for row in ROWS} == offered


def test_rows_are_chosen_by_tensorflow_or_by_both():
    def names(*only):
        return [row.name for row in ROWS if versions.chosen(row, only)]

    assert names("2.19") == ["2.19+3.10", "2.19+3.15"]
    assert names("2.20+3.15") == ["2.20+3.15"]
    assert names() == [row.name for row in ROWS]


def test_a_row_whose_python_is_not_there_is_told_and_is_no_success(monkeypatch, capsys):
    monkeypatch.setattr(versions, "ROWS", (Row("2.99", "2.19", "3.10"),))
    assert versions.main([]) == 1
    assert "not run: no Python 2.99 on this machine" in capsys.readouterr().out


@pytest.mark.parametrize(("code", "exit_code"), [("2 passed in 1s", 0), ("1 failed, 1 passed", 1)])
def test_a_row_that_fails_fails_the_run(monkeypatch, capsys, tmp_path, code, exit_code):
    def shown(command, log):
        return ("failed" in code and command[1:3] == ["-m", "pytest"], code)

    monkeypatch.setattr(versions, "BUILD", tmp_path)
    monkeypatch.setattr(versions, "shown", shown)
    monkeypatch.setattr(versions, "find_python", lambda version: sys.executable)
    assert versions.main(["--only", "2.19+3.10", "--what", "parity"]) == exit_code
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.search(rf"TensorFlow 2.19, Keras 3.10.*parity: {code[:8]}", last)


def test_an_older_keras_leaves_out_the_cells_from_the_one_that_it_cannot_run(capsys):
    first, *more = versions.left_out(Row("3.12", "2.19", "3.10"))
    assert re.fullmatch(r"--deselect=notebooks/16_choosing_a_strategy.ipynb::Cell \d+", first)
    assert more
    assert "left out: notebooks/16_choosing_a_strategy.ipynb" in capsys.readouterr().out
    assert versions.left_out(Row("3.12", "2.21", "3.15")) == []


def test_the_parity_tests_are_there():
    assert [path for path in versions.PARITY if not (ROOT / path).is_file()] == []


def test_what_a_command_prints_is_kept_and_its_code_returned(tmp_path):
    with (tmp_path / "log.txt").open("w") as log:
        command = [sys.executable, "-c", "print('one'); print('two'); raise SystemExit(3)"]
        assert versions.shown(command, log) == (3, "two")
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\n"
