"""Strategies of one process: every kind is made, described and computes; bad input is refused."""

import functools
import json
import threading
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import DeviceError, DistlabError, InvalidArgument, UnsupportedEnvironment
from distlab.strategy import factory
from distlab.strategy.mirrored import Coordinator
from tools import support_matrix

NONE = "there is no cluster, no TPU and no GPU"


def tf_config(**cluster):
    task = {"type": "worker", "index": 0}
    return {"TF_CONFIG": json.dumps({"task": task, "cluster": cluster})}


@pytest.fixture
def alone(monkeypatch):
    for name in ("TF_CONFIG", "SLURM_STEP_NUM_TASKS", "TPU_NAME", "COLAB_TPU_ADDR"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


KINDS_OF_ONE_PROCESS = [
    ("one_device", 1, tf.distribute.OneDeviceStrategy),
    ("mirrored", 4, tf.distribute.MirroredStrategy),
    ("central_storage", 4, tf.distribute.experimental.CentralStorageStrategy),
    ("multi_worker", 1, tf.distribute.MultiWorkerMirroredStrategy),
    ("default", 1, tf.distribute.Strategy),
]


def test_each_kind_is_made_in_a_test_looked_for_by_doctor_and_in_the_support_matrix():
    kinds = set(factory.KINDS) - {"auto"}
    made = {kind for kind, *_ in KINDS_OF_ONE_PROCESS}
    elsewhere = {"parameter_server", "tpu"}  # made on a cluster, or on no machine of ours
    assert kinds == made | elsewhere, "KINDS_OF_ONE_PROCESS lacks a kind of make_strategy"
    looked_for = dl.doctor().strategies.keys() | {"default"}
    assert kinds == looked_for, "distlab/diagnostics.py lacks a kind of make_strategy"
    measured = {name.partition(",")[0] for name in support_matrix.STRATEGIES}
    assert kinds == measured | {"tpu"}, "tools/support_matrix.py lacks a kind of make_strategy"


@pytest.mark.parametrize(("kind", "replicas", "strategy_class"), KINDS_OF_ONE_PROCESS)
def test_each_kind_of_one_process_is_made_and_described(alone, kind, replicas, strategy_class):
    strategy = dl.make_strategy(kind)
    description = dl.describe(strategy)
    assert isinstance(strategy, strategy_class)
    assert (description.kind, description.replicas, description.workers) == (kind, replicas, 1)
    assert description.is_chief and "chief" not in repr(description)
    with strategy.scope():
        variable = tf.Variable(2.0)
    values = strategy.run(lambda: variable * 1.0)
    assert float(strategy.reduce("SUM", values, axis=None)) == 2.0 * replicas


def test_auto_looks_for_a_cluster_then_a_tpu_then_gpus(alone):
    slurm = {
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "node[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_PROCID": "0",
    }
    two, servers = tf_config(worker=["a:1", "b:1"]), {"chief": ["a:1"], "ps": ["c:1"]}
    of_three = tf_config(**servers, worker=["b:1"])
    cases = [
        ({}, 0, "one_device", NONE),
        ({}, 1, "one_device", None),
        ({}, 2, "mirrored", None),
        (tf_config(worker=["a:1"]), 0, "one_device", NONE),
        (two, 0, "multi_worker", "TF_CONFIG names a cluster of 2 tasks"),
        (of_three, 0, "parameter_server", "TF_CONFIG names a cluster of 3 tasks"),
        (slurm, 0, "multi_worker", "Slurm names a cluster of 4 tasks"),
        ({"SLURM_STEP_NUM_TASKS": "1"}, 0, "one_device", NONE),
        ({"TPU_NAME": "local"}, 0, "tpu", "there is a TPU"),
        ({"TPU_NAME": "local"} | two, 0, "multi_worker", "TF_CONFIG names a cluster of 2 tasks"),
    ]
    for environ, gpus, kind, why in cases:
        with alone.context() as patch:
            patch.setattr(factory.tf.config, "list_logical_devices", lambda _, n=gpus: [1] * n)
            for name, value in environ.items():
                patch.setenv(name, value)
            chosen, reason = factory._choose_kind()
        assert (chosen, why or reason) == (kind, reason), environ


def test_devices_may_be_named_in_any_of_tensorflows_spellings(devices):
    kind = devices[0].partition(":")[0]
    for names in ([f"/{kind.lower()}:1", f"/device:{kind}:2"], 2):
        assert dl.make_strategy("mirrored", devices=names).num_replicas_in_sync == 2


@pytest.mark.parametrize("devices", [0, 5, ["GPU:7"], ["CPU:0", "CPU:9"], []])
def test_devices_that_are_not_there_are_named_beside_those_that_are(devices):
    with pytest.raises(DeviceError) as error:
        dl.make_strategy("mirrored", devices=devices)
    assert error.value.asked == f"make_strategy('mirrored', devices={devices!r})"
    assert error.value.found.startswith("there are only ")
    assert "distlab.split_devices(" in error.value.do


def test_one_worker_of_several_is_warned_of_training_alone(alone, monkeypatch):
    for name, value in tf_config(worker=["h1:1", "h2:1"]).items():
        monkeypatch.setenv(name, value)
    said = r"TF_CONFIG names 2 workers, each of which .* make_strategy\('auto'\) joins them"
    with pytest.warns(UserWarning, match=said):
        dl.make_strategy("mirrored")
    with warnings.catch_warnings(action="error"):
        dl.make_strategy("mirrored", devices=["CPU:0", "CPU:1"])
        monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')  # a mistake that nobody reads here
        dl.make_strategy("mirrored")


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"kind": "mirored"}, InvalidArgument, "did you mean 'mirrored'? Or choose one of 'auto'"),
        ({"kind": "MirroredStrategy"}, InvalidArgument, "did you mean 'mirrored'?"),
        ({"kind": "ParameterServerStrategy"}, InvalidArgument, "mean 'parameter_server'?"),
        ({"kind": "one_device", "devices": 2}, InvalidArgument, "use 'mirrored' for several"),
        ({"kind": "default", "devices": 2}, InvalidArgument, "'default' finds its own devices"),
        (
            {"kind": "mirrored", "variable_partitioner": "any"},
            InvalidArgument,
            "only parameter servers hold parts of variables",
        ),
        ({"kind": "tpu"}, DeviceError, "no TPU: TPU_NAME is not set"),
        (
            {"kind": "parameter_server"},
            UnsupportedEnvironment,
            "no parameter server: TF_CONFIG is not set",
        ),
    ],
)
def test_what_cannot_be_made_is_refused(alone, arguments, kind, text):
    with pytest.raises(DistlabError) as error:
        dl.make_strategy(arguments.pop("kind"), **arguments)
    assert isinstance(error.value, kind) and text in str(error.value)


