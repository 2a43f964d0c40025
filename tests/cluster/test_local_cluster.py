"""LocalCluster: what its tasks return and show, how it begins and ends."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

import distlab as dl
from distlab.cluster.gpus import share_gpus, visible_gpus
from distlab.cluster.local import kernel_group
from distlab.cluster.local.cluster import newest_open
from distlab.cluster.local.layout import ClusterLayout
from distlab.cluster.local.output_recorder import Recorder
from distlab.errors import InvalidArgument, ProcessError, TaskFailed, TaskTimeout
from distlab.warm.keeper import shared_keeper
from distlab.warm.process import ADDRESS_VARIABLE
from tests.support.local_tasks import (
    all_reduce,
    call_in_background,
    listener_on,
    my_index,
    sleep_forever,
    wait_until,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no such processes")
LOCK = threading.Lock()


# Results


def test_each_task_answers_in_task_order(shared):
    assert shared.tasks == ("worker:0", "worker:1")
    assert shared.run(my_index) == [0, 1]
    assert shared.run(lambda a, b: a + b, 2, 3) == [5, 5]


def test_two_workers_sum_over_the_network(two):
    assert two.run(all_reduce, 2.0) == [4.0, 4.0]


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [("worker:1", [1]), (["worker:1", "worker:0"], [0, 1]), ("worker", [0, 1])],
)
def test_tasks_are_chosen_by_name_or_job(shared, tasks, expected):
    assert shared.run(my_index, tasks=tasks) == expected


def test_a_task_that_is_not_there_is_named(shared):
    with pytest.raises(InvalidArgument) as caught:
        shared.run(my_index, tasks="worker:2")
    assert str(caught.value) == (
        "tasks='worker:2'\n"
        "  found: the cluster has no 'worker:2'\n"
        "  to do: did you mean 'worker:1'? Or choose one of 'worker', 'worker:0', 'worker:1'"
    )


def test_tensors_and_variables_come_back_as_arrays_at_any_depth(shared):
    def made():
        import keras
        import tensorflow as tf

        text = tf.constant("text")
        return {"a": [tf.Variable([1.0, 2.0]), (keras.Variable(3.0),)], "text": text}

    result = shared.run(made, tasks="worker:0")[0]
    array, (scalar,) = result["a"]
    assert isinstance(array, np.ndarray) and array.tolist() == [1.0, 2.0]
    assert scalar == 3.0 and result["text"] == b"text"


def test_each_worker_has_its_logical_devices():
    def devices():
        import tensorflow as tf

        return [device.name for device in tf.config.list_logical_devices("CPU")]

    with dl.LocalCluster(workers=1, devices_per_worker=3) as cluster:
        assert cluster.run(devices) == [["/device:CPU:0", "/device:CPU:1", "/device:CPU:2"]]


def test_what_a_task_is_told_can_be_read(shared):
    config = shared.tf_config("worker:1")
    assert config["task"] == {"type": "worker", "index": 1}
    assert len(config["cluster"]["worker"]) == 2


def test_environment_variables_are_set_and_taken_out(monkeypatch):
    monkeypatch.setenv("TAKEN_OUT", "1")
    with dl.LocalCluster(workers=1, env={"SET": "yes", "TAKEN_OUT": None}) as cluster:
        assert cluster.run(lambda: [os.environ.get(n) for n in ("SET", "TAKEN_OUT")]) == [
            ["yes", None]
        ]


def test_a_cell_gives_its_outputs_by_task(shared):
    code = "import json, os\nprint(json.loads(os.environ['TF_CONFIG'])['task']['index'])\n1 + 1"
    outputs = shared.execute(code)
    assert list(outputs) == ["worker:0", "worker:1"]
    text, result = outputs["worker:1"]
    assert (text["name"], text["text"]) == ("stdout", "1\n")
    assert result["data"] == {"text/plain": "2"}


def test_cells_of_a_task_share_their_names_and_calls_have_their_own(shared):
    shared.execute("kept = 5", tasks="worker:1")
    assert shared.execute("kept", tasks="worker:1")["worker:1"][0]["data"]["text/plain"] == "5"
    assert shared.run(lambda: "kept" in globals()) == [False, False]


def test_an_output_that_is_updated_is_given_as_it_is_in_the_end(shared):
    code = "shown = display('first', display_id=True)\nprint('text')\nshown.update('last')"
    shown, text = shared.execute(code, tasks="worker:0")["worker:0"]
    assert shown == {
        "output_type": "display_data",
        "data": {"text/plain": "'last'"},
        "metadata": {},
    }
    assert text["text"] == "text\n"


def test_figures_come_with_a_cell(shared):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    [figure] = shared.execute(code, tasks="worker:0")["worker:0"]
    assert figure["data"]["image/png"].startswith("iVBOR")


# What is shown


def test_what_functions_print_is_shown_task_by_task(shared, capfd):
    def talk():
        slow = my_index() == 0
        print("first")  # noqa: T201
        if slow:  # the other must wait for its turn
            time.sleep(0.3)
        print("last", file=sys.stderr)  # noqa: T201

    shared.run(talk)
    out, err = capfd.readouterr()
    assert out == "worker:0\nfirst\nworker:1\nfirst\n"
    assert err == "last\nlast\n"


def test_a_name_begins_a_line(shared, capfd):
    shared.run(lambda: sys.stdout.write("open"))
    assert capfd.readouterr().out == "worker:0\nopen\nworker:1\nopen"


def test_a_task_that_prints_nothing_is_not_named(shared, capfd):
    shared.run(lambda: sys.stdout.write("here\n" if my_index() else ""))
    assert capfd.readouterr().out == "worker:1\nhere\n"


def test_a_progress_bar_is_shown_as_it_ends(shared):
    code = (
        "for step in range(5):\n    print(f'\\rstep {step}', end='')\nprint()\nprint('x', end='')"
    )
    assert shared.execute(code, tasks="worker:0")["worker:0"][0]["text"] == "step 4\nx"


def test_megabytes_are_cut_short_and_the_rest_is_in_the_log(shared, capfd):
    def flood():
        for number in range(30_000):
            print(f"{number:0100}")  # noqa: T201

    shared.run(flood, tasks="worker:0")
    out = capfd.readouterr().out
    assert len(out) < 101_000
    assert out.endswith("\n... 2,930,000 more characters: cluster.logs('worker:0')\n")
    assert shared.logs("worker:0").endswith(f"{29_999:0100}\n")


def test_pictures_without_end_are_cut_short(shared):
    code = (
        "from IPython.display import display\n"
        "for number in range(30): display({'image/png': 'A' * 1_000_000}, raw=True)"
    )
    outputs = shared.execute(code, tasks="worker:0")["worker:0"]
    assert len(outputs) == 11
    assert outputs[-1]["text"] == "\n... 20 more outputs, not kept\n"


def test_outputs_that_must_wait_are_not_lost(shared, tmp_path, monkeypatch):
    add = Recorder.add

    def add_when_all_was_sent(recorder, message):
        wait_until((tmp_path / "sent").exists)
        return add(recorder, message)

    monkeypatch.setattr(Recorder, "add", add_when_all_was_sent)
    code = (
        "from IPython.display import display\nfor number in range(5000): display(number)\n"
        f"import pathlib; pathlib.Path({str(tmp_path / 'sent')!r}).touch()"
    )
    outputs = shared.execute(code, tasks="worker:0", timeout_secs=60)["worker:0"]
    assert [output["data"]["text/plain"] for output in outputs] == [str(n) for n in range(5000)]


def test_what_the_servers_are_open_to_is_said_once_in_a_process(run_python, warm_python):
    code = (
        "import distlab as dl\n"
        "for _ in range(2):\n"
        "    with dl.LocalCluster(workers=1): pass\n"
        "print('end')"
    )
    environ = {ADDRESS_VARIABLE: warm_python[0].address}
    assert run_python(code, environ=environ, warm=True) == (
        "While a cluster runs, TensorFlow's servers listen on every network interface without "
        "authentication: any program that reaches them can run code. LocalCluster(isolate=True) "
        "closes that.\nend\n"
    )


# Functions that cannot be sent, results that cannot come back


def iter_of_nothing():
    yield


def test_a_function_that_holds_what_cannot_be_sent_is_refused(shared):
    with pytest.raises(InvalidArgument) as caught:
        shared.run(lambda: LOCK)
    assert str(caught.value) == (
        "run(<lambda>) on tasks\n"
        "  found: its global 'LOCK', a _thread.lock, cannot be pickled: "
        "cannot pickle '_thread.lock' object\n"
        "  to do: make inside the function what only this process can hold (models, data sets, "
        "strategies, locks, open files), and give numbers, arrays and names as arguments"
    )
    held = iter_of_nothing()
    with pytest.raises(InvalidArgument, match="its variable 'held', a generator, cannot be"):
        shared.run(lambda: held)
    with pytest.raises(InvalidArgument, match=r"its argument 1, a _thread\.lock"):
        shared.run(my_index, 0, LOCK)


def test_what_cannot_be_called_is_refused(shared):
    with pytest.raises(InvalidArgument, match="found: a int, which cannot be called"):
        shared.run(3)


def test_a_result_that_cannot_come_back_is_told_with_its_type(shared):
    with pytest.raises(TaskFailed) as caught:
        shared.run(lambda: threading.Lock(), tasks="worker:1")
    assert str(caught.value) == (
        "<lambda>() on worker:1\n"
        "  found: worker:1 returned a _thread.lock, which cannot come back: "
        "cannot pickle '_thread.lock' object\n"
        "  to do: return numbers, text, arrays, or lists and dicts of them (history.history, "
        "weights)"
    )


def test_a_result_that_only_the_task_can_read_is_told(shared, tmp_path):
    (tmp_path / "only_there.py").write_text("class Thing: pass")

    def make(folder):
        sys.path.insert(0, folder)
        import only_there

        return only_there.Thing()

    with pytest.raises(TaskFailed) as caught:
        shared.run(make, str(tmp_path), tasks="worker:0")
    assert "found: worker:0 returned what this process cannot read: No module named" in str(
        caught.value
    )


def test_a_function_may_use_the_modules_of_its_folder(shared, tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("def double(x): return 2 * x")
    monkeypatch.syspath_prepend(tmp_path)

    def use(x):
        import beside

        return beside.double(x)

    assert shared.run(use, 4) == [8, 8]


# Beginning and end


def remains_of(cluster):
    pids = [task.pid for task in cluster.status().tasks]
    folder = cluster._kernels.folder
    addresses = [task.address for task in cluster.status().tasks]
    return pids, folder, addresses


def assert_gone(pids, folder, addresses):
    for pid in pids:
        wait_until(lambda pid=pid: not psutil.pid_exists(pid))
    assert not folder.exists()
    for address in addresses:
        listener_on(address).close()


def test_closing_ends_tasks_that_hang_in_under_a_second_and_leaves_nothing(tmp_path):
    cluster = dl.LocalCluster(workers=2)
    remains = remains_of(cluster)
    result = call_in_background(cluster.run, sleep_forever, str(tmp_path))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    started = time.monotonic()
    cluster.close()
    assert time.monotonic() - started < 1
    assert_gone(*remains)
    assert isinstance(result(), ProcessError)
    cluster.close()  # a second time does nothing
    with pytest.raises(ProcessError, match="found: the cluster is closed"):
        cluster.run(my_index)


def test_what_it_writes_lies_where_it_ends_with_the_process_that_keeps_the_tasks(shared):
    folder = shared._kernels.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent == shared_keeper().folder


def test_leaving_by_an_error_closes():
    with pytest.raises(KeyError), dl.LocalCluster(workers=1) as cluster:
        remains = remains_of(cluster)
        raise KeyError
    assert_gone(*remains)


def test_a_cluster_that_nobody_holds_any_more_is_closed():
    cluster = dl.LocalCluster(workers=1)
    remains = remains_of(cluster)
    del cluster
    assert_gone(*remains)


def test_five_starts_and_stops_in_a_row():
    for _ in range(5):
        with dl.LocalCluster(workers=2) as cluster:
            assert cluster.run(all_reduce) == [2.0, 2.0]


def test_two_clusters_at_once_do_not_meet(two):
    with dl.LocalCluster(workers=2) as other:
        assert newest_open() is other
        assert other.run(all_reduce, 5.0) == [10.0, 10.0]
        assert two.run(all_reduce, 1.0) == [2.0, 2.0]
    assert newest_open() is two


def test_tasks_end_when_their_owner_is_killed(warm_python):
    code = (
        "import distlab as dl, time\n"
        "cluster = dl.LocalCluster(workers=2)\n"
        "print(*[task.pid for task in cluster.status().tasks], flush=True)\n"
        "cluster.run(time.sleep, 600)"
    )
    command, env = (
        [sys.executable, "-c", code],
        os.environ | {ADDRESS_VARIABLE: warm_python[0].address},
    )
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as owner:
        lines = iter(owner.stdout.readline, "")
        pids = next(line for line in lines if line[0].isdigit()).split()
        owner.kill()
    for pid in pids:
        wait_until(lambda pid=pid: not psutil.pid_exists(int(pid)))


def test_without_the_warm_process_all_is_the_same_but_slower(run_python, warm_python):
    code = (
        "import distlab as dl\n"
        "def work(): import os, tensorflow as tf; return os.environ['TF_CONFIG'][-12:]\n"
        "with dl.LocalCluster(workers=1, start_timeout_secs=300) as cluster:\n"
        "    print(cluster.run(work), cluster.execute('1 + 1')['worker:0'][0]['data'])"
    )
    cold = run_python(code, environ={"DISTLAB_WARM": "0"})
    warm = {ADDRESS_VARIABLE: warm_python[0].address}
    assert cold == run_python(code, environ=warm, warm=True)
    assert "['\"index\": 0}}'] {'text/plain': '2'}" in cold


def test_a_task_that_ends_while_it_starts_is_told_with_its_last_words():
    with pytest.raises(TaskFailed) as caught:
        dl.LocalCluster(workers=1, env={"PYTHONHOME": "/nowhere"})
    assert "worker:0 to start\n  found: worker:0 ended with exit code 1; its last words:" in str(
        caught.value
    )
    assert "No module named 'encodings'" in str(caught.value)


def test_a_start_that_takes_too_long_is_told():
    with pytest.raises(TaskTimeout) as caught:
        dl.LocalCluster(workers=2, start_timeout_secs=0.001)
    assert str(caught.value) == (
        "worker:0, worker:1 to start within 0.001 s\n"
        "  found: worker:0, worker:1 did not answer\n"
        "  to do: give start_timeout_secs more, or end other work on this machine"
    )


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"workers": 0}, "LocalCluster(workers=0)"),
        ({"workers": True}, "LocalCluster(workers=True)"),
        ({"parameter_servers": -1}, "LocalCluster(parameter_servers=-1)"),
        ({"devices_per_worker": 0}, "LocalCluster(devices_per_worker=0)"),
        ({"restart": -1}, "LocalCluster(restart=-1)"),
        (
            {"parameter_servers": 1, "devices_per_worker": 2},
            "LocalCluster(parameter_servers=1, devices_per_worker=2)",
        ),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, asked):
    with pytest.raises(InvalidArgument) as caught:
        dl.LocalCluster(**options)
    assert caught.value.asked == asked


def test_status_is_readable(shared):
    status = shared.status()
    first = status.tasks[0]
    assert repr(status).splitlines()[0] == (
        f"worker:0  pid {first.pid}  idle  CPU  {first.address}"
    )
    assert status._repr_html_().count("<tr>") == 2


# GPUs


def fake_driver(folder, count):
    for number in range(count):
        (folder / f"0000:{number:02}:00.0").mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("there", "chosen", "expected"),
    [
        (0, None, []),
        (0, "0", []),
        (2, None, ["0", "1"]),
        (2, "1", ["1"]),
        (2, "", []),
        (2, "-1", []),
        (3, "2, GPU-abc,-1,0", ["2", "GPU-abc"]),
    ],
)
def test_gpus_are_counted_without_tensorflow(tmp_path, there, chosen, expected):
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert visible_gpus(environ, fake_driver(tmp_path, there)) == expected


def test_each_worker_gets_a_gpu_of_its_own():
    spec = ClusterLayout(workers=2, parameter_servers=1, chief=True).spec([1, 2, 3, 4])
    share = share_gpus(spec, ["2", "3"])
    assert {str(task): gpu for task, gpu in share.of_task.items()} == {
        "chief:0": "-1", "worker:0": "2", "worker:1": "3", "ps:0": "-1",
    }  # fmt: skip
    assert share.note == ""


def test_where_gpus_are_too_few_all_tasks_run_on_the_cpu_and_it_is_said(monkeypatch, capfd):
    monkeypatch.setattr(kernel_group, "visible_gpus", lambda: ["0"])
    with dl.LocalCluster(workers=2) as cluster:
        assert cluster.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"]) == ["-1", "-1"]
        status = cluster.status()
        assert status.note == "1 GPU for 2 tasks: all of them run on the CPU"
        assert status.note in capfd.readouterr().err
        assert repr(status).endswith(status.note)
        assert status.note in status._repr_html_()
        assert {task.device for task in status.tasks} == {"CPU"}


def test_where_gpus_are_enough_each_task_sees_its_own(monkeypatch):
    monkeypatch.setattr(kernel_group, "visible_gpus", lambda: ["0", "1"])
    with dl.LocalCluster(workers=2) as cluster:
        assert cluster.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"]) == ["0", "1"]
        assert [task.device for task in cluster.status().tasks] == ["GPU 0", "GPU 1"]
