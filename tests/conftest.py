"""What every test process shares: four logical devices, and the data set kept in one place."""

import pytest

import distlab as dl


@pytest.fixture(scope="session", autouse=True)
def devices():
    """TensorFlow fixes its devices once, so a process has one set: four, on CPU or GPU.

    No test may touch TensorFlow's devices while it is collected.
    """
    return dl.split_devices(4)


@pytest.fixture
def run_python(tmp_path):
    """Runs code in a fresh interpreter and returns what it printed, or fails with its error."""
    import os
    import subprocess
    import sys

    def run(code, *, environ=None, fails=False):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **(environ or {})},
            timeout=120,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return run
