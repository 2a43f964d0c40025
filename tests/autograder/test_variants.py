"""Each learner is asked with inputs of their own, and with the same ones when graded again."""

import pytest
from nbformat import v4, write

from distlab.autograder.grade_one import GradingOptions
from distlab.autograder.run import grade
from distlab.warm.process import can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")

# A check that shows what it asked with, and what that came to where the answer runs.
SHOWING = """\
import numpy as np
from distlab.checks import Check, Criterion, Verdict

CHECKS = (
    Check(
        name="shown", function="split", title="Its inputs", points=1, hint="", revisit="",
        inputs=lambda seed: {"drawn": int(np.random.default_rng(seed).integers(2**40))},
        call=lambda split, inputs: split(inputs["drawn"]),
        judge=lambda inputs, outputs: Verdict.of(
            Criterion("drawn", False, yours=str(outputs), expected=str(inputs["drawn"]))
        ),
    ),
)
"""


@pytest.fixture
def graded(tmp_path):
    """Grades the same notebook of two learners; returns what each was asked with."""
    cell = v4.new_code_cell("# task: slices\ndef split(drawn, replicas=1):\n    return drawn")
    for learner in ("jane", "joe"):
        (tmp_path / "in" / learner).mkdir(parents=True)
        write(v4.new_notebook(cells=[cell]), tmp_path / "in" / learner / "00_start_here.ipynb")
    (tmp_path / "showing.py").write_text(SHOWING)

    def asked(**options):
        options = GradingOptions(extra_checks=tmp_path / "showing.py", allow_root=True, **options)
        drawn = {}
        for one in grade(tmp_path / "in", tmp_path / "out", options).graded:
            (criterion,) = one.reports[-1].criteria
            assert criterion.yours == criterion.expected  # the answer saw what the judge saw
            drawn[one.submission.learner] = criterion.expected
        return drawn

    return asked


def test_learners_get_other_inputs_and_the_same_ones_again(graded):
    first = graded()
    assert set(first) == {"jane", "joe"}
    assert first["jane"] != first["joe"]
    assert graded(again=True) == first
