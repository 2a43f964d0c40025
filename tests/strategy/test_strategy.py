import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import DeviceError, InvalidArgument, UnsupportedEnvironment
from distlab.strategy import factory

TF_CONFIG = {"task": {"type": "worker", "index": 0}}


def tf_config(**cluster):
    return {"TF_CONFIG": json.dumps({**TF_CONFIG, "cluster": cluster})}


@pytest.fixture
def alone(monkeypatch):
    for name in ("TF_CONFIG", "SLURM_STEP_NUM_TASKS", "TPU_NAME", "COLAB_TPU_ADDR"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("kind", "replicas", "strategy_class"),
    [
        ("one_device", 1, tf.distribute.OneDeviceStrategy),
        ("mirrored", 4, tf.distribute.MirroredStrategy),
        ("central_storage", 4, tf.distribute.experimental.CentralStorageStrategy),
        ("multi_worker", 1, tf.distribute.MultiWorkerMirroredStrategy),
        ("default", 1, tf.distribute.Strategy),
    ],
)
def test_each_kind_of_one_process_is_made_and_described(alone, kind, replicas, strategy_class):
    strategy = dl.make_strategy(kind)
    description = dl.describe(strategy)
    assert isinstance(strategy, strategy_class)
    assert (description.kind, description.replicas, description.workers) == (kind, replicas, 1)
    with strategy.scope():
        variable = tf.Variable(2.0)
    assert float(strategy.reduce("SUM", strategy.run(lambda: variable * 1.0), axis=None)) == (
        2.0 * replicas
    )


def test_a_parameter_server_strategy_is_made_from_tf_config(run_python):
    code = """
import json, os, socket
import distlab as dl
import tensorflow as tf
ports = []
for _ in range(3):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0)); ports.append(s.getsockname()[1])
jobs = {"chief": ports[:1], "worker": ports[1:2], "ps": ports[2:]}
cluster = {job: [f"127.0.0.1:{port}" for port in some] for job, some in jobs.items()}
servers = [tf.distribute.Server({"worker": cluster["worker"], "ps": cluster["ps"]},
                                job_name=job, task_index=0) for job in ("worker", "ps")]
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
description = dl.describe(dl.make_strategy("auto"))
print(description.kind, description.workers, "|", description.why, flush=True)
os._exit(0)
"""
    assert (
        run_python(code, warm=True)
        .strip()
        .endswith("parameter_server 1 | TF_CONFIG names a cluster of 3 tasks")
    )


@pytest.mark.parametrize(
    ("environ", "kind", "why"),
    [
        ({}, "one_device", "there is no cluster, no TPU and no GPU"),
        (tf_config(worker=["a:1"]), "one_device", "there is no cluster, no TPU and no GPU"),
        (tf_config(worker=["a:1", "b:1"]), "multi_worker", "TF_CONFIG names a cluster of 2 tasks"),
        (
            tf_config(chief=["a:1"], worker=["b:1"], ps=["c:1"]),
            "parameter_server",
            "TF_CONFIG names a cluster of 3 tasks",
        ),
        (
            {
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_STEP_NODELIST": "node[1-2]",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
                "SLURM_PROCID": "0",
            },
            "multi_worker",
            "Slurm names a cluster of 4 tasks",
        ),
        ({"SLURM_STEP_NUM_TASKS": "1"}, "one_device", "there is no cluster, no TPU and no GPU"),
        ({"TPU_NAME": "local"}, "tpu", "there is a TPU"),
        (
            {"TPU_NAME": "local", **tf_config(worker=["a:1", "b:1"])},
            "multi_worker",
            "TF_CONFIG names a cluster of 2 tasks",
        ),
    ],
)
def test_auto_looks_for_a_cluster_then_a_tpu_then_gpus(alone, environ, kind, why):
    alone.setattr(factory.tf.config, "list_logical_devices", lambda kind: [])
    for name, value in environ.items():
        alone.setenv(name, value)
    assert factory._choose() == (kind, why)


@pytest.mark.parametrize(("gpus", "kind"), [(1, "one_device"), (2, "mirrored")])
def test_auto_mirrors_over_several_gpus_only(alone, gpus, kind):
    alone.setattr(factory.tf.config, "list_logical_devices", lambda kind: ["GPU"] * gpus)
    assert factory._choose()[0] == kind


