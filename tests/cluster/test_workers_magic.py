"""%%workers in real notebooks: what it shows, that it shows the same each time, how it fails."""

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from distlab.errors import NotebookError
from distlab.notebooks.compare import differences
from distlab.notebooks.execute import execute
from distlab.notebooks.kernel_environment import kernel_environment
from distlab.notebooks.storing import stable_outputs
from distlab.warm.process import ADDRESS_VARIABLE, WarmProcess, can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")

START = "import distlab as dl\n%load_ext distlab\ncluster = dl.LocalCluster(workers=2)"


@pytest.fixture(scope="module")
def warm():
    with WarmProcess(env=kernel_environment()) as process:
        yield process


@pytest.fixture(autouse=True)
def from_the_warm_process(warm, monkeypatch):
    monkeypatch.setenv(ADDRESS_VARIABLE, warm.address)


def run(*sources, raises=()):
    """Runs cells in a notebook; `raises` are the numbers of those that must fail."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    for number in raises:
        notebook.cells[number].metadata["tags"] = ["raises-exception"]
    return execute(notebook)


def outputs_of(cell):
    """The outputs in short: (kind, text)."""
    short = []
    for output in cell.outputs:
        if output.output_type == "stream":
            short.append((output.name, output.text))
        elif output.output_type == "error":
            short.append(("error", output.evalue))
        else:
            kinds = "picture" if "image/png" in output.data else output.output_type
            short.append((kinds, output.data["text/plain"]))
    return short


NOTEBOOK = (
    START,
    """%%workers
import json, os, sys, time
import tensorflow as tf
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
time.sleep(0.5 * (1 - index))
print("I am", index)
print("warned", file=sys.stderr)
index""",
    """%%workers
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def total():
    return strategy.run(
        lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(index + 1.0))
    )
print(float(total()))""",
    """%%workers worker:1
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.show()
print("below the figure")""",
    """%%workers worker:0
for step in range(50):
    print(f"\\rstep {step}", end="")
    time.sleep(0.01)""",
    """%%workers
