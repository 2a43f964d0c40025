"""A cluster in a network of its own: nobody outside reaches it, and inside all is the same."""

import contextlib
import ctypes
import os
import socket
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import distlab as dl
from distlab.cluster import isolation
from distlab.cluster.isolation import Isolation
from distlab.errors import TaskTimeout, UnsupportedEnvironment
from tests.support.repository import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such networks")


def serve():
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    total = strategy.run(
        tf.function(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(2.0)))
    )
    return total, here()


def here():
    return str(Path("/proc/self/ns/net").readlink())


def is_open(address):
    host, port = address.split(":")
    with contextlib.suppress(OSError):
        socket.create_connection((host, int(port)), timeout=5).close()
        return True
    return False


def interfaces(pid):
    text = Path(f"/proc/{pid}/net/dev").read_text()
    return [line.split(":")[0].strip() for line in text.splitlines()[2:]]


def test_outside_nobody_reaches_a_server_and_inside_workers_reach_each_other(capfd):
    with dl.LocalCluster(workers=2) as cluster:
        totals = cluster.run(serve)
        assert [total for total, _ in totals] == [4.0, 4.0]
        assert {network for _, network in totals} == {here()}
        assert [is_open(task.address) for task in cluster.status().tasks] == [True, True]
    capfd.readouterr()
    with dl.LocalCluster(workers=2, isolate=True) as cluster:
        totals = cluster.run(serve)
        assert [total for total, _ in totals] == [4.0, 4.0]
        networks = {network for _, network in totals}
        assert len(networks) == 1 and here() not in networks
        statuses = cluster.status().tasks
        assert [is_open(task.address) for task in statuses] == [False, False]
        assert "authentication" not in capfd.readouterr().out


def test_a_killed_task_comes_back_in_the_same_network():
    with dl.LocalCluster(workers=2, isolate=True) as cluster:
        _, network = cluster.run(serve)[0]
        cluster.kill("worker:1")
        cluster.restart()
        assert cluster.run(serve) == [(4.0, network)] * 2


def test_who_does_not_answer_is_asked_inside():
    def wait_or_serve():
        import json

        if json.loads(os.environ["TF_CONFIG"])["task"]["index"]:
            threading.Event().wait()
        serve()

    with dl.LocalCluster(workers=2, isolate=True) as cluster:
        address = cluster.status().tasks[1].address
        with pytest.raises(TaskTimeout) as caught:
            cluster.run(wait_or_serve, timeout_secs=2)
        assert f"worker:1 does not answer at {address}: the machine is there" in str(caught.value)
        assert "worker:0 does not answer" not in str(caught.value)


def test_it_has_its_own_loopback_and_nothing_else():
    with Isolation() as network:
        assert interfaces(network.pid) == ["lo"]
        pid = network.pid
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # between looks at another process


def show_network_as_nobody():
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1)  # dumpable, as the processes of users are
    isolation._enter_new()
    isolation._bring_up("lo")
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        one.listen()
        other.connect(one.getsockname())
        print(os.getuid(), interfaces("self"))  # noqa: T201


HERE = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom tests.cluster import test_isolation\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_who_is_not_root_makes_one_in_a_user_namespace(run_python):
    printed = run_python(HERE + "test_isolation.show_network_as_nobody()", warm=True)
    assert printed == "65534 ['lo']\n"


def in_a_namespace_without_networks():
    """Goes where the system lets nobody make a network, and asks for one."""
    user = os.getuid()
    isolation._unshare(isolation._CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/sys/user/max_net_namespaces").write_text("0")
    try:
        Isolation()
    except UnsupportedEnvironment as problem:
        print(problem)  # noqa: T201


def test_where_the_system_forbids_it_that_is_told(run_python):
    code = HERE + "test_isolation.in_a_namespace_without_networks()"
    assert run_python(code, environ={"DISTLAB_WARM": "0"}) == (
        "a network of a cluster's own (isolate=True)\n"
        "  found: the system does not let this user make one (No space left on device)\n"
        "  to do: leave isolate out; any program that reaches this machine can then use the "
        "servers\n"
    )


def test_elsewhere_than_on_linux_that_is_told(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedEnvironment, match="darwin, which has no network namespaces"):
        Isolation()
