"""The script behind `make lab` and `make env`: its messages, and when it does nothing."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tools import make_environment

SCRIPT = Path(make_environment.__file__)


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


def installs(machine):
    """Whether each command installed; the others make an environment."""
    return ["install" in command for command in machine.commands]


def test_an_old_python_can_read_the_script_and_the_bounds_are_the_packages():
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (_, oldest), (_, newest) = make_environment.OLDEST, make_environment.NEWEST
    assert project["requires-python"] == f">=3.{oldest},<3.{newest + 1}"


def test_the_extras_are_installed_once_at_the_constrained_versions(clone):
    machine = FakeMachine()
    assert make(machine, clone, "--extras", "lab") == 0
    making, installing = machine.commands
    assert making == ["/bin/python3", "-m", "venv", str(clone / ".venv")]
    assert installing[1:4] == ["-m", "pip", "install"]
    assert installing[-4:] == ["-c", str(clone / "constraints.txt"), "-e", f"{clone}[lab]"]

    again = FakeMachine(pythons={})
    assert make(again, clone) == 0
    assert again.commands == []


def test_uv_is_used_where_it_exists_and_not_where_it_is_refused(clone):
    machine = FakeMachine(uv=True)
    assert make(machine, clone) == 0
    assert [command[0] for command in machine.commands] == ["/bin/uv", "/bin/uv"]
    shutil.rmtree(clone / ".venv")
    machine = FakeMachine(uv=True)
    assert make(machine, clone, "--no-uv") == 0
    assert not any("uv" in Path(command[0]).name for command in machine.commands)


def test_a_changed_file_or_another_extra_installs_again_and_keeps_the_earlier_extras(clone):
    make(FakeMachine(), clone, "--extras", "lab")
    for name in ("pyproject.toml", "constraints.txt"):
        with (clone / name).open("a") as file:
            file.write("\n")
        again = FakeMachine(pythons={"python": (3, 11, 7)})
        assert make(again, clone) == 0
        assert installs(again) == [True], name
    more = FakeMachine(pythons={"python": (3, 11, 7)})
    make(more, clone, "--extras", "test,docs")
    assert more.commands[0][-1] == f"{clone}[docs,lab,test]"
    fewer = FakeMachine()
    make(fewer, clone, "--extras", "lab")
    assert fewer.commands == []


def test_an_environment_that_is_not_whole_is_made_again(clone, capsys):
    assert make(FakeMachine(fails=KeyboardInterrupt()), clone) == 130
    (clone / ".venv" / "half-a-package").touch()
    interrupted = FakeMachine()
    assert make(interrupted, clone) == 0
    assert "is unfinished" in capsys.readouterr().out
    assert not (clone / ".venv" / "half-a-package").exists()

    moved = clone.rename(clone.with_name("moved"))
    after_move = FakeMachine()
    assert make(after_move, moved) == 0

    make_environment.python_in(moved / ".venv").unlink()
    without_python = FakeMachine()
    assert make(without_python, moved) == 0
    for machine in (interrupted, after_move, without_python):
        assert installs(machine) == [False, True]


def test_the_newest_supported_python_is_taken_where_python3_is_too_old(clone, capsys):
    pythons = {"python3": (3, 9, 2), "python3.11": None, "python3.12": (3, 12, 1)}
    machine = FakeMachine(pythons=pythons)
    assert make(machine, clone) == 0
    assert machine.commands[0][0] == "/bin/python3.12"
    assert "with Python 3.12.1 (/bin/python3.12)" in capsys.readouterr().out


REFUSED = {
    "an unsupported Python": (
        {"pythons": {"python3": (3, 14, 0), "python": None}},
        [],
        [
            "found: python3 is 3.14.0, /bin/python does not run",
            "TensorFlow supports Python 3.11 to 3.13",
            "make PYTHON=python3.12",
        ],
    ),
    "a Python that was named is the only one tried": (
        {"pythons": {"python3": (3, 11, 7), "python3.10": (3, 10, 13)}},
        ["--python", "python3.10"],
        ["found: python3.10 is 3.10.13"],
    ),
    "no venv module": (
        {"modules": False},
        [],
        ["venv or ensurepip cannot be imported", "sudo apt install python3.11-venv"],
    ),
    "too little disk": (
        {"free_gb": 4.9},
        [],
        ["found: 4.9 GB of free disk", "to do: free 5 GB"],
    ),
    "a failure of pip": (
        {"fails": ["ERROR: No matching distribution for jupyterlab"]},
        [],
        ["pip failed; its last lines:\n    ERROR: No matching distribution"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stops_it_is_explained(name, clone, capsys):
    machine, arguments, texts = REFUSED[name]
    assert make(FakeMachine(**machine), clone, *arguments) == 1
    printed = capsys.readouterr().err
    assert [text for text in texts if text not in printed] == [], printed
    assert "cannot be reached" not in printed


def test_an_index_that_refuses_is_known_by_what_pip_says(clone, capsys):
    # Nothing listens on port 9; --isolated and --retries keep pip from trying elsewhere and long.
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--retries", "0", "--no-deps"]
    index = ["--index-url", "http://127.0.0.1:9", "no-such-package-of-distlab"]
    code, lines = make_environment.Machine().run([*pip, *index])
    assert code
    assert make(FakeMachine(fails=lines), clone) == 1
    printed = capsys.readouterr().err
    assert "the package index cannot be reached" in printed
    assert "PIP_INDEX_URL" in printed
    uv = FakeMachine(uv=True, fails=["  Caused by: tcp connect error: Connection refused"])
    assert make(uv, clone) == 1
    assert "ENV_ARGS=--no-uv" in capsys.readouterr().err


def test_an_environment_of_the_users_is_left_alone_until_they_ask(clone, capsys):
    python = make_environment.python_in(clone / ".venv")
    python.parent.mkdir(parents=True)
    python.touch()
    assert make(FakeMachine(), clone) == 1
    printed = capsys.readouterr().err
    texts = ("this script did not make it", "rm -rf", "ENV_ARGS=--adopt")
    assert [text for text in texts if text not in printed] == [], printed
    assert python.exists()

    machine = FakeMachine(pythons={"python": (3, 12, 1)})
    assert make(machine, clone, "--adopt") == 0
    assert installs(machine) == [True]
    assert make(FakeMachine(pythons={}), clone) == 0


def test_an_environment_of_another_python_is_left_alone(clone, capsys):
    make(FakeMachine(), clone)
    machine = FakeMachine(pythons={"python3.12": (3, 12, 1)})
    assert make(machine, clone, "--python", "python3.12") == 1
    printed = capsys.readouterr().err
    assert "make .venv with python3.12 (3.12.1)" in printed
    assert "was made with Python 3.11.7" in printed
    assert make_environment.python_in(clone / ".venv").exists()


def test_two_runs_at_once_wait_for_each_other(clone):
    fcntl = pytest.importorskip("fcntl", reason="Windows has no such lock")
    holder = os.open(clone, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    second = subprocess.Popen(
        [sys.executable, str(SCRIPT), "--root", str(clone), "--python", "no-such-python"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        with second.stdout:
            assert "waiting for it" in second.stdout.readline()
            os.close(holder)
            assert second.wait(timeout=120) == 1
    finally:
        second.kill()
        second.wait()
