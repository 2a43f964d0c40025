"""Kernels from a warm process, and the running of notebooks."""

import os
import sys

import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from distlab.authoring.execute import execute, kernel_environment
from distlab.cluster.warm.process import ADDRESS_VARIABLE, WarmServer, can_fork
from distlab.errors import NotebookError

LIGHT = ("ipykernel.kernelapp", "ipykernel.ipkernel", "ipykernel.zmqshell", "matplotlib.pyplot")


@pytest.fixture(scope="module")
def warm():
    """A warm process as the regression has it, without what takes long to import."""
    if not can_fork():
        pytest.skip("nothing may be forked here")
    with WarmServer(preload=LIGHT, env=kernel_environment()) as process:
        yield process


@pytest.fixture
def forked(warm, monkeypatch):
    monkeypatch.setenv(ADDRESS_VARIABLE, warm.address)


def notebook(*sources):
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def shown(*sources, **options):
    """What the last of some cells prints."""
    return execute(notebook(*sources), **options).cells[-1].outputs[0]["text"]


FACTS = f"import os, sys; print(os.getppid() == {os.getpid()}, 'matplotlib.pyplot' in sys.modules)"


def test_a_kernel_is_forked_where_it_can_be_and_comes_out_as_a_fresh_one(
    warm, forked, monkeypatch, tmp_path
):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    (tmp_path / "kernels" / "python3").mkdir(parents=True)
    (tmp_path / "kernels" / "python3" / "kernel.json").write_text(
        '{"argv": ["false"], "display_name": "not this", "language": "python"}'
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    cells = [
        "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]);",
        "import ipywidgets\n@ipywidgets.interact(x=3)\ndef f(x): print('x is', x)",
        "handle = display('first', display_id=True)",
        "handle.update('last')",
        "import os, subprocess, sys\nos.system('echo child'); os.write(2, b'from C')\n"
        "left = [name for name in os.environ if name[:5] in ('PYTES', 'TF_CO', 'SLURM')]\n"
        "print(sys.executable, sys.argv[1:2], os.listdir('.'), os.environ['COLUMNS'], left)",
    ]
    fork = execute(notebook(*cells))
    assert shown(FACTS) == "False True\n"
    draw = "import random, numpy; print(random.random(), numpy.random.rand())"
    first, second = shown(draw).split(), shown(draw).split()
    assert first[0] != second[0] and first[1] != second[1]
    monkeypatch.setenv(ADDRESS_VARIABLE, str(tmp_path / "gone"))  # costs only time
    fresh = execute(notebook(*cells))
    outputs = [[cell.outputs for cell in run.cells] for run in (fork, fresh)]
    assert outputs[0] == outputs[1]
    assert "image/png" in fresh.cells[0].outputs[0].data
    assert fresh.cells[2].outputs[0].data["text/plain"] == "'last'"
    [output] = fresh.cells[4].outputs  # and nothing of what was written past Python
    assert output["text"] == f"{sys.executable} ['-f'] [] 80 []\n"
    monkeypatch.setenv(ADDRESS_VARIABLE, warm.address)
    monkeypatch.setenv("DISTLAB_WARM", "0")
    assert shown(FACTS) == "True False\n"


def test_each_cell_is_announced_the_given_notebook_kept_and_no_kernel_left(forked, tmp_path):
    given = notebook("1", "1/0", "1/0", "import os; print(os.getcwd(), os.listdir(), os.getpid())")
    given.cells.insert(1, new_markdown_cell("text"))
    given.cells[2].metadata["tags"] = ["nbval-skip"]
    given.cells[3].metadata["tags"] = ["raises-exception"]
    seen = []
    fresh = execute(
        given,
        cwd=tmp_path,
        on_cell=lambda index, cell: seen.append((index, cell.execution_count)),
    )
    assert seen == [(0, 1), (3, 2), (4, 3)]
    assert given.cells[0].outputs == [] and fresh.cells[0].outputs
    [error] = fresh.cells[3].outputs
    assert error.traceback == ["ZeroDivisionError: division by zero\n"]
    folder, files, pid = fresh.cells[4].outputs[0]["text"].split()
    assert (folder, files) == (str(tmp_path), "[]")
    assert not psutil.pid_exists(int(pid))


def test_a_cell_that_fails_is_named_and_nothing_after_it_runs(forked, tmp_path):
    with pytest.raises(NotebookError) as caught:
        execute(notebook("a = 1", "a / 0", "open('after', 'w')"), cwd=tmp_path)
    assert str(caught.value) == (
        "cell 1 to run:\n    a / 0\n"
        "  found: it raised ZeroDivisionError: division by zero\n"
        "  to do: repair the cell"
    )
    assert not (tmp_path / "after").exists()
    tagged = notebook("1")
    tagged.cells[0].metadata["tags"] = ["raises-exception"]
    with pytest.raises(NotebookError, match="raised nothing, and is tagged raises-exception"):
        execute(tagged)
    code = "import os; os.write(2, b'the reason'); os._exit(1)"
    with pytest.raises(NotebookError, match=r"(?s)ended the kernel, whose last words.*the reason"):
        execute(notebook(code), cell_timeout_secs=10_000)
    with pytest.raises(NotebookError, match="still ran after 1 s"):
        execute(notebook("import time\ntime.sleep(3600)"), cell_timeout_secs=1)
