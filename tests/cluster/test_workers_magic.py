"""%%workers in real notebooks: what it shows, and how it fails."""

import json
import os
import re
import signal

import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from distlab.authoring.execute import execute, kernel_environment
from distlab.cluster.warm.process import ADDRESS_VARIABLE, WarmServer, can_fork
from tests.support.live_kernel import live_kernel
from tests.support.local_tasks import wait_until

pytestmark = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")

START = "import distlab as dl\n%load_ext distlab\ncluster = dl.LocalCluster(workers=2)"
INDEX = "import json, os\nindex = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"


@pytest.fixture(autouse=True, scope="module")
def forked():
    """The kernels of notebooks, and their tasks, are forked."""
    environ = kernel_environment()
    process, patches = WarmServer(env=environ), pytest.MonkeyPatch
    with process as warm, patches.context() as patch:
        patch.setenv(ADDRESS_VARIABLE, warm.address)
        yield


@pytest.fixture(scope="module")
def kernel(forked):
    """A kernel with a cluster, whose tasks end with it."""
    with live_kernel() as kernel:
        kernel.run(START)
        [(_, pids)] = kernel.run("[task.pid for task in cluster.status().tasks]")
        yield kernel
    for pid in json.loads(pids):
        wait_until(lambda pid=pid: not psutil.pid_exists(pid))


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
        elif output.data:  # else it was taken back
            kinds = "picture" if "image/png" in output.data else output.output_type
            short.append((kinds, output.data["text/plain"]))
    return short


def test_a_notebook_shows_its_tasks_in_order_and_their_failures_by_line(tmp_path):
    cells = {
        "start": START,
        "print": f"""%%workers
{INDEX}
import pathlib, sys, time
while index == 0 and not pathlib.Path({str(tmp_path)!r}, "1").exists(): time.sleep(0.01)
print("I am", index)
print("warned", file=sys.stderr)
pathlib.Path({str(tmp_path)!r}, str(index)).touch()
index""",
        "reduce": """%%workers
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def total():
    return strategy.run(
        lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(index + 1.0))
    )
print(float(total()))""",
        "draw": """%%workers worker:1
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.show()
print("below the figure")""",
        "watch": f"""import pathlib
def note(message):
    if "seen live" in str(message["content"].get("data")):
        pathlib.Path({str(tmp_path)!r}, "shown").touch()
    return message
get_ipython().display_pub.register_hook(note)""",
        "draw both": """%%workers
import matplotlib.pyplot as plt
print("seen live", flush=True)
while not pathlib.Path(FOLDER, "shown").exists(): time.sleep(0.01)
plt.plot([1, 2])
plt.show()
print("below")""".replace("FOLDER", repr(str(tmp_path))),
        "display": "%%workers\nshown = display('first', display_id='the same on both')",
        "update": "%%workers\nshown.update(f'last of {index}')",
        "fail": "%%workers\nif index == 1:\n    raise ValueError('boom')",
        "define": "def refuse(x):\n    if x:\n        raise KeyError(x)",
        "define more": "def work(x):\n    refuse(x)\n    return x",
        "call": "cluster.run(work, 0)",
        "call wrongly": "cluster.run(work, 1)",
        "close": "cluster.close()",
    }
    names = list(cells)
    raises = [names.index("fail"), names.index("call wrongly")]
    notebook = run(*cells.values(), raises=raises)
    outputs = dict(zip(names, map(outputs_of, notebook.cells), strict=True))
    first, second = ("display_data", "worker:0"), ("display_data", "worker:1")
    text = "worker:0\nI am 0\nwarned\n0\nworker:1\nI am 1\nwarned\n1"
    assert outputs["print"] == [("display_data", text)]
    assert outputs["reduce"] == [("display_data", "worker:0, worker:1\n3.0")]
    picture = ("picture", "<Figure size 640x480 with 1 Axes>")
    assert outputs["draw"] == [second, picture, ("stdout", "below the figure\n")]
    assert outputs["draw both"] == [
        *[first, ("stdout", "seen live\n"), picture, ("stdout", "below\n")],
        *[second, ("stdout", "seen live\n"), picture, ("stdout", "below\n")],
    ]
    last = [("display_data", f"'last of {index}'") for index in (0, 1)]
    assert outputs["display"] == [first, last[0], second, last[1]]
    found = "a cell on worker:0, worker:1\n  found: worker:1 raised ValueError: boom\n"
    error = f"{found}  to do: repair what it ran, and run it again; all tasks were kept"
    assert outputs["fail"] == [("display_data", "worker:1\nValueError: boom"), ("error", error)]
    shown = notebook.cells[raises[0]].outputs[-1].traceback
    assert shown == [f"TaskFailed: {error.splitlines()[0]}", *error.splitlines()[1:]]
    assert outputs["call"] == [("execute_result", "[0, 0]")]
    [(kind, text)] = outputs["call wrongly"]
    without_marks = re.sub(r"\n +[~^]+(?=\n)", "", text)  # below a line, since Python 3.13
    assert [(kind, without_marks)] == [
        (
            "error",
            "work() on worker:0, worker:1\n"
            "  found: worker:0 raised KeyError: 1\n"
            '      File "<cell>", line 2, in work\n'
            "        refuse(x)\n"
            '      File "<cell>", line 3, in refuse\n'
            "        raise KeyError(x)\n"
            "  and worker:1 raised KeyError: 1\n"
            "  to do: repair what it ran, and run it again; all tasks were kept",
        )
    ]


