import logging
import sys
import tomllib
from types import ModuleType

import pytest

from distlab import environment
from distlab.errors import UnsupportedEnvironment
from tests.support.repository import ROOT

GOOD = {"tensorflow": "2.21.0", "keras": "3.15.1"}


def problems(python=(3, 11), versions=GOOD, environ=None):
    return environment.known_problems(python=python, versions=versions, environ=environ or {})


def test_each_known_problem_is_named_with_its_cure():
    metadata = {**GOOD, "tensorflow-metadata": "1.21.0", "protobuf": "5.29.6"}
    cases = [
        ({"python": (3, 10)}, "Python 3.10 is not supported: distlab needs Python 3.11 to 3.13."),
        ({"python": (3, 14)}, "Python 3.14 is not supported: distlab needs Python 3.11 to 3.13."),
        ({"versions": {"keras": "3.15.1"}}, "TensorFlow is not installed: pip install tensorflow"),
        (
            {"versions": {**GOOD, "tensorflow-tpu": "2.20.0"}},
            "tensorflow and tensorflow-tpu are both installed",
        ),
        (
            {"versions": {**GOOD, "keras": "3.9.2"}},
            "keras 3.9.2 is too old: pip install --upgrade 'keras>=3.10,<3.16'",
        ),
        (
            {"versions": {**GOOD, "tensorflow": "2.18.1"}},
            "tensorflow 2.18.1 is too old: pip install --upgrade 'tensorflow>=2",
        ),
        (
            {"versions": metadata},
            "5.29.6 is installed: pip install 'tensorflow-metadata<1.21'",
        ),
        (
            {"environ": {"KERAS_BACKEND": "jax"}},
            "KERAS_BACKEND is 'jax': tf.distribute needs Keras on TensorFlow.",
        ),
    ]
    for given, text in cases:
        (problem,) = problems(**given)
        assert text in problem


def test_versions_that_were_run_are_no_problem_and_newer_ones_are_told():
    metadata = {**GOOD, "tensorflow-metadata": "1.21.0", "protobuf": "6.33.0"}
    oldest = {"tensorflow": "2.19.1", "keras": "3.10.0"}
    for versions in (oldest, GOOD, metadata, {**metadata, "tensorflow-metadata": "1.17.3"}):
        assert problems(versions=versions) == environment.newer_than_known(versions) == []
    newer = {"tensorflow": "2.22.0", "keras": "3.16.0.dev2026"}
    assert problems(versions=newer) == []
    tensorflow, keras = environment.newer_than_known(newer)
    assert tensorflow.startswith("tensorflow 2.22.0 is newer than what distlab was run with")
    assert "(keras>=3.10,<3.16)" in keras


def test_what_cannot_work_is_said_at_its_import(monkeypatch):
    with pytest.raises(UnsupportedEnvironment, match=r"found: Keras 3\.9\.2") as caught:
        environment.require_keras("3.9.2")
    assert caught.value.do == "pip install --upgrade 'keras>=3.10,<3.16'"
    environment.require_keras("3.10.0")
    pair = {"tensorflow-metadata": "1.21.0", "protobuf": "5.29.6"}
    monkeypatch.setattr(environment, "package_versions", lambda names: pair)
    with pytest.raises(UnsupportedEnvironment, match="import tensorflow_datasets") as caught:
        environment.require_data_sets()
    assert caught.value.do == "pip install 'tensorflow-metadata<1.21'"


def test_the_bounds_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *extras["legacy"], *extras["gpu"]]
    bounds = [environment.requirement(name) for name in ("tensorflow", "keras", "tf-keras")]
    gpu = bounds[0].replace("tensorflow", "tensorflow[and-cuda]")
    assert needs == [*bounds, f"{gpu}; sys_platform == 'linux'"]


def test_prepare_keeps_what_the_user_has_set():
    environ = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    environment.prepare(environ)
    assert environ == {"TF_CPP_MIN_LOG_LEVEL": "0", "KERAS_BACKEND": "tensorflow"}


@pytest.mark.parametrize(("before", "after"), [("INFO", "WARNING"), ("ERROR", "ERROR")])
def test_of_tensorflows_logger_only_tensorflows_own_level_is_changed(monkeypatch, before, after):
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))  # imported already
    logger = logging.getLogger("tensorflow")
    own = logger.level
    logger.setLevel(before)
    try:
        environment.load_tensorflow.__wrapped__()
        assert logging.getLevelName(logger.level) == after
    finally:
        logger.setLevel(own)
