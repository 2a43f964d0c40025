"""The checks of lesson 12: right answers pass, each mistake is named; what the lesson claims."""

import ast
import functools
from math import log2

import numpy as np
import pytest

from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from distlab.measure.ring_schedule import ALGORITHMS, all_reduce_steps
from distlab.measure.simulated_network import Network
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
)
from tests.support.repository import ROOT

STEM = "12_ring_all_reduce"
CHECKS = {check.name: check for check in checks_of(STEM)}
SCATTER, GATHER, ROUTE, MESSAGES = CHECKS.values()
solution = functools.cache(functools.partial(load_solution, STEM))
stub = functools.cache(functools.partial(load_stub, STEM))


@pytest.mark.parametrize("name", CHECKS)
def test_the_solution_passes_and_the_stub_earns_nothing(name):
    check = CHECKS[name]
    assert_solution_passes(check, solution()[check.function])
    status = "not yet" if check is MESSAGES else "not started"
    assert_stub_earns_nothing(check, stub()[check.function], status=status)


@pytest.mark.parametrize("name", CHECKS)
def test_no_answer_earns_nothing(name):
    assert run_check(CHECKS[name], lambda *args, **named: None).earned == 0


# --- reduce_scatter


def scatter(*, near=False, own=False, adds=True, forwards=True, short=0, everything=False):
    """Exchanges blocks of chunks; the solution with one thing changed."""

    def reduce_scatter(network, chunks):
        ranks = len(chunks)
        given = [list(mine) for mine in chunks]
        left = [list(range(ranks)) for _ in range(ranks)]
        distances = [2**power for power in range(int(log2(ranks)))]
        distances = distances if near else distances[::-1]
        for apart in distances[: len(distances) - short]:
            sends = {}
            for rank in range(ranks):
                low, high = np.split(np.array(left[rank]), 2)
                upper = bool(rank & apart) is not own
                left[rank], theirs = (high, low) if upper else (low, high)
                of = chunks if forwards else given
                numbers = range(ranks) if everything else theirs
                sends[rank, rank ^ apart] = {int(n): of[rank][n] for n in numbers}
            for rank, arrived in network.step(sends).items():
                for n, array in arrived.items():
                    chunks[rank][n] = chunks[rank][n] + array if adds else array
        return [chunks[r][r if r in left[r] else left[r][0]] for r in range(ranks)]

    return reduce_scatter


def scatter_around_a_ring(network, chunks):
    ranks = len(chunks)
    travels = {rank: chunks[rank][rank - 1] for rank in range(ranks)}
    for step in range(ranks - 1):
        arrived = network.step({(n, (n + 1) % ranks): travels[n] for n in range(ranks)})
        travels = {n: arrived[n] + chunks[n][(n - 2 - step) % ranks] for n in range(ranks)}
    return [travels[rank] for rank in range(ranks)]


def scatter_lists(network, chunks):
    """Blocks as slices, sent as lists."""
    size = len(chunks)
    first = [0] * size
    while size > 1:
        size //= 2
        sends = {}
        for rank in range(len(chunks)):
            theirs = first[rank] + (0 if rank & size else size)
            first[rank] += size if rank & size else 0
            sends[rank, rank ^ size] = chunks[rank][theirs : theirs + size]
        for rank, arrived in network.step(sends).items():
            for number, array in enumerate(arrived, first[rank]):
                chunks[rank][number] = chunks[rank][number] + array
    return tuple(mine[rank] for rank, mine in enumerate(chunks))


def scatter_dictionaries(network, chunks):
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


@pytest.mark.parametrize("right", [scatter(), scatter_lists, scatter_dictionaries])
def test_reduce_scatter_takes_other_right_answers(right):
    assert_solution_passes(SCATTER, right)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (scatter(near=True), "wrong_chunk"),
        (scatter(own=True), "wrong_chunk"),
        (scatter(adds=False), "overwrites_before_send"),
        (scatter(forwards=False), "sends_original"),
        (scatter(short=1), "one_step_short"),
        (scatter_around_a_ring, "ring_again"),
        (scatter(everything=True), "sends_too_much"),
    ],
)
def test_reduce_scatter_names_the_mistake(wrong, mistake):
    assert_mistake_is_caught(SCATTER, wrong, mistake)


