"""The checks of lesson 18: right answers pass, mistakes are named, the lesson's claims hold."""

import functools
import inspect
import pathlib
from itertools import pairwise

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow import distribution_lib

from distlab.course.checks.registry import checks_of
from distlab.course.lesson_18_split_layer_and_text import causal_ring
from distlab.course.lesson_18_split_layer_and_text.published_runs import BY_TENSOR_GPUS
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
    edited_solutions,
    load_solution,
)

STEM = "18_split_layer_and_text"
SPLIT, MESH, RING, DEAL = checks_of(STEM)
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


# Task 2: choose_mesh

EXAMPLE = {
    "parameters": 70_000_000_000,
    "bytes_per_parameter": 16,
    "layer_gb": 4,
    "activations_gb": 60,
    "device_gb": 80,
    "examples": 64,
}


def mesh_by_doubling(model, hosts, per_host):
    """Doubles how many devices share an example until a device has room and each an example."""
    devices, shared = hosts * per_host, 1
    left = model["device_gb"] - model["parameters"] * model["bytes_per_parameter"] / 1e9 / devices
    while model["layer_gb"] + model["activations_gb"] > left * min(shared, per_host):
        shared *= 2
    while devices > model["examples"] * shared:
        shared *= 2
    tensor = min(shared, per_host)
    return [devices // shared, tensor, shared // tensor]


def test_meshes_are_judged():
    assert tuple(load_solution(STEM)["choose_mesh"](EXAMPLE, 4, 8)) == (16, 2, 1)  # the task's
    assert_right_answers_pass(MESH, lambda *given: np.array(mesh_by_doubling(*given)))

    wrong = {
        "weights_only": {'model["bytes_per_parameter"]': "2"},
        "examples_ignored": {' and data <= model["examples"]': ""},
        "layer_forgotten": {
            '(model["layer_gb"] + model["activations_gb"])': 'model["activations_gb"]'
        },
        "replicas_copy": {"shard_gb + layer_gb": "shard_gb * data + layer_gb"},
    }
    assert_mistakes_are_caught(MESH, edited_solutions(STEM, "choose_mesh", wrong))
    assert_feedback_says(MESH, {"three whole numbers for each model": lambda *given: (4, 8)})


# Task 3: ring_step


def step_of_logarithms(state, q, k, v, at_q, at_k):
    """Keeps the shifted sum and output in tensors, and a large negative score for later keys."""
    highest, total, output = (tf.constant(part) for part in state)
    scores = tf.where(at_q[:, None] < at_k[None], np.float64(-1e30), q @ k.T / np.sqrt(len(v[0])))
    new = tf.maximum(highest, tf.reduce_max(scores, axis=1, keepdims=True))
    pieces = [tf.exp(tf.reduce_logsumexp(scores, 1, keepdims=True) - new), tf.exp(scores - new) @ v]
    old = [part * tf.exp(highest - new) for part in (total, output)]
    return [new, *(before + piece for before, piece in zip(old, pieces, strict=True))]


def test_steps_of_a_ring_are_judged():
    assert_right_answers_pass(RING, step_of_logarithms)
    wrong = {
        "maximum_not_rescaled": {"shrink * ": ""},
        "output_not_rescaled": {"shrink * output": "output"},
        "no_maximum": {"np.exp(highest - new), np.exp(scores - new)": "1.0, np.exp(scores)"},
        "mask_by_local_position": {
            "at_q[:, None] >= at_k": "np.arange(len(q))[:, None] >= np.arange(len(k))"
        },
        "first_turn_unmasked": {"at_q[:, None] >= at_k": "at_q[:, None] >= at_k[0]"},
    }
    answers = edited_solutions(STEM, "ring_step", wrong)
    assert_mistakes_are_caught(RING, answers, earned={"no_maximum": 2})
    said = {
        "yours returned 'parts of shapes": lambda state, q, *given: (state[0], state[0], q[:1]),
        "yours returned 'ndarray'": lambda state, *given: state[0],
    }
    assert_feedback_says(RING, said)


# Task 4: deal


def deal_back_and_forth(length, devices):
    """Deals one by one, forward and then backward."""
    places = np.arange(length).reshape(-1, devices)
    places[1::2] = places[1::2, ::-1]
    return list(tf.constant(places.T))


def zigzag_from_the_end(length, devices):
    """The same pieces, for the devices in the other order."""
    pieces = tf.split(tf.range(length), 2 * devices)
    pairs = zip(pieces[devices:], pieces[devices - 1 :: -1], strict=True)
    return [tf.concat(pair, axis=0) for pair in pairs]


def test_deals_are_judged():
    assert_right_answers_pass(DEAL, zigzag_from_the_end, deal_back_and_forth)
    in_order = edited("deal", {"2 * devices - 1 - d": "2 * d + 1", "pieces[d]": "pieces[2 * d]"})
    assert_mistakes_are_caught(DEAL, {"in_order": in_order}, earned=1)
    said = {
        "whole numbers for each device": lambda length, devices: length / devices,
        "yours returned '2 lists'": lambda length, devices: [[0], [1]],
    }
    assert_feedback_says(DEAL, said)


# What the lesson says and does not show


def test_the_published_doublings_cost_what_the_lesson_says():
    speeds = list(BY_TENSOR_GPUS.values())
    costs = [round(100 * (1 - after / before)) for before, after in pairwise(speeds)]
    assert list(BY_TENSOR_GPUS) == [2, 4, 8, 16, 32]
    assert costs == [11, 12, 43, 66]


def test_a_ring_never_holds_more_than_one_piece_of_the_scores(monkeypatch):
    held, scores = [], causal_ring._scores

    def noted(*given):
        held.append(scores(*given))
        return held[-1]

    monkeypatch.setattr(causal_ring, "_scores", noted)
    draw = np.random.default_rng(0)
    q, k, v = (tf.constant(draw.normal(size=(12, 4)), tf.float32) for _ in "qkv")
    causal_ring.ring_attention(q, k, v, [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]])
    assert [piece.shape for piece in held] == [(4, 4)] * 9


def test_keras_on_tensorflow_reads_no_layout_of_a_weight():
    assert "DO NOT USE" in distribution_lib.__doc__
    assert inspect.getsource(distribution_lib.distribute_value).rstrip().endswith("pass")


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
