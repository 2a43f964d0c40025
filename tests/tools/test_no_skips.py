"""On a machine where every test must run, a skip is a failure."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.repository import ROOT

SOURCE = """
import pytest
def test_runs(): pass
@pytest.mark.xfail(strict=True)
def test_is_known_to_fail(): assert False
def test_leaves(): pytest.skip("no GPU")
"""


@pytest.mark.parametrize("parallel", [[], ["-n", "1"]])
def test_a_skip_is_a_failure_with_its_reason(tmp_path, parallel):
    (tmp_path / "test_it.py").write_text(SOURCE)
    (tmp_path / "test_whole.py").write_text(
        "import pytest\npytest.skip('no cluster', allow_module_level=True)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-p", "tools.no_skips", "--continue-on-collection-errors", *parallel]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "skipped, where nothing may be: Skipped: no GPU" in done.stdout
    assert "skipped, where nothing may be: Skipped: no cluster" in done.stdout
    assert "1 failed, 1 passed, 1 xfailed, 1 error" in done.stdout
