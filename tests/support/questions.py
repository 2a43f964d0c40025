"""Questions for the tests of the grader: asked for real, in processes behind walls."""

import json

import psutil

from distlab.autograder.isolation.limits import Limits
from distlab.autograder.isolation.question import Question, grade_answer

SPLIT = """
def split(examples, replicas):
    piece = -(-examples // replicas)
    return [max(0, min(piece, examples - piece * replica)) for replica in range(replicas)]
"""

# A check whose report shows whatever `probe` returns.
PROBE = """
import json
from distlab.course.checks import Check, Criterion
from distlab.course.checks.criteria import Expectation

class Shown(Expectation):
    def judge(self, inputs, outputs, right):
        return Criterion("shown", False, yours=json.dumps(outputs))

CHECKS = (
    Check(
        name="probe", function="probe", title="Anything", points=1, hint="", revisit="",
        inputs=lambda seed: {"seed": seed},
        call=lambda probe, inputs: probe(),
        criteria=(Shown(),),
    ),
)
"""


def asked(source, *, check="slices", seeds=(1, 2), extra_checks=None, **limits):
    """The report on one cell, named `split`."""
    cells = (("split", source),)
    question = Question(check=check, cells=cells, seeds=seeds, extra_checks=extra_checks)
    return grade_answer(question, limits=Limits(**{"secs": 120, **limits}))


def probed(source, folder, **limits):
    """What a function `probe` returned; or the failure of its call."""
    private = folder / "private.py"
    private.write_text(PROBE)
    report = asked(source, check="probe", seeds=(1,), extra_checks=private, **limits)
    return json.loads(report.criteria[0].yours) if report.failure is None else report.failure


def running(mark):
    """The processes with an argument, which a test chose to know its own."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if mark in line]
