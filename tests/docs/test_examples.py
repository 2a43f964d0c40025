"""Every public name and every command shows an example, and the example does what it shows."""

import doctest
import inspect
import re
import shlex
import shutil

import pytest

import distlab
from distlab import cli
from distlab.cluster.warm.process import ADDRESS_VARIABLE, can_fork, shared_server
from tests.support.forked_python import write_forked_python
from tests.support.repository import ROOT

# Beside each name, the methods that its users call: of a class, or of what a function returns.
EXAMPLES = {name: [f"distlab:{name}"] for name in distlab.__all__ if name != "__version__"}
for name, where, methods in (
    ("LocalCluster", "distlab:LocalCluster", "run execute kill restart status"),
    ("plan_batch", "distlab.batching:BatchPlan", "shares_of steps warmup"),
    ("predict", "distlab.course.predictions.prediction:Prediction", "reveal"),
):
    EXAMPLES[name] += [f"{where}.{method}" for method in methods.split()]


# What examples have besides `dl`: those of methods, the object that they are called on.
GIVEN = {"LocalCluster": "cluster = distlab.LocalCluster(workers=2)"}


def run_example(name, text, **given):
    """Runs what a docstring shows, and raises unless it holds."""
    names = {"dl": distlab, "__name__": "__main__", **given}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert "\nExample:\n" in text and test.examples, f"{name} has no example"
    said = []
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)


# What the process of an example runs. The first cluster prints who can reach its servers: here it
# is the given one, and not an example's.
RUN = f"""
import doctest, inspect, pkgutil, distlab
{inspect.getsource(run_example)}
given = {{}}
exec(CODE, {{"distlab": distlab}}, given)
for name in NAMES:
    run_example(name, inspect.getdoc(pkgutil.resolve_name(name)) or "", **given)
"""


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_name_runs_in_a_process_of_its_own(name, run_python):
    environ = {ADDRESS_VARIABLE: shared_server().address} if can_fork() else {}
    given = f"CODE, NAMES = {GIVEN.get(name, '')!r}, {EXAMPLES[name]!r}\n"
    run_python(given + RUN, environ=environ, warm=True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Sums.\n\nExample:\n    >>> 1 + 1\n    2\n", None),
        ("Sums.\n\nExample:\n    >>> 1 + 1\n    3\n", r"Got:\n +2"),
        ("Sums.\n\nExample:\n    >>> dl.sums()\n", "has no attribute 'sums'"),
        ("Sums.\n\nExample:\n    sums()\n", "sums has no example"),
        ("Sums.\n", "sums has no example"),
    ],
)
def test_an_example_that_is_missing_or_wrong_is_noticed(text, complaint):
    if complaint is None:
        run_example("sums", text)
        return
    with pytest.raises(AssertionError, match=complaint):
        run_example("sums", text)


# Each command, and what the last line of its help's example prints.
COMMANDS = {
    "": r"^my-lab: ",
    "doctor": r"^Strategies$",
    "lab": r"^my-lab: ",
    "progress": r"^0 of \d+ tasks passed",
    "launch": r"^worker:0 \| loss after 2 epochs on 2 replicas: ",
    "grade": r"^1 hand-ins, of which 0 could not be graded: graded$",
    "exercise": r"handout/exercises/20_my_topic\.ipynb$",
    "exercise new": r"^new  mine/20_my_topic\.py$",
    "exercise build": r"handout/exercises/20_my_topic\.ipynb$",
    "bench": r"^weak scaling, 32 examples on each replica$",
    "example": r"^new      examples/slurm/train\.sbatch$",
}


def help_of(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    return capsys.readouterr().out


def commands_in(text):
    """The commands that a help lists."""
    return re.findall(r"(?m)^    (\w+) ", text)


def test_each_command_has_a_row_here(capsys):
    listed = commands_in(help_of("", capsys))
    within = {name: commands_in(help_of(name, capsys)) for name in listed}
    names = [f"{name} {action}" for name, actions in within.items() for action in actions]
    assert sorted(["", *listed, *names]) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"distlab {command}".strip())
def test_the_example_of_a_command_does_something(command, tmp_path, monkeypatch, capfd):
    if command in ("launch", "bench", "grade") and not can_fork():
        pytest.skip("nothing may be forked here")
    text = help_of(command, capfd)
    usage, description, *_ = text.split("\n\n")
    assert usage.startswith("usage: distlab") and description.endswith("."), "no description"
    lines = re.findall(r"(?m)^  (.+)$", text.partition("\n\nExample:\n")[2])
    assert lines and lines[-1].startswith(f"distlab {command}"), "no example"
    monkeypatch.chdir(tmp_path)
    if command in ("launch", "bench"):
        write_forked_python(tmp_path / "python", monkeypatch)
    if command == "bench":
        monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    if command == "grade":
        (tmp_path / "handed-in" / "jane").mkdir(parents=True)
        shutil.copy(ROOT / "exercises" / "00_start_here.ipynb", tmp_path / "handed-in" / "jane")
    opened = []  # JupyterLab would serve until Ctrl-C
    monkeypatch.setattr("distlab.course.lab.open_lab", lambda folder, **_: opened.append(folder))
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        capfd.readouterr()
        code = cli.main(arguments)
        out, err = capfd.readouterr()
        has_problems = arguments == ["doctor"] and "Problems\n  none" not in out
        assert (program, code) == ("distlab", has_problems), out + err
    assert re.search(COMMANDS[command], out, re.MULTILINE), out + err
    assert [str(folder) for folder in opened] == ["my-lab"] * (command in ("", "lab"))
