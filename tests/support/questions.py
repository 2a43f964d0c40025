"""Questions for the tests of the grader: asked for real, in a process of their own."""

import contextlib
import json
import time
from pathlib import Path

import psutil

from distlab.autograder.isolation.limits import Limits
from distlab.autograder.isolation.run_isolated import Question, ask
from distlab.course.results.plain_values import decode
from tests.support.repository import ROOT

SPLIT = """
def split(examples, replicas):
    piece = -(-examples // replicas)
    return [max(0, min(piece, examples - piece * replica)) for replica in range(replicas)]
"""

# A check that hands over whatever `probe` returns.
PROBE = """
from distlab.course.checks import Check, Holds

SECRET = 42

CHECKS = (
    Check(
        name="probe", function="probe", title="Anything", points=1, hint="", revisit="",
        inputs=lambda seed: {"seed": seed},
        call=lambda probe, inputs: probe(),
        criteria=(Holds("42", lambda given, out: out == SECRET, ""),),
    ),
)
"""


def asked(source, *, check="slices", seeds=(1, 2), extra_checks=None, folder=None, **limits):
    """Asks about one cell, named `split`."""
    cells = (("split", source),)
    question = Question(check=check, cells=cells, seeds=seeds, extra_checks=extra_checks)
    limits = Limits(**{"secs": 60, **limits})
    return ask(question, limits=limits, folder=folder, allow_root=True)


def probed(source, tmp_path, **options):
    """Returns what a function `probe` returned, and the outcome."""
    private = tmp_path / "private.py"
    private.write_text(PROBE)
    outcome = asked(source, check="probe", seeds=(1,), extra_checks=private, **options)
    (called,) = outcome.called
    return (decode(called.payload) if called.failure is None else called.failure), outcome


def cells_of(path):
    """The definitions of a notebook, as cells named by their tasks."""
    beginnings = ("# task:", "# given", "import", "def ", "@", "class ")
    notebook = json.loads((ROOT / path).read_text())
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    code = [s for s in sources if s.startswith(beginnings)]
    return tuple((f"cell {number}", source) for number, source in enumerate(code))


def wait_until(condition, *, secs=120):
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def pids_in(folder):
    """The processes that wrote their numbers into files of a folder."""
    return {int(file.read_text()) for file in folder.glob("pid*") if file.read_text()}


def are_gone(pids):
    assert pids
    return not any(psutil.pid_exists(pid) for pid in pids)


def working_in(folder):
    """The processes that stand in a folder, as all do that an answer starts."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found
