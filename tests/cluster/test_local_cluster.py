"""LocalCluster: what its tasks return and show, how they fail, and that nothing of it is left."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

import distlab as dl
from distlab.cluster import deadline
from distlab.cluster.gpus import share_gpus, visible_gpus
from distlab.cluster.local import runner
from distlab.cluster.local.cluster import NOTICE
from distlab.cluster.local.task_errors import read_waits
from distlab.cluster.spec import Layout
from distlab.cluster.warm.process import ADDRESS_VARIABLE, shared_server
from distlab.errors import Interrupted, InvalidArgument, ProcessError, TaskFailed, TaskTimeout
from tests.support.limits import HANG_SECS
from tests.support.local_tasks import (
    all_are_in,
    all_reduce,
    call_in_background,
    die_on_1,
    fail_on_1,
    late_once,
    listener_on,
    my_index,
    sleep_forever,
    wait_on_1,
    wait_until,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no such processes")
LOCK = threading.Lock()


# What comes back, and what is shown


def test_each_task_answers_in_task_order_and_is_chosen_by_name_or_job(shared):
    assert shared.tasks == ("worker:0", "worker:1")
    assert shared.run(all_reduce, 5.0) == [10.0, 10.0]  # they meet before TensorFlow is used alone
    assert shared.run(lambda a, b: a + b + my_index(), 2, 3) == [5, 6]
    for tasks, expected in (("worker:1", [1]), (["worker:1", "worker:0"], [0, 1])):
        assert shared.run(my_index, tasks=tasks) == expected
    with pytest.raises(InvalidArgument) as caught:
        shared.run(my_index, tasks="worker:2")
    assert str(caught.value) == (
        "tasks='worker:2'\n"
        "  found: the cluster has no 'worker:2'\n"
        "  to do: did you mean 'worker:1'? Or choose one of 'worker', 'worker:0', 'worker:1'"
    )
    config = shared.tf_config("worker:1")
    assert config["task"] == {"type": "worker", "index": 1}
    assert len(config["cluster"]["worker"]) == 2
    status = shared.status()
    first = status.tasks[0]
    assert [task.state for task in status.tasks] == ["idle", "idle"]
    columns = ["worker:0", "idle", f"{first.secs:.0f} s", "CPU", str(first.pid), first.address]
    assert repr(status).splitlines()[1].split() == " ".join(columns).split()


def test_a_cells_outputs_come_by_task_and_its_names_stay(shared):
    code = """
import json, os
index = json.loads(os.environ['TF_CONFIG'])['task']['index']
for step in range(5):
    print(f"\\rstep {step}", end="")
