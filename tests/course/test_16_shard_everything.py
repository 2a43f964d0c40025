"""The checks of lesson 16: right answers pass, mistakes are named, and the lesson's claims hold."""

import ast
import functools
import inspect
from typing import get_args

import numpy as np
import pytest
import tensorflow as tf

from distlab.course.checks.registry import checks_of
from distlab.course.lesson_16_shard_everything import stages
from distlab.course.lesson_16_shard_everything.figures import draw_memory_by_replicas
from distlab.course.lesson_16_shard_everything.limited_workers import DeepModel
from distlab.course.lesson_16_shard_everything.piece_gradients import draw_stack, piece_gradients
from distlab.course.lesson_16_shard_everything.sharded_training import (
    Adam,
    Momentum,
    bytes_per_weight,
    max_difference,
    train,
    train_on_one,
)
from distlab.course.lesson_16_shard_everything.stages import STAGES, ZERO_2, ZERO_3
from distlab.course.measure.step_bytes import Sharding, held_bytes
from distlab.course.runs.replicas import mirrored
from distlab.errors import InvalidArgument
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
    load_solution,
    load_stub,
)
from tests.support.repository import lesson_text

STEM = "16_shard_everything"
ADAM, FSDP, BYTES = checks_of(STEM)
ONE_DRAW = (1,)
edited = functools.partial(edited_solution, STEM)


# Task 1: sharded_adam


def sharded_by_sums(update, weights, gradient, m, v):
    """Gathers by a sum of vectors that are zero outside the own piece."""
    context = tf.distribute.get_replica_context()
    start = context.replica_id_in_sync_group * tf.size(m)
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)
    cut = [tf.slice(vector, [start], [tf.size(m)]) for vector in (weights, total)]
    new, m, v = update(*cut, m, v)
    behind = tf.size(weights) - start - tf.size(m)
    return context.all_reduce("SUM", tf.pad(new, [[start, behind]])), m, v


def sharded_by_stride(update, weights, gradient, m, v, interleaved=False):
    context = tf.distribute.get_replica_context()
    replicas, index = context.num_replicas_in_sync, context.replica_id_in_sync_group
    total = context.all_reduce("SUM", gradient)
    cut = [tf.reshape(vector, [-1, replicas])[:, index] for vector in (weights, total)]
    new, m, v = update(*cut, m, v)
    whole = context.all_gather(new, axis=0)
    if interleaved:
        whole = tf.reshape(tf.transpose(tf.reshape(whole, [replicas, -1])), [-1])
    return whole, m, v


def test_shards_of_adam_are_judged():
    in_a_list = edited("sharded_adam", {"return weights, m, v": "return [weights, m, v]"})
    assert_right_answers_pass(ADAM, sharded_by_sums, in_a_list, seeds=ONE_DRAW)
    summed = 'context.all_reduce("SUM", gradient)'
    wrong = {
        "state_gathered": load_stub(STEM)["sharded_adam"],
        "own_gradient_only": edited("sharded_adam", {summed: "gradient"}),
        "mean_of_gradients": edited("sharded_adam", {'"SUM"': '"MEAN"'}),
        "cut_by_stride": sharded_by_stride,
        "method_of_the_lesson": edited(
            "sharded_adam", {summed: "context.reduce_scatter(gradient)"}
        ),
    }
    earned = {"state_gathered": 0, "method_of_the_lesson": 0}
    earned |= {"mean_of_gradients": 0.5, "cut_by_stride": 0.5}
    assert_mistakes_are_caught(ADAM, wrong, earned=earned, seeds=ONE_DRAW)
    put_back = functools.partial(sharded_by_stride, interleaved=True)
    own_rows = edited("sharded_adam", {summed: "context.own_rows(gradient)"})
    assert_mistakes_are_caught(ADAM, {"cut_by_stride": put_back}, seeds=ONE_DRAW)
    assert_mistakes_are_caught(ADAM, {"method_of_the_lesson": own_rows}, seeds=ONE_DRAW)
    said = {
        "yours returned one value": lambda update, weights, *given: weights,
        "yours returned 2 values": lambda update, weights, gradient, m, v: (weights, m),
        "yours returned None": lambda update, weights, gradient, m, v: None,
    }
    assert_feedback_says(ADAM, said)


# Task 2: fsdp_gradients


