"""`make versions` reaches all supported versions, and runs what the repository has."""

import tomllib

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


def test_what_runs_is_in_the_repository():
    newest = versions.commands(ROWS[-1])
    paths = [newest["parity"][-1], newest["zoo"][-1], *newest["notebooks"][-3:]]
    assert [path for path in paths if not (ROOT / path).is_dir()] == []
    assert versions.cells_left_out(Row("3.11", "2.21", "3.15")) == []
    # The lesson's own text is looked for in the notebook, and an older Keras stops before it.
    first, *more = versions.cells_left_out(Row("3.12", "2.19", "3.10"))
    assert more and first.startswith("--deselect=notebooks/16_choosing_a_strategy.ipynb::Cell ")
