"""The Makefile names files that exist."""

import re
import subprocess

from tests.support.repository import ROOT


def test_make_quick_runs_the_tests_that_it_lists():
    command = ["make", "--dry-run", "--no-print-directory", "quick"]
    commands = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    last = commands.rpartition("-m pytest")[2]
    files = re.findall(r"tests/\S+\.py", last)
    assert len(files) >= 20
    assert [file for file in files if not (ROOT / file).is_file()] == []
