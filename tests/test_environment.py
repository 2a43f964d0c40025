import logging
import sys
import tomllib
import warnings
from types import ModuleType

import pytest

from distlab import environment
from distlab.errors import UnsupportedEnvironment
from tests.support.permissions import OBEY_PERMISSIONS
from tests.support.repository import ROOT


def test_what_cannot_work_is_said_at_its_import(monkeypatch):
    with pytest.raises(UnsupportedEnvironment, match=r"found: Keras 3\.9\.2") as caught:
        environment.require_keras("3.9.2")
    assert caught.value.do == "pip install --upgrade 'keras>=3.10,<3.16'"
    environment.require_keras("3.10.0")
    pair = {"tensorflow-metadata": "1.21.0", "protobuf": "5.29.6"}
    monkeypatch.setattr(environment.importlib.metadata, "version", pair.get)
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


@pytest.mark.parametrize(
    ("session", "before", "after"),
    [
        ("interactive", "INFO", "WARNING"),
        ("interactive", "ERROR", "ERROR"),
        ("a script", "INFO", "INFO"),
    ],
)
@pytest.mark.parametrize("protobuf", ["5.29.6", "6.33.1"])
def test_of_tensorflows_logger_only_tensorflows_own_level_is_changed(
    monkeypatch, session, before, after, protobuf
):
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))  # imported already
    monkeypatch.setattr(environment.importlib.metadata, "version", {"protobuf": protobuf}.get)
    monkeypatch.delattr(sys, "ps1", raising=False)
    if session == "interactive":
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    logger = logging.getLogger("tensorflow")
    own = logger.level
    logger.setLevel(before)
    try:
        with warnings.catch_warnings():
            warnings.resetwarnings()
            environment._quiet_session.cache_clear()
            environment.load_tensorflow.__wrapped__()
            # The one of TensorFlow 2.19 about its own code, in notebooks where that runs.
            added = session == "interactive" and protobuf < "6"
            assert len(warnings.filters) == added
        assert logging.getLevelName(logger.level) == after
    finally:
        logger.setLevel(own)


HOMELESS = """
import contextlib, io, sys
import distlab as dl
from distlab import cli
from distlab.course.palette import finish, panels, png_of

def command(*arguments):
    print(cli.main(list(arguments)))

print("problems", *dl.doctor().problems, sep="|")
figure, _ = panels()
print(len(png_of(finish(figure, alt="Nothing."))) > 0)
with contextlib.redirect_stdout(io.StringIO()), dl.LocalCluster(workers=1) as cluster:
    (three,) = cluster.run(lambda: 3)
print(three)
sys.stdout.flush()
command("launch", "--workers", "1", "script.py")
with contextlib.redirect_stdout(io.StringIO()):
    command("lab", "--lay-only", "lab")
command("lab", "--lay-only", f"{HOME}/lab")
dl.load_dataset("digits", data_dir="data")
"""


def test_a_home_that_cannot_be_written_stops_only_what_needs_it(tmp_path, run_python):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o555)
    (tmp_path / "script.py").write_text("print('trained')")
    environ = {"HOME": str(home)}
    code = OBEY_PERMISSIONS + f"HOME = {str(home)!r}" + HOMELESS
    said = run_python(code, environ=environ).splitlines()
    problem = (
        f"nothing can be written in the home folder {home}, where data sets and JupyterLab keep "
        "files: set HOME to a folder that you can write in"
    )
    assert said[0].split("|") == ["problems", problem]
    assert said[1:] == ["True", "3", "worker:0 | trained", "0", "2"]
    refused = (tmp_path / "stderr").read_text()
    assert f"distlab: lay the course into {home}/lab\n" in refused
    assert f"found: {home}/lab cannot be written: Permission denied\n" in refused
    assert "Exception ignored" not in refused  # of a task that ends, about what another removed
    assert (tmp_path / "lab" / "course.md").exists()
    assert (tmp_path / "data" / "digits" / "1.0.0").exists()
