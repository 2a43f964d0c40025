"""The script behind `make lab` and `make env`: its messages, and when it does nothing.

The programs on PATH are shell scripts that note how they were called.
"""

import ast
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tools import make_environment

# Says its version, makes an environment whose Python is a copy of itself, and notes an install.
PYTHON = """#!/bin/sh
case "$2" in
  *version_info*) echo VERSION;;
  "import pip") if [ -e "$0.without-pip" ]; then exit 1; fi;;
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

    def make(self, *extras, **options):
        """Returns the calls that the script made."""
        self.log.unlink(missing_ok=True)
        make_environment.make_environment(self.root, extras or ("lab",), **options)
        return self.log.read_text().splitlines() if self.log.exists() else []

    def calls(self, extras="lab"):
        return [
            f"-m venv {self.root}/.venv",
            f"-m pip install -c {self.root}/constraints.txt -e {self.root}[{extras}]",
        ]


@pytest.fixture
def clone(tmp_path, monkeypatch):
    return Clone(tmp_path, monkeypatch)


def test_an_old_python_can_read_the_script_and_the_bounds_are_the_packages():
    ast.parse(Path(make_environment.__file__).read_text(), feature_version=(3, 6))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest, *_, oldest = make_environment.SUPPORTED
    assert project["requires-python"] == f">={oldest},<3.{int(newest[2:]) + 1}"


def test_the_extras_are_installed_once_and_again_after_a_change_or_a_move(clone):
    assert clone.make() == clone.calls()
    assert clone.make() == []
    with (clone.root / "constraints.txt").open("a") as file:
        file.write("\n")
    assert clone.make() == clone.calls()[1:]
    assert clone.make("test", "docs") == clone.calls("docs,lab,test")[1:]
    assert clone.make("lab") == []
    clone.root = clone.root.rename(clone.root.with_name("moved"))
    assert clone.make() == clone.calls()


def test_uv_is_used_where_it_exists_and_not_where_it_is_refused(clone):
    clone.add("uv")
    making, installing = clone.make()
    assert making.startswith("uv venv ") and installing.startswith("uv pip install ")
    shutil.rmtree(clone.root / ".venv")
    assert clone.make(use_uv=False) == clone.calls()


def test_what_uv_has_left_without_pip_is_made_whole_where_uv_is_gone(clone):
    clone.add("uv")
    clone.make()
    (clone.programs / "uv").unlink()
    (clone.root / ".venv" / "bin" / "python.without-pip").touch()
    (clone.root / ".venv" / make_environment.STAMP).unlink()
    assert clone.make() == clone.calls()


def test_the_newest_supported_python_is_taken_where_python3_is_too_old(clone):
    for name, version in {"python3": "3.9.2", "python3.11": "", "python3.12": "3.12.1"}.items():
        clone.add(name, version)
    clone.make()
    assert make_environment.version_of(clone.root / ".venv/bin/python") == "3.12.1"


def test_a_python_that_cannot_be_used_is_named(clone):
    clone.add("python3", "3.14.0")
    clone.add("python")
    error = "found: python3 is 3.14.0, .*/python does not run\n.*make PYTHON=python3.12"
    with pytest.raises(SystemExit, match=error):
        clone.make()
    with pytest.raises(SystemExit, match=r"with python3.99\n  found: no Python of that name"):
        clone.make(asked="python3.99")
    clone.add("python3", "3.11.7")
    clone.make()
    clone.add("python3.12", "3.12.1")
    with pytest.raises(SystemExit, match=r"with python3.12\n  found: .*/.venv has Python 3.11.7"):
        clone.make(asked="python3.12")


def test_a_failed_install_says_what_helps_and_is_tried_again(clone):
    clone.add("python3", "3.11.7", fail="exit 3")
    with pytest.raises(SystemExit, match=r"python ended with 3; .*\n  to do: free 5 GB of disk"):
        clone.make()
    clone.add("python3", "3.11.7")
    shutil.copy(clone.programs / "python3", clone.root / ".venv" / "bin" / "python")
    assert clone.make() == clone.calls()[1:]
