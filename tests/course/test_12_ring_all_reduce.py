"""The checks of lesson 12: right answers pass, each mistake is named; what the lesson claims."""

import ast
import functools
import itertools
from math import log2

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.lesson_12_ring_all_reduce.ring_schedule import ALGORITHMS, all_reduce_steps
from distlab.course.lesson_12_ring_all_reduce.simulated_network import Network
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
)
from tests.support.repository import lesson_text

STEM = "12_ring_all_reduce"
CHECKS = {check.name: check for check in checks_of(STEM)}
SCATTER, GATHER, ROUTE, MESSAGES = CHECKS.values()
edited = functools.partial(edited_solution, STEM)


# --- reduce_scatter


def scatter_of_dictionaries(network, chunks):
    """What is left to finish is kept apart from the chunks."""
    left = [dict(enumerate(mine)) for mine in chunks]
    apart = len(chunks) // 2
    while apart:
        sends = {}
        for rank, mine in enumerate(left):
            away = [n for n in mine if (n ^ rank) & apart]
            sends[rank, rank ^ apart] = {n: mine.pop(n) for n in away}
        for rank, arrived in network.step(sends).items():
            left[rank] = {n: array + arrived[n] for n, array in left[rank].items()}
        apart //= 2
    return [mine[rank] for rank, mine in enumerate(left)]


def scatter_around_a_ring(network, chunks):
    ranks = len(chunks)
    travels = {rank: chunks[rank][rank - 1] for rank in range(ranks)}
    for step in range(ranks - 1):
        arrived = network.step({(n, (n + 1) % ranks): travels[n] for n in range(ranks)})
        travels = {n: arrived[n] + chunks[n][(n - 2 - step) % ranks] for n in range(ranks)}
    return [travels[rank] for rank in range(ranks)]


def test_reduce_scatters_are_judged():
    """Right sums in too many steps or bytes earn a part of the points."""
    assert_right_answers_pass(SCATTER, scatter_of_dictionaries)
    assert_mistakes_are_caught(SCATTER, {"ring_again": scatter_around_a_ring}, earned=2.5)
    all_chunks = edited("reduce_scatter", {" if number // apart == partner // apart": ""})
    assert_mistakes_are_caught(SCATTER, {"sends_all_chunks": all_chunks}, earned=2.5)
    assert_feedback_says(SCATTER, {"bytes; 168 are enough": all_chunks}, earned=2.5)
    own_half = edited("reduce_scatter", {"== partner // apart": "== rank // apart"})
    assert_mistakes_are_caught(SCATTER, {"sends_what_it_keeps": own_half}, earned=0)
    said = {"rank 0 sends to itself": lambda network, chunks: network.step({(0, 0): chunks[0][0]})}
    assert_feedback_says(SCATTER, said)


# --- all_gather


def gather_around_a_ring(network, mine):
    ranks = len(mine)
    have = [{rank: row} for rank, row in enumerate(mine)]
    for step in range(ranks - 1):
        sends = {
            (n, (n + 1) % ranks): {(n - step) % ranks: have[n][(n - step) % ranks]}
            for n in range(ranks)
        }
        for rank, arrays in network.step(sends).items():
            have[rank].update(arrays)
    return have


def gather_shifted(network, mine):
    """Rank r sends to rank r - apart: a different way to double (Bruck and others)."""
    ranks, apart = len(mine), 1
    have = [{rank: row} for rank, row in enumerate(mine)]
    while apart < ranks:
        sends = {(rank, (rank - apart) % ranks): have[rank] for rank in range(ranks)}
        for rank, arrays in network.step(sends).items():
            have[rank].update(arrays)
        apart *= 2
    return have


def test_all_gathers_are_judged():
    assert_right_answers_pass(GATHER, gather_shifted)
    assert_mistakes_are_caught(GATHER, {"ring_again": gather_around_a_ring})
    mixed_up = edited("all_gather", {"enumerate(mine)": "enumerate(mine[::-1])"})
    said = {"under the number of a different rank": mixed_up}
    assert_feedback_says(GATHER, said, earned=1.5)


# --- choose_route


def by_the_even_size(servers, gpus, size_bytes, inside, between, bits=8):
    waits = gpus * (servers * between[0] - inside[0])
    secs_per_byte = bits * 1e-9 * (1 / inside[1] - 1 / (servers * between[1]))
    return "two levels" if size_bytes * secs_per_byte <= waits else "flat"


def test_routes_are_judged():
    assert_right_answers_pass(ROUTE, by_the_even_size)
    wrong = {
        "flat_always": lambda **case: "flat",
        "bits_as_bytes": lambda **case: by_the_even_size(**case, bits=1),
        "by_size_alone": lambda size_bytes, **case: "flat" if size_bytes > 1e8 else "two levels",
    }
    assert_mistakes_are_caught(ROUTE, wrong)


# --- pack_gradients


def packed_with_a_last_one(sizes, limit):
    messages, opened = [], []
    for name in reversed(sizes):
        if opened and sum(map(sizes.get, opened)) + sizes[name] > limit:
            messages.append(opened)
            opened = []
        opened.append(name)
    return [*messages, opened]


