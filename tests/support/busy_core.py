"""A core that many processes want, for what a test puts there."""

import contextlib
import os
import subprocess
import sys

# They end by themselves where a test process is killed.
_BUSY = """
import os, sys
os.sched_setaffinity(0, {{{core}}})
owner = os.getppid()
print(flush=True)
while os.getppid() == owner:
    pass
"""


@contextlib.contextmanager
def busy_core(others=4):
    """Yields the number of a core on which this many processes compute without a pause."""
    core = min(os.sched_getaffinity(0))
    code = _BUSY.format(core=core)
    # In sessions of their own, for Linux may give each session, not each process, its share.
    options = {"stdout": subprocess.PIPE, "start_new_session": True}
    busy = [subprocess.Popen([sys.executable, "-c", code], **options) for _ in range(others)]
    try:
        for process in busy:
            process.stdout.readline()
        yield core
    finally:
        for process in busy:
            process.kill()
            process.wait()
            process.stdout.close()