def test_right_sums_in_too_many_steps_or_bytes_earn_part_of_the_points():
    assert run_check(SCATTER, scatter_around_a_ring).earned == 2.5
    assert run_check(SCATTER, scatter(everything=True)).earned == 3


def test_a_message_that_no_network_sends_is_explained():
    report = run_check(SCATTER, lambda network, chunks: network.step({(0, 0): chunks[0][0]}))
    assert report.earned == 0
    assert "rank 0 sends to itself" in repr(report)


# --- all_gather


def gather(*, sends="all", short=0, partner=lambda rank, apart: rank ^ apart):
    def all_gather(network, mine):
        have = [{rank: row} for rank, row in enumerate(mine)]
        own, last = [dict(one) for one in have], [dict(one) for one in have]
        for step in range(int(log2(len(mine))) - short):
            out = {"all": have, "own": own, "last": last}[sends]
            arrived = network.step({(n, partner(n, 2**step)): out[n] for n in range(len(mine))})
            for rank, arrays in arrived.items():
                have[rank].update(arrays)
                last[rank] = arrays
        return have

    return all_gather


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


def gather_from_far_to_near(network, mine):
    have, apart = [{rank: row} for rank, row in enumerate(mine)], len(mine) // 2
    while apart:
        sends = {(rank, rank ^ apart): arrays for rank, arrays in enumerate(have)}
        for rank, arrays in network.step(sends).items():
            have[rank] = arrays | have[rank]
        apart //= 2
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


def gather_under_wrong_numbers(network, mine):
    have = gather()(network, mine)
    return [dict(zip(one, reversed(one.values()), strict=True)) for one in have]


@pytest.mark.parametrize("right", [gather_from_far_to_near, gather_shifted])
def test_all_gather_takes_other_right_answers(right):
    assert_solution_passes(GATHER, right)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (gather(short=1), "one_step_short"),
        (gather(sends="own"), "own_array_only"),
        (gather(sends="last"), "last_received_only"),
        (gather(partner=lambda rank, apart: rank ^ 1), "same_partner"),
        (gather_around_a_ring, "ring_again"),
    ],
)
def test_all_gather_names_the_mistake(wrong, mistake):
    assert_mistake_is_caught(GATHER, wrong, mistake)


def test_an_array_under_a_wrong_number_is_seen():
    report = run_check(GATHER, gather_under_wrong_numbers)
    assert report.earned == 1.5
    assert "under the number of a different rank" in repr(report)


# --- choose_route


def by_times(
    *, passes=(2, 2, 2), cut=True, shared=True, bits=8, latency=True, slow=True, swapped=False
):
    def choose_route(servers, gpus, size_bytes, inside, between):
        def step(link, part):
            return link[0] * latency + size_bytes * part * bits / link[1] / 1e9

        n = servers * gpus
        flat = passes[0] * (n - 1) * step(between if slow else inside, 1 / n if cut else 1)
        levels = passes[1] * (gpus - 1) * step(inside, 1 / gpus)
        levels += passes[2] * (servers - 1) * step(between, 1 / servers if shared else 1 / n)
        return "flat" if (flat < levels) is not swapped else "two levels"

    return choose_route


def by_the_even_size(servers, gpus, size_bytes, inside, between):
    waits = gpus * (servers * between[0] - inside[0])
    secs_per_byte = 8e-9 / inside[1] - 8e-9 / (servers * between[1])
    return "two levels" if size_bytes * secs_per_byte <= waits else "flat"


def by_a_dictionary(**case):
    (wait_in, gbit_in), (wait_out, gbit_out) = case["inside"], case["between"]
    m, g, gigabits = case["servers"], case["gpus"], case["size_bytes"] / 0.125e9
    out = (m - 1) * wait_out + gigabits * (m - 1) / m / gbit_out
    flat = (m * g - 1) * (wait_out + gigabits / (m * g) / gbit_out)
    times = {"flat": flat, "two levels": (g - 1) * (wait_in + gigabits / g / gbit_in) + out}
    return min(times, key=times.get)