def by_hand(context, layer, loss, pieces, x):
    """Keeps the inputs of each layer, and goes back without recompute_grad."""
    inputs = []
    for piece in pieces:
        inputs.append(x)
        x = layer(context.all_gather(piece, axis=0), x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = loss(x)
    back, gradients = tape.gradient(value, x), []
    for piece, given in zip(reversed(pieces), reversed(inputs), strict=True):
        kernel = context.all_gather(piece, axis=0)
        with tf.GradientTape() as tape:
            tape.watch((kernel, given))
            out = layer(kernel, given)
        of_kernel, back = tape.gradient(out, [kernel, given], output_gradients=back)
        gradients.insert(0, context.reduce_scatter(of_kernel))
    return gradients


def last_kept(context, layer, loss, pieces, x):
    """Leaves the last kernel whole, whose backward pass comes at once."""

    def gathered(piece, x):
        return layer(context.all_gather(piece, axis=0), x)

    with tf.GradientTape() as tape:
        tape.watch(pieces)
        for piece in pieces[:-1]:
            x = tf.recompute_grad(gathered)(piece, x)
        value = loss(gathered(pieces[-1], x))
    return tape.gradient(value, pieces)


def recomputed_in_groups(context, layer, loss, pieces, x, sizes=(3,)):
    """Each group of layers in one recompute_grad; a group of size 0 is one layer without it."""

    def run(*given):
        *own, x = given
        for piece in own:
            x = layer(context.all_gather(piece, axis=0), x)
        return x

    start = 0
    with tf.GradientTape() as tape:
        tape.watch(pieces)
        for size in sizes:
            group = pieces[start : start + max(size, 1)]
            x = tf.recompute_grad(run)(*group, x) if size else run(*group, x)
            start += max(size, 1)
        value = loss(x)
    return tape.gradient(value, pieces)


def closed_over(context, layer, loss, pieces, x):
    with tf.GradientTape() as tape:
        tape.watch(pieces)
        for piece in pieces:

            def gathered(x, piece=piece):
                return layer(context.all_gather(piece, axis=0), x)

            x = tf.recompute_grad(gathered)(x)
        value = loss(x)
    return tape.gradient(value, pieces)


def through_all(context, layer, loss, kernels, x, watched=None):
    watched = kernels if watched is None else watched
    with tf.GradientTape() as tape:
        tape.watch(watched)
        for kernel in kernels() if callable(kernels) else kernels:
            x = layer(kernel, x)
        value = loss(x)
    return tape.gradient(value, watched)


def all_gathered_first(context, layer, loss, pieces, x):
    return through_all(
        context,
        layer,
        loss,
        lambda: [context.all_gather(piece, axis=0) for piece in pieces],
        x,
        watched=pieces,
    )


def whole_gradients(context, layer, loss, pieces, x):
    kernels = [context.all_gather(piece, axis=0) for piece in pieces]
    return through_all(context, layer, loss, kernels, x)


def own_examples_only(context, layer, loss, pieces, x):
    gradients = whole_gradients(context, layer, loss, pieces, x)
    return [context.own_rows(each) for each in gradients]


def whole_gradient(context, layer, loss, pieces, x):
    gradients = whole_gradients(context, layer, loss, pieces, x)
    return [context.all_reduce("SUM", each) for each in gradients]


def not_gathered(context, layer, loss, pieces, x):
    def padded(piece):
        count = context.num_replicas_in_sync
        at = tf.one_hot(context.replica_id_in_sync_group, count)[:, None, None]
        return tf.reshape(at * piece[None], [count * piece.shape[0], piece.shape[1]])

    return through_all(context, layer, loss, lambda: map(padded, pieces), x, watched=pieces)


def test_gradients_of_pieces_are_judged():
    for answer in (by_hand, last_kept):
        assert_right_answers_pass(FSDP, answer, seeds=ONE_DRAW)
    result = "return tape.gradient(value, pieces)"
    wrong = {
        "all_gathered_first": all_gathered_first,
        "own_examples_only": own_examples_only,
        "whole_gradient": whole_gradient,
        "not_gathered": not_gathered,
        "kept_whole": edited("fsdp_gradients", {"tf.recompute_grad(gathered)": "gathered"}),
        "recomputed_at_once": recomputed_in_groups,
        "no_gradient": edited("fsdp_gradients", {"tape.watch(pieces)": "pass"}),
        "other_context": edited(
            "fsdp_gradients",
            {"context.all_gather": "tf.distribute.get_replica_context().all_gather"},
        ),
        "summed_again": edited(
            "fsdp_gradients",
            {result: 'return [context.all_reduce("SUM", g) for g in tape.gradient(value, pieces)]'},
        ),
        "mean_for_sum": edited(
            "fsdp_gradients", {result: "return [g / 4 for g in tape.gradient(value, pieces)]"}
        ),
    }
    earned = {"all_gathered_first": 2.5, "kept_whole": 3, "whole_gradient": 0}
    earned |= {"recomputed_at_once": 3, "no_gradient": 0, "other_context": 2.5}
    earned |= dict.fromkeys(wrong.keys() - earned, 0.5)
    assert_mistakes_are_caught(FSDP, wrong, earned=earned, seeds=ONE_DRAW)
    in_part = {"recomputed_at_once": (2, 1), "kept_whole": (0, 1, 1)}
    in_part = {
        mistake: functools.partial(recomputed_in_groups, sizes=sizes)
        for mistake, sizes in in_part.items()
    }
    assert_mistakes_are_caught(FSDP, in_part, earned=3, seeds=ONE_DRAW)
    said = {
        "yours returned one value, and no list": lambda context, layer, loss, pieces, x: x,
        "yours returned None": lambda context, layer, loss, pieces, x: None,
        "yours returned 1 value for 3 pieces": lambda context, layer, loss, pieces, x: [x],
        "Is each piece watched, and is it an argument": closed_over,
    }
    assert_feedback_says(FSDP, said, earned=0)


def test_kernels_differ_in_size_so_the_notes_say_which_was_gathered():
    for seed in range(20):
        sizes = [kernel.nbytes for kernel in draw_stack(seed)["kernels"]]
        assert len(set(sizes)) == len(sizes)


# Task 3: sent_bytes


def bytes_by_chunks(notes, replicas):
    chunks = 0
    for letter, size in notes:
        passed_on = {"r": 2 * (replicas - 1), "l": 0}.get(letter, replicas - 1)
        chunks += passed_on * (size // replicas)
    return chunks


def test_bytes_are_judged():
    assert_right_answers_pass(BYTES, bytes_by_chunks)
    wrong = {
        "all_reduce_counted_once": edited("sent_bytes", {'"r": 2': '"r": 1'}),
        "one_chunk_sent": edited("sent_bytes", {" * (replicas - 1)": ""}),
    }
    assert_mistakes_are_caught(BYTES, wrong)


# What the lesson says and does not show


def test_the_fsdp_of_the_solution_sends_one_and_a_half_times_as_much_as_mirrored():
    stack = draw_stack(0)
    _, notes = piece_gradients(load_solution(STEM)["fsdp_gradients"], stack)
    assert notes.letters == "g l g l g l g l s g l s g l s"
    mirrored_bytes = sum(2 * kernel.nbytes * 3 // 4 for kernel in stack["kernels"])
    assert notes.sent_bytes() == 1.5 * mirrored_bytes


def test_a_figure_draws_what_no_number_of_replicas_lowers():
    replicas = [1, 4, 64]
    curves = {"flat": [8.0] * 3, "half": [4 + 4 / n for n in replicas], "all": [8, 2, 0.125]}
    figure = draw_memory_by_replicas(replicas, curves, measured={}, limit_gb=6)
    dotted = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert dotted == pytest.approx([4])
    assert "Floors, as dotted lines: half 4 GB." in figure.alt


def functions_of(text):
    """The functions of a module or a lesson: names of arguments and statements, without types."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            if isinstance(node.body[0], ast.Expr):
                del node.body[0]  # the docstring
            arguments = [each.arg for each in node.args.args]
            found[node.name] = [arguments, *map(ast.unparse, node.body)]
    return found


def test_the_stages_of_the_tests_are_those_that_the_lesson_writes():
    of_lesson, of_module = functions_of(lesson_text(STEM)), functions_of(inspect.getsource(stages))
    assert len(of_module) == 6
    assert {name: of_lesson[name] for name in of_module} == of_module


def test_sharded_replicas_take_the_steps_of_one_device_over_ten_steps():
    """With momentum: Adam divides by small numbers, which enlarges rounding."""
    model, step = DeepModel(replicas=4, layers=1), Momentum(0.01)
    one = train_on_one(model, step, steps=10)
    for stage in (ZERO_2, ZERO_3):
        sharded = train(mirrored(4), model, stage, step, steps=10)
        assert max_difference(sharded, one) < 1e-6, stage.name
        assert sharded.losses[-1] < sharded.losses[0], stage.name


def test_the_gradient_of_a_gather_is_an_all_reduce_in_tensorflow():
    """So a real ZeRO 3 in TensorFlow sends 2 where rings of reduce-scatters would send 1."""
    source = inspect.getsource(tf.distribute.ReplicaContext.all_gather)
    gradient = source.partition("def grad(")[2]
    assert "self.all_reduce(reduce_util.ReduceOp.SUM" in gradient


def test_replicas_keep_the_bytes_that_the_calculator_says():
    model = DeepModel(replicas=4, layers=1)
    for name, stage in zip(get_args(Sharding), STAGES, strict=True):
        for replicas in (1, 2, 4):
            said = sum(held_bytes(10**6, replicas=replicas, sharding=name).values()) / 10**6
            measured = bytes_per_weight(model, stage, Adam(0.01), replicas)
            assert measured == pytest.approx(said), (name, replicas)


def test_rows_that_replicas_cannot_share_are_refused():
    model = DeepModel(replicas=2, layers=1)
    model.first = [np.zeros((10, 3), "float32")]
    with pytest.raises(InvalidArgument, match="pad it with 2 rows of zeros"):
        train(mirrored(4), model, ZERO_3, Momentum(0.1))
