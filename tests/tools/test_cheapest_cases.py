"""`make test` runs of each test what costs little; `make check` runs all."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.repository import ROOT
from tools import processor_time
from tools.cheapest_cases import left_out

TESTS = """
import time

import pytest

@pytest.fixture(scope="module")
def shared():
    spend(0.3)

def spend(secs):
    end = time.process_time() + secs
    while time.process_time() < end:
        pass

@pytest.mark.parametrize("secs", [0.4, 0.0])
def test_alone(secs):
    spend(secs)

def test_first(shared): pass
def test_second(shared): pass
"""


@pytest.fixture(scope="session", autouse=True)
def devices():
    """No devices: nothing here needs TensorFlow."""


def test_the_cheapest_cases_of_each_test_stay():
    costs = {"a.py::test_many": {"x": 1.5, "y": 0.4, "z": 0.3}, "a.py::test_one": {"": 3.0}}
    assert left_out(costs, 2) == {"a.py::test_many[x]", "a.py::test_one"}
    assert left_out(costs, 0.5) == {"a.py::test_many[x]", "a.py::test_many[y]", "a.py::test_one"}
    assert left_out(costs, 3) == set()


def pytest_in(folder, *options, environ=None):
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *options, f"--rootdir={folder}", str(folder)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_tests_of_a_file_share_is_divided_among_them(tmp_path, monkeypatch):
    (tmp_path / "test_it.py").write_text(TESTS)
    monkeypatch.setenv("TEST_COSTS", str(tmp_path / "measured"))
    pytest_in(tmp_path, "-p", "tools.processor_time", "-p", "no:cacheprovider")
    lines = (tmp_path / "measured").read_text().splitlines()
    costs = processor_time.merge([json.loads(line) for line in lines])
    assert costs.pop("test_it.py::test_alone[0.4]") == pytest.approx(0.4, abs=0.15)
    assert costs.pop("test_it.py::test_first") == pytest.approx(0.15, abs=0.1)
    assert costs.pop("test_it.py::test_second") == pytest.approx(0.15, abs=0.1)
    assert costs.pop("test_it.py::test_alone[0.0]") < 0.1
    assert costs == {}


@pytest.mark.parametrize("parallel", [(), ("-n", "1", "--dist", "loadfile")])
def test_a_run_leaves_out_what_it_says_and_begins_with_what_takes_longest(tmp_path, parallel):
    names = ("test_a", "test_b", "test_c")
    for name in names:
        (tmp_path / f"{name}.py").write_text(
            "import pytest\n@pytest.mark.parametrize('x', [1, 2])\ndef test_it(x): pass\n"
        )
    costs = {"test_b.py::test_it": {"1": 9.0, "2": 1.0}, "test_c.py::test_it": {"1": 1.5}}
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    (tmp_path / "known.py").write_text(
        "from pathlib import Path\nfrom tools import processor_time\n"
        "processor_time.COSTS = Path(__file__).parent / 'costs.json'\n"
    )
    options = ["-p", "known", "-p", "tools.cheapest_cases", *parallel]
    if parallel:
        options.append("--no-loadscope-reorder")

    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    printed = pytest_in(tmp_path, *options, "--secs-per-test=2", environ=environ)
    assert "left to `make check`: 1 cases of 1 tests, beyond 2 s each" in printed
    ran = [line for line in printed.splitlines() if "PASSED" in line]
    assert len(ran) == 5
    order = dict.fromkeys(name for line in ran for name in names if f"{name}.py" in line)
    assert list(order) == ["test_c", "test_b", "test_a"]
    assert "5 passed" in printed
    if not parallel:
        assert "6 passed" in pytest_in(tmp_path, *options, environ=environ)
