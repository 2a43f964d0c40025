"""Strategies of several processes: the tasks meet, or each is told what is in the way."""

import contextlib
import dataclasses
import json
import signal
import socket
import time

import pytest
import tensorflow as tf

import distlab as dl
from distlab.cluster import heartbeat
from distlab.cluster.ports import is_port_taken
from distlab.cluster.spec import ClusterSpec, Layout, TaskName
from distlab.errors import DeviceError, InvalidArgument, UnsupportedEnvironment
from distlab.strategy import cluster_errors, clusters
from tests.support.clusters import result_of, started_tasks


class Running:
    """Tasks that run, each with the TF_CONFIG that it was given."""

    def __init__(self, group, folder):
        self.group, self._folder = group, folder

    def log(self, task):
        return self.group.log_of(task).read_text()

    def says(self, task, text):
        self._until(lambda: text in self.log(task), task)

    def code(self, task):
        self._until(lambda: task in self.group.ended(), task)
        return self.group.ended()[task]

    def result(self, task):
        """What the call of a task returned, once its process has ended well."""
        assert self.code(task) == 0, self.log(task)
        return result_of(self._folder, task)

    def _until(self, condition, task, secs=240):
        deadline = time.monotonic() + secs  # less than what make_strategy waits by default
        while not condition():
            assert time.monotonic() < deadline, self.log(task)
            time.sleep(0.02)


@contextlib.contextmanager
def running(calls, folder, **options):
    """Runs calls of strategy_cases, one for each task, on the tasks of a cluster."""

    def target(task):
        return f"support.strategy_cases:{calls[task]}"

    with started_tasks(target, folder, **options) as group:
        yield Running(group, folder)


W0, W1, W2 = (TaskName("worker", index) for index in range(3))
CHIEF, PS, EVALUATOR = TaskName("chief", 0), TaskName("ps", 0), TaskName("evaluator", 0)
SERVERS = {"workers": 1, "parameter_servers": 1, "chief": True}
SAME_CLUSTER = "give all tasks the same 'cluster'; only 'task' differs"
GONE = "does not answer: the machine is there and nothing listens on that port"


# Workers that have met


def test_a_worker_joins_once_and_gets_its_strategy_again(tmp_path):
    with running(dict.fromkeys((W0, W1), "ask_again()"), tmp_path, workers=2) as tasks:
        results = {task: tasks.result(task) for task in (W0, W1)}
    for task, (is_same, sums, heartbeat_ms, refused) in results.items():
        assert (is_same, sums, heartbeat_ms) == (True, [2.0] * 3, 100_000)
        assert refused == (
            "DeviceError",
            f"make_strategy('multi_worker') on {task}",
            "this process has joined a cluster before, and can do so only once",
            "restart the kernel (or Python; in a LocalCluster: cluster.restart()), here and in the "
            "other tasks",
        )


def test_a_worker_that_has_joined_ends_when_it_is_asked_to(tmp_path):
    with running(dict.fromkeys((W0, W1), "stay()"), tmp_path, workers=2) as tasks:
        for task in (W1, W0):
            tasks.says(task, "stays")
        tasks.group.send_signal([W1], signal.SIGTERM)
        assert tasks.code(W1) == -signal.SIGTERM


def test_a_worker_that_ends_while_it_waits_can_come_back(tmp_path):
    calls = {W0: "meet()", W1: "wait_in_vain()", W2: "meet()"}
    with running(calls, tmp_path, started=[W0, W1], workers=3) as tasks:
        tasks.says(W1, "counted to 100")
        tasks.group.send_signal([W1], signal.SIGKILL)
        assert tasks.code(W1) == -signal.SIGKILL
        calls[W1] = "meet()"
        tasks.group.start([W1, W2])
        assert [tasks.result(task)[0] for task in (W0, W1, W2)] == [3.0] * 3


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
    assert results == [(2.0, "multi_worker", 2, "Slurm names a cluster of 2 tasks")] * 2