index + 1"""
    outputs = shared.execute(code)
    assert list(outputs) == ["worker:0", "worker:1"]
    text, result = outputs["worker:1"]
    assert (text["name"], text["text"]) == ("stdout", "step 4")  # as a progress bar ends
    assert result["data"] == {"text/plain": "2"}
    assert shared.execute("index")["worker:1"][0]["data"]["text/plain"] == "1"
    assert shared.run(lambda: "index" in globals()) == [False, False]


def test_too_much_output_is_cut_short_and_the_rest_is_in_the_log(shared, capfd):
    def flood():
        for number in range(2000):
            print(f"{number:01000}")  # noqa: T201

    shared.run(flood, tasks="worker:0")
    out = capfd.readouterr().out
    assert len(out) < 101_000
    assert out.endswith("more characters: cluster.logs('worker:0')\n")
    assert shared.logs("worker:0").endswith(f"{1999:01000}\n")


def test_what_functions_print_is_shown_under_the_name_of_each_task(shared, capfd, tmp_path):
    def talk(folder):
        print("first")  # noqa: T201
        if my_index() == 0:  # the other has said all, and must wait for its turn
            wait_until(Path(folder, "said").exists)
        sys.stderr.write("last\n")
        sys.stderr.flush()
        Path(folder, "said").touch() if my_index() else None
        sys.stdout.write("open")

    shared.run(talk, str(tmp_path))
    out, err = capfd.readouterr()
    assert out == "worker:0\nfirst\nopen\nworker:1\nfirst\nopen"
    assert err == "last\nlast\n"
    shared.run(lambda: sys.stdout.write("here\n" if my_index() else ""))
    assert capfd.readouterr().out == "worker:1\nhere\n"


def test_what_cannot_be_sent_or_come_back_is_named(shared, tmp_path, monkeypatch):
    with pytest.raises(InvalidArgument) as caught:
        shared.run(lambda: LOCK)
    assert caught.value.found == (
        "its global 'LOCK', a _thread.lock, cannot be pickled: cannot pickle '_thread.lock' object"
    )
    assert caught.value.do.startswith("make inside the function what only this process can hold")
    held = (number for number in range(3))
    with pytest.raises(InvalidArgument, match="its variable 'held', a generator, cannot be"):
        shared.run(lambda: held)
    with pytest.raises(InvalidArgument, match=r"its argument 1, a _thread\.lock"):
        shared.run(my_index, 0, LOCK)
    with pytest.raises(InvalidArgument, match="found: a int, which cannot be called"):
        shared.run(3)
    with pytest.raises(TaskFailed) as caught:
        shared.run(lambda: threading.Lock(), tasks="worker:1")
    assert caught.value.found.startswith("worker:1 returned a _thread.lock, which cannot come ba")
    assert caught.value.do.startswith("return numbers, text, arrays, or lists and dicts of them")

    def tensors():
        import keras
        import tensorflow as tf

        text = tf.constant("text")
        return {"a": [tf.Variable([1.0, 2.0]), (keras.Variable(3.0),)], "text": text}

    result = shared.run(tensors, tasks="worker:0")[0]
    array, (scalar,) = result["a"]
    assert isinstance(array, np.ndarray) and array.tolist() == [1.0, 2.0]
    assert scalar == 3.0 and result["text"] == b"text"
    (tmp_path / "beside.py").write_text("def double(x): return 2 * x")
    monkeypatch.syspath_prepend(tmp_path)

    def double(x):
        import beside

        return beside.double(x)

    assert shared.run(double, 4, tasks="worker:1") == [8]


# How tasks start, and that nothing is left


def test_a_task_may_have_devices_and_variables_of_its_own(monkeypatch):
    def facts():
        import tensorflow as tf

        names = [device.name for device in tf.config.list_logical_devices("CPU")]
        return names, os.environ["SET"], os.environ.get("TAKEN_OUT")

    monkeypatch.setenv("TAKEN_OUT", "1")
    env = {"SET": "yes", "TAKEN_OUT": None}
    with dl.LocalCluster(workers=1, devices_per_worker=3, env=env) as cluster:
        (result,) = cluster.run(facts)
    assert result == ([f"/device:CPU:{number}" for number in range(3)], "yes", None)


def test_a_proxy_in_the_environment_does_not_keep_tasks_apart(monkeypatch):
    def replicas():
        import tensorflow as tf

        return tf.distribute.MultiWorkerMirroredStrategy().num_replicas_in_sync

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with dl.LocalCluster(workers=2) as cluster:
        assert cluster.run(replicas) == [2, 2]


def test_a_start_that_fails_is_explained():
    with pytest.raises(TaskFailed) as failed:
        dl.LocalCluster(workers=1, env={"PYTHONHOME": "/nowhere"})
    assert failed.value.found.startswith("worker:0 ended with exit code 1; its last words:")
    assert "No module named 'encodings'" in failed.value.found
    with pytest.raises(TaskTimeout) as late:
        dl.LocalCluster(workers=2, start_timeout_secs=0.001)
    assert late.value.asked == "worker:0, worker:1 to start within 0.001 s"
    assert late.value.found == "worker:0, worker:1 did not answer"
    wrong = [{"workers": 0}, {"workers": True}, {"parameter_servers": -1}, {"restart": -1}]
    for options in [*wrong, {"parameter_servers": 1, "devices_per_worker": 2}]:
        with pytest.raises(InvalidArgument) as caught:
            dl.LocalCluster(**options)
        given = ", ".join(f"{name}={value}" for name, value in options.items())
        assert caught.value.asked == f"LocalCluster({given})"


def remains_of(cluster):
    tasks = cluster.status().tasks
    return [task.pid for task in tasks], cluster._kernels.folder, [task.address for task in tasks]


def assert_gone(pids, folder, addresses):
    for pid in pids:
        wait_until(lambda pid=pid: not psutil.pid_exists(pid))
    assert not folder.exists()
    for address in addresses:
        listener_on(address).close()


def test_closing_ends_tasks_that_hang_and_leaves_nothing(tmp_path):
    cluster = dl.LocalCluster(workers=2)
    folder = cluster._kernels.folder
    assert folder.stat().st_mode & 0o777 == 0o700 and folder.parent == shared_server().folder
    remains = remains_of(cluster)
    result = call_in_background(cluster.run, sleep_forever, str(tmp_path))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    cluster.close()
    assert_gone(*remains)
    assert isinstance(result(), ProcessError)
    cluster.close()  # a second time does nothing
    with pytest.raises(ProcessError, match="found: the cluster is closed"):
        cluster.run(my_index)
    cluster = dl.LocalCluster(workers=1)  # one that nobody holds any more
    remains = remains_of(cluster)
    del cluster
    assert_gone(*remains)


def test_tasks_end_when_their_owner_is_killed_who_was_told_that_others_reach_them():
    code = (
        "import distlab as dl, time\n"
        "cluster = dl.LocalCluster(workers=2)\n"
        "print(*[task.pid for task in cluster.status().tasks], flush=True)\n"
        "cluster.run(time.sleep, 3600)"
    )
    command = [sys.executable, "-c", code]
    env = os.environ | {ADDRESS_VARIABLE: shared_server().address}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == f"{NOTICE}\n"
        pids = list(map(int, owner.stdout.readline().split()))
        owner.kill()
    for pid in pids:
        wait_until(lambda pid=pid: not psutil.pid_exists(pid))


def test_gpus_are_counted_without_tensorflow_and_shared_out(tmp_path):
    driver = tmp_path / "proc/driver/nvidia/gpus"
    for number in range(2):
        (driver / f"0000:{number:02}:00.0").mkdir(parents=True)
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    for chosen, expected in {
        "1": ["1"],
        "": [],
        "-1": [],
        "0, GPU-abc,-1": ["0", "GPU-abc"],
    }.items():
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": chosen}, tmp_path) == expected, chosen
    spec = Layout(workers=2, parameter_servers=1, chief=True).on([1, 2, 3, 4])
    share = share_gpus(spec, ["2", "3"])
    gpus = {str(task): gpu for task, gpu in share.of_task.items()}
    assert gpus == {"chief:0": "-1", "worker:0": "2", "worker:1": "3", "ps:0": "-1"}
    assert share.note == ""
    too_few = share_gpus(spec, ["2"])
    assert too_few.note == "1 GPU for 2 tasks: all of them run on the CPU"
    assert set(too_few.of_task.values()) == {"-1"}


# How tasks fail, and how all goes on


def test_a_failure_is_raised_with_its_lines_and_the_rest_is_stopped(shared):
    with pytest.raises(TaskFailed) as caught:
        shared.run(all_reduce, 1.0, 0)  # a wrong call, on both
    assert caught.value.error == "TypeError"
    with pytest.raises(TaskFailed) as caught:
        shared.run(lambda: all_reduce(then=fail_on_1))
    problem = caught.value
    assert (problem.task, problem.error) == ("worker:1", "ValueError")
    text = re.sub(r'File ".*?", line \d+', "File", str(problem))
    assert text.startswith(
        "<lambda>() on worker:0, worker:1\n  found: worker:1 raised ValueError: boom\n"
    )
    assert '    File, in fail_on_1\n        raise ValueError("boom")\n' in text
    assert text.endswith(
        "  to do: repair what it ran; worker:0 was stopped, for it did not come back; "
        "cluster.restart() starts again what was ended"
    )
    # The other one waited in the all-reduce, where no interrupt reaches it.
    states = {task.task: task.state for task in shared.status().tasks}
    assert states == {"worker:0": "was ended by SIGKILL", "worker:1": "idle"}
    with pytest.raises(ProcessError) as caught:
        shared.run(my_index)
    assert caught.value.found == "worker:0 is down"
    shared.restart()
    assert shared.run(all_reduce) == [2.0, 2.0]


def test_causes_are_told_and_their_consequences_are_not(shared, capfd, tmp_path):
    def fail_or_wait():
        if my_index() == 0:
            raise ValueError("boom")
        threading.Event().wait()

    with pytest.raises(TaskFailed, match="worker:0 raised ValueError: boom"):
        shared.run(fail_or_wait)

    def fail():
        raise KeyError(my_index())

    with pytest.raises(TaskFailed) as caught:  # a task that could be interrupted lives on
        shared.run(fail)
    assert "found: worker:0 raised KeyError: 0" in str(caught.value)
    assert "\n  and worker:1 raised KeyError: 1\n" in str(caught.value)

    def lose_a_peer(folder):
        if my_index() == 0:
            Path(folder, "lost").touch()
            raise RuntimeError("UnavailableError: Connection reset by peer")
        wait_until(Path(folder, "lost").exists)
        raise ValueError("the cause")

    with pytest.raises(TaskFailed) as caught:
        shared.run(lose_a_peer, str(tmp_path))
    assert caught.value.task == "worker:1" and "Connection reset" not in str(caught.value)
    with pytest.raises(TaskFailed, match="worker:0 raised RuntimeError: UnavailableError"):
        shared.run(lose_a_peer, str(tmp_path), tasks="worker:0")
    capfd.readouterr()
    code = (
        "import json, os, time\n"
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "1 / index\ntime.sleep(3600)"
    )
    with pytest.raises(TaskFailed) as caught:
        shared.execute(code, show=True)
    assert "worker:0 raised ZeroDivisionError: division by zero\n" in str(caught.value)
    assert "KeyboardInterrupt" not in capfd.readouterr().err
    with pytest.raises(TaskFailed, match="----> 1 1 / 0"):
        shared.execute("1 / 0", tasks="worker:1")


def test_a_task_that_dies_is_named_with_how_it_ended(shared):
    with pytest.raises(TaskFailed) as caught:
        shared.run(lambda: all_reduce(then=die_on_1))
    assert caught.value.found == "worker:1 was ended by SIGKILL"
    assert caught.value.do.startswith("if nobody killed it, memory was short")
    shared.restart()

    def leave():
        os.write(2, b"I0000 00:00:1700000000.000001 7 rendezvous.cc:1] of no interest\n")
        os.write(2, b"the reason\n")
        os._exit(3)

    with pytest.raises(TaskFailed) as caught:
        shared.run(leave, tasks="worker:1")
    assert "worker:1 ended with exit code 3; its last words:\n    the reason\n" in str(caught.value)
    assert "to do: do not leave Python (exit, os._exit) in what tasks run" in str(caught.value)
    shared.restart()


def test_a_time_limit_says_where_each_task_is_and_who_does_not_answer(shared, monkeypatch):
    def wait():
        if my_index() == 1:
            wait_on_1(1)
        all_reduce()

    shared.restart()
    waits = {"worker:0": "in all_reduce", "worker:1": "in wait_on_1"}
    silent = shared._kernels.unanswering  # of those that others wait for
    is_late = late_once(lambda: silent() and all_are_in(shared, waits))
    monkeypatch.setattr(deadline, "time", is_late)
    address = shared.status().tasks[1].address
    with pytest.raises(TaskTimeout) as caught:
        shared.run(wait, timeout_secs=5000)
    monkeypatch.undo()
    assert isinstance(caught.value, TimeoutError)
    text = str(caught.value)
    assert text.startswith(
        "wait() on worker:0, worker:1 within 5000 s\n  found: worker:0, worker:1 did not finish\n"
    )
    assert "\n    worker:0 waits in all_reduce, line " in text
    assert "\n    worker:1 waits in wait_on_1, line " in text
    assert f"\n    worker:1 does not answer at {address}: the machine is there and " in text
    first, second = shared.waits(caught.value)
    assert (first.task, first.function, first.is_over) == ("worker:0", "all_reduce", False)
    assert (second.function, second.code) == ("wait_on_1", "threading.Event().wait()")
    assert str(second).startswith(f"worker:1 waits in wait_on_1, line {second.line}, inside wait:")
    shared.restart()
    assert shared.run(my_index) == [0, 1]
    late = TaskTimeout(asked="", found="", do="", task="worker:0", traceback="worker:0\n\n")
    waits = map(str, read_waits(late, ["worker:0", "worker:1"]))
    assert list(waits) == ["worker:0 waits", "worker:1 has finished"]


def test_a_busy_task_can_be_watched_and_killed_and_an_interrupt_ends_its_code(shared, tmp_path):
    result = call_in_background(shared.run, sleep_forever, str(tmp_path), tasks="worker:1")
    wait_until((tmp_path / "1").exists)
    wait_until(lambda: "in sleep_forever" in shared.stacks("worker:1"))
    busy = "waiting" if sys.platform == "linux" else "running"
    wait_until(lambda: [task.state for task in shared.status().tasks] == ["idle", busy])
    with pytest.raises(ProcessError, match=r"found: worker:1 still runs something else\n"):
        shared.run(my_index)
    assert shared.run(my_index, tasks="worker:0") == [0]
    shared.kill("worker:1")
    assert result().found == "worker:1 was ended by SIGKILL"
    shared.restart()

    def interrupt():
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    (tmp_path / "1").unlink()
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        shared.run(sleep_forever, str(tmp_path))
    thread.join()
    assert shared.run(my_index) == [0, 1]


def assert_both_are_kept(shared, folder, interrupt):
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted) as caught:
        shared.run(sleep_forever, str(folder))
    thread.join()
    assert caught.value.found == "worker:0, worker:1 were kept, with their variables"
    assert shared.run(my_index) == [0, 1]


def test_an_interrupt_reaches_a_task_that_has_not_begun_what_it_was_sent(
    shared, tmp_path, monkeypatch
):
    monkeypatch.setattr(runner, "GRACE_SECS", HANG_SECS)
    first, second = shared._kernels.by_task.values()
    pid = shared.status().tasks[1].pid

    def interrupt():
        wait_until((tmp_path / "0").exists)
        wait_until(lambda: second.is_busy)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: not first.is_busy)
        os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    assert_both_are_kept(shared, tmp_path, interrupt)


def test_an_interrupt_that_meets_the_kernels_own_lines_ends_the_code_without_a_reply(
    shared, tmp_path, monkeypatch
):
    monkeypatch.setattr(runner, "GRACE_SECS", HANG_SECS)
    lost = """
