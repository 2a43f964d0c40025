"""The checks of lesson 17: right answers pass, mistakes are named, the lesson's claims hold."""

import functools
import inspect
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.course.checks.registry import checks_of
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    load_solution,
    load_stub,
)

STEM = "17_beyond_data_parallelism"
SPLIT, SHARDED, IDLE, MESH = checks_of(STEM)
ONE_DRAW = (1,)


@functools.cache
def solution():
    return load_solution(STEM)


def on_replica():
    return tf.distribute.get_replica_context()


# Task 1: split_gated


def splitting(first=1, second=0, finish=None):
    """An answer that cuts along these axes; `finish(partial, bias)` returns the output."""

    def split_gated(gate, up, down, devices):
        def forward(x, gate, up, down, bias):
            partial = (tf.nn.silu(x @ gate) * (x @ up)) @ down
            if finish is None:
                return on_replica().all_reduce("SUM", partial) + bias
            return finish(partial, bias)

        axes = ((gate, first), (up, first), (down, second))
        pieces = (tf.split(kernel, devices, axis=axis) for kernel, axis in axes)
        return list(zip(*pieces, strict=True)), forward

    return split_gated


def split_by_slices(gate, up, down, devices):
    width = gate.shape[1] // devices
    cuts = [slice(i * width, (i + 1) * width) for i in range(devices)]
    pieces = ([gate[:, cut], up[:, cut], down[cut, :]] for cut in cuts)

    @tf.function
    def forward(x, gate, up, down, bias):
        shared = bias / on_replica().num_replicas_in_sync
        partial = tf.matmul(tf.nn.swish(x @ gate) * (x @ up), down) + shared
        return on_replica().all_reduce(tf.distribute.ReduceOp.SUM, partial)

    return pieces, forward


def test_split_takes_other_right_answers():
    assert_right_answers_pass(SPLIT, splitting(), split_by_slices, seeds=ONE_DRAW)


def test_split_names_each_mistake():
    """Without the sum, the pieces earn a point."""

    def on_each(partial, bias):
        return on_replica().all_reduce("SUM", partial + bias)

    def mean(partial, bias):
        return on_replica().all_reduce("MEAN", partial) + bias

    wrong = {
        "split_twice_by_column": splitting(second=1),
        "row_first": splitting(first=0, second=1),
        "all_reduce_forgotten": splitting(finish=lambda partial, bias: partial + bias),
        "mean_for_sum": splitting(finish=mean),
        "bias_on_each": splitting(finish=on_each),
    }
    earned = {"all_reduce_forgotten": 1}
    assert_mistakes_are_caught(SPLIT, wrong, earned=earned)
    said = {"yours returned '[3] pieces'": lambda *given: ([given[:3]], len)}
    assert_feedback_says(SPLIT, said)


# Task 2: sharded_adam


def sharding(summed=True, index=None, finish=None):
    """An answer that differs from the solution in one of these."""

    def sharded_adam(update, weights, gradient, m, v):
        context = on_replica()
        replicas = context.num_replicas_in_sync
        mine = context.replica_id_in_sync_group if index is None else index
        total = context.all_reduce("SUM", gradient) if summed else gradient
        pieces = [tf.reshape(vector, [replicas, -1])[mine] for vector in (weights, total)]
        new, m, v = update(*pieces, m, v)
        return finish(new, weights) if finish else context.all_gather(new, axis=0), m, v

    return sharded_adam


def sharded_by_sums(update, weights, gradient, m, v):
    """Gathers by a sum of vectors that are zero outside the own piece."""
    context = on_replica()
    start = context.replica_id_in_sync_group * tf.size(m)
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
    cut = [tf.slice(vector, [start], [tf.size(m)]) for vector in (weights, total)]
    new, m, v = update(*cut, m, v)
    behind = tf.size(weights) - start - tf.size(m)
    return context.all_reduce("SUM", tf.pad(new, [[start, behind]])), m, v


def test_sharded_adam_takes_other_right_answers():
    assert_right_answers_pass(SHARDED, sharding(), sharded_by_sums, seeds=ONE_DRAW)


def test_sharded_adam_names_each_mistake():
    wrong = {
        "state_gathered": load_stub(STEM)["sharded_adam"],
        "own_gradient_only": sharding(summed=False),
        "params_not_gathered": sharding(finish=lambda piece, _: piece),
        "pieces_summed": sharding(finish=lambda piece, _: on_replica().all_reduce("SUM", piece)),
        "same_piece_on_all": sharding(index=0),
    }
    assert_mistakes_are_caught(SHARDED, wrong, earned={"state_gathered": 0})
    said = {"three values: weights, m and v": lambda update, weights, *given: weights}
    assert_feedback_says(SHARDED, said)


# Task 3: pipeline_idle


def idle_of_a_simulation(stage_ms, micro_batches):
    """Lets each stage start a micro-batch when it is there and the stage is free."""
    there = np.zeros(micro_batches)
    for milliseconds in stage_ms:
        free = 0.0
        for number in range(micro_batches):
            free = max(free, there[number]) + milliseconds / micro_batches
            there[number] = free
    return 1 - sum(stage_ms) / (len(stage_ms) * there[-1])


def idle_of_an_array(stage_ms, micro_batches):
    stages = np.asarray(stage_ms) / micro_batches
    ends = stages.sum() + (micro_batches - 1) * stages.max()
    return np.mean(1 - micro_batches * stages / ends)


