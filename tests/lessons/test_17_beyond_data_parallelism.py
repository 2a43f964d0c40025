"""The checks of lesson 17: right answers pass, mistakes are named, the lesson's claims hold."""

import functools
import inspect
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from distlab.devices import split_devices
from distlab.measure.pipeline_schedule import idle_share, pipeline_schedule
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
)

STEM = "17_beyond_data_parallelism"
SPLIT, SHARDED, IDLE, MESH = CHECKS = checks_of(STEM)


@functools.cache
def solution():
    return load_solution(STEM)


@functools.cache
def stub():
    return load_stub(STEM)


def on_replica():
    return tf.distribute.get_replica_context()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_solution_passes(check):
    assert_solution_passes(check, solution()[check.function], seeds=range(4))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_stub_earns_nothing(check):
    status = "not yet" if check is SHARDED else "not started"
    assert_stub_earns_nothing(check, stub()[check.function], status=status)


def test_the_code_to_repair_is_named():
    assert_mistake_is_caught(SHARDED, stub()["sharded_adam"], "state_gathered")


def assert_each_mistake_is_named(check, answers):
    assert set(answers) == {mistake.name for mistake in check.mistakes}
    for mistake, answer in answers.items():
        assert_mistake_is_caught(check, answer, mistake)


# Task 1: split_gated


def splitting(first=1, second=0, finish=None):
    """An answer that cuts along these axes; `finish(partial, bias)` returns the output."""

    def split_gated(gate, up, down, devices):
        def cut(kernel, axis):
            return [kernel] * devices if axis is None else tf.split(kernel, devices, axis=axis)

        def forward(x, gate, up, down, bias):
            partial = (tf.nn.silu(x @ gate) * (x @ up)) @ down
            if finish is None:
                return on_replica().all_reduce("SUM", partial) + bias
            return finish(partial, bias)

        kernels = zip(cut(gate, first), cut(up, first), cut(down, second), strict=True)
        return list(kernels), forward

    return split_gated


def split_in_turn(gate, up, down, devices):
    """Device i holds every hidden unit whose number divided by the devices leaves i."""
    pieces = [(gate[:, i::devices], up[:, i::devices], down[i::devices]) for i in range(devices)]

    def forward(x, gate, up, down, bias):
        opened = x @ gate
        partial = (opened * tf.sigmoid(opened) * (x @ up)) @ down
        parts = on_replica().all_gather(partial[None], axis=0)
        return tf.reduce_sum(parts, axis=0) + bias

    return pieces, forward


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


def split_by_numpy(gate, up, down, devices):
    cut = [np.split(np.asarray(kernel), devices, axis=1) for kernel in (gate, up)]
    return list(zip(*cut, np.split(down, devices), strict=True)), splitting()(gate, up, down, 1)[1]


@pytest.mark.parametrize("answer", [split_in_turn, split_by_slices, split_by_numpy])
def test_split_takes_other_right_answers(answer):
    assert_solution_passes(SPLIT, answer, seeds=range(3))


def test_split_names_each_mistake():
    def gathered(partial, bias):
        return on_replica().all_gather(partial, axis=0) + bias

    assert_each_mistake_is_named(
        SPLIT,
        {
            "split_twice_by_column": splitting(second=1),
            "row_first": splitting(first=0, second=1),
            "split_twice_by_row": splitting(first=0),
            "not_split": splitting(first=None, second=None),
            "all_reduce_forgotten": splitting(finish=lambda partial, bias: partial + bias),
            "mean_for_sum": splitting(
                finish=lambda partial, bias: on_replica().all_reduce("MEAN", partial) + bias
            ),
            "bias_on_each": splitting(
                finish=lambda partial, bias: on_replica().all_reduce("SUM", partial + bias)
            ),
            "gathered_for_summed": splitting(finish=gathered),
        },
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda gate, up, down, devices: [], "yours returned 'list'"),
        (lambda gate, up, down, devices: ([(gate, up, down)], len), "yours returned '[3] pieces'"),
    ],
    ids=["no pair", "too few pieces"],
)
def test_split_says_what_it_cannot_use(answer, said):
    report = run_check(SPLIT, answer)
    assert said in repr(report)
    assert report.earned == 0


def test_split_without_the_sum_earns_the_pieces_only():
    report = run_check(SPLIT, splitting(finish=lambda partial, bias: partial + bias))
    assert (report.earned, SPLIT.points) == (1, 3)


# Task 2: sharded_adam