kernel = get_ipython().kernel
execute = kernel.do_execute
async def interrupted_late(**arguments):
    kernel.do_execute = execute
    await execute(**arguments)
    raise KeyboardInterrupt
kernel.do_execute = interrupted_late"""
    shared.execute(lost, tasks="worker:1")

    def interrupt():
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    assert_both_are_kept(shared, tmp_path, interrupt)


def test_a_worker_that_is_lost_in_fit_costs_a_restart_and_an_error_costs_none(capfd, tmp_path):
    """The other one raises an error of distlab's, which names the lost one."""

    def fit():
        import keras

        class DieOnce(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 2 and my_index() == 1 and not Path(tmp_path, "died").exists():
                    Path(tmp_path, "died").touch()
                    os.kill(os.getpid(), signal.SIGKILL)

        def build():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            return model

        model = dl.distribute(build, dl.make_strategy("multi_worker"))
        x, y = np.ones((20, 2), "float32"), np.ones((20, 1), "float32")
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[DieOnce()])
        return int(model.optimizer.iterations.numpy())

    again = "worker:1 was ended by SIGKILL: started again (1 of 1)\n"
    with dl.LocalCluster(workers=2, restart=1) as cluster:
        assert cluster.run(fit) == [5, 5]
        assert again in capfd.readouterr().out
        with pytest.raises(TaskFailed, match="raised ValueError"):
            cluster.run(lambda: fail_on_1(my_index()))
        assert "started again" not in capfd.readouterr().out


