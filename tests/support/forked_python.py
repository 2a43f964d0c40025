"""Stands for `python` where TensorFlow's import is not what is tested: forks of the warm process.

write_forked_python(tmp_path / "python", monkeypatch)
"""

import sys

from distlab.cluster.warm.process import ADDRESS_VARIABLE, shared_server

# A fork is in the network where it is asked for.
_SCRIPT = f"""#!{sys.executable}
import os, sys
from distlab.cluster.warm.process import shared_server, task_environment
options = {{"stdout": 1, "stderr": 2, "network_of": os.getpid(), "cwd": os.getcwd()}}
argv = [argument for argument in sys.argv[1:] if argument != "-u"]
sys.exit(shared_server().spawn(argv, env=task_environment({{}}), **options).wait())
"""


def write_forked_python(path, monkeypatch):
    """Writes an executable, and names this process's warm process to those that call it."""
    path.write_text(_SCRIPT)
    path.chmod(0o755)
    monkeypatch.setenv(ADDRESS_VARIABLE, shared_server().address)
