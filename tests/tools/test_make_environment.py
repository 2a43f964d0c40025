"""The script behind `make lab` and `make env`: its messages, and when it does nothing.

The programs on PATH are shell scripts that note how they were called; the installs that fail for
lack of an index are real ones.
"""

import ast
import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tools import make_environment

# Says its version, makes an environment whose Python is a copy of itself, and notes an install.
PYTHON = """#!/bin/sh
case "$2" in
  *version_info*) echo VERSION;;
  venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "$@" >> LOG;;
  pip) echo "$@" >> LOG; FAIL;;
esac
"""
UV = """#!/bin/sh
echo "uv $@" >> LOG
for last; do true; done
if [ "$1" = venv ]; then mkdir -p "$last/bin" && cp "$(dirname "$0")/python3" "$last/bin/python"; fi
"""


class Clone:
    """A clone, and a PATH with the programs that a test adds."""

    def __init__(self, folder, monkeypatch):
        self.root, self.programs, self.log = folder / "clone", folder / "bin", folder / "log"
        self.venv = self.root / ".venv"
        for path in (self.root, self.programs):
            path.mkdir()
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.root)
        for name in ("cp", "dirname", "mkdir", "sh"):
            (self.programs / name).symlink_to(shutil.which(name))
        monkeypatch.setenv("PATH", str(self.programs))
        self.add("python3", "3.11.7")

    def add(self, name, version="", fail=":"):
        text = UV if name == "uv" else PYTHON.replace("VERSION", version).replace("FAIL", fail)
        (self.programs / name).write_text(text.replace("LOG", str(self.log)))
        (self.programs / name).chmod(0o755)

    def make(self, *options):
        """Runs the script, and returns its exit code and the calls that it made."""
        self.log.unlink(missing_ok=True)
        code = make_environment.main(["--root", str(self.root), *options])
        return code, self.log.read_text().splitlines() if self.log.exists() else []

    def install(self, extras):
        return f"install -c {self.root}/constraints.txt -e {self.root}[{extras}]"


@pytest.fixture
def clone(tmp_path, monkeypatch):
    return Clone(tmp_path, monkeypatch)


def test_an_old_python_can_read_the_script_and_the_bounds_are_the_packages():
    ast.parse(Path(make_environment.__file__).read_text(), feature_version=(3, 6))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest, *_, oldest = make_environment.SUPPORTED
    assert project["requires-python"] == f">={oldest},<3.{int(newest[2:]) + 1}"


def test_the_extras_are_installed_once_and_again_after_a_change(clone, monkeypatch):
    assert clone.make() == (0, [f"-m venv {clone.venv}", f"-m pip {clone.install('lab')}"])
    with monkeypatch.context() as patch:
        patch.setattr(make_environment.subprocess, "Popen", None)  # no process at all
        assert clone.make() == (0, [])
    with (clone.root / "constraints.txt").open("a") as file:
        file.write("\n")
    assert clone.make() == (0, [f"-m pip {clone.install('lab')}"])
    assert clone.make("--extras", "test,docs") == (0, [f"-m pip {clone.install('docs,lab,test')}"])
    assert clone.make("--extras", "lab") == (0, [])


def test_uv_is_used_where_it_exists_and_not_where_it_is_refused(clone):
    clone.add("uv")
    code, (making, installing) = clone.make()
    assert code == 0 and making.startswith("uv venv ")
    python = f"--python {clone.venv}/bin/python"
    assert installing == f"uv pip {clone.install('lab').replace('install', f'install {python}', 1)}"
    shutil.rmtree(clone.venv)
    assert clone.make("--no-uv")[1][0] == f"-m venv {clone.venv}"


