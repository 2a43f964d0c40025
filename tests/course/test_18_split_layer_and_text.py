"""The checks of lesson 18: right answers pass, mistakes are named, the lesson's claims hold."""

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
    edited_solution,
    edited_solutions,
    load_solution,
    load_stub,
)

STEM = "18_split_layer_and_text"
SPLIT, SHARDED, IDLE, MESH = checks_of(STEM)
ONE_DRAW = (1,)
edited = functools.partial(edited_solution, STEM)


# Task 1: split_gated


def test_layers_that_are_split_are_judged():
    """Without the sum, the pieces earn a point."""
    shared_bias = {'"SUM", partial) + bias': '"SUM", partial + bias / count)'}
    assert_right_answers_pass(SPLIT, edited("split_gated", shared_bias), seeds=ONE_DRAW)
    wrong = {
        "split_twice_by_column": {"down, count, axis=0": "down, count, axis=1"},
        "all_reduce_forgotten": {
            'tf.distribute.get_replica_context().all_reduce("SUM", partial)': "partial"
        },
    }
    wrong = edited_solutions(STEM, "split_gated", wrong)
    assert_mistakes_are_caught(SPLIT, wrong, earned={"all_reduce_forgotten": 1}, seeds=ONE_DRAW)
    said = {"yours returned '[3] pieces'": lambda *given: ([given[:3]], len)}
    assert_feedback_says(SPLIT, said)


# Task 2: sharded_adam


def sharded_by_sums(update, weights, gradient, m, v):
    """Gathers by a sum of vectors that are zero outside the own piece."""
    context = tf.distribute.get_replica_context()
    start = context.replica_id_in_sync_group * tf.size(m)
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
    cut = [tf.slice(vector, [start], [tf.size(m)]) for vector in (weights, total)]
    new, m, v = update(*cut, m, v)
    behind = tf.size(weights) - start - tf.size(m)
    return context.all_reduce("SUM", tf.pad(new, [[start, behind]])), m, v


def test_shards_of_adam_are_judged():
    assert_right_answers_pass(SHARDED, sharded_by_sums, seeds=ONE_DRAW)
    wrong = {
        "state_gathered": load_stub(STEM)["sharded_adam"],
        "own_gradient_only": edited(
            "sharded_adam", {'context.all_reduce("SUM", gradient)': "gradient"}
        ),
    }
    assert_mistakes_are_caught(SHARDED, wrong, earned={"state_gathered": 0}, seeds=ONE_DRAW)
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


def test_idle_shares_are_judged():
    assert load_solution(STEM)["pipeline_idle"]([10, 10], 2) == pytest.approx(1 / 3)  # the task's
    assert_right_answers_pass(IDLE, idle_of_a_simulation)
    of_the_mean = edited("pipeline_idle", {"max(stage_ms)": "sum(stage_ms) / len(stage_ms)"})
    assert_mistakes_are_caught(IDLE, {"slowest_stage_ignored": of_the_mean})


# Task 4: choose_mesh


def mesh_by_doubling(model, hosts, per_host):
    """Counts bytes, and doubles the devices until a part fits."""
    size, parts = model["parameters"] * model["bytes_per_parameter"], 1
    while size > 1e9 * (model["device_gb"] - model["activations_gb"]) * parts:
        parts *= 2
    tensor = min(parts, per_host)
    return [hosts * per_host // parts, parts // tensor, tensor]


def test_meshes_are_judged():
    facts = {"parameters": 5_000_000_000, "bytes_per_parameter": 16}
    facts |= {"activations_gb": 12, "device_gb": 80}
    assert tuple(load_solution(STEM)["choose_mesh"](facts, 4, 8)) == (16, 1, 2)  # as the task says
    assert_right_answers_pass(MESH, lambda *given: np.array(mesh_by_doubling(*given)))

    of_weights = edited("choose_mesh", {'model["bytes_per_parameter"]': "2"})
    assert_mistakes_are_caught(MESH, {"weights_only": of_weights})
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
