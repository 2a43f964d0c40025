"""A cluster in a network of its own: nobody outside reaches it, and inside all is the same."""

import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path

import psutil
import pytest

import distlab as dl
from distlab.cluster import isolation
from distlab.cluster.isolation import Isolation
from distlab.errors import UnsupportedEnvironment
from tests.support.limits import HANG_SECS
from tests.support.local_tasks import all_reduce, wait_until
from tests.support.repository import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such networks")


def network():
    return str(Path("/proc/self/ns/net").readlink())


def serve():
    return all_reduce(2.0), network()


def is_open(address):
    host, port = address.split(":")
    with contextlib.suppress(OSError):
        socket.create_connection((host, int(port)), timeout=HANG_SECS).close()
        return True
    return False


def test_outside_nobody_reaches_a_server_and_inside_workers_reach_each_other(shared, capfd):
    assert shared.run(serve) == [(4.0, network())] * 2
    assert [is_open(task.address) for task in shared.status().tasks] == [True, True]
    capfd.readouterr()
    with dl.LocalCluster(workers=2, isolate=True) as cluster:
        (total, inside), other = cluster.run(serve)
        assert (total, inside) == other == (4.0, inside) and inside != network()
        assert [is_open(task.address) for task in cluster.status().tasks] == [False, False]
        assert "authentication" not in capfd.readouterr().out
        cluster.kill("worker:1")  # and it comes back in the same network
        cluster.restart()
        assert cluster.run(serve) == [(4.0, inside)] * 2


def interfaces(pid):
    text = Path(f"/proc/{pid}/net/dev").read_text()
    return [line.split(":")[0].strip() for line in text.splitlines()[2:]]


def test_it_has_its_own_loopback_and_nothing_else():
    with Isolation() as inside:
        assert interfaces(inside.pid) == ["lo"]
        pid = inside.pid
    wait_until(lambda: not psutil.pid_exists(pid))


def show_network_as_nobody():
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1)  # dumpable, as the processes of users are
    isolation._enter_new()
    isolation.raise_loopback()
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        print(os.getuid(), interfaces("self"))  # noqa: T201


HERE = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom tests.cluster import test_isolation\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_who_is_not_root_makes_one_in_a_user_namespace(run_python):
    printed = run_python(HERE + "test_isolation.show_network_as_nobody()")
    assert printed == "65534 ['lo']\n"


def test_where_there_is_no_such_network_that_is_told(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedEnvironment, match="darwin, which has no network namespaces"):
        Isolation()