def test_workers_meet_whatever_proxies_the_environment_names(tmp_path):
    proxies = dict.fromkeys(("http_proxy", "grpc_proxy", "all_proxy"), "http://127.0.0.1:9")
    env = {**proxies, "no_proxy": "example.org", "no_grpc_proxy": None}
    calls = {W0: "meet_with_a_proxy()", W1: "meet()"}
    with running(calls, tmp_path, env=env, workers=2) as tasks:
        assert [tasks.result(task)[0] for task in (W0, W1)] == [2.0] * 2


# Workers that do not meet


def test_a_worker_that_comes_back_when_all_is_done_is_told_so(tmp_path):
    with running({W1: "fail_twice()"}, tmp_path, started=[W1], workers=2) as tasks:
        for error in tasks.result(W1):
            assert GONE in error[2]
            assert "If all others have ended because the training is done, don't start" in error[3]


def test_workers_with_different_numbers_of_devices_say_so(tmp_path):
    calls = {task: f"caught(lambda: meet_on_devices({n}))" for task, n in [(W0, 2), (W1, 3)]}
    with running(calls, tmp_path, workers=2) as tasks:
        results = [tasks.result(task) for task in (W0, W1)]
    for kind, _, found, do in results:
        assert (kind, found) == (
            "UnsupportedEnvironment",
            "worker:1 computes on 3 devices, and worker:0 on 2",
        )
        assert do.startswith("give all workers as many: GPUs") and "--devices-per-worker" in do


def test_a_process_that_has_used_tensorflow_cannot_join(tmp_path):
    with running({W0: "use_first()"}, tmp_path, started=[W0], workers=2) as tasks:
        kind, asked, found, do = tasks.result(W0)
    assert (kind, asked) == ("DeviceError", "make_strategy('multi_worker') on worker:0")
    assert found.startswith("TensorFlow has already been used in this process")
    assert do.startswith("restart the kernel (or Python; in a LocalCluster: cluster.restart()) and")


def test_tasks_that_do_not_come_are_named(tmp_path):
    calls = dict.fromkeys((W0, W1), "fail_twice()")
    with running(calls, tmp_path, started=[W0, W1], workers=3) as tasks:
        results = {task: tasks.result(task) for task in (W0, W1)}
        address = tasks.group.spec.address_of(W2)
    for task, (error, _) in results.items():
        assert error == (
            "TaskTimeout",
            f"make_strategy('multi_worker') on {task}",
            f"worker:2 at {address} {GONE}",
            "has the task been started, and does it still run? "
            "A task that comes later needs a timeout_secs above 1.5",
        )


def test_a_task_at_whose_address_another_server_answers_is_named(tmp_path):
    calls = {W0: "fail_twice()", W1: "serve_alone()"}
    with running(calls, tmp_path, started=[W1], workers=2) as tasks:
        tasks.says(W1, "serves")
        tasks.group.start([W0])
        for error in tasks.result(W0):
            assert error[2] == "worker:1 answers and has not joined"
            assert f"{SAME_CLUSTER}." in error[3]


def test_a_wait_heeds_interrupts_and_requests_to_end_and_lets_other_threads_run(tmp_path):
    calls = dict.fromkeys((W0, W1), "wait_in_vain()")
    with running(calls, tmp_path, started=[W0, W1], workers=3) as tasks:
        for task in (W0, W1):
            tasks.says(task, "counted to 100")
        tasks.group.send_signal([W0], signal.SIGINT)
        tasks.group.send_signal([W1], signal.SIGTERM)
        assert tasks.result(W0) == "interrupted"
        assert tasks.code(W1) == -signal.SIGTERM


def test_a_worker_whose_leader_ends_meanwhile_is_told(tmp_path):
    calls = dict.fromkeys((W0, W1), "fail_late()")
    with running(calls, tmp_path, started=[W0, W1], workers=3) as tasks:
        tasks.says(W1, "joined")
        tasks.group.send_signal([W0], signal.SIGKILL)
        kind, asked, found, do = tasks.result(W1)
        leader, third = map(tasks.group.spec.address_of, (W0, W2))
    assert (kind, asked) == ("ProcessError", "make_strategy('multi_worker') on worker:1")
    assert found.startswith(f"worker:0 at {leader} {GONE}; worker:2 at {third} {GONE}; ")
    assert do.endswith("does it still run? Start all tasks again")


