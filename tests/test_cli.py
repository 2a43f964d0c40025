"""The command `distlab`: what it prints, and the code it ends with."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

import distlab
from distlab import cli


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"distlab {distlab.__version__}\n"


def test_help_names_both_commands(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert "doctor" in text and "lab" in text


def test_the_command_loads_no_tensorflow():
    code = (
        "import sys, distlab.cli, distlab.lab, distlab.course;"
        "sys.exit(sorted({'tensorflow', 'keras', 'numpy', 'jupyterlab'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_of_ours_is_text_without_a_traceback(tmp_path):
    (tmp_path / "taken").touch()
    done = subprocess.run(
        [sys.executable, "-m", "distlab.cli", "lab", str(tmp_path / "taken"), "--lay-only"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("distlab: lay the course into ")
    assert "taken is a file, not a folder" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("problems", "code"), [([], 0), (["Python 3.10 is not supported"], 1)])
def test_doctor_ends_with_1_where_there_are_problems(monkeypatch, problems, code):
    report = SimpleNamespace(problems=problems)
    monkeypatch.setattr("distlab.diagnostics.doctor", lambda: report)
    assert cli.main(["doctor"]) == code


@pytest.mark.parametrize("port", ["-1", "65536", "http", "٣"])
def test_a_port_that_is_none_is_refused(port, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["lab", f"--port={port}"])
    assert end.value.code == 2
    assert "is no port; ports are 0 to 65535" in capsys.readouterr().err


def test_lab_lays_the_course_and_then_opens_it(monkeypatch, tmp_path, capsys):
    seen = []
    monkeypatch.setattr(
        "distlab.course.lay_course",
        lambda *args, **kw: SimpleNamespace(lines=lambda command: ["laid"]),
    )
    monkeypatch.setattr(
        "distlab.lab.open_lab", lambda folder, **options: seen.append((folder, options))
    )
    assert cli.main(["lab", str(tmp_path), "--no-browser", "--port", "8899", "--", "--debug"]) == 0
    assert capsys.readouterr().out == "laid\n"
    assert seen == [(tmp_path, {"open_browser": False, "port": 8899, "further": ["--debug"]})]


@pytest.mark.parametrize(
    "given", [["launch", "--worker", "2", "train.py"], ["exercise", "new", "--forced", "a"]]
)
def test_what_a_command_does_not_know_is_told_with_its_own_usage(given, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(given)
    assert end.value.code == 2
    command = "distlab launch" if given[0] == "launch" else "distlab exercise new"
    said = capsys.readouterr().err
    assert said.startswith(f"usage: {command} [")
    option = next(one for one in given if one.startswith("--"))
    assert f"{command}: error: unrecognized arguments: {option}" in said
