"""LocalCluster: tasks that fail, die, hang or lose their port, and how all goes on."""

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from jupyter_client.channels import ZMQSocketChannel

import distlab as dl
from distlab.cluster.group import TaskGroup
from distlab.cluster.local.rounds import TaskFailure
from distlab.cluster.spec import TaskName
from distlab.errors import ProcessError, TaskFailed, TaskTimeout
from tests.support.local_tasks import (
    all_reduce,
    call_in_background,
    die_on_1,
    fail_on_1,
    listener_on,
    my_index,
    sleep_forever,
    wait_on_1,
    wait_until,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no such processes")


# Failures


def test_the_first_failure_is_raised_with_its_traceback_and_the_rest_is_stopped(two):
    with pytest.raises(TaskFailed) as caught:
        two.run(all_reduce, 1.0, 0)  # a wrong call, on both
    assert caught.value.error == "TypeError"
    with pytest.raises(TaskFailed) as caught:
        two.run(lambda: all_reduce(then=fail_on_1))
    problem = caught.value
    assert (problem.task, problem.error) == ("worker:1", "ValueError")
    text = re.sub(r'File ".*?", line \d+', "File", str(problem))
    assert text.startswith(
        "<lambda>() on worker:0, worker:1\n  found: worker:1 raised ValueError: boom\n"
    )
    assert '    File, in fail_on_1\n        raise ValueError("boom")\n' in text
    assert text.endswith(
        "  to do: repair what it ran; the other tasks were stopped; "
        "cluster.restart() starts again what was ended"
    )
    assert "in fail_on_1" in problem.traceback
    # The other one waited in the all-reduce, where no interrupt reaches it.
    states = {task.task: task.state for task in two.status().tasks}
    assert states == {"worker:0": "was ended by SIGKILL", "worker:1": "idle"}
    with pytest.raises(ProcessError) as caught:
        two.run(my_index)
    assert str(caught.value) == (
        "my_index() on worker:0, worker:1\n"
        "  found: worker:0 is down\n"
        "  to do: start it again: cluster.restart(); cluster.status() tells how it ended"
    )
    two.restart()
    assert two.run(all_reduce) == [2.0, 2.0]


def test_a_task_that_can_be_interrupted_lives_on(shared):
    def fail_or_wait():
        if my_index() == 0:
            raise ValueError("boom")
        threading.Event().wait()

    with pytest.raises(TaskFailed, match="worker:0 raised ValueError: boom"):
        shared.run(fail_or_wait)
    assert shared.run(my_index) == [0, 1]


def test_of_several_failures_each_is_told(shared):
    def fail():
        raise KeyError(my_index())

    with pytest.raises(TaskFailed) as caught:
        shared.run(fail)
    assert "found: worker:0 raised KeyError: 0" in str(caught.value)
    assert "\n  and worker:1 raised KeyError: 1\n" in str(caught.value)


def test_what_is_only_the_consequence_of_another_failure_is_not_raised(shared):
    def fail():
        if my_index() == 0:
            raise RuntimeError("UnavailableError: Connection reset by peer")
        time.sleep(0.3)  # the cause is seen after its consequence
        raise ValueError("the cause")

    with pytest.raises(TaskFailed) as caught:
        shared.run(fail)
    assert caught.value.task == "worker:1"
    assert "Connection reset" not in str(caught.value)


def test_what_was_interrupted_because_another_failed_is_not_shown(shared, capfd):
    code = (
        "import json, os, time\n"
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "1 / index\ntime.sleep(600)"
    )
    with pytest.raises(TaskFailed, match="worker:0 raised ZeroDivisionError"):
        shared.execute(code, show=True)
    assert "KeyboardInterrupt" not in capfd.readouterr().err


def test_a_lost_peer_alone_is_told_as_it_is(shared):
    def fail():
        raise RuntimeError("UnavailableError: Connection reset by peer")

    with pytest.raises(TaskFailed, match="worker:0 raised RuntimeError: UnavailableError"):
        shared.run(fail, tasks="worker:0")


def test_a_cell_that_fails_says_what_it_raised(shared):
    with pytest.raises(TaskFailed) as caught:
        shared.execute("1 / 0", tasks="worker:1")
    assert "worker:1 raised ZeroDivisionError: division by zero\n" in str(caught.value)
    assert "----> 1 1 / 0" in str(caught.value)


def test_a_task_that_is_killed_is_named_with_the_signal(two):
    with pytest.raises(TaskFailed) as caught:
        two.run(lambda: all_reduce(then=die_on_1))
    assert str(caught.value) == (
        "<lambda>() on worker:0, worker:1\n"
        "  found: worker:1 was ended by SIGKILL\n"
        "  to do: if nobody killed it, memory was short: use less of it, or fewer tasks; "
        "cluster.restart() starts again what was ended"
    )
    two.restart()
    assert two.run(all_reduce) == [2.0, 2.0]


def test_a_task_that_leaves_is_named_with_its_code_and_last_words(two):
    def leave():
        os.write(2, b"the reason\n")
        os._exit(3)

    with pytest.raises(TaskFailed) as caught:
        two.run(leave, tasks="worker:1")
    assert "worker:1 ended with exit code 3; its last words:\n    the reason\n" in str(caught.value)
    assert "to do: do not leave Python (exit, os._exit) in what tasks run" in str(caught.value)


def test_memory_that_runs_out_in_one_worker_is_that_workers_error(two):
    def take():
        if my_index() == 1:
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))
            bytearray(1 << 34)

    with pytest.raises(TaskFailed, match="worker:1 raised MemoryError"):
        two.run(take)