def test_a_worker_that_dies_while_tensorflow_connects_all_holds_nobody(tmp_path):
    """TensorFlow waits an hour for it, deaf to every signal."""
    calls = {W0: "connect_within(5)", W1: "die_when_all_are_there()"}
    with running(calls, tmp_path, workers=2) as tasks:
        assert (tasks.code(W1), tasks.code(W0)) == (3, 1)
        assert "Timeout (0:00:05)!" in tasks.log(W0)
        assert "strategy/clusters.py" in tasks.log(W0)


def test_two_processes_that_are_the_same_task_are_named(tmp_path):
    """The second one has another port, as on another host."""

    def env(spec):
        twin = json.loads(spec.tf_config(W2)) | {"task": {"type": "worker", "index": 1}}
        addresses = twin["cluster"]["worker"]
        addresses[1], addresses[2] = addresses[2], addresses[1]
        return {W0: {}, W1: {}, W2: {"TF_CONFIG": json.dumps(twin)}}

    calls = dict.fromkeys((W0, W1, W2), "caught(dl.make_strategy)")
    with running(calls, tmp_path, env=env, workers=3) as tasks:
        results = [tasks.result(task) for task in (W0, W1, W2)]
    for kind, _, found, _ in results:
        assert kind == "UnsupportedEnvironment"
        assert found.startswith(("two processes are worker:1", "worker:1 was told that")), found


def test_workers_that_were_told_of_different_clusters_or_have_other_versions_say_so():
    spec = dataclasses.replace(Layout(workers=2).on([1, 2]), task=W0)
    ours = {
        "cluster": {job: list(addresses) for job, addresses in spec.addresses.items()},
        "replicas": 1,
        "versions": "distlab 1, tensorflow 2",
    }
    cases = [
        ({}, None),
        (
            {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2", "c:3"]}},
            "worker:1 was told of 3 workers, and worker:0 of 2 workers",
        ),
        (
            {"cluster": {"worker": ["127.0.0.1:1", "localhost:2"]}},
            "worker:1 was told that worker:1 is at localhost:2, and worker:0 that it is at "
            "127.0.0.1:2",
        ),
        (
            {"versions": "distlab 1, tensorflow 1"},
            "worker:1 runs distlab 1, tensorflow 1, and worker:0 distlab 1, tensorflow 2",
        ),
    ]
    for differs, found in cases:
        theirs = {**ours, **differs, "task": "worker:1"}
        error = cluster_errors.disagreement(spec, theirs=theirs, ours=ours)
        assert (error.found if error else None) == found


# Parameter servers


def test_one_script_is_coordinator_servers_and_evaluator(tmp_path):
    tasks_of_all = (CHIEF, W0, PS, TaskName("ps", 1), EVALUATOR)
    layout = {"workers": 1, "parameter_servers": 2, "chief": True, "evaluator": True}
    with running(dict.fromkeys(tasks_of_all, "coordinate()"), tmp_path, **layout) as tasks:
        kind, why, values, devices, refused = tasks.result(CHIEF)
        evaluator = tasks.result(EVALUATOR)
        codes = tasks.group.stop([W0, PS], grace_secs=120)
        for task in (W0, PS):
            address = tasks.group.spec.address_of(task)
            assert f"{task} serves at {address} until its coordinator is done\n" in tasks.log(task)
    assert (kind, why) == ("parameter_server", "TF_CONFIG names a cluster of 4 tasks")
    assert values == (5.0, 40.0)
    assert sorted(devices) == [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)]
    assert refused[0] == "ModelError" and "that has a variable_partitioner" in refused[1]
    assert "trains no layer whose variables are in shards" in refused[2]
    assert "leave variable_partitioner out" in refused[3]
    assert evaluator == ("one_device", "this task is the evaluator, which computes alone")
    assert codes == {W0: 0, PS: 0}


