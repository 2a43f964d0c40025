"""Kernels from the warm process, with TensorFlow imported in it, and the running of notebooks."""

import asyncio
import os
import sys
from queue import Empty

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from distlab.errors import NotebookError
from distlab.notebooks.execute import _ShellChannel, execute
from distlab.notebooks.kernel_environment import kernel_environment
from distlab.warm.process import ADDRESS_VARIABLE, WarmProcess, can_fork

needs_fork = pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")


@pytest.fixture(scope="module")
def warm():
    """The real one. It warms in the background while the first tests run."""
    if not can_fork():
        yield None
        return
    with WarmProcess(env=kernel_environment()) as process:
        yield process


@pytest.fixture
def forked(warm, monkeypatch):
    if warm:
        monkeypatch.setenv(ADDRESS_VARIABLE, warm.address)


@pytest.fixture
def cold(monkeypatch):
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)


def notebook(*sources):
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def shown(source):
    return execute(notebook(source)).cells[0].outputs[0]["text"]


def written(notebook):
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    return nbformat.writes(notebook)


EVERYTHING = (
    "import tensorflow as tf\n"
    "cpu = tf.config.list_physical_devices('CPU')[0]\n"
    "two = [tf.config.LogicalDeviceConfiguration()] * 2\n"
    "tf.config.set_logical_device_configuration(cpu, two)",
    "strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])\nstrategy",
    "strategy.num_replicas_in_sync",
    "import logging; logging.getLogger('tensorflow').warning('by its logger')",
    "from absl import logging as absl_logging; absl_logging.warning('by the other')",
    "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]);",
    "import ipywidgets\n@ipywidgets.interact(x=3)\ndef f(x): print('x is', x)",
    "handle = display('first', display_id=True)",
    "handle.update('last')",
    "import os, sys\nprint(sys.argv[1:2], os.listdir('.'), os.environ['COLUMNS'])",
    "import keras; keras.utils.set_random_seed(1); print(keras.random.normal((1,)).numpy())",
)


@needs_fork
def test_notebooks_come_out_the_same_from_a_fork_as_from_a_fresh_start(warm, monkeypatch):
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    source = notebook(*EVERYTHING)
    source.cells[1].source += ".extended.__class__.__name__"
    fresh = execute(source)
    monkeypatch.setenv(ADDRESS_VARIABLE, warm.address)
    assert written(execute(source)) == written(fresh)
    assert "image/png" in fresh.cells[5].outputs[0].data
    assert fresh.cells[7].outputs[0].data["text/plain"] == "'last'"


@needs_fork
def test_a_kernel_is_forked_from_the_warm_process(warm, forked):
    assert shown("import os; print(os.getppid())") == f"{warm.pid}\n"


@needs_fork
def test_nothing_of_tensorflow_is_initialised_before_the_fork(forked):
    code = "from tensorflow.python.eager import context; print(context.context()._initialized)"
    assert shown(code) == "False\n"


@needs_fork
def test_tensorflow_is_there_already(forked):
    assert shown("import sys; print('tensorflow' in sys.modules)") == "True\n"


@needs_fork
def test_kernels_draw_other_random_numbers(forked):
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    one, other = shown(code).split(), shown(code).split()
    assert one[0] != other[0] and one[1] != other[1]


@needs_fork
def test_one_switch_starts_kernels_cold(warm, forked, monkeypatch):
    monkeypatch.setenv("DISTLAB_WARM", "0")
    assert shown("import os, sys; print(os.getppid(), 'tensorflow' in sys.modules)") == (
        f"{os.getpid()} False\n"
    )


def test_a_warm_process_that_has_gone_costs_only_time(monkeypatch, tmp_path):
    monkeypatch.setenv(ADDRESS_VARIABLE, str(tmp_path / "gone"))
    assert shown("import os; print(os.getppid())") == f"{os.getpid()}\n"