def test_mistakes_in_its_line_are_told_and_interrupts_stop_the_tasks(tmp_path):
    interrupt = (
        "import os, signal, threading, time\n"
        "def interrupt():\n"
        f"    while not os.path.exists({str(tmp_path / 'busy')!r}): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()"
    )
    hang = f"%%workers\nimport pathlib\npathlib.Path({str(tmp_path / 'busy')!r}).touch()\n"
    name = "import os; print(os.environ.get('NAME'))"
    notebook = run(
        "%load_ext distlab",
        "%%workers\n1",
        "import distlab as dl; cluster = dl.LocalCluster(workers=1)",
        "%%workers worker:1\n1",
        "%%workers --time 3\n1",
        "%%workers --timeout 0.5\nimport time; time.sleep(3600)",
        "other = dl.LocalCluster(workers=1, env={'NAME': 'other'})",
        f"%%workers\n{name}",
        "other.close()",
        f"%%workers worker:0\n{name}",
        interrupt,
        f"{hang}import time; time.sleep(3600)",
        "cluster.run(lambda: 'alive')",
        raises=[1, 3, 4, 5, 11],
    )
    errors = [outputs_of(notebook.cells[number])[-1][1] for number in (1, 3, 4, 5)]
    assert errors[:3] == [
        "%%workers\n  found: no cluster is open\n"
        "  to do: make one in a cell before: cluster = dl.LocalCluster(workers=2)",
        "tasks=['worker:1']\n  found: the cluster has no 'worker:1'\n"
        "  to do: did you mean 'worker:0'? Or choose one of 'worker', 'worker:0'",
        "%%workers --time 3\n  found: unrecognized arguments: --time\n"
        "  to do: write %%workers [TASK ...] [--timeout SECS]",
    ]
    assert errors[3].startswith(
        "a cell on worker:0 within 0.5 s\n  found: worker:0 did not finish\n"
    )
    names = [outputs_of(notebook.cells[number])[1][1] for number in (7, 9)]
    assert names == ["other\n", "None\n"]
    assert notebook.cells[11].outputs[-1].ename == "Interrupted"
    assert outputs_of(notebook.cells[12]) == [("execute_result", "['alive']")]


STUCK = """%%workers
from tests.support.local_tasks import all_reduce, wait_on_1
kept = "kept"
all_reduce(then=wait_on_1)"""
WATCH = """
from pathlib import Path
from distlab.cluster.local import output_columns, runner
output_columns.QUIET_SECS = 0.1
def note(message):
    text = str(message["content"].get("data"))
    if "waiting in TensorFlow" in text and "wait_on_1, line " in text:
        Path(FOLDER, "stuck").touch()
    if "waiting in TensorFlow" in text and " idle " in text:
        Path(FOLDER, "one is back").touch()
    return message
get_ipython().display_pub.register_hook(note)
"""
AGAIN = "cluster.restart() and make the strategy again"