def test_servers_that_do_not_answer_are_named(tmp_path):
    call = "caught(lambda: dl.make_strategy(timeout_secs=1))"
    with running({CHIEF: call, W0: call}, tmp_path, started=[CHIEF, W0], **SERVERS) as tasks:
        tasks.says(W0, "serves at")
        kind, asked, found, do = tasks.result(CHIEF)
        address = tasks.group.spec.address_of(PS)
    assert (kind, asked) == ("TaskTimeout", "make_strategy('parameter_server') on chief:0")
    assert f"ps:0 at {address} {GONE}" in found
    assert do.startswith("has the task been started, and does it still run?")


# One process


@pytest.mark.parametrize(("task", "servers"), [(CHIEF, 0), (W0, 1)])
def test_a_port_that_is_in_use_is_an_error_at_once(tmp_path, task, servers):
    kind = "parameter_server" if servers else "multi_worker"
    layout = {"workers": 1, "parameter_servers": servers, "chief": True}
    calls = {task: "caught(dl.make_strategy)"}
    with running(calls, tmp_path, started=[], **layout) as tasks, socket.socket() as taken:
        address = tasks.group.spec.address_of(task)
        taken.bind(("", int(address.rpartition(":")[2])))
        taken.listen()
        tasks.group.start([task])
        _, asked, found, do = tasks.result(task)
    assert asked == f"make_strategy({kind!r}) on {task}"
    assert found.startswith(f"its port is in use, {address} (Address already in use)")
    assert do.startswith("end that process (ss -ltnp names it)")
    assert is_port_taken(found)


def test_the_kind_that_is_asked_for_must_be_that_of_the_cluster(monkeypatch):
    spec = Layout(**SERVERS).on([1, 2, 3])
    monkeypatch.setenv("TF_CONFIG", spec.tf_config(CHIEF))
    with pytest.raises(UnsupportedEnvironment, match="has parameter servers, which have no part"):
        dl.make_strategy("multi_worker")


def test_an_address_of_another_machine_is_a_warning(monkeypatch):
    cluster = {"worker": ["192.0.2.7:1", "192.0.2.8:1"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    tf.constant(1)  # so that it goes no further
    warned = pytest.warns(UserWarning, match="192.0.2.7:1 is no address of this machine")
    with warned as warnings, pytest.raises(DeviceError, match="has already been used"):
        dl.make_strategy()
    assert warnings[0].filename == __file__


@pytest.mark.parametrize(
    ("hosts", "secs"),
    [(["127.0.0.1", "localhost", "[::1]"], 100), (["a", "b"], 10), (["localhost", "b"], 10)],
)
def test_a_silence_is_borne_longer_where_all_workers_are_on_one_machine(hosts, secs):
    addresses = {"worker": tuple(f"{host}:2222" for host in hosts)}
    spec = ClusterSpec(jobs={"worker": len(hosts)}, addresses=addresses, source="TF_CONFIG")
    assert heartbeat.default_secs(spec) == secs


@pytest.mark.parametrize("name", ["timeout_secs", "heartbeat_secs"])
def test_times_are_numbers_of_seconds(name):
    wrong = [-1, "5", True, float("nan"), float("inf")]
    for secs in wrong + [None] * (name == "timeout_secs"):  # heartbeat_secs=None is the default
        with pytest.raises(InvalidArgument) as error:
            dl.make_strategy("multi_worker", **{name: secs})
        assert error.value.asked == f"make_strategy(..., {name}={secs!r})"
        assert (
            error.value.found == f"{name}={secs!r}" and "seconds: 60 is a minute" in error.value.do
        )


def test_tasks_of_slurm_on_one_machine_share_its_gpus(monkeypatch):
    spec = Layout(workers=3).on([1, 2, 3])
    addresses = {"worker": ("a:1", "b:1", "b:2")}
    spec = type(spec)(jobs={"worker": 3}, addresses=addresses, task=W2, source="Slurm")
    cases = [(5, [[2, 3]]), (2, [[1]]), (1, []), (4, [])]
    for gpus, taken in cases:
        visible = []
        if (gpus, taken) == (4, []):
            monkeypatch.setenv("SLURM_GPUS_PER_TASK", "2")
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda _, n=gpus: list(range(n)))
        monkeypatch.setattr(tf.config, "set_visible_devices", lambda g, _, v=visible: v.append(g))
        clusters._take_own_gpus(spec)
        assert visible == taken, gpus
