"""The suite itself: the home that its processes have, what it says, and how make ends."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import browser, reporting
from tests.support.repository import ROOT

TESTS = f"""
import pytest

def test_fails_at_once():
    raise ValueError("first line\\nsecond line")

def test_of_a_browser():
    pytest.skip("{reporting.NO_BROWSER} found")

@pytest.fixture
def broken():
    assert 1 == 2

def test_has_an_error(broken): ...
def test_passes(): ...
def test_is_left_out(): pytest.skip("another reason")
def test_passes_too(): ...
"""


def test_a_test_process_keeps_everything_below_an_empty_home_of_its_own():
    """Asked of the programs that keep something, in a process that this one starts."""
    code = """
import IPython.paths, jupyter_core.paths, keras, matplotlib, tensorflow_datasets
places = [matplotlib.get_cachedir(), matplotlib.get_configdir(), IPython.paths.get_ipython_dir()]
places += [jupyter_core.paths.jupyter_config_dir(), jupyter_core.paths.jupyter_data_dir()]
places += [keras.src.backend.config.keras_home(), tensorflow_datasets.core.constants.DATA_DIR]
print(*places, sep="\\n")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    home = Path(os.environ["HOME"])
    assert home.name.startswith("home-") and home.stat().st_uid == os.getuid()
    outside = [place for place in found.stdout.split() if not Path(place).is_relative_to(home)]
    assert outside == []


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["in one process", "in two more"])
def test_a_failure_is_told_when_it_happens_and_the_last_line_names_it(tmp_path, processes):
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.reporting", "--rootdir"]
    command += [str(tmp_path), "-p", "no:cacheprovider", "-q", str(tmp_path), *processes]
    env = os.environ | {reporting.STARTED_VARIABLE: "0"}  # so the last line's seconds are many
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    while_running = lines[: [line.strip("= ") for line in lines].index("ERRORS")]
    assert sorted(line for line in while_running if line.startswith("!! ")) == [
        "!! test_some.py::test_fails_at_once: ValueError: first line",
        "!! test_some.py::test_has_an_error: assert 1 == 2",
    ]
    counts, _, seconds_and_names = lines[-1].partition(" in ")
    assert counts == ("== 1 failed, 1 with an error, 2 passed, 2 skipped (1 of them: no Chromium)")
    seconds, names = seconds_and_names.split(" s: ")
    assert int(seconds) > 1e9 and names == "test_fails_at_once, test_has_an_error"


def test_many_failures_are_counted_where_their_names_would_fill_the_screen():
    stats = {"failed": [Report(f"tests/a.py::test_{number}") for number in range(10)]}
    assert reporting.last_line(stats, 61.4) == (
        "== 10 failed in 61 s: test_0, test_1, test_2, test_3, test_4, test_5, test_6, test_7"
        " and 2 more"
    )


class Report:
    def __init__(self, nodeid):
        self.nodeid = nodeid


@pytest.mark.parametrize(
    ("command", "fails", "last"),
    [
        ("lint", "ruff", "== lint: failed in "),
        ("test", "ruff", "== lint: failed in "),
        ("test", "authoring", "== notebooks against their sources: failed in "),
        ("check", "pytest", "what pytest says last"),
        ("check", "sphinx", "== docs: failed in "),
        ("test", "nothing", "what pytest says last"),
        ("check", "nothing", "== every check passed in "),
    ],
)
def test_the_last_line_of_make_says_what_failed_and_is_no_error_of_makes_own(
    tmp_path, command, fails, last
):
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ncase "$*" in *pytest*) echo what pytest says last;; esac\n'
        f'case "$*" in *" {fails}"*|*".{fails}"*) exit 1;; esac\n'
    )
    python.chmod(0o755)
    variables = [f"PY={python}", "ENVIRONMENT=true"]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--no-print-directory", command, *variables],
        cwd=_with_its_makefile(tmp_path),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.stdout.splitlines()[-1].startswith(last), done.stdout
    assert "***" not in done.stdout
    assert done.returncode == (0 if fails == "nothing" else -signal.SIGPIPE)


def _with_its_makefile(folder):
    """A folder in which make does what it does in a clone, and harms nothing."""
    for name in ("docs", "notebooks", "exercises"):
        (folder / name).mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    return folder


def test_how_a_browser_is_installed_is_said_before_the_tests(tmp_path):
    """Where no program of its names is on PATH."""
    (tmp_path / "apt-get").write_text("")
    (tmp_path / "apt-get").chmod(0o755)
    command = [sys.executable, "-m", "tests.support.browser"]
    env = os.environ | {"PATH": str(tmp_path)}
    said = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert said.stdout == (
        "== no Chromium: the tests in a browser will be skipped. To run them: "
        f"{browser.how_to_install() if sys.platform == 'darwin' else _by_apt()}\n"
    )


def _by_apt():
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get update && {sudo}apt-get install --yes chromium"