def test_a_local_tpu_is_looked_for_on_this_machine_alone(run_python):
    """In a process of its own, because TensorFlow's context is made anew."""
    code = "import distlab as dl; dl.make_strategy('tpu')"
    error = run_python(code, environ={"TPU_NAME": "local"}, fails=True, warm=True)
    assert "found: no TPU that TensorFlow can use, and TPU_NAME=local" in error


def test_a_description_reads_well_and_names_the_all_reduce(monkeypatch):
    operations = tf.distribute.HierarchicalCopyAllReduce()
    chosen = dl.describe(dl.make_strategy("mirrored", devices=2, cross_device_ops=operations))
    description = dl.describe(dl.make_strategy("mirrored", devices=2))
    assert chosen.all_reduce == "HierarchicalCopyAllReduce"
    assert description.all_reduce == "ReductionToOneDevice"
    assert "kind       mirrored\nreplicas   2\n" in repr(description)
    assert "&quot;mirrored&quot; was asked for" in description._repr_html_()
    elsewhere = dl.describe(tf.distribute.OneDeviceStrategy("CPU:0"))
    assert (elsewhere.kind, elsewhere.why) == ("one_device", "made elsewhere")
    for kind in ("list_physical_devices", "list_logical_devices"):
        monkeypatch.setattr(factory.tf.config, kind, lambda _: [1, 2])
    whole_gpus = factory._choose_cross_device_ops(["GPU:0", "GPU:1"])
    assert isinstance(whole_gpus, tf.distribute.NcclAllReduce)


# The all-reduce of replicas


