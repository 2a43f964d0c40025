"""The command `distlab`: what it prints, and the code it ends with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import distlab
from distlab import cli


def said_before_it_ended(capsys, *arguments):
    """The exit code, and what was printed."""
    with pytest.raises(SystemExit) as end:
        cli.main([*arguments])
    streams = capsys.readouterr()
    return end.value.code, streams.out + streams.err


def test_version_help_and_unknown_options_are_answered_by_the_command_that_was_meant(capsys):
    version = f"distlab {distlab.__version__}\n"
    assert said_before_it_ended(capsys, "--version") == (0, version)
    _, text = said_before_it_ended(capsys, "--help")
    assert "doctor" in text and "lab" in text
    assert cli.main([]) == 0 and capsys.readouterr().out == text
    for port in ("-1", "65536", "http", "٣"):
        code, text = said_before_it_ended(capsys, "lab", f"--port={port}")
        assert code == 2 and "is no port; ports are 0 to 65535" in text, port
    for command, given in {
        "distlab launch": ["launch", "--worker", "2", "train.py"],
        "distlab exercise new": ["exercise", "new", "--forced", "a"],
    }.items():
        code, text = said_before_it_ended(capsys, *given)
        option = next(word for word in given if word.startswith("--"))
        assert code == 2 and text.startswith(f"usage: {command} [")
        assert f"{command}: error: unrecognized arguments: {option}" in text


def test_a_misspelt_command_is_told_the_near_one(capsys):
    assert cli.main(["lauch", "train.py"]) == 2
    said = capsys.readouterr().err
    assert "distlab lauch\n  found: no command 'lauch'\n  to do: did you mean 'launch'? Or " in said


def test_an_error_of_ours_is_text_without_a_traceback_and_loads_no_tensorflow(tmp_path):
    (tmp_path / "taken").touch()
    code = (
        "import sys, distlab.cli, distlab.course.lab, distlab.course.learner_folder\n"
        "early = {'numpy', 'jupyterlab'} & set(sys.modules)\n"
        "code = distlab.cli.main(sys.argv[1:])\n"
        "print(code, early | {'tensorflow', 'keras'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, "lab", str(tmp_path / "taken"), "--lay-only"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2 set()\n"), done.stderr
    assert done.stderr.startswith("distlab: lay the course into ")
    assert "taken is a file, not a folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_ends_with_1_where_there_are_problems(monkeypatch):
    for problems, code in (([], 0), (["Python 3.10 is not supported"], 1)):
        report = SimpleNamespace(problems=problems)
        monkeypatch.setattr("distlab.diagnostics.doctor", lambda report=report: report)
        assert cli.main(["doctor"]) == code


def test_lab_lays_the_course_and_then_opens_it(monkeypatch, tmp_path, capsys):
    seen = []
    laid = SimpleNamespace(lines=lambda command: ["laid"])
    monkeypatch.setattr("distlab.course.learner_folder.lay_course", lambda *_, **__: laid)
    monkeypatch.setattr(
        "distlab.course.lab.open_lab", lambda folder, **options: seen.append((folder, options))
    )
    assert cli.main(["lab", str(tmp_path), "--no-browser", "--port", "8899", "--", "--debug"]) == 0
    assert capsys.readouterr().out == "laid\n"
    assert seen == [(tmp_path, {"open_browser": False, "port": 8899, "further": ["--debug"]})]


def test_a_module_that_an_extra_brings_is_named_and_the_users_own_missing_one_is_not(
    monkeypatch, capsys
):
    """Whatever a command imports: the code here is taken for distlab's, and then for a user's."""
    ours = str(Path(distlab.__file__).with_name("diagnostics.py"))
    for file, is_ours in ((ours, True), (__file__, False)):
        names = {}
        exec(compile("def doctor():\n    import jinja2_of_nobody.sub", file, "exec"), names)
        monkeypatch.setattr("distlab.diagnostics.doctor", names["doctor"])
        if not is_ours:
            with pytest.raises(ModuleNotFoundError, match="jinja2_of_nobody"):
                cli.main(["doctor"])
            continue
        assert cli.main(["doctor"]) == 2
        asked, found, do = capsys.readouterr().err.splitlines()
        assert asked == "distlab: distlab doctor" and 'pip install "distlab[lab]"' in do
        assert found.startswith("  found: jinja2_of_nobody is not installed for CPython ")
