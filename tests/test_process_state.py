"""A first run is like every later one: nothing moves a state of the process but its purpose."""

import json
import os
import re
from pathlib import Path

import pytest

import distlab as dl
from distlab import cli
from distlab.cluster.warm.process import ADDRESS_VARIABLE, can_fork, shared_server
from tests.support.repository import ROOT

# Runs a file as Python would, in the process that takes the code.
RUN = """
import runpy, sys
sys.argv = {argv!r}
sys.path.insert(0, {root!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def run_in_empty_home(tmp_path, run_python):
    """Runs a file in a process of its own that finds nothing prepared, and returns its output."""
    home = tmp_path / "home"
    home.mkdir()
    kept = ("XDG_", "TFDS_", "IPYTHON", "JUPYTER", "MPLCONFIG", "KERAS_HOME")
    environ = {name: None for name in os.environ if name.startswith(kept)} | {"HOME": str(home)}
    if can_fork():
        environ[ADDRESS_VARIABLE] = shared_server().address

    def run(file, *arguments):
        code = RUN.format(argv=[str(ROOT / file), *arguments], root=str(ROOT))
        return run_python(code, environ=environ, warm=True)

    return run


def test_nothing_moves_a_state_but_its_purpose_and_once_more_gives_the_same(
    tmp_path, run_in_empty_home
):
    run_in_empty_home("tests/support/process_entries.py")
    table = json.loads((tmp_path / "entries.json").read_text())
    entries, wrong = table["entries"], []
    for name, runs in entries.items():
        like = table["like"][name]
        purpose = table["purposes"][like or name]
        for number, run in enumerate(runs, 1):
            if "Traceback (most recent call last)" in run["result"]:
                why = run["result"]
            elif like and run["generators"] != entries[like][0]["generators"]:
                why = f"generators are not where {like} leaves them"
            elif run["moved"] != purpose:
                why = f"moved {run['moved']}, and is there for {purpose}"
            elif run["result"] != runs[0]["result"]:
                why = f"first {runs[0]['result']}, then {run['result']}"
            else:
                continue
            wrong.append(f"{name}, run {number}: {why}")
    assert not wrong, "\n".join(wrong)
    assert (tmp_path / "home/tensorflow_datasets/digits/1.0.0/dataset_info.json").exists()
    _, commands = cli._parser()
    views = "".join(map(Path.read_text, (ROOT / "distlab/course").glob("lesson_*/view.py")))
    explore = re.findall(r"^def (explore_\w+)", views, re.MULTILINE)
    all_names = {*dl.__all__, *(f"distlab {command}" for command in commands), *explore}
    assert sorted(all_names - entries.keys()) == []


def test_a_script_gives_the_same_figure_in_an_empty_home_and_later(run_in_empty_home):
    first, later = (
        run_in_empty_home("examples/train.py", "--epochs", "2", "--folder", folder)
        for folder in ("first", "later")
    )
    assert first.startswith("loss after 2 epochs on 1 replicas: ")
    assert later == first