def sharding(reduce="SUM", index=None, state=None, finish=None):
    """An answer that differs from the solution in one of these."""

    def sharded_adam(update, weights, gradient, m, v):
        context = on_replica()
        replicas = context.num_replicas_in_sync
        mine = context.replica_id_in_sync_group if index is None else index
        total = context.all_reduce(reduce, gradient) if reduce else gradient
        pieces = [tf.reshape(vector, [replicas, -1])[mine] for vector in (weights, total)]
        new, m, v = update(*pieces, m, v)
        if state:
            m, v = state(m), state(v)
        return (finish or gathered)(new, weights), m, v

    return sharded_adam


def gathered(piece, _):
    return on_replica().all_gather(piece, axis=0)


def own_piece_in_place(piece, weights):
    context = on_replica()
    rows = tf.reshape(weights, [context.num_replicas_in_sync, -1])
    place = tf.reshape(context.replica_id_in_sync_group, [1, 1])
    return tf.reshape(tf.tensor_scatter_nd_update(rows, place, piece[None]), [-1])


def sharded_by_sums(update, weights, gradient, m, v):
    """Gathers by a sum of vectors that are zero outside the own piece."""
    context = on_replica()
    start = context.replica_id_in_sync_group * tf.size(m)
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
    cut = [tf.slice(vector, [start], [tf.size(m)]) for vector in (weights, total)]
    new, m, v = update(*cut, m, v)
    behind = tf.size(weights) - start - tf.size(m)
    return context.all_reduce("SUM", tf.pad(new, [[start, behind]])), m, v


def sharded_by_steps(update, weights, gradient, m, v):
    """Gathers what is subtracted, and each replica subtracts it from all weights."""
    context = on_replica()
    parts = tf.split(context.all_reduce("SUM", gradient), context.num_replicas_in_sync)
    mine = tf.stack(parts)[context.replica_id_in_sync_group]
    step, m, v = update(tf.zeros_like(m), mine, m, v)
    return weights + context.all_gather(step, axis=0), m, v


@pytest.mark.parametrize("answer", [sharded_by_sums, sharded_by_steps])
def test_sharded_adam_takes_other_right_answers(answer):
    assert_solution_passes(SHARDED, answer, seeds=range(3))


def test_sharded_adam_names_each_mistake():
    assert_each_mistake_is_named(
        SHARDED,
        {
            "state_gathered": sharding(state=lambda each: gathered(each, None)),
            "own_gradient_only": sharding(reduce=None),
            "mean_for_sum": sharding(reduce="MEAN"),
            "params_not_gathered": sharding(finish=lambda piece, _: piece),
            "pieces_summed": sharding(
                finish=lambda piece, _: on_replica().all_reduce("SUM", piece)
            ),
            "same_piece_on_all": sharding(index=0),
        },
    )


def gathered_and_cut_again(update, weights, gradient, m, v):
    context = on_replica()
    m, v = (context.all_gather(each, axis=0) for each in (m, v))
    weights, m, v = update(weights, context.all_reduce("SUM", gradient), m, v)
    cut = [context.num_replicas_in_sync, -1]
    own = [tf.reshape(each, cut)[context.replica_id_in_sync_group] for each in (m, v)]
    return weights, *own


def test_a_state_that_is_gathered_and_cut_again_earns_nothing():
    report = assert_mistake_is_caught(SHARDED, gathered_and_cut_again, "state_gathered")
    assert report.earned == 0


def test_an_own_piece_in_the_old_weights_is_not_gathered_either():
    answer = sharding(finish=own_piece_in_place)
    report = assert_mistake_is_caught(SHARDED, answer, "params_not_gathered")
    assert (report.earned, SHARDED.points) == (1, 3)


def test_sharded_adam_says_so_when_the_state_is_not_returned():
    report = run_check(SHARDED, lambda update, weights, gradient, m, v: weights)
    assert "three values: weights, m and v" in repr(report)
    assert report.earned == 0


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


@pytest.mark.parametrize("answer", [idle_of_a_simulation, idle_of_an_array])
def test_idle_takes_other_right_answers(answer):
    assert_solution_passes(IDLE, answer)


def test_the_example_of_the_task_is_right():
    assert solution()["pipeline_idle"]([10, 10], 2) == pytest.approx(1 / 3)


def idle_by(took):
    return lambda stage_ms, m: 1 - sum(stage_ms) / (len(stage_ms) * took(stage_ms, m))


