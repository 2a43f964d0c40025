"""The script behind `make lab` and `make test`: its messages, and when it does nothing."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.repository import ROOT

SCRIPT = ROOT / "tools" / "make_environment.py"

_spec = importlib.util.spec_from_file_location("make_environment", SCRIPT)
assert _spec is not None and _spec.loader is not None
make_environment = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_environment)


class FakeMachine(make_environment.Machine):
    """A machine with the Pythons, programs and disk that a test names; installing is instant."""

    def __init__(self, *, pythons=None, uv=False, free_gb=100.0, modules=True, fails=None):
        self.pythons = {"python3": (3, 11, 7)} if pythons is None else pythons
        self.uv, self.free_gb, self.modules, self.fails = uv, free_gb, modules, fails
        self.commands = []

    def which(self, name):
        if name == "uv":
            return "/bin/uv" if self.uv else None
        return f"/bin/{name}" if name in self.pythons else None

    def version_of(self, python):
        return self.pythons.get(Path(python).name)

    def free_bytes(self, folder):
        return int(self.free_gb * 1024**3)

    def imports(self, python, modules):
        return self.modules

    def run(self, command):
        self.commands.append(command)
        if self.fails and "install" in command:
            if isinstance(self.fails, BaseException):
                raise self.fails
            return 1, self.fails
        if "venv" in command:
            python = make_environment.python_in(Path(command[-1]))
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
            self.pythons.setdefault("python", (3, 11, 7))
        return 0, []


@pytest.fixture
def clone(tmp_path):
    root = tmp_path / "clone"
    root.mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    return root


def make(machine, clone, *arguments):
    return make_environment.main(["--root", str(clone), *arguments], machine)


def test_the_script_can_be_read_by_python_3_6():
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))


def test_the_supported_versions_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (_, oldest), (_, newest) = make_environment.OLDEST, make_environment.NEWEST
    assert project["requires-python"] == f">=3.{oldest},<3.{newest + 1}"


def test_venv_and_pip_install_the_extras_at_the_constrained_versions(clone):
    machine = FakeMachine()
    assert make(machine, clone, "--extras", "lab") == 0
    making, installing = machine.commands
    assert making == ["/bin/python3", "-m", "venv", str(clone / ".venv")]
    assert installing[1:4] == ["-m", "pip", "install"]
    assert installing[-4:] == ["-c", str(clone / "constraints.txt"), "-e", f"{clone}[lab]"]


def test_uv_is_used_where_it_is_found_and_not_where_it_is_refused(clone):
    machine = FakeMachine(uv=True)
    assert make(machine, clone) == 0
    assert [command[0] for command in machine.commands] == ["/bin/uv", "/bin/uv"]
    shutil.rmtree(clone / ".venv")
    machine = FakeMachine(uv=True)
    assert make(machine, clone, "--no-uv") == 0
    assert not any("uv" in Path(command[0]).name for command in machine.commands)


def test_the_second_run_does_nothing(clone):
    make(FakeMachine(), clone)
    again = FakeMachine(pythons={})
    assert make(again, clone) == 0
    assert again.commands == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_installs_again(clone, name):
    make(FakeMachine(), clone)
    with (clone / name).open("a") as file:
        file.write("\n")
    again = FakeMachine(pythons={"python": (3, 11, 7)})
    assert make(again, clone) == 0
    assert [command[1:4] for command in again.commands] == [["-m", "pip", "install"]]


def test_more_extras_are_added_to_those_installed(clone):
    make(FakeMachine(), clone, "--extras", "lab")
    more = FakeMachine(pythons={"python": (3, 11, 7)})
    make(more, clone, "--extras", "test,docs")
    assert more.commands[0][-1] == f"{clone}[docs,lab,test]"
    fewer = FakeMachine()
    make(fewer, clone, "--extras", "lab")
    assert fewer.commands == []


def test_an_interrupted_install_is_noticed_and_done_anew(clone, capsys):
    assert make(FakeMachine(fails=KeyboardInterrupt()), clone) == 130
    (clone / ".venv" / "half-a-package").touch()
    again = FakeMachine()
    assert make(again, clone) == 0
    assert "is unfinished" in capsys.readouterr().out
    assert not (clone / ".venv" / "half-a-package").exists()
    assert len(again.commands) == 2


def test_a_clone_that_was_moved_gets_a_new_environment(clone):
    make(FakeMachine(), clone)
    moved = clone.with_name("moved")
    clone.rename(moved)
    again = FakeMachine()
    assert make(again, moved) == 0
    assert len(again.commands) == 2


def test_an_environment_whose_python_is_gone_is_made_anew(clone):
    make(FakeMachine(), clone)
    make_environment.python_in(clone / ".venv").unlink()
    again = FakeMachine()
    assert make(again, clone) == 0
    assert len(again.commands) == 2


def test_the_newest_supported_python_is_taken_where_python3_is_too_old(clone, capsys):
    machine = FakeMachine(
        pythons={"python3": (3, 9, 2), "python3.11": None, "python3.12": (3, 12, 1)}
    )
    assert make(machine, clone) == 0
    assert machine.commands[0][0] == "/bin/python3.12"
    assert "with Python 3.12.1 (/bin/python3.12)" in capsys.readouterr().out


def test_an_unsupported_python_is_explained(clone, capsys):
    machine = FakeMachine(pythons={"python3": (3, 14, 0), "python": None})
    assert make(machine, clone) == 1
    text = capsys.readouterr().err
    assert "found: python3 is 3.14.0, /bin/python does not run" in text
    assert "TensorFlow supports Python 3.11 to 3.13" in text
    assert "make PYTHON=python3.12" in text


def test_a_python_that_was_named_is_the_only_one_tried(clone, capsys):
    machine = FakeMachine(pythons={"python3": (3, 11, 7), "python3.10": (3, 10, 13)})
    assert make(machine, clone, "--python", "python3.10") == 1
    assert "found: python3.10 is 3.10.13" in capsys.readouterr().err


def test_a_missing_venv_module_is_explained(clone, capsys):
    assert make(FakeMachine(modules=False), clone) == 1
    text = capsys.readouterr().err
    assert "venv or ensurepip cannot be imported" in text
    assert "sudo apt install python3.11-venv" in text
    assert not (clone / ".venv").exists()


def test_too_little_disk_is_explained(clone, capsys):
    assert make(FakeMachine(free_gb=4.9), clone) == 1
    text = capsys.readouterr().err
    assert "found: 4.9 GB of free disk" in text
    assert "to do: free 5 GB" in text


def test_a_venv_of_somebody_else_is_left_alone(clone, capsys):
    (clone / ".venv").mkdir()
    (clone / ".venv" / "theirs").touch()
    assert make(FakeMachine(), clone) == 1
    text = capsys.readouterr().err
    assert "this script did not make it" in text
    assert "rm -rf" in text and "ENV_ARGS=--adopt" in text
    assert (clone / ".venv" / "theirs").exists()


def test_a_venv_of_somebody_else_is_used_when_asked(clone):
    python = make_environment.python_in(clone / ".venv")
    python.parent.mkdir(parents=True)
    python.touch()
    machine = FakeMachine(pythons={"python": (3, 12, 1)})
    assert make(machine, clone, "--adopt") == 0
    assert [command[1:4] for command in machine.commands] == [["-m", "pip", "install"]]
    assert make(FakeMachine(pythons={}), clone) == 0


def test_a_venv_made_with_another_python_is_left_alone(clone, capsys):
    make(FakeMachine(), clone)
    machine = FakeMachine(pythons={"python3.12": (3, 12, 1)})
    assert make(machine, clone, "--python", "python3.12") == 1
    text = capsys.readouterr().err
    assert "make .venv with python3.12 (3.12.1)" in text
    assert "was made with Python 3.11.7" in text
    assert make_environment.python_in(clone / ".venv").exists()


def test_a_failure_of_another_kind_shows_its_last_lines(clone, capsys):
    assert make(FakeMachine(fails=["ERROR: No matching distribution for jupyterlab"]), clone) == 1
    text = capsys.readouterr().err
    assert "pip failed; its last lines:\n    ERROR: No matching distribution" in text
    assert "cannot be reached" not in text


def _real(clone, *arguments, path=None, **settings):
    environ = {**os.environ, **settings, "PATH": path or os.environ["PATH"]}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--root", str(clone), *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_pip_at_an_index_that_refuses_is_explained(clone):
    # Nothing listens on port 9; two settings keep pip from trying long and elsewhere.
    done = _real(
        clone,
        "--no-uv",
        "--python",
        sys.executable,
        PIP_INDEX_URL="http://127.0.0.1:9",
        PIP_CONFIG_FILE=os.devnull,
        PIP_RETRIES="0",
    )
    assert done.returncode == 1
    assert "pip failed; its last lines:" in done.stderr
    assert "the package index cannot be reached" in done.stderr
    assert "PIP_INDEX_URL" in done.stderr


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not on PATH")
def test_uv_at_an_index_that_refuses_is_explained(clone):
    done = _real(
        clone,
        "--python",
        sys.executable,
        UV_INDEX_URL="http://127.0.0.1:9",
        UV_HTTP_RETRIES="0",
    )
    assert done.returncode == 1
    assert "uv failed; its last lines:" in done.stderr
    assert "the package index cannot be reached" in done.stderr
    assert "ENV_ARGS=--no-uv" in done.stderr


def _python_3_10():
    machine = make_environment.Machine()
    homes = sorted(Path.home().glob(".pyenv/versions/3.10*/bin/python3.10"))
    for path in [shutil.which("python3.10"), *map(str, homes)]:
        if path and (machine.version_of(path) or ())[:2] == (3, 10):
            return path
    return None


@pytest.mark.skipif(_python_3_10() is None, reason="no Python 3.10 on this machine")
def test_a_real_python_3_10_says_that_it_is_too_old(clone):
    python = _python_3_10()
    done = subprocess.run(
        [python, str(SCRIPT), "--root", str(clone), "--python", python],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"{python} is 3.10." in done.stderr
    assert "TensorFlow supports Python 3.11 to 3.13" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_runs_at_once_wait_for_each_other(clone):
    fcntl = pytest.importorskip("fcntl", reason="Windows has no such lock")
    (clone / ".venv").mkdir()
    holder = os.open(clone, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    second = subprocess.Popen(
        [sys.executable, str(SCRIPT), "--root", str(clone), "--python", "no-such-python"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert second.stdout is not None
        assert "waiting for it" in second.stdout.readline()
        os.close(holder)
        assert second.wait(timeout=60) == 1
    finally:
        second.kill()
        second.wait()
        if second.stdout:
            second.stdout.close()


def test_the_stamp_names_what_is_installed(clone):
    make(FakeMachine(), clone)
    stamp = json.loads((clone / ".venv" / make_environment.STAMP).read_text())
    assert (stamp["state"], stamp["python"], stamp["extras"]) == ("ready", "3.11.7", ["lab"])