@pytest.mark.parametrize("right", [by_times(), by_the_even_size, by_a_dictionary])
def test_choose_route_takes_other_right_answers(right):
    assert_solution_passes(ROUTE, right)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (lambda **case: "flat", "flat_always"),
        (by_times(latency=False), "flat_always"),
        (by_times(slow=False), "flat_always"),
        (lambda **case: "two levels", "two_levels_always"),
        (by_times(cut=False), "two_levels_always"),
        (by_times(shared=False), "two_levels_always"),
        (by_times(swapped=True), "swapped"),
        (by_times(bits=1), "bits_as_bytes"),
        (by_times(passes=(1, 2, 2)), "one_way_only"),
        (by_times(passes=(2, 1, 2)), "one_way_only"),
        (lambda size_bytes, **case: "flat" if size_bytes > 1e8 else "two levels", "by_size_alone"),
    ],
)
def test_choose_route_names_the_mistake(wrong, mistake):
    assert_mistake_is_caught(ROUTE, wrong, mistake)


# --- pack_gradients


def packed(*, backward=True, fits=lambda full, size, limit: full + size <= limit, by_size=False):
    def pack_gradients(sizes, limit):
        names = list(sizes)[::-1] if backward else list(sizes)
        names = sorted(names, key=sizes.get) if by_size else names
        messages = []
        for name in names:
            full = sum(sizes[other] for other in messages[-1]) if messages else 0
            if messages and fits(full, sizes[name], limit):
                messages[-1].append(name)
            else:
                messages.append([name])
        return messages

    return pack_gradients


def packed_without_the_last(sizes, limit):
    messages, opened = [], []
    for name in reversed(sizes):
        if opened and sum(map(sizes.get, opened)) + sizes[name] > limit:
            messages.append(opened)
            opened = []
        opened.append(name)
    return messages


def packed_from_a_stack(sizes, limit):
    left, messages = list(sizes.items()), []
    while left:
        name, size = left.pop()
        message, full = [name], size
        while left and full + left[-1][1] <= limit:
            name, size = left.pop()
            message, full = [*message, name], full + size
        messages.append(tuple(message))
    return messages


def packed_with_the_last(sizes, limit):
    sent = packed_without_the_last(sizes, limit)
    names = [name for message in sent for name in message]
    return [*sent, [name for name in reversed(sizes) if name not in names]]


@pytest.mark.parametrize("right", [packed_from_a_stack, packed_with_the_last])
def test_pack_gradients_takes_other_right_answers(right):
    assert_solution_passes(MESSAGES, right)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (packed(fits=lambda full, size, limit: False), "one_message_per_tensor"),
        (packed(fits=lambda full, size, limit: True), "one_message_for_all"),
        (packed(backward=False), "forward_order"),
        (packed(by_size=True), "sorted_by_size"),
        (packed(fits=lambda full, size, limit: full < limit), "closed_too_late"),
        (packed_without_the_last, "last_message_lost"),
    ],
)
def test_pack_gradients_names_the_mistake(wrong, mistake):
    assert_mistake_is_caught(MESSAGES, wrong, mistake)


# --- what the lesson says and does not show


@functools.cache
def functions_of_the_lesson():
    """The functions that the lesson builds from NumPy and the simulated network."""
    lesson = (ROOT / "lessons" / STEM / "lesson.py").read_text(encoding="utf-8")
    wanted = ("naive", "tree", "reduce_scatter", "all_gather", "ring")
    names = {"np": np}
    for node in ast.parse(lesson).body:
        if isinstance(node, ast.FunctionDef) and node.name in wanted:
            exec(compile(ast.Module([node], []), "<lesson 12>", "exec"), names)
    return names