def test_an_interrupt_keeps_each_task_that_comes_back_and_says_which(kernel, tmp_path):
    wait = f"%%workers\n{INDEX}import pathlib, threading\nkept = 'kept'\n"
    wait += f"pathlib.Path({str(tmp_path)!r}, str(index)).touch()\nthreading.Event().wait()"
    outputs = kernel.interrupt_when(lambda: len(list(tmp_path.iterdir())) == 2, code=wait)
    assert outputs[-1] == (
        "error",
        "interrupted: a cell on worker:0, worker:1\n"
        "  found: worker:0, worker:1 were kept, with their variables\n"
        f"  to do: go on; if a collective then hangs or fails, {AGAIN}",
    )
    both_kept = [("display_data", "worker:0, worker:1\n'kept'")]
    assert kernel.run("%%workers\nkept") == both_kept
    # One of them now waits in an all-reduce, where no interrupt reaches it. What is shown while
    # nothing is printed says so.
    kept = "worker:1 was kept, with its variables"
    for is_patient in (True, False):
        folder = tmp_path / str(is_patient)
        folder.mkdir()
        kernel.run(WATCH.replace("FOLDER", repr(str(folder))))
        conditions = [(folder / "stuck").exists]
        if not is_patient:  # a second interrupt waits no longer, however long the first one would
            kernel.run("runner.GRACE_SECS = 3600")
            conditions.append((folder / "one is back").exists)
        [_, (kind, text)] = kernel.interrupt_when(*conditions, code=STUCK)
        asked, found, *where, do = text.splitlines()
        assert (kind, asked) == ("error", "interrupted: a cell on worker:0, worker:1")
        assert found == f"  found: {kept}; worker:0 was stopped, for it did not come back"
        assert do == f"  to do: copy what you need from worker:1, then {AGAIN}"
        place = r"    worker:0 waits in all_reduce, line \d+, inside \w+: total = step\(\)"
        assert len(where) == is_patient and all(re.fullmatch(place, line) for line in where)
        assert kernel.run("%%workers worker:1\nkept")[1:] == [("display_data", "'kept'")]
        [(_, states)] = kernel.run("[task.state for task in cluster.status().tasks]")
        assert states == "['was ended by SIGKILL', 'idle']"
        kernel.run("cluster.restart()")


def test_tab_completes_what_the_tasks_hold_and_runs_nothing_of_it(kernel):
    kernel.run("here_only = 1")
    kernel.run(
        "%%workers\n"
        f"{INDEX}"
        "class Held:\n"
        "    def __getattr__(self, name): calls.append(name)\n"
        "    @property\n"
        "    def held_property(self): calls.append('property')\n"
        "calls, held_first = [], Held()\n"
        "held_first.held_inside = held_first\n"
        "if index == 1: held_second = 1"
    )
    complete = kernel.complete
    assert complete("%%workers\nprint(held_") == ["held_first", "held_second"]
    assert complete("%%workers worker:0\nprint(held_") == ["held_first"]
    holders = [each["type"] for each in kernel.completions("%%workers\nprint(held_")]
    assert holders == ["all", "worker:1"]
    assert complete("%%workers\nheld_first.held_") == ["held_inside", "held_property"]
    assert complete("%%workers\nheld_first.held_inside.held_i") == ["held_inside"]
    assert complete("%%workers\nheld_first.held_property.") == []
    assert complete("%%workers\nheld_first.missing.") == []
    assert complete("%%workers\nisins") == ["isinstance"]
    assert complete("here_o") == ["here_only"]
    assert complete("%%workers\nhere_o") == ["here_o"]
    assert complete("%%workers\n%%time") == complete("%%time")
    assert complete("%%workers worker:9\nheld_") == []
    assert complete("%%workers work") == ["worker", "worker:0", "worker:1"]
    assert kernel.run("%%workers\ncalls") == [("display_data", "worker:0, worker:1\n[]")]
    [(_, pid)] = kernel.run("cluster.status().tasks[1].pid")
    # One that says nothing is not waited for, and neither is one that runs something.
    kernel.run("%%workers\nheld_third = 3")
    os.kill(int(pid), signal.SIGSTOP)
    assert complete("%%workers\nheld_") == ["held_first", "held_second", "held_third"]
    os.kill(int(pid), signal.SIGCONT)
    kernel.run(
        "import threading\nevent = threading.Event()\n"
        "thread = threading.Thread(target=lambda: cluster.execute("
        "'import threading; threading.Event().wait()', tasks='worker:1'))\n"
        "thread.start()\n"
        "while cluster.status().tasks[1].state == 'idle': pass"
    )
    assert complete("%%workers worker:1\nheld_s") == ["held_second"]
    kernel.run("cluster.kill('worker:1'); thread.join(); cluster.restart()")
    assert complete("%%workers worker:1\nheld_s") == ["held_s"]