def test_the_kernel_is_this_interpreter_whatever_kernelspecs_there_are(monkeypatch, tmp_path, cold):
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(
        '{"argv": ["false"], "display_name": "not this", "language": "python"}'
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    assert shown("import sys; print(sys.executable)") == f"{sys.executable}\n"


def test_the_environment_around_a_test_does_not_reach_a_notebook(monkeypatch, forked):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    code = "import os; print([n for n in os.environ if n[:5] in ('PYTES', 'TF_CO', 'SLURM')])"
    assert shown(code) == "[]\n"


def test_what_is_written_past_python_is_in_no_output(forked):
    code = (
        "import os, subprocess\n"
        "os.system('echo child'); os.write(2, b'from C'); subprocess.run(['echo', 'child'])\n"
        "print('by Python')"
    )
    [output] = execute(notebook(code)).cells[0].outputs
    assert output["text"] == "by Python\n"


def test_a_notebook_starts_in_an_empty_folder_or_the_one_given(forked, tmp_path):
    code = "import os; print(os.getcwd(), os.listdir())"
    assert shown(code).endswith("empty []\n")
    [output] = execute(notebook(code), cwd=tmp_path).cells[0].outputs
    assert output["text"] == f"{tmp_path} []\n"


def test_each_cell_is_told_of_and_the_given_notebook_kept(forked):
    given = notebook("1", "2;")
    given.cells.insert(1, new_markdown_cell("text"))
    seen = []
    fresh = execute(given, on_cell=lambda index, cell: seen.append((index, cell.execution_count)))
    assert seen == [(0, 1), (2, 2)]
    assert given.cells[0].outputs == [] and fresh.cells[0].outputs
    assert fresh.cells[2].outputs == []


def test_a_cell_tagged_to_be_skipped_is_not_run(forked):
    given = notebook("1/0", "2")
    given.cells[0].metadata["tags"] = ["nbval-skip"]
    assert [cell.execution_count for cell in execute(given).cells] == [None, 1]


def test_a_cell_that_raises_is_named_and_nothing_after_it_runs(forked, tmp_path):
    with pytest.raises(NotebookError) as caught:
        execute(notebook("a = 1", "a / 0", "open('after', 'w')"), cwd=tmp_path)
    assert str(caught.value) == (
        "cell 1 to run:\n    a / 0\n"
        "  found: it raised ZeroDivisionError: division by zero\n"
        "  to do: repair the cell"
    )
    assert not (tmp_path / "after").exists()


def test_a_cell_tagged_to_raise_must(forked):
    given = notebook("1/0")
    given.cells[0].metadata["tags"] = ["raises-exception"]
    [output] = execute(given).cells[0].outputs
    assert (output.ename, output.traceback) == (
        "ZeroDivisionError",
        ["ZeroDivisionError: division by zero\n"],
    )
    given.cells[0].source = "1"
    with pytest.raises(NotebookError, match="raised nothing, and is tagged raises-exception"):
        execute(given)


def test_a_cell_that_ends_the_kernel_is_told_at_once_with_its_last_words(forked):
    code = "import os; os.write(2, b'the reason'); os._exit(1)"
    with pytest.raises(NotebookError, match=r"(?s)ended the kernel, whose last words.*the reason"):
        execute(notebook(code), cell_timeout_secs=10_000)


def test_a_cell_that_takes_too_long_is_told(forked):
    with pytest.raises(NotebookError, match="still ran after 1 s"):
        execute(notebook("while True: pass"), cell_timeout_secs=1)


def test_a_reply_whose_notice_was_lost_is_found_soon():
    class Socket:
        polls = 0

        async def poll(self, milliseconds):
            assert milliseconds < 1000
            self.polls += 1
            return self.polls > 1  # the message is there, but ZeroMQ does not wake the first poll

    async def receive():
        return {"the": "reply"}

    channel = _ShellChannel.__new__(_ShellChannel)
    channel.socket, channel._recv = Socket(), receive
    assert asyncio.run(channel.get_msg(timeout=300)) == {"the": "reply"}
    channel.socket.polls = -1000
    with pytest.raises(Empty):
        asyncio.run(channel.get_msg(timeout=0.01))


def test_no_kernel_outlives_its_notebook(forked, tmp_path):
    pid = int(shown("import os; print(os.getpid())"))
    assert not psutil.pid_exists(pid)