def test_a_misspelt_kind_is_answered_with_the_near_one():
    with pytest.raises(InvalidArgument) as error:
        dl.make_strategy("mirored")
    assert error.value.asked == "make_strategy('mirored')"
    assert error.value.do.startswith("did you mean 'mirrored'? Or choose one of 'auto', 'default'")


@pytest.mark.parametrize("devices", [0, 5, ["GPU:7"], ["CPU:0", "CPU:9"], []])
def test_devices_that_are_not_there_are_named_beside_those_that_are(devices):
    with pytest.raises(DeviceError) as error:
        dl.make_strategy("mirrored", devices=devices)
    assert error.value.asked == f"make_strategy('mirrored', devices={devices!r})"
    assert error.value.found.startswith("there are only ")
    assert "distlab.split_devices(" in error.value.do


def test_devices_may_be_named_in_any_of_tensorflows_spellings(devices):
    kind = devices[0].partition(":")[0]
    for names in ([f"/{kind.lower()}:1", f"/device:{kind}:2"], 2):
        assert dl.make_strategy("mirrored", devices=names).num_replicas_in_sync == 2


def test_one_device_takes_one():
    with pytest.raises(InvalidArgument, match="use 'mirrored' for several"):
        dl.make_strategy("one_device", devices=2)


def test_kinds_that_find_their_own_devices_refuse_them():
    with pytest.raises(InvalidArgument, match="'default' finds its own devices"):
        dl.make_strategy("default", devices=2)


def test_a_tpu_that_is_not_there_is_a_device_error(alone):
    with pytest.raises(DeviceError, match="no TPU: TPU_NAME is not set"):
        dl.make_strategy("tpu")


def test_a_local_tpu_is_looked_for_on_this_machine_alone():
    """In a process of its own, because TensorFlow's context is made anew."""
    code = "import distlab as dl; dl.make_strategy('tpu')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TPU_NAME": "local"},
        capture_output=True,
        text=True,
    )
    assert "found: no TPU that TensorFlow can use, and TPU_NAME=local" in done.stderr


def test_parameter_servers_need_a_cluster_that_names_one(alone):
    with pytest.raises(UnsupportedEnvironment, match="no parameter server: TF_CONFIG is not set"):
        dl.make_strategy("parameter_server")
    alone.setenv("TF_CONFIG", tf_config(worker=["a:1", "b:1"])["TF_CONFIG"])
    with pytest.raises(UnsupportedEnvironment, match="TF_CONFIG names none"):
        dl.make_strategy("parameter_server")


@pytest.mark.parametrize(
    "text", ["{", "[1]", '"x"', '{"cluster": 1}', '{"cluster": {"worker": 1}}']
)
def test_a_tf_config_that_cannot_be_read_says_how_it_should_be(alone, text):
    alone.setenv("TF_CONFIG", text)
    with pytest.raises(UnsupportedEnvironment) as error:
        dl.make_strategy("auto")
    assert error.value.found.startswith("it does not describe a cluster")
    assert '"cluster": {"worker": ["host1:2222", "host2:2222"]}' in error.value.do


def test_strategies_of_different_size_live_in_one_process():
    for count in (1, 2, 4):
        strategy = dl.make_strategy("mirrored", devices=count)
        total = strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)
        assert float(total) == count


def test_the_all_reduce_can_be_chosen():
    operations = tf.distribute.HierarchicalCopyAllReduce()
    strategy = dl.make_strategy("mirrored", devices=2, cross_device_ops=operations)
    assert dl.describe(strategy).all_reduce == "HierarchicalCopyAllReduce"
    assert dl.describe(dl.make_strategy("mirrored")).all_reduce == "ReductionToOneDevice"


def test_whole_gpus_meet_by_nccl(monkeypatch):
    monkeypatch.setattr(factory.tf.config, "list_physical_devices", lambda kind: [1, 2])
    monkeypatch.setattr(factory.tf.config, "list_logical_devices", lambda kind: [1, 2])
    operations = factory._choose_cross_device_ops(["GPU:0", "GPU:1"])
    assert isinstance(operations, tf.distribute.NcclAllReduce)


def test_a_description_reads_well_and_is_escaped():
    description = dl.describe(dl.make_strategy("mirrored", devices=2))
    assert "kind       mirrored\nreplicas   2\n" in repr(description)
    assert "&quot;mirrored&quot; was asked for" in description._repr_html_()


def test_a_strategy_made_elsewhere_is_described_too():
    description = dl.describe(tf.distribute.OneDeviceStrategy("CPU:0"))
    assert (description.kind, description.why) == ("one_device", "made elsewhere")
