"""A home for a test process, empty when it starts: tests meet what a new machine's first run meets.

The suite enters one in each of its processes (`tests/conftest.py`). The regression of notebooks
enters one for all, whose kernels are forks of one process: `pytest -p tests.support.fresh_home`.
Nothing is prepared in it. The first test that loads the digits prepares them, as a learner's first
cell does, and the processes that tests start find what theirs has.
"""

import atexit
import os
import shutil
import tempfile

# Where programs would keep their settings, caches and data in place of the home.
_ELSEWHERE = ("IPYTHONDIR", "KERAS_HOME", "MATPLOTLIBRC", "MPLCONFIGDIR", "TFDS_DATA_DIR")
_ELSEWHERE_BEGINS = ("JUPYTER_", "JUPYTERLAB_", "XDG_")


def enter() -> None:
    """Makes a new folder this process's home until it ends."""
    home, owner = tempfile.mkdtemp(prefix="home-"), os.getpid()
    for name in list(os.environ):
        if name in _ELSEWHERE or name.startswith(_ELSEWHERE_BEGINS):
            del os.environ[name]
    os.environ["HOME"] = home

    @atexit.register
    def remove() -> None:
        if os.getpid() == owner:  # and not a fork of it
            shutil.rmtree(home, ignore_errors=True)


def pytest_load_initial_conftests() -> None:
    """Enters a home where pytest is given this plugin by name; its xdist workers inherit that."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        enter()
