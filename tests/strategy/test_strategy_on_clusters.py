import contextlib
import json
import pickle
import signal
import socket
import threading
import time

import pytest
import tensorflow as tf

import distlab as dl
from distlab.cluster import probing
from distlab.cluster.group import Start, TaskGroup
from distlab.cluster.ports import is_port_taken, reserved_ports
from distlab.cluster.probing import probe
from distlab.cluster.spec import TaskName, local_spec
from distlab.errors import DeviceError, InvalidArgument, UnsupportedEnvironment
from distlab.strategy import clusters, meeting_errors
from tests.support.clusters import run_on_tasks
from tests.support.repository import ROOT

CALL = """
import pickle, sys
sys.path.insert(0, {root!r})
from tests.support import strategy_cases
result = eval({call!r}, vars(strategy_cases))
with open({out!r}, "wb") as file:
    pickle.dump(result, file)
"""


class Running:
    """Tasks that run, each with the TF_CONFIG that it was given."""

    def __init__(self, group, folder):
        self.group, self._folder = group, folder

    def log(self, task):
        return self.group.log_of(task).read_text()

    def says(self, task, text, secs=60):
        self._until(lambda: text in self.log(task), secs, task)

    def result(self, task, secs=60):
        """What the call of a task returned, once its process has ended well."""
        self._until(lambda: task in self.group.ended(), secs, task)
        assert self.group.ended()[task] == 0, self.log(task)
        return pickle.loads((self._folder / f"{task.job}-{task.index}.pickle").read_bytes())

    def _until(self, condition, secs, task):
        deadline = time.monotonic() + secs
        while not condition():
            assert time.monotonic() < deadline, self.log(task)
            time.sleep(0.02)


@contextlib.contextmanager
def running(calls, folder, *, env=None, started=None, **layout):
    """Runs calls of strategy_cases on the tasks of a cluster; `env` is by task."""
    with reserved_ports(sum(layout.values())) as ports:
        spec = local_spec(ports=ports, **layout)

        def how(task):
            out = str(folder / f"{task.job}-{task.index}.pickle")
            code = CALL.format(root=str(ROOT), call=calls[task], out=out)
            return Start(argv=["-c", code], env=(env(spec)[task] if env else {}))

        with TaskGroup(spec, how=how, folder=folder) as group:
            group.start(started)
            yield Running(group, folder)


W0, W1, W2 = (TaskName("worker", index) for index in range(3))
CHIEF, PS, EVALUATOR = TaskName("chief", 0), TaskName("ps", 0), TaskName("evaluator", 0)
SAME_CLUSTER = "give all tasks the same 'cluster'; only 'task' differs"


@pytest.mark.parametrize(("workers", "chief"), [(2, False), (1, True)])
def test_workers_meet_and_a_strategy_made_again_joins_the_same_cluster(tmp_path, workers, chief):
    results = run_on_tasks("support.strategy_cases:meet", tmp_path, workers=workers, chief=chief)
    why = "TF_CONFIG names a cluster of 2 tasks"
    assert results == [(2.0, 2.0, "multi_worker", 2, why)] * 2


def test_a_strategy_can_be_used_after_another_has_been_made(tmp_path):
    results = run_on_tasks("support.strategy_cases:compute_with_both", tmp_path)
    assert results == [[2.0] * 4] * 2


def test_another_strategy_works_after_a_failed_all_reduce(tmp_path):
    results = run_on_tasks("support.strategy_cases:compute_after_an_error", tmp_path)
    for message, summed in results:
        assert "the cable was pulled" in message
        assert summed == 2.0


def test_a_worker_that_makes_another_strategy_alone_is_told_so_and_can_try_again(tmp_path):
    calls = {W0: "make_another_alone()", W1: "make_another_late()"}
    with running(calls, tmp_path, workers=2) as tasks:
        (error, summed), late = tasks.result(W0), tasks.result(W1)
    assert error == (
        "TaskTimeout",
        "make_strategy('multi_worker') on worker:0",
        "worker:1 has not made another strategy, as this task wants to",
        "call make_strategy equally often in all tasks. "
        "A task that comes later needs a timeout_secs above 1.5",
    )
    assert (summed, late) == (2.0, 2.0)