def count_to(total, folder):
    """Counts on a parameter server, in steps that the workers take."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        counter = tf.Variable(0.0)

    @tf.function
    def step():
        counter.assign_add(1.0)

    coordinator.schedule(step)
    coordinator.join()
    Path(folder, "counting").touch()
    wait_until(Path(folder, "go").exists)  # until the test has done to a task what it does
    for _ in range(total - 1):
        coordinator.schedule(step)
    coordinator.join()
    return counter


def test_a_chief_goes_on_without_a_worker_which_comes_back(tmp_path, capfd):
    with dl.LocalCluster(workers=2, parameter_servers=1, restart=1) as cluster:
        assert cluster.tasks == ("chief:0", "worker:0", "worker:1", "ps:0")
        before = cluster.status().tasks
        result = call_in_background(cluster.run, count_to, 20, str(tmp_path), tasks="chief")
        wait_until((tmp_path / "counting").exists)
        cluster.kill("worker:1")
        (tmp_path / "go").touch()
        assert result()[0] >= 20.0  # a step of the lost worker may count twice
        wait_until(lambda: cluster.status().tasks[2].state == "idle")
        after = cluster.status().tasks
        assert [a.address for a in after] == [b.address for b in before]
        assert [a.pid == b.pid for a, b in zip(after, before, strict=True)] == [1, 1, 0, 1]
        assert "worker:1 was ended by SIGKILL: started again (1 of 1)" in capfd.readouterr().out


def test_a_lost_parameter_server_is_the_cause_that_is_told(tmp_path):
    with dl.LocalCluster(workers=1, parameter_servers=1, evaluator=True) as cluster:
        assert cluster.tasks == ("chief:0", "worker:0", "ps:0", "evaluator:0")
        assert cluster.tf_config("evaluator:0")["task"] == {"type": "evaluator", "index": 0}
        result = call_in_background(cluster.run, count_to, 20, str(tmp_path), tasks="chief")
        wait_until((tmp_path / "counting").exists)
        cluster.kill("ps:0")
        (tmp_path / "go").touch()
        problem = result()
        assert problem.task == "ps:0"
        assert "found: ps:0 was ended by SIGKILL\n" in str(problem)
        cluster.restart()
        assert [task.state for task in cluster.status().tasks] == ["idle"] * 4


def test_a_port_that_was_taken_meanwhile_is_named_and_a_restart_replaces_it(two):
    taken = two.status().tasks[1].address
    with listener_on(taken):
        with pytest.raises(TaskFailed) as caught:
            two.run(all_reduce)
        server = f"TensorFlow's server of worker:1 could not start at {taken}"
        assert caught.value.found == f"{server}: the port is taken"
        assert caught.value.do == "cluster.restart() starts all tasks on other ports"
        two.restart()
        assert two.run(all_reduce) == [2.0, 2.0]
