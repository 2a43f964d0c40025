"""`make versions` reaches all supported versions, and fails where one of them does."""

import re
import sys
import tomllib

import pytest

from distlab import environment
from tests.support.repository import ROOT
from tools import versions
from tools.versions import ROWS, Row


def test_the_rows_reach_from_the_oldest_versions_to_the_newest():
    for name in ("tensorflow", "keras"):
        oldest, below = environment.BOUNDS[name]
        rows = sorted(tuple(map(int, getattr(row, name).split("."))) for row in ROWS)
        assert (rows[0], rows[-1]) == (oldest, (below[0], below[1] - 1))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    offered = [line.split(" :: ")[-1] for line in project["classifiers"] if "Python :: 3." in line]
    assert {row.python for row in ROWS} == set(offered)
    chosen = [row.name for row in versions.chosen(("2.19", "2.20+3.15"))]
    assert chosen == ["2.19+3.10", "2.19+3.15", "2.20+3.15"]


def test_what_runs_is_in_the_repository(capsys):
    paths = {path for part in versions.PARTS.values() for path in part} - set(versions.REGRESSION)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert versions.cells_left_out(Row("3.11", "2.21", "3.15")) == []
    # The lesson's own text is looked for in the notebook, and an older Keras stops before it.
    first, *more = versions.cells_left_out(Row("3.12", "2.19", "3.10"))
    assert more
    assert re.fullmatch(r"--deselect=notebooks/16_choosing_a_strategy.ipynb::Cell \d+", first)
    assert "left out: notebooks/16_choosing_a_strategy.ipynb" in capsys.readouterr().out


# What stands for pytest prints its counts and ends with a code.
RUNS = {
    "passes": ("print('2 passed in 1s')", 0, "parity: 2 passed"),
    "fails": ("print('1 failed, 1 passed'); raise SystemExit(1)", 1, "parity: 1 failed, 1 passed"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_row_that_fails_fails_the_run(name, monkeypatch, capsys, tmp_path):
    code, exit_code, line = RUNS[name]
    shown = versions.shown

    def replaced(command, log):
        tested = command[1:3] == ["-m", "pytest"]
        return shown([sys.executable, "-c", code if tested else ""], log)

    monkeypatch.setattr(versions, "BUILD", tmp_path)
    monkeypatch.setattr(versions, "shown", replaced)
    monkeypatch.setattr(versions, "pick_python", lambda name: (sys.executable, ""))
    assert versions.main(["--only", "2.19+3.10"]) == exit_code
    last = capsys.readouterr().out.splitlines()[-1]
    assert line in last and "zoo: " in last and "notebooks: " in last
    (log,) = tmp_path.glob("*/log.txt")
    assert line.removeprefix("parity: ") in log.read_text()


def test_a_row_whose_python_is_missing_is_no_success(monkeypatch, capsys):
    monkeypatch.setattr(versions, "ROWS", (Row("2.99", "2.19", "3.10"),))
    assert versions.main([]) == 1
    assert "not run: no Python 2.99 on PATH" in capsys.readouterr().out