@pytest.mark.parametrize(("stays", "ends"), [(W0, W1), (W1, W0)])
def test_another_strategy_is_not_waited_for_from_a_worker_that_has_ended(tmp_path, stays, ends):
    calls = {stays: "make_another_after_the_others_end()", ends: "make_one_and_wait()"}
    with running(calls, tmp_path, workers=2) as tasks:
        for task in (stays, ends):
            tasks.says(task, "made")
        tasks.group.send_signal([ends], signal.SIGKILL)
        (kind, asked, found, _), secs = tasks.result(stays)
    assert (kind, asked) == ("ProcessError", f"make_strategy('multi_worker') on {stays}")
    assert found.startswith(f"{ends} at ") and found.endswith("; it was there before"), found
    assert secs < 20


def test_workers_without_gpus_compute_on_all_their_logical_cpus(tmp_path):
    calls = dict.fromkeys((W0, W1), "meet_on_devices(2)")
    with running(calls, tmp_path, workers=2) as tasks:
        results = [tasks.result(task) for task in (W0, W1)]
    assert results == [(4, 4.0, ("CPU:0", "CPU:1"))] * 2


@pytest.mark.parametrize(("theirs", "shown"), [(1, "1 device"), (3, "3 devices")])
def test_workers_with_different_numbers_of_devices_say_so(tmp_path, theirs, shown):
    calls = {
        W0: "caught(lambda: meet_on_devices(2))",
        W1: f"caught(lambda: meet_on_devices({theirs}))",
    }
    with running(calls, tmp_path, workers=2) as tasks:
        results = {task: tasks.result(task, secs=20) for task in (W0, W1)}
    for task, (kind, asked, found, do) in results.items():
        assert (kind, asked) == (
            "UnsupportedEnvironment",
            f"make_strategy('multi_worker') on {task}",
        )
        assert found == f"worker:1 computes on {shown}, and worker:0 on 2"
        assert do.startswith("give all workers as many: GPUs")
        assert "--devices-per-worker" in do


def test_a_cluster_of_one_is_a_cluster_where_it_is_asked_for(tmp_path):
    (result,) = run_on_tasks("support.strategy_cases:meet_alone", tmp_path, workers=1)
    assert result == ("one_device", "multi_worker", 1.0)


def test_a_process_that_has_used_tensorflow_cannot_join(tmp_path):
    with running({W0: "use_first()"}, tmp_path, started=[W0], workers=2) as tasks:
        kind, asked, found, do = tasks.result(W0)
    assert (kind, asked) == ("DeviceError", "make_strategy('multi_worker') on worker:0")
    assert found.startswith("TensorFlow has already been used in this process")
    assert do.startswith(f"{meeting_errors.RESTART} and make the strategy first")
    assert meeting_errors.RESTART == (
        "restart the kernel (or Python; in a LocalCluster: cluster.restart())"
    )


@pytest.mark.parametrize("here", [(W0,), (W1,), (W0, W1)])
def test_tasks_that_do_not_come_are_named_in_time(tmp_path, here):
    calls = dict.fromkeys(here, "fail_twice()")
    with running(calls, tmp_path, started=here, workers=3) as tasks:
        results = {task: tasks.result(task) for task in here}
        spec = tasks.group.spec
    missing = [task for task in (W0, W1, W2) if task not in here]
    for task, (first, secs, again) in results.items():
        assert first[:2] == ("TaskTimeout", f"make_strategy('multi_worker') on {task}")
        assert first[2] == "; ".join(
            f"{one} at {spec.address_of(one)} does not answer: "
            "the machine is there and nothing listens on that port"
            for one in missing
        )
        assert first[3] == (
            "has the task been started, and does it still run? "
            "A task that comes later needs a timeout_secs above 1.5"
        )
        assert 1.5 <= secs < 15
        assert again[:3] == (
            "ProcessError",
            f"make_strategy('multi_worker') on {task}",
            "this process has tried before; TensorFlow waits in it still, and holds its port",
        )


def test_a_task_at_whose_address_another_server_answers_is_named(tmp_path):
    calls = {W0: "fail_twice()", W1: "serve_alone()"}
    with running(calls, tmp_path, started=[W1], workers=2) as tasks:
        tasks.says(W1, "serves")
        tasks.group.start([W0])
        (_, _, found, do), _, _ = tasks.result(W0)
    assert found == "worker:1 answers and has not joined"
    assert do.startswith(f"does it make this strategy, too? If so, {SAME_CLUSTER}.")


