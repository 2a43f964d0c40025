"""The environment in which notebooks are run to make outputs: the same on every machine."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

# What would let the machine, or the test run around a notebook, show in its outputs.
_REMOVED = frozenset(
    {
        *("FORCE_COLOR", "CLICOLOR_FORCE", "PYTHONWARNINGS", "PYTHONSTARTUP", "PYTHONUNBUFFERED"),
        *("TF_CONFIG", "TF_USE_LEGACY_KERAS", "IPYTHONDIR", "JUPYTER_CONFIG_DIR"),
    }
)
_REMOVED_PREFIXES = ("PYTEST_", "COV_CORE_", "SLURM_", "JPY_", "NBGRADER_")

_FIXED = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "NVIDIA_TF32_OVERRIDE": "0",
    "KERAS_BACKEND": "tensorflow",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "COLUMNS": "80",
    "LINES": "24",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PYTHONIOENCODING": "utf-8",
}


def kernel_environment() -> dict[str, str]:
    """Returns this process's environment with all settled that would show in an output."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _REMOVED and not name.startswith(_REMOVED_PREFIXES)
    }
    env |= _FIXED
    matplotlib = find_spec("matplotlib")
    if matplotlib and matplotlib.origin:  # its own defaults, not the user's
        env["MATPLOTLIBRC"] = str(Path(matplotlib.origin).parent / "mpl-data" / "matplotlibrc")
    return env