def test_a_time_limit_says_where_each_task_is_and_who_does_not_answer(two):
    def wait():
        if my_index() == 1:
            wait_on_1(1)
        all_reduce()

    started = time.monotonic()
    with pytest.raises(TaskTimeout) as caught:
        two.run(wait, timeout_secs=2)
    assert time.monotonic() - started < 30
    text = re.sub(r'File ".*?", line \d+ in', "in", str(caught.value))
    assert text.startswith(
        "wait() on worker:0, worker:1 within 2 s\n  found: worker:0, worker:1 did not finish\n"
    )
    assert "worker:0 was here, the most recent call first:\n" in text
    assert "in all_reduce\n" in text
    assert "in wait_on_1\n" in text
    address = two.status().tasks[1].address
    assert f"\n    worker:1 does not answer at {address}: the machine is there and " in text
    assert isinstance(caught.value, TimeoutError)
    two.restart()
    assert two.run(all_reduce) == [2.0, 2.0]


def test_stacks_tell_where_a_busy_task_is(shared, tmp_path):
    result = call_in_background(shared.run, sleep_forever, str(tmp_path), tasks="worker:1")
    wait_until((tmp_path / "1").exists)
    assert "in sleep_forever" in shared.stacks("worker:1")
    assert [task.state for task in shared.status().tasks] == ["idle", "busy"]
    with pytest.raises(ProcessError, match=r"found: worker:1 still runs something else\n"):
        shared.run(my_index)
    assert shared.run(my_index, tasks="worker:0") == [0]
    shared.interrupt()
    assert result().error == "KeyboardInterrupt"
    assert shared.run(my_index) == [0, 1]


def test_an_interrupt_here_ends_what_the_tasks_run(two, tmp_path):
    def interrupt():
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        two.run(sleep_forever, str(tmp_path))
    assert two.run(my_index) == [0, 1]


def test_an_interrupt_while_a_task_is_sent_its_code_ends_what_all_run(two, tmp_path, monkeypatch):
    plain, sent = ZMQSocketChannel.send, []

    def send(channel, message):
        plain(channel, message)
        sent.append(message)
        if len(sent) == 2:  # the interrupt comes before this is over, and both run by then
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
            raise KeyboardInterrupt

    monkeypatch.setattr(ZMQSocketChannel, "send", send)
    with pytest.raises(KeyboardInterrupt):
        two.run(sleep_forever, str(tmp_path))
    monkeypatch.undo()
    assert two.run(my_index) == [0, 1]


# Lost tasks