if index == 1:
    raise ValueError("boom")""",
    "cluster.close()",
)


def test_a_notebook_shows_tasks_in_order_and_the_same_each_time():
    first, second = run(*NOTEBOOK, raises=[5]), run(*NOTEBOOK, raises=[5])
    cells = [outputs_of(cell) for cell in first.cells]
    assert cells[1] == [
        ("display_data", "worker:0"),
        ("stdout", "I am 0\n"),
        ("stderr", "warned\n"),
        ("display_data", "0"),
        ("display_data", "worker:1"),
        ("stdout", "I am 1\n"),
        ("stderr", "warned\n"),
        ("display_data", "1"),
    ]
    assert cells[2] == [
        *[("display_data", "worker:0"), ("stdout", "3.0\n")],
        *[("display_data", "worker:1"), ("stdout", "3.0\n")],
    ]
    assert cells[3] == [
        ("display_data", "worker:1"),
        ("picture", "<Figure size 640x480 with 1 Axes>"),
        ("stdout", "below the figure\n"),
    ]
    assert cells[4] == [("display_data", "worker:0"), ("stdout", "step 49")]
    assert cells[5] == [
        ("display_data", "worker:1"),
        ("stderr", "ValueError: boom\n"),
        (
            "error",
            "a cell on worker:0, worker:1\n"
            "  found: worker:1 raised ValueError: boom\n"
            "  to do: repair what it ran; the other tasks were stopped; "
            "cluster.restart() starts again what was ended",
        ),
    ]
    [error] = [out for out in first.cells[5].outputs if out.output_type == "error"]
    assert error.traceback == [
        f"TaskFailed: {error.evalue.splitlines()[0]}",
        *error.evalue.splitlines()[1:],
    ]
    for old, new in zip(first.cells, second.cells, strict=True):
        stored = stable_outputs(old.outputs, execution_count=1)
        fresh = stable_outputs(new.outputs, execution_count=1)
        assert list(differences(stored, fresh)) == []
        assert nbformat.writes(new_notebook(cells=[new_code_cell(outputs=stored, id="a")])) == (
            nbformat.writes(new_notebook(cells=[new_code_cell(outputs=fresh, id="a")]))
        )


def test_functions_of_a_notebook_run_on_the_tasks_and_fail_with_their_lines():
    cells = (
        "def refuse(x):\n    if x:\n        raise KeyError(x)",
        "def work(x):\n    refuse(x)\n    return x",
    )
    notebook = run(START, *cells, "cluster.run(work, 0)", "cluster.run(work, 1)", raises=[4])
    assert outputs_of(notebook.cells[3]) == [("execute_result", "[0, 0]")]
    assert outputs_of(notebook.cells[4]) == [
        (
            "error",
            "work() on worker:0, worker:1\n"
            "  found: worker:0 raised KeyError: 1\n"
            '      File "<cell>", line 2, in work\n'
            "        refuse(x)\n"
            '      File "<cell>", line 3, in refuse\n'
            "        raise KeyError(x)\n"
            "  and worker:1 raised KeyError: 1\n"
            "  to do: repair what it ran; the other tasks were stopped; "
            "cluster.restart() starts again what was ended",
        )
    ]


def test_mistakes_in_its_line_are_told():
    notebook = run(
        "%load_ext distlab",
        "%%workers\n1",
        "import distlab as dl; cluster = dl.LocalCluster(workers=1)",
        "%%workers worker:1\n1",
        "%%workers --time 3\n1",
        "%%workers --cluster other\n1",
        "%%workers --timeout 0.5\nimport time; time.sleep(600)",
        "other = dl.LocalCluster(workers=1, env={'NAME': 'other'})",
        "%%workers --cluster cluster\nimport os; print(os.environ.get('NAME'))",
        "%%workers\nimport os; print(os.environ.get('NAME'))",
        "other.close()",
        "%%workers worker:0\nimport os; print(os.environ.get('NAME'))",
        raises=[1, 3, 4, 5, 6],
    )
    errors = [outputs_of(notebook.cells[number])[-1][1] for number in (1, 3, 4, 5, 6)]
    assert errors[:4] == [
        "%%workers\n  found: no cluster is open\n"
        "  to do: make one in a cell before: cluster = dl.LocalCluster(workers=2)",
        "tasks=['worker:1']\n  found: the cluster has no 'worker:1'\n"
        "  to do: did you mean 'worker:0'? Or choose one of 'worker', 'worker:0'",
        "%%workers --time 3\n  found: unrecognized arguments: --time\n"
        "  to do: write %%workers [TASK ...] [--timeout SECS] [--cluster NAME]",
        "%%workers --cluster other\n  found: other is no LocalCluster here\n"
        "  to do: give the name of the variable that holds it",
    ]
    assert errors[4].startswith(
        "a cell on worker:0 within 0.5 s\n  found: worker:0 did not finish\n"
        "    worker:0 was here, the most recent call first:\n"
    )
    names = [outputs_of(notebook.cells[number])[1][1] for number in (8, 9, 11)]
    assert names == ["None\n", "other\n", "None\n"]


def test_displays_that_are_updated_show_their_last_state_each_its_own():
    first = (
        "%%workers\nimport json, os\n"
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "shown = display('first', display_id='the same on both')"
    )
    notebook = run(START, first, "%%workers\nshown.update(f'last of {index}')")
    assert [text for _, text in outputs_of(notebook.cells[1])] == [
        *["worker:0", "'last of 0'"],
        *["worker:1", "'last of 1'"],
    ]


def test_an_interrupted_cell_stops_the_tasks_and_the_cluster_goes_on(tmp_path):
    interrupt = (
        "import os, signal, threading, time\n"
        "def interrupt():\n"
        f"    while len(os.listdir({str(tmp_path)!r})) < 2: time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()"
    )
    hang = (
        "%%workers\nimport os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch()\ntime.sleep(600)"
    )
    notebook = run(START, interrupt, hang, "cluster.run(lambda: 'alive')", raises=[2])
    assert notebook.cells[2].outputs[-1].ename == "KeyboardInterrupt"
    assert outputs_of(notebook.cells[3]) == [("execute_result", "['alive', 'alive']")]


def test_a_killed_notebook_takes_its_tasks_along(tmp_path):
    save = (
        "import pathlib\npids = [str(task.pid) for task in cluster.status().tasks]\n"
        f"pathlib.Path({str(tmp_path / 'pids')!r}).write_text(' '.join(pids))"
    )
    with pytest.raises(NotebookError, match="it ended the kernel"):
        run(START, save, "import os; os.kill(os.getpid(), 9)")
    for pid in (tmp_path / "pids").read_text().split():
        if psutil.pid_exists(int(pid)):
            psutil.Process(int(pid)).wait(timeout=30)


SHELL = """
import sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="linux")
started = time.monotonic()
shell.run_line_magic("load_ext", "distlab")
took = time.monotonic() - started
print(took < 1, "tensorflow" in sys.modules)
"""


def test_loading_the_extension_waits_for_nothing_and_imports_no_tensorflow(run_python):
    warming = "from distlab.warm.keeper import shared_keeper\nshared_keeper()"
    assert run_python(SHELL + warming) == "True False\n"


def test_a_traceback_comes_in_the_colours_of_the_shell(run_python, warm):
    cell = (
        "sys.stderr = sys.stdout\nimport distlab as dl\ncluster = dl.LocalCluster(workers=1)\n"
        "shell.run_cell('%%workers\\n1/0')\ncluster.close()"
    )
    environ = kernel_environment() | {ADDRESS_VARIABLE: warm.address}
    assert "\x1b[" in run_python(SHELL + cell, environ=environ).partition("worker:0")[2]