def test_a_leader_that_is_no_leader_is_named(tmp_path):
    calls = {W0: "serve_alone()", W1: "fail_twice()"}
    with running(calls, tmp_path, started=[W0], workers=2) as tasks:
        tasks.says(W0, "serves")
        tasks.group.start([W1])
        (_, _, found, do), _, _ = tasks.result(W1)
    assert found == (
        "worker:0 answers, and waits for a task that this one was not told of, or is of another "
        "cluster"
    )
    assert do.startswith(f"{SAME_CLUSTER}.")


def test_a_wait_heeds_interrupts_and_lets_other_threads_run(tmp_path):
    calls = dict.fromkeys((W0, W1), "wait_in_vain()")
    with running(calls, tmp_path, started=[W0, W1], workers=3) as tasks:
        for task in (W0, W1):
            tasks.says(task, "counted to 100")
        tasks.group.send_signal([W0, W1], signal.SIGINT)
        started = time.monotonic()
        assert [tasks.result(task) for task in (W0, W1)] == ["interrupted"] * 2
        assert time.monotonic() - started < 10


def test_a_worker_that_waits_for_others_ends_when_it_is_asked_to(tmp_path):
    with running({W0: "meet()"}, tmp_path, started=[W0], workers=2) as tasks:
        address, deadline = tasks.group.spec.address_of(W0), time.monotonic() + 30
        while not probe(address).answers and time.monotonic() < deadline:
            time.sleep(0.02)
        deadline = time.monotonic() + 10
        while not tasks.group.ended() and time.monotonic() < deadline:
            tasks.group.send_signal([W0], signal.SIGTERM)
            time.sleep(0.2)
        assert tasks.group.ended() == {W0: -signal.SIGTERM}


def test_the_leader_is_asked_once_it_is_there(tmp_path):
    calls = {W0: "meet()", W1: "find_the_leader()"}
    with running(calls, tmp_path, started=[W1], workers=2) as tasks:
        tasks.says(W1, "looks for the leader")
        tasks.group.start([W0])
        assert tasks.result(W1) == ["answers"]


@pytest.mark.parametrize("does_tensorflow_notice", [True, False])
def test_a_worker_whose_leader_ends_meanwhile_is_told(tmp_path, does_tensorflow_notice):
    calls = dict.fromkeys((W0, W1), f"fail_late({does_tensorflow_notice})")
    with running(calls, tmp_path, started=[W0, W1], workers=3) as tasks:
        tasks.says(W1, "joined")
        tasks.group.send_signal([W0], signal.SIGKILL)
        kind, asked, found, do = tasks.result(W1, secs=20)
        leader, third = map(tasks.group.spec.address_of, (W0, W2))
    gone = "does not answer: the machine is there and nothing listens on that port"
    assert (kind, asked) == ("ProcessError", "make_strategy('multi_worker') on worker:1")
    assert found.startswith(f"worker:0 at {leader} {gone}; worker:2 at {third} {gone}; ")
    assert does_tensorflow_notice or found.endswith("; it was there before")
    assert do.endswith("does it still run? Start all tasks again")


@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 2)])
def test_tasks_that_were_told_of_different_counts_of_workers_say_so(tmp_path, first, second):
    def env(spec):
        return {
            W0: {"TF_CONFIG": shortened(spec, first).tf_config(W0)},
            W1: {"TF_CONFIG": shortened(spec, second).tf_config(W1)},
        }

    calls = dict.fromkeys((W0, W1), "caught(dl.make_strategy)")
    with running(calls, tmp_path, env=env, started=[W0, W1], workers=3) as tasks:
        results = [tasks.result(task, secs=20) for task in (W0, W1)]
    found = f"worker:1 was told of {second} workers, and worker:0 of {first} workers"
    for task, result in zip((W0, W1), results, strict=True):
        asked = f"make_strategy('multi_worker') on {task}"
        assert result == ("UnsupportedEnvironment", asked, found, SAME_CLUSTER)