def test_an_environment_that_is_unfinished_or_moved_is_made_again(clone, capsys):
    clone.add("python3", "3.11.7", fail="exit 1")
    assert clone.make("--extras", "test")[0] == 1
    (clone.venv / "half-a-package").touch()
    clone.add("python3", "3.11.7")
    assert clone.make() == (0, [f"-m venv {clone.venv}", f"-m pip {clone.install('lab,test')}"])
    assert "is unfinished" in capsys.readouterr().out
    assert not (clone.venv / "half-a-package").exists()

    clone.root = clone.root.rename(clone.root.with_name("moved"))
    clone.venv = clone.root / ".venv"
    assert len(clone.make()[1]) == 2
    (clone.venv / "bin" / "python").unlink()
    assert len(clone.make()[1]) == 2


# Programs on PATH with what they say, the options, and parts of the message.
REFUSED = {
    "no supported Python": (
        {"python3": "3.14.0", "python": ""},
        [],
        ["found: python3 is 3.14.0, ", "/python does not run", "make PYTHON=python3.12"],
    ),
    "only the Python that was named": (
        {"python3.10": "3.10.13"},
        ["--python", "python3.10"],
        ["make .venv with python3.10\n  found: python3.10 is 3.10.13\n  to do: install one of"],
    ),
    "no such Python": ({}, ["--python", "python3.99"], ["found: no Python of that name"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_python_that_cannot_be_used_is_named(name, clone, capsys):
    programs, options, texts = REFUSED[name]
    for program, version in programs.items():
        clone.add(program, version)
    assert clone.make(*options) == (1, [])
    printed = capsys.readouterr().err
    assert [text for text in texts if text not in printed] == [], printed


def test_the_newest_supported_python_is_taken_where_python3_is_too_old(clone):
    for name, version in {"python3": "3.9.2", "python3.11": "", "python3.12": "3.12.1"}.items():
        clone.add(name, version)
    assert clone.make()[0] == 0
    assert make_environment.read_stamp(clone.venv)["python"] == "3.12.1"


FAILURES = {
    "ERROR: Could not install: No space left on device": "to do: free 5 GB of disk",
    "The virtual environment was not created: ensurepip is not available": "python3-venv",
    "  Caused by: tcp connect error: Connection refused": "the package index cannot be reached",
    "ERROR: No matching distribution for jupyterlab": "to do: read the lines above",
}


@pytest.mark.parametrize("line", FAILURES)
def test_a_failed_install_shows_its_last_lines_and_what_helps(line, clone, capsys):
    clone.add("python3", "3.11.7", fail=f"echo '{line}'; exit 1")
    assert clone.make()[0] == 1
    printed = capsys.readouterr().err
    assert f"python failed; its last lines:\n    {line}\n" in printed
    assert FAILURES[line] in printed


def test_a_real_install_without_an_index_says_so(clone, capsys, monkeypatch):
    monkeypatch.setenv("PATH", os.defpath)
    # Nothing listens on port 9.
    pip = {"INDEX_URL": "http://127.0.0.1:9", "RETRIES": "0", "CONFIG_FILE": os.devnull}
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    for name, value in pip.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    assert clone.make("--python", sys.executable, "--no-uv")[0] == 1
    printed = capsys.readouterr().err
    assert "the package index cannot be reached" in printed and "PIP_INDEX_URL" in printed


def test_an_environment_of_the_users_is_left_alone_until_they_ask(clone, capsys):
    clone.make()
    (clone.venv / make_environment.STAMP).unlink()
    assert clone.make() == (1, [])
    printed = capsys.readouterr().err
    texts = ("this script did not make it", f"rm -rf {clone.venv}", "ENV_ARGS=--adopt")
    assert [text for text in texts if text not in printed] == [], printed
    assert clone.make("--adopt") == (0, [f"-m pip {clone.install('lab')}"])
    assert clone.make() == (0, [])


def test_an_environment_of_another_python_is_left_alone(clone, capsys):
    clone.make()
    clone.add("python3.12", "3.12.1")
    assert clone.make("--python", "python3.12") == (1, [])
    printed = capsys.readouterr().err
    assert "make .venv with python3.12" in printed
    assert "was made with Python 3.11.7" in printed