def test_a_lost_worker_costs_a_restart(capfd, tmp_path):
    def train():
        first = not Path(tmp_path, "died").exists()
        if first and my_index() == 1:
            Path(tmp_path, "died").touch()
        return all_reduce(then=die_on_1 if first else None)

    with dl.LocalCluster(workers=2, restart=1) as cluster:
        started = time.monotonic()
        assert cluster.run(train) == [2.0, 2.0]
        assert time.monotonic() - started < 30
        assert "worker:1 was ended by SIGKILL: started again (1 of 1)\n" in capfd.readouterr().out
        with pytest.raises(TaskFailed, match="was ended by SIGKILL"):
            cluster.run(lambda: die_on_1(my_index()) or die_on_1(my_index()))
        assert "(1 of 1)" in capfd.readouterr().out


def test_a_worker_that_is_lost_in_fit_costs_a_restart_too(capfd, tmp_path):
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

    with dl.LocalCluster(workers=2, restart=1) as cluster:
        assert cluster.run(fit) == [5, 5]
        assert "worker:1 was ended by SIGKILL: started again (1 of 1)\n" in capfd.readouterr().out


def test_an_error_that_was_raised_from_that_of_a_lost_peer_comes_after_the_loss():
    """Whichever is seen first."""
    task = TaskName(job="worker", index=0)
    said = {"task": task, "error": "ProcessError", "text": "worker:1 was lost, after step 17"}
    above = "tensorflow...UnavailableError: Collective ops is aborted by: [distlab] it was lost"
    assert TaskFailure(**said, traceback=f"{above}\n\nThe above exception was ...").rank == 2
    assert TaskFailure(**said).rank == 0


def test_an_error_in_the_code_costs_no_restart(capfd):
    with dl.LocalCluster(workers=1, restart=3) as cluster:
        with pytest.raises(TaskFailed, match="raised ValueError"):
            cluster.run(lambda: fail_on_1(1))
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
    while not Path(folder, "go").exists():
        time.sleep(0.01)  # until the test has done to a worker what it does
    for _ in range(total - 1):
        coordinator.schedule(step)
    coordinator.join()
    return counter


def test_parameter_servers_wait_for_a_chief_and_a_lost_worker_comes_back(tmp_path, capfd):
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
    with dl.LocalCluster(workers=1, parameter_servers=1) as cluster:
        result = call_in_background(cluster.run, count_to, 20, str(tmp_path), tasks="chief")
        wait_until((tmp_path / "counting").exists)
        cluster.kill("ps:0")
        (tmp_path / "go").touch()
        problem = result()
        assert problem.task == "ps:0"
        assert "found: ps:0 was ended by SIGKILL\n" in str(problem)
        cluster.restart()
        assert [task.state for task in cluster.status().tasks] == ["idle"] * 3


def test_every_kind_of_task_has_its_name():
    with dl.LocalCluster(workers=1, chief=True, evaluator=True) as cluster:
        assert cluster.tasks == ("chief:0", "worker:0", "evaluator:0")
        assert cluster.tf_config("evaluator:0")["task"] == {"type": "evaluator", "index": 0}


# Ports


def test_a_port_that_was_taken_meanwhile_is_noticed_and_others_are_used(two):
    taken = two.status().tasks[1].address
    with listener_on(taken):
        assert two.run(all_reduce) == [2.0, 2.0]
    assert two.status().tasks[1].address != taken


def test_where_tasks_hold_something_a_taken_port_is_told(two):
    two.execute("held = 1")
    taken = two.status().tasks[1].address
    with listener_on(taken):
        with pytest.raises(TaskFailed) as caught:
            two.run(all_reduce)
        assert str(caught.value) == (
            "all_reduce() on worker:0, worker:1\n"
            f"  found: TensorFlow's server of worker:1 could not start at {taken}: "
            "the port is taken\n"
            "  to do: cluster.restart() starts all tasks on other ports"
        )
        two.restart()
        assert two.run(all_reduce) == [2.0, 2.0]


def test_a_server_that_finds_its_port_taken_moves_while_the_cluster_starts(monkeypatch):
    taken = []
    start = TaskGroup.start

    def take_and_start(group, tasks=None):
        if not taken:
            taken.append(listener_on(group.spec.addresses["ps"][0]))
        start(group, tasks)

    monkeypatch.setattr(TaskGroup, "start", take_and_start)
    with dl.LocalCluster(workers=1, parameter_servers=1) as cluster, taken[0] as listener:
        assert cluster.tf_config("ps:0")["cluster"]["ps"] != [
            "{}:{}".format(*listener.getsockname())
        ]
