"""The versions of `make versions`, `newest` and `oldest`, and that the repository has what runs."""

import re
import tomllib

import pytest

from distlab import environment
from tests.support.repository import ROOT
from tools import versions
from tools.versions import ROWS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_rows_reach_from_the_oldest_versions_to_the_newest():
    for name in ("tensorflow", "keras"):
        oldest, below = environment.BOUNDS[name]
        rows = sorted(tuple(map(int, getattr(row, name).split("."))) for row in ROWS)
        assert (rows[0], rows[-1]) == (oldest, (below[0], below[1] - 1))
        ends = {row.end: tuple(map(int, getattr(row, name).split("."))) for row in ROWS}
        assert (ends["oldest"], ends["newest"]) == (rows[0], rows[-1])
    offered = [line.split(" :: ")[-1] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert {row.python for row in ROWS} == set(offered)


def test_every_package_that_the_project_names_has_a_lowest_version():
    extras = PROJECT["optional-dependencies"].values()
    named = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    own = [line for line in named if not line.startswith("distlab[")]
    [oldest] = versions.chosen(["oldest"])
    own += oldest.requirements[: oldest.requirements.index("--upgrade")]
    assert len(own) > 30 and [line for line in own if not re.search(">=|==", line)] == []


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ([], ["2.19+3.10", "2.19+3.15", "2.20+3.12", "2.20+3.15", "2.21+3.12", "2.21+3.15"]),
        (["2.19"], ["2.19+3.10", "2.19+3.15"]),
        (["2.21+3.15"], ["2.21+3.15"]),
        (["newest"], ["newest"]),
        (["oldest", "2.20+3.12"], ["2.20+3.12", "oldest"]),
        (["2.18"], []),
    ],
)
def test_rows_are_chosen_by_their_names_or_by_a_tensorflow(only, names):
    assert [row.name for row in versions.chosen(only)] == names


def test_what_runs_is_in_the_repository():
    parts = {row.name: versions.commands(row) for row in ROWS}
    assert list(parts["2.21+3.15"]) == ["Python", "packages", "parity", "zoo", "notebooks"]
    for end, resolution in {"newest": "highest", "oldest": "lowest-direct"}.items():
        assert list(parts[end]) == ["Python", "packages", "suite", "notebooks"]
        installs = parts[end]["packages"]
        assert installs[installs.index("--resolution") + 1] == resolution
        assert "--upgrade" in installs and str(ROOT / "constraints.txt") not in installs
    for row in parts.values():
        tests = [row[part][-1] for part in ("parity", "zoo", "suite") if part in row]
        assert [
            path for path in [*tests, *row["notebooks"][-3:]] if not (ROOT / path).is_dir()
        ] == []
