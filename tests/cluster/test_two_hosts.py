"""Two hosts, made of two network namespaces and a cable between them, on this machine."""

import contextlib
import os
import shutil
import subprocess
import sys
import time

import pytest

from distlab.cluster.group import Start, TaskGroup
from distlab.cluster.isolation import Isolation
from distlab.cluster.spec import ClusterSpec
from distlab.errors import UnsupportedEnvironment
from tests.support.train_script import TRAIN, loss_in, run_tasks

ADDRESSES = ("10.77.0.1", "10.77.0.2")
SPEC = ClusterSpec(
    jobs={"worker": 2},
    addresses={"worker": tuple(f"{address}:2222" for address in ADDRESSES)},
    source="here",
)
HEARTBEAT_SECS = 3

# What TensorFlow, and Python, may take beside the heartbeats until a process has ended.
SLACK_SECS = 12


@pytest.fixture
def hosts():
    """Two processes, each of which holds the network of a host."""
    missing = [tool for tool in ("ip", "nsenter") if shutil.which(tool) is None]
    if sys.platform != "linux" or missing:
        pytest.skip(f"network namespaces are Linux's, and need {' and '.join(missing)}")
    if os.geteuid():
        pytest.skip("only root may lay a cable between two network namespaces")
    with contextlib.ExitStack() as stack:
        try:
            pids = [stack.enter_context(Isolation()).pid for _ in ADDRESSES]
        except UnsupportedEnvironment as error:
            if "Operation not permitted" not in error.found:
                raise
            pytest.skip(error.found)
        ip(pids[0], f"link add cable type veth peer name cable netns {pids[1]}")
        for pid, address in zip(pids, ADDRESSES, strict=True):
            ip(pid, f"address add {address}/24 dev cable")
            ip(pid, "link set cable up")
        yield pids


def ip(pid, arguments):
    """Runs `ip` on the host that a process holds."""
    enter = ["nsenter", "--target", str(pid), "--net"]
    subprocess.run([*enter, "ip", *arguments.split()], check=True, capture_output=True, timeout=10)


def cut_off(pids):
    """What one host sends goes to nobody from now on: no error, no end of a connection."""
    for pid, other in zip(pids, reversed(ADDRESSES), strict=True):
        ip(pid, f"neighbour replace {other} lladdr 02:00:00:00:00:ff dev cable nud permanent")


def test_two_hosts_train_as_one_process_does(hosts, tmp_path):
    for name in ("alone", "together"):
        (tmp_path / name).mkdir()
    configs = [{"TF_CONFIG": SPEC.tf_config(task)} for task in SPEC.tasks_in_order()]
    (alone,) = run_tasks([{}], tmp_path / "alone")
    together, silent = run_tasks(configs, tmp_path / "together", network_of=hosts)
    assert loss_in(together) == (2, pytest.approx(loss_in(alone)[1], abs=1e-5))
    assert "loss after" not in silent


CUT_OFF = f"""
import sys
sys.path.insert(0, {str(TRAIN.parent)!r})
import keras, train
import distlab as dl
def tell(epoch, logs): print("epoch", epoch, flush=True)
strategy = dl.make_strategy("auto", heartbeat_secs={HEARTBEAT_SECS})
data, _ = dl.load_dataset("digits", batch_size=32)
model = dl.distribute(train.build, strategy)
model.fit(data, epochs=1_000_000, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=tell)])
"""


def test_a_host_that_is_cut_off_ends_both_within_a_bounded_time(hosts, tmp_path):
    def how(task):
        return Start(argv=["-c", CUT_OFF], env={}, network_of=hosts[task.index])

    def said(task):
        return group.log_of(task).read_text()

    def wait_until(condition, timeout_secs):
        deadline = time.monotonic() + timeout_secs
        while not condition():
            assert time.monotonic() < deadline, "\n---\n".join(said(t)[-4000:] for t in both)
            time.sleep(0.02)  # between looks at real processes

    both = SPEC.tasks_in_order()
    with TaskGroup(SPEC, how=how, folder=tmp_path) as group:
        group.start()
        wait_until(lambda: all("epoch 2" in said(task) for task in both) or group.ended(), 120)
        assert group.ended() == {}, "\n---\n".join(map(said, both))
        cut_off(hosts)
        wait_until(lambda: not group.running(), HEARTBEAT_SECS + SLACK_SECS)
        for task, other in zip(both, reversed(both), strict=True):
            assert group.ended()[task] == 1, said(task)
            gone = (
                f"{other} ({SPEC.address_of(other)}) fell silent: its host or its network is gone"
            )
            assert gone in said(task)