def test_a_worker_of_whom_the_leader_was_not_told_says_so(tmp_path):
    def env(spec):
        return {
            W0: {"TF_CONFIG": shortened(spec, 2).tf_config(W0)},
            W2: {"TF_CONFIG": spec.tf_config(W2)},
        }

    calls = {W0: "wait_in_vain()", W2: "caught(dl.make_strategy)"}
    with running(calls, tmp_path, env=env, started=[W0, W2], workers=3) as tasks:
        _, _, found, do = tasks.result(W2, secs=20)
    assert (found, do) == ("worker:0 was told of a cluster without worker:2", SAME_CLUSTER)


def test_tasks_that_were_told_of_different_addresses_say_so(tmp_path):
    def env(spec):
        turned = json.loads(spec.tf_config(W1))
        first, second, third = turned["cluster"]["worker"]
        turned["cluster"]["worker"] = [first, second, third.replace("127.0.0.1", "localhost")]
        return {W0: {}, W1: {"TF_CONFIG": json.dumps(turned)}, W2: {}}

    calls = dict.fromkeys((W0, W1, W2), "caught(dl.make_strategy)")
    with running(calls, tmp_path, env=env, workers=3) as tasks:
        results = [tasks.result(task, secs=20) for task in (W0, W1, W2)]
        address = tasks.group.spec.address_of(W2)
    found = f"worker:1 was told that worker:2 is at {address.replace('127.0.0.1', 'localhost')}"
    for result in results:
        assert result[2] == f"{found}, and worker:0 that it is at {address}"


def test_a_worker_that_makes_another_strategy_is_named(tmp_path):
    first, _ = run_on_tasks("support.strategy_cases:join_two_ways", tmp_path)
    assert first[0] == "TaskTimeout"
    assert "worker:1 has met the others, and gave up or makes another strategy" in first[2]
    assert "each with make_strategy" in first[3]


def test_a_leader_that_gave_up_lets_nobody_train_with_it(tmp_path):
    calls = {W0: "give_up_and_stay()", W1: "come_late()"}
    with running(calls, tmp_path, started=[W0], workers=2) as tasks:
        tasks.says(W0, "gave up")
        tasks.group.start([W1])
        kind, _, found, _ = tasks.result(W1, secs=20)
    assert kind == "TaskTimeout"
    assert found == "worker:0 has met the others, and gave up or makes another strategy"


def test_a_task_that_falls_silent_is_given_up_after_its_heartbeat(tmp_path):
    calls = dict.fromkeys((W0, W1), "outlive()")
    with running(calls, tmp_path, workers=2) as tasks:
        tasks.says(W0, "made")
        tasks.says(W1, "made")
        tasks.group.send_signal([W1], signal.SIGSTOP)
        secs = tasks.result(W0, secs=30)
    assert 0.5 < secs < 8  # TensorFlow's own limit is 10


def test_a_worker_that_is_asked_to_end_does(tmp_path):
    with running(dict.fromkeys((W0, W1), "outlive()"), tmp_path, workers=2) as tasks:
        tasks.says(W0, "made")
        tasks.says(W1, "made")
        assert tasks.group.stop([W1], grace_secs=60) == {W1: -signal.SIGTERM}


@pytest.mark.parametrize("kind", ["auto", "parameter_server"])
def test_one_script_is_coordinator_servers_and_evaluator(tmp_path, kind):
    calls = dict.fromkeys((CHIEF, W0, PS, EVALUATOR), f"coordinate({kind!r})")
    calls[TaskName("ps", 1)] = calls[PS]
    layout = {"workers": 1, "parameter_servers": 2, "chief": True}
    with running(calls, tmp_path, evaluator=True, **layout) as tasks:
        result = tasks.result(CHIEF)
        evaluator = tasks.result(EVALUATOR)
        codes = tasks.group.stop([W0, PS], grace_secs=60)
        logs = [tasks.log(task) for task in (W0, PS)]
        addresses = [tasks.group.spec.address_of(task) for task in (W0, PS)]
    why = "TF_CONFIG names a cluster of 4 tasks" if kind == "auto" else f'"{kind}" was asked for'
    assert result[:3] == ("parameter_server", why, 5.0)
    devices = [f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(2)]
    assert sorted(result[3]) == devices
    assert evaluator == ("one_device", "this task is the evaluator, which computes alone")
    assert codes == {W0: 0, PS: 0}
    for task, log, address in zip((W0, PS), logs, addresses, strict=True):
        assert f"{task} serves at {address} until its coordinator is done\n" in log