def test_idle_takes_other_right_answers():
    assert_right_answers_pass(IDLE, idle_of_a_simulation, idle_of_an_array)


def idle_by(took):
    return lambda stage_ms, m: 1 - sum(stage_ms) / (len(stage_ms) * took(stage_ms, m))


def test_idle_names_each_mistake():
    right = solution()["pipeline_idle"]
    assert right([10, 10], 2) == pytest.approx(1 / 3)  # as the task says

    def of_the_work(stage_ms, m):
        idle = right(stage_ms, m)
        return idle / (1 - idle)

    wrong = {
        "micro_batches_ignored": idle_by(lambda ms, m: sum(ms)),
        "slowest_stage_ignored": lambda ms, m: (len(ms) - 1) / (m + len(ms) - 1),
        "whole_batch_each": idle_by(lambda ms, m: sum(ms) + (m - 1) * max(ms)),
        "share_of_the_work": of_the_work,
    }
    assert_mistakes_are_caught(IDLE, wrong)


# Task 4: choose_mesh


def mesh_by_doubling(model, hosts, per_host):
    """Counts bytes, and doubles the devices until a part fits."""
    size, parts = model["parameters"] * model["bytes_per_parameter"], 1
    while size > 1e9 * (model["device_gb"] - model["activations_gb"]) * parts:
        parts *= 2
    tensor = min(parts, per_host)
    return [hosts * per_host // parts, parts // tensor, tensor]


def mesh_by_search(model, hosts, per_host):
    """Looks through all meshes, and takes the one with the most copies."""
    gb = model["parameters"] * model["bytes_per_parameter"] / 1e9
    meshes = [
        (hosts * per_host // (pipeline * tensor), pipeline, tensor)
        for pipeline in (1, 2, 4, 8)
        for tensor in (1, 2, 4, 8)
        if (pipeline == 1 or tensor == per_host)
        and gb / pipeline / tensor + model["activations_gb"] <= model["device_gb"]
    ]
    return np.array(max(meshes))


def test_mesh_takes_other_right_answers():
    assert_right_answers_pass(MESH, mesh_by_doubling, mesh_by_search)


def test_mesh_names_each_mistake():
    right = solution()["choose_mesh"]
    facts = {"parameters": 5_000_000_000, "bytes_per_parameter": 16}
    facts |= {"activations_gb": 12, "device_gb": 80}
    assert tuple(right(facts, 4, 8)) == (16, 1, 2)  # as the task says

    def with_other(**facts):
        return lambda model, *cluster: right({**model, **facts}, *cluster)

    def of_parts(choose):
        def answer(model, hosts, per_host):
            _, pipeline, tensor = right(model, hosts, per_host)
            pipeline, tensor = choose(pipeline * tensor, hosts, per_host)
            return hosts * per_host // (pipeline * tensor), pipeline, tensor

        return answer

    def uneven(model, hosts, per_host):
        gb = model["parameters"] * model["bytes_per_parameter"] / 1e9
        parts = int(np.ceil(gb / (model["device_gb"] - model["activations_gb"])))
        tensor = min(parts, per_host)
        pipeline = -(-parts // tensor)
        return hosts * per_host // (tensor * pipeline), pipeline, tensor

    wrong = {
        "weights_only": with_other(bytes_per_parameter=2),
        "activations_ignored": with_other(activations_gb=0),
        "uneven_parts": uneven,
        "tensor_across_hosts": of_parts(lambda parts, hosts, per_host: (1, parts)),
        "whole_host_always": of_parts(
            lambda parts, hosts, per_host: (max(1, parts // per_host), per_host)
        ),
    }
    assert_mistakes_are_caught(MESH, wrong)
    assert_feedback_says(MESH, {"three whole numbers for each model": lambda *given: (4, 8)})


# What the lesson says and does not show


def test_keras_on_jax_places_a_tensor_by_its_layout():
    folder = pathlib.Path(inspect.getsourcefile(keras)).parent
    source = (folder / "src/backend/jax/distribution_lib.py").read_text(encoding="utf-8")
    assert "return jax.device_put(tensor, layout)" in source


TWO_CUTS_BY_COLUMN = """
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

dtensor.initialize_accelerator_system("CPU", num_logical_cpu_devices=2)
mesh = dtensor.create_mesh([("model", 2)], devices=["CPU:0", "CPU:1"])
columns = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
draw = np.random.default_rng(0)
x, first, second = (draw.normal(size=size) for size in [(8, 6), (6, 10), (10, 4)])
kernels = [dtensor.pack(tf.split(each, 2, axis=1), columns) for each in (first, second)]
hidden = tf.nn.relu(dtensor.copy_to_mesh(x, dtensor.Layout.replicated(mesh, rank=2)) @ kernels[0])
output = hidden @ kernels[1]
assert dtensor.fetch_layout(hidden) == dtensor.fetch_layout(output) == columns
expected = np.split(np.maximum(x @ first, 0) @ second, 2, axis=1)
np.testing.assert_allclose(dtensor.unpack(output), expected, atol=1e-9)
"""


def test_the_output_of_two_cuts_by_column_stays_cut(run_python):
    """A device's own hidden units are not enough for its columns: DTensor has gathered them all.

    DTensor must come before TensorFlow's devices, so this needs a process of its own.
    """
    run_python(TWO_CUTS_BY_COLUMN, warm=True)


def test_keras_3_has_no_dtensor():
    assert not hasattr(keras, "dtensor")