def test_packed_gradients_are_judged():
    assert_right_answers_pass(MESSAGES, packed_with_a_last_one)
    too_late = edited("pack_gradients", {"sizes[name] > room": "room <= 0"})
    wrong = {
        "closed_too_late": too_late,
        "forward_order": edited("pack_gradients", {"reversed(sizes)": "sizes"}),
    }
    assert_mistakes_are_caught(MESSAGES, wrong, earned=1.5)
    said = {"the messages have [": lambda sizes, limit: [list(sizes)[::-1]]}
    assert_feedback_says(MESSAGES, said, earned=1.5)
    each_alone = {"gradients as fit": lambda sizes, limit: [[name] for name in sizes]}
    assert_feedback_says(MESSAGES, each_alone, earned=0)


# --- what the lesson says and does not show


@functools.cache
def functions_of_the_lesson():
    """The functions that the lesson builds from NumPy and the simulated network."""
    lesson = lesson_text(STEM)
    wanted = ("naive", "tree", "reduce_scatter", "all_gather", "ring")
    names = {"np": np}
    for node in ast.parse(lesson).body:
        if isinstance(node, ast.FunctionDef) and node.name in wanted:
            exec(compile(ast.Module([node], []), "<lesson 12>", "exec"), names)
    return names


def test_the_routes_of_the_lesson_send_what_the_view_draws():
    for route, ranks in itertools.product(ALGORITHMS, (2, 8)):
        network, given = Network(ranks), np.arange(2.0 * ranks * ranks).reshape(ranks, -1)
        for total in functions_of_the_lesson()[route](network, list(given)):
            np.testing.assert_array_equal(total, given.sum(axis=0), err_msg=route)
        sent = {(each.step, each.source, each.target, each.bytes) for each in network.messages}
        drawn = {
            (step, each.source, each.target, 16 * len(each.chunks))
            for step, transfers in enumerate(all_reduce_steps(route, ranks))
            for each in transfers
        }
        assert sent == drawn, (route, ranks)


def test_in_a_tree_two_ranks_send_most_and_most_others_one_or_two_vectors():
    for ranks in (4, 8, 64):
        network = Network(ranks)
        functions_of_the_lesson()["tree"](network, [np.ones(1)] * ranks)
        sent = network.bytes_sent // 8
        assert list(np.flatnonzero(sent == log2(ranks))) == [0, ranks // 2]
        assert sent.max() == log2(ranks)
        assert (sent <= 2).mean() >= 3 / 4


def test_where_no_bytes_are_counted_the_lesson_shows_a_simulated_networks(capsys):
    lesson = lesson_text(STEM)
    (shown,) = (
        node
        for node in ast.parse(lesson).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "can_count()"
    )
    names = functions_of_the_lesson() | {"can_count": lambda: False, "Network": Network}
    exec(compile(ast.Module([shown], []), "<lesson 12>", "exec"), names)
    assert "counts no bytes" in capsys.readouterr().out
    assert {examples: list(sent) for examples, sent in names["sent"].items()} == {
        8: [6.0] * 4,
        64: [6.0] * 4,
    }


def test_the_sizes_at_which_ring_and_tree_are_even_and_the_times_of_both_are_the_lessons():
    """In units of latency times bandwidth; at 50 MB, and at 1 KB, on 64 ranks."""
    even = [(2 * (n - 1) - 2 * log2(n)) / (2 * log2(n) - 2 * (n - 1) / n) for n in (4, 8, 64, 256)]
    assert even == sorted(even)
    assert 10e-6 * 10e9 * even[2] == pytest.approx(1.1e6, rel=0.05)

    def times(size):
        waits, message = 10e-6, size / 10e9
        return 126 * (waits + message / 64), 12 * (waits + message)

    (large_ring, large_tree), (small_ring, small_tree) = times(50e6), times(1e3)
    assert 5 < large_tree / large_ring < 6
    assert 10 < small_ring / small_tree < 11
    assert 1 < (63 / 64) / (31 / 32) < 1.02  # what doubling 32 ranks adds to the bytes of a ring


def test_outside_a_tf_function_each_gradient_is_reduced_by_itself(monkeypatch):
    """One worker is enough: what is counted are the calls, not the messages."""
    launcher, calls = cross_device_utils.CollectiveReplicaLauncher, []
    launch = launcher.all_reduce

    def counted(self, *args, **named):
        calls.append(1)
        return launch(self, *args, **named)

    monkeypatch.setattr(launcher, "all_reduce", counted)
    strategy = tf.distribute.MirroredStrategy(dl.split_devices(4)[:2])

    def step():
        gradients = [tf.ones([1000]) for _ in range(6)]
        return tf.distribute.get_replica_context().all_reduce("SUM", gradients)

    strategy.run(step)
    assert len(calls) == 2 * 6  # two replicas
    tf.function(lambda: strategy.run(step))()
    assert len(calls) == 2 * 6 + 2