def test_servers_that_do_not_answer_are_named_in_time(tmp_path):
    call = "caught(lambda: dl.make_strategy(timeout_secs=1))"
    calls = {CHIEF: call, W0: call}
    layout = {"workers": 1, "parameter_servers": 1, "chief": True}
    with running(calls, tmp_path, started=[CHIEF, W0], **layout) as tasks:
        kind, asked, found, do = tasks.result(CHIEF, secs=20)
        address = tasks.group.spec.address_of(PS)
    assert (kind, asked) == ("TaskTimeout", "make_strategy('parameter_server') on chief:0")
    assert found == (
        f"ps:0 at {address} does not answer: the machine is there and nothing listens on that port"
    )
    assert do.startswith("has the task been started, and does it still run?")


def test_a_coordinator_that_waits_heeds_interrupts(tmp_path):
    layout = {"workers": 1, "parameter_servers": 1, "chief": True}
    calls = {CHIEF: "interrupt_oneself()"}
    with running(calls, tmp_path, started=[CHIEF], **layout) as tasks:
        assert 0.4 < tasks.result(CHIEF, secs=20) < 5


@contextlib.contextmanager
def answering_and_deaf(address):
    """A server that greets as TensorFlow's does, and then says nothing; yields who has called."""
    host, _, port = address.rpartition(":")
    callers = []

    def serve():
        with contextlib.suppress(OSError):  # closed
            while True:
                caller, _ = server.accept()
                callers.append(caller)
                caller.sendall(b"\0\0\0\4\0\0\0\0\0")

    with contextlib.ExitStack() as closed, socket.create_server((host, int(port))) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield callers
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for caller in callers:
            closed.enter_context(caller)


