"""What was written for distlab 0.1.0 still finds the modules that have a new name."""

import importlib

import pytest

from distlab import old_module_names
from distlab.autograder.intake.private_checks import load_checks
from distlab.old_module_names import current_name

OWN_CHECKS = """\
from distlab.grading import Verdict, expect_true
from distlab.grading.checks import Check

CHECKS = (
    Check(
        name="mine", function="f", title="", points=1, hint="", revisit="",
        inputs=lambda seed: {}, call=lambda f, inputs: f(),
        judge=lambda inputs, outputs: Verdict.of(expect_true("42", outputs == 42, message="")),
    ),
)
"""


def test_an_old_name_is_the_module_of_today_and_no_other_name_is_found(tmp_path):
    for old in old_module_names._MODULES:
        assert importlib.import_module(old) is importlib.import_module(current_name(old))
    with pytest.raises(ModuleNotFoundError, match=r"distlab\.grading\.boundary"):
        importlib.import_module("distlab.grading.boundary")
    (path := tmp_path / "mine.py").write_text(OWN_CHECKS)
    assert [check.name for check in load_checks(path)] == ["mine"]