def test_idle_names_each_mistake():
    right = solution()["pipeline_idle"]

    def of_the_work(stage_ms, m):
        idle = right(stage_ms, m)
        return idle / (1 - idle)

    assert_each_mistake_is_named(
        IDLE,
        {
            "micro_batches_ignored": idle_by(lambda ms, m: sum(ms)),
            "slowest_stage_ignored": lambda ms, m: (len(ms) - 1) / (m + len(ms) - 1),
            "first_stage_paces": idle_by(lambda ms, m: (sum(ms) + (m - 1) * ms[0]) / m),
            "whole_batch_each": idle_by(lambda ms, m: sum(ms) + (m - 1) * max(ms)),
            "share_of_the_work": of_the_work,
            "busy_share": lambda ms, m: 1 - right(ms, m),
        },
    )


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


@pytest.mark.parametrize("answer", [mesh_by_doubling, mesh_by_search])
def test_mesh_takes_other_right_answers(answer):
    assert_solution_passes(MESH, answer)


def test_the_example_of_the_mesh_task_is_right():
    facts = {"parameters": 5_000_000_000, "bytes_per_parameter": 16}
    facts |= {"activations_gb": 12, "device_gb": 80}
    assert tuple(solution()["choose_mesh"](facts, 4, 8)) == (16, 1, 2)


def test_mesh_names_each_mistake():
    right = solution()["choose_mesh"]

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

    assert_each_mistake_is_named(
        MESH,
        {
            "data_parallel_always": lambda model, hosts, per_host: (hosts * per_host, 1, 1),
            "weights_only": with_other(bytes_per_parameter=2),
            "activations_ignored": with_other(activations_gb=0),
            "uneven_parts": uneven,
            "tensor_across_hosts": of_parts(lambda parts, hosts, per_host: (1, parts)),
            "whole_host_always": of_parts(
                lambda parts, hosts, per_host: (max(1, parts // per_host), per_host)
            ),
            "pipeline_first": of_parts(
                lambda parts, hosts, per_host: (min(parts, hosts), max(1, parts // hosts))
            ),
            "one_copy": lambda *given: (1, *right(*given)[1:]),
            "axes_reversed": lambda *given: right(*given)[::-1],
        },
    )


def test_four_bytes_for_a_weight_are_not_all_bytes_either():
    def in_float32(model, *cluster):
        return solution()["choose_mesh"]({**model, "bytes_per_parameter": 4}, *cluster)

    assert_mistake_is_caught(MESH, in_float32, "weights_only")


@pytest.mark.parametrize("answer", [(4, 8), 32, None])
def test_mesh_says_so_if_the_answer_is_not_three_numbers(answer):
    report = run_check(MESH, lambda *given: answer)
    assert report.earned == 0
    assert "three whole numbers for each model" in repr(report)


# What the lesson says and does not show


def test_keras_says_that_its_tensorflow_prototype_is_not_for_use():
    from keras.src.backend.tensorflow import distribution_lib

    assert distribution_lib.__doc__.startswith("!!!DO NOT USE!!!")
    lines = inspect.getsource(distribution_lib.distribute_value).splitlines()
    assert [line.strip() for line in lines[1:]] == ["# TODO", "pass"]


def test_keras_on_jax_places_a_tensor_by_its_layout():
    folder = pathlib.Path(inspect.getsourcefile(keras)).parent
    source = (folder / "src/backend/jax/distribution_lib.py").read_text(encoding="utf-8")
    assert "return jax.device_put(tensor, layout)" in source


def test_micro_batches_of_equal_size_add_up_to_the_gradient_of_the_batch():
    split_devices(4)
    draw = np.random.default_rng(0)
    x, weights = draw.normal(size=(8, 3)), tf.Variable(draw.normal(size=(3, 1)))

    def gradient(examples, parts):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((examples @ weights) ** 2) / parts
        return tape.gradient(loss, weights)

    whole = gradient(x, 1)
    summed = sum(gradient(part, 4) for part in np.split(x, 4))
    assert np.abs(whole - summed).max() < 1e-12


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


def test_the_output_of_two_cuts_by_column_stays_cut():
    """A device's own hidden units are not enough for its columns: DTensor has gathered them all.

    DTensor must come before TensorFlow's devices, so this needs a process of its own.
    """
    subprocess.run([sys.executable, "-c", TWO_CUTS_BY_COLUMN], check=True, timeout=120)


def test_gpipes_negligible_bubble_is_16_percent():
    assert round(100 * idle_share(pipeline_schedule(4, micro_batches=16))) == 16


def test_keras_3_has_no_dtensor():
    assert not hasattr(keras, "dtensor")