def is_tensorflow(caller):
    """Whether more was said than a probe says."""
    with contextlib.suppress(OSError):  # nothing yet
        said = caller.recv(1024, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return len(said) > len(probing._GREETING)
    return False


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_coordinator_is_not_held_by_a_server_that_only_seems_to_be_there(tmp_path, interrupted):
    layout = {"workers": 1, "parameter_servers": 1, "chief": True}
    calls = {CHIEF: f"coordinate_in_vain({60 if interrupted else 1})", W0: "dl.make_strategy()"}
    with running(calls, tmp_path, started=[W0], **layout) as tasks:
        worker, server = map(tasks.group.spec.address_of, (W0, PS))
        with answering_and_deaf(server) as callers:
            tasks.group.start([CHIEF])
            deadline = time.monotonic() + 60
            while interrupted and not any(map(is_tensorflow, callers)):
                assert time.monotonic() < deadline, tasks.log(CHIEF)
                time.sleep(0.02)
            if interrupted:
                tasks.group.send_signal([CHIEF], signal.SIGINT)
            first, three, second = tasks.result(CHIEF, secs=30)
    assert first == "interrupted" or first == (
        "TaskTimeout",
        "make_strategy('parameter_server') on chief:0",
        f"of worker:0 at {worker}, ps:0 at {server}, which all answer, one does not let itself be "
        "coordinated",
        "does each of them make this strategy, with the same version of TensorFlow? Does something "
        "stand before it, a proxy or a mesh?",
    )
    assert (first == "interrupted") == interrupted
    assert three == 3
    assert second[0] == "ProcessError"
    assert second[2].startswith("this process has tried before")


def test_workers_meet_under_slurm(tmp_path):
    def env(spec):
        ports = ",".join(address.rpartition(":")[2] for address in spec.addresses["worker"])
        step = {
            "TF_CONFIG": None,
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_STEP_TASKS_PER_NODE": "2",
            "SLURM_STEP_RESV_PORTS": ports,
            "SLURM_NODEID": "0",
        }
        return {
            task: {**step, "SLURM_PROCID": str(task.index), "SLURM_LOCALID": str(task.index)}
            for task in (W0, W1)
        }

    with running(dict.fromkeys((W0, W1), "meet()"), tmp_path, env=env, workers=2) as tasks:
        results = [tasks.result(task) for task in (W0, W1)]
    why = "Slurm names a cluster of 2 tasks"
    assert results == [(2.0, 2.0, "multi_worker", 2, why)] * 2


def shortened(spec, workers):
    ports = [address.rpartition(":")[2] for address in spec.addresses["worker"][:workers]]
    return local_spec(workers=workers, ports=ports)


@pytest.fixture
def described(monkeypatch):
    """Sets TF_CONFIG to a cluster on ports of this machine, and yields them."""
    with reserved_ports(3) as ports:
        spec = local_spec(workers=1, parameter_servers=1, chief=True, ports=ports)
        monkeypatch.setenv("TF_CONFIG", spec.tf_config(CHIEF))
        yield spec


@pytest.mark.parametrize("task", [CHIEF, W0])
@pytest.mark.parametrize("servers", [0, 1])
def test_a_port_that_is_in_use_is_an_error_at_once(tmp_path, task, servers):
    kind = "parameter_server" if servers else "multi_worker"
    layout = {"workers": 1, "parameter_servers": servers, "chief": True}
    calls = {task: "caught(dl.make_strategy)"}
    with running(calls, tmp_path, started=[], **layout) as tasks, socket.socket() as one:
        address = tasks.group.spec.address_of(task)
        one.bind(("", int(address.rpartition(":")[2])))
        one.listen()
        tasks.group.start([task])
        _, asked, found, do = tasks.result(task, secs=30)
    assert asked == f"make_strategy({kind!r}) on {task}"
    assert found.startswith(f"its port is in use, {address} (Address already in use)")
    assert do.startswith("end that process (ss -ltnp names it)")
    assert is_port_taken(found)


def test_the_kind_that_is_asked_for_must_be_that_of_the_cluster(described):
    with pytest.raises(UnsupportedEnvironment, match="has parameter servers, which have no part"):
        dl.make_strategy("multi_worker")


def test_an_address_of_another_machine_is_a_warning(monkeypatch):
    cluster = {"worker": ["192.0.2.7:1", "192.0.2.8:1"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    tf.constant(1)  # so that it goes no further
    with (
        pytest.warns(UserWarning, match="192.0.2.7:1 is no address of this machine") as warned,
        pytest.raises(DeviceError, match="has already been used"),
    ):
        dl.make_strategy()
    assert warned[0].filename == __file__


@pytest.mark.parametrize("name", ["timeout_secs", "heartbeat_secs"])
@pytest.mark.parametrize("secs", [-1, "5", True, float("nan"), float("inf"), None])
def test_times_are_numbers_of_seconds(name, secs):
    with pytest.raises(InvalidArgument) as error:
        dl.make_strategy("multi_worker", **{name: secs})
    assert error.value.asked == f"make_strategy(..., {name}={secs!r})"
    assert "it is no number of seconds" in error.value.found


def test_only_parameter_servers_hold_parts_of_variables():
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    with pytest.raises(InvalidArgument, match="only parameter servers hold parts of variables"):
        dl.make_strategy("mirrored", variable_partitioner=partitioner)


@pytest.mark.parametrize(
    ("gpus", "environ", "taken"),
    [
        (4, {}, [2, 3]),
        (5, {}, [2, 3]),
        (2, {}, [1]),
        (1, {}, None),
        (4, {"SLURM_GPUS_PER_TASK": "2"}, None),
    ],
)
def test_tasks_of_slurm_on_one_machine_share_its_gpus(monkeypatch, gpus, environ, taken):
    spec = local_spec(workers=3, ports=[1, 2, 3])
    addresses = {"worker": ("a:1", "b:1", "b:2")}
    spec = type(spec)(jobs={"worker": 3}, addresses=addresses, task=W2, source="Slurm")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    seen = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: list(range(gpus)))
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda some, kind: seen.append(some))
    clusters._take_own_gpus(spec)
    assert seen == ([taken] if taken else [])


def test_an_error_of_tensorflow_that_nobody_expected_is_passed_on():
    spec = local_spec(workers=1, ports=[1])
    spec = type(spec)(jobs=spec.jobs, addresses=spec.addresses, task=W0, source="here")
    error = meeting_errors.refused(spec, "something new\nand its details")
    assert error.found == "TensorFlow says: something new"
    assert error.do == "start all tasks again"
