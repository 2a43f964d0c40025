"""On a machine where every test must run, a skip is a failure."""

import os
import subprocess
import sys

from tests.support.repository import ROOT

SOURCE = """
import pytest
def test_runs(): pass
@pytest.mark.xfail(strict=True)
def test_is_known_to_fail(): assert False
def test_leaves(): pytest.skip("no GPU")
"""


def test_a_skip_is_a_failure_with_its_reason(tmp_path):
    (tmp_path / "test_it.py").write_text(SOURCE)
    (tmp_path / "test_whole.py").write_text(
        "import pytest\npytest.skip('no cluster', allow_module_level=True)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    # In a process of xdist, as CI runs it: the report is made there, and counted here.
    options = ["-p", "xdist", "-n", "1", "-p", "tools.no_skips", "--continue-on-collection-errors"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "skipped, where nothing may be: Skipped: no GPU" in done.stdout
    assert "skipped, where nothing may be: Skipped: no cluster" in done.stdout
    assert "1 failed, 1 passed, 1 xfailed, 1 error" in done.stdout