@pytest.mark.parametrize("route", ALGORITHMS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_routes_of_the_lesson_send_what_the_view_draws(route, ranks):
    network, given = Network(ranks), np.arange(2.0 * ranks * ranks).reshape(ranks, -1)
    for total in functions_of_the_lesson()[route](network, list(given)):
        np.testing.assert_array_equal(total, given.sum(axis=0))
    sent = {(one.step, one.source, one.target, one.bytes) for one in network.messages}
    drawn = {
        (step, one.source, one.target, 16 * len(one.chunks))
        for step, transfers in enumerate(all_reduce_steps(route, ranks))
        for one in transfers
    }
    assert sent == drawn


def test_where_no_bytes_are_counted_the_lesson_shows_a_simulated_networks(capsys):
    lesson = (ROOT / "lessons" / STEM / "lesson.py").read_text(encoding="utf-8")
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


def test_with_more_ranks_ring_and_tree_are_even_at_larger_sizes():
    """In units of latency times bandwidth."""
    even = [(2 * (n - 1) - 2 * log2(n)) / (2 * log2(n) - 2 * (n - 1) / n) for n in (4, 8, 64, 256)]
    assert even == sorted(even)
    assert 10e-6 * 10e9 * even[2] == pytest.approx(1.1e6, rel=0.05)


def test_at_50_mb_on_64_ranks_the_ring_is_five_times_quicker_and_at_1_kb_ten_times_slower():
    def times(size):
        waits, message = 10e-6, size / 10e9
        return 126 * (waits + message / 64), 12 * (waits + message)

    ring, tree = times(50e6)
    assert 5 < tree / ring < 6
    ring, tree = times(1e3)
    assert 10 < ring / tree < 11


def test_doubling_32_ranks_adds_less_than_two_per_cent_to_the_bytes_of_a_ring():
    def sent(ranks):
        return 2 * (ranks - 1) / ranks

    assert 1 < sent(64) / sent(32) < 1.02
    assert sent(8) * 100 == 175


def test_tensorflows_ring_is_ours_with_aligned_chunks(run_python):
    code = """
import numpy as np
import tensorflow as tf

import distlab as dl

devices = dl.split_devices(4)
numbers = np.random.default_rng(0).normal(size=(4, 102_400)).astype(np.float32)

def ring(borders):
    chunks = [np.split(vector.copy(), borders) for vector in numbers]
    for step in range(3):
        sent = [chunks[rank][(rank - step) % 4].copy() for rank in range(4)]
        for rank in range(4):
            chunks[rank][(rank - 1 - step) % 4] += sent[rank - 1]
    return np.concatenate([chunks[(number - 1) % 4][number] for number in range(4)])

strategy = tf.distribute.MirroredStrategy(devices)

def add_up():
    context = tf.distribute.get_replica_context()
    mine = tf.gather(tf.constant(numbers), context.replica_id_in_sync_group)
    return context.all_reduce("SUM", mine)

totals = strategy.experimental_local_results(tf.function(lambda: strategy.run(add_up))())
same = [np.array_equal(totals[0], total) for total in totals]
aligned = 25_600 + 16
print(all(same), np.array_equal(totals[0], ring([aligned, 2 * aligned, 3 * aligned])))
print((totals[0].numpy() != ring([25_600, 51_200, 76_800])).sum())
"""
    assert run_python(code, warm=True) == "True True\n34\n"


def test_outside_a_tf_function_each_gradient_is_reduced_by_itself(run_python):
    """One worker is enough: what is counted are the calls, not the messages."""
    code = """
import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils

calls = []
launch = cross_device_utils.CollectiveReplicaLauncher.all_reduce
def counted(self, *args, **named):
    calls.append(1)
    return launch(self, *args, **named)
cross_device_utils.CollectiveReplicaLauncher.all_reduce = counted

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def step():
    gradients = [tf.ones([1000]) for _ in range(6)]
    return tf.distribute.get_replica_context().all_reduce("SUM", gradients)

strategy.run(step)
eager = len(calls)
tf.function(lambda: strategy.run(step))()
print(eager, len(calls) - eager)
"""
    assert run_python(code, warm=True) == "12 2\n"  # two replicas