def normalised(strategy, rows, sizes):
    """What a synchronised layer gives, its moving statistics, and three gradients."""
    with strategy.scope():
        layer = keras.layers.BatchNormalization(synchronized=True)
        layer.build((None, 5))
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    x = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group])
    )

    def step(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                loss = tf.reduce_sum(tf.sin(y) * tf.cast(tf.range(5), tf.float32))
            by_x, by_gamma = tape.gradient(loss, [x, layer.gamma.value])
        return y, by_x, by_gamma, outer.gradient(by_x, x)

    results = [*tf.function(lambda x: strategy.run(step, args=(x,)))(x)]
    results += [layer.moving_mean.value, layer.moving_variance.value]
    return [part.numpy() for each in results for part in strategy.experimental_local_results(each)]


def test_synchronised_layers_get_tensorflows_numbers_and_gradients():
    """Beside a strategy that differs only in that TensorFlow's own class adds."""
    sizes, rows = (2, 1, 0), np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    plain = tf.distribute.ReductionToOneDevice()
    expected, values = (
        normalised(dl.make_strategy("mirrored", devices=3, cross_device_ops=ops), rows, sizes)
        for ops in (plain, None)
    )
    assert np.abs(expected[3]).max() > 1e-3, "there is a gradient to compare"
    for value, reference in zip(values, expected, strict=True):
        # Three numbers may be added in another order.
        np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_what_is_reduced_outside_of_replicas_still_has_a_gradient(kind):
    strategy = dl.make_strategy(kind, devices=2)

    def gradient(x, reduction):
        parts = strategy.run(lambda: x**2)
        return tf.gradients(strategy.reduce(reduction, parts, axis=None), x)[0]

    for reduction, expected in (("SUM", 12), ("MEAN", 6)):
        function = tf.function(functools.partial(gradient, reduction=reduction))
        assert float(function(tf.constant(3.0))) == expected


# A failed all-reduce stops all later ones of its process, so this has one of its own.
TWO_STRATEGIES = """
import numpy as np
import tensorflow as tf
import distlab as dl

dl.split_devices(3)

def total(strategy, values):
    context = tf.distribute.get_replica_context
    step = tf.function(lambda: strategy.run(lambda: context().all_reduce("SUM", tf.ones(values))))
    return strategy.experimental_local_results(step())[0].numpy().sum()

def gathered(strategy, values):
    return strategy.gather(strategy.run(lambda: tf.ones([1, values])), axis=0).shape

def trained(strategy, values):
    import keras

    def build():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(values)])
        model.compile("sgd", loss="mse")
        return model

    x, y = np.ones((6, 4), "float32"), np.ones((6, values), "float32")
    dl.distribute(build, strategy).fit(x, y, batch_size=6, verbose=0)
    return "trained"

for replicas in 2, 3:
    strategy = MAKE
    print(CALL(strategy, replicas), flush=True)
"""
OWN = 'tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(replicas)])'


def test_tensorflows_own_takes_the_second_strategys_all_reduces_for_the_firsts(run_python):
    code = TWO_STRATEGIES.replace("MAKE", OWN.replace("replicas", "2")).replace("CALL", "total")
    error = run_python(code, fails=True, warm=True)
    assert "Shape mismatch in the collective instance 100" in error


def test_each_strategy_of_distlab_or_given_to_distribute_has_all_reduces_of_its_own(run_python):
    made = TWO_STRATEGIES.replace("MAKE", 'dl.make_strategy("mirrored", devices=replicas)')
    assert "(2, 2)\n(3, 3)\n" in run_python(made.replace("CALL", "gathered"), warm=True)
    own = TWO_STRATEGIES.replace("MAKE", OWN)
    assert "trained\ntrained\n" in run_python(own.replace("CALL", "trained"), warm=True)


# A replica's thread that ends a moment later costs a moment, not a second


def never(*_):
    raise AssertionError("it looks again a second later")


def test_tensorflows_own_would_look_again_a_second_later(monkeypatch):
    from tensorflow.python.training.coordinator import Coordinator as Own

    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    own, coordinator = Own(), Coordinator()
    for each in (own, coordinator):
        monkeypatch.setattr(each, "wait_for_stop", never)
    with pytest.raises(AssertionError, match="a second later"):
        own.join([thread])
    threading.Timer(0.05, ends.set).start()
    coordinator.join([thread])  # distlab's waits for the thread itself
    assert not thread.is_alive()


def test_the_error_of_a_replica_is_raised_while_another_still_waits():
    coordinator, ends = Coordinator(), threading.Event()

    def fail():
        with coordinator.stop_on_exception():
            raise ValueError("of a replica")

    failing, waiting = threading.Thread(target=fail), threading.Thread(target=ends.wait)
    waiting.start()
    failing.start()
    threading.Timer(0.05, ends.set).start()
    with pytest.raises(ValueError, match="of a replica"):
        coordinator.join([waiting, failing])


def test_a_strategy_of_distlab_waits_so(monkeypatch):
    joined, join = [], Coordinator.join

    def noted(self, threads, **options):
        joined.append(len(threads))
        join(self, threads, **options)

    monkeypatch.setattr(Coordinator, "join", noted)
    strategy = dl.make_strategy("mirrored", devices=2)
    numbers = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    assert [int(n) for n in strategy.experimental_local_results(numbers)] == [0, 1]
    assert joined == [2]
