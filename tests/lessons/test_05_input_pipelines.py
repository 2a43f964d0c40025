"""The checks of lesson 05 take right answers, and name each mistake; and what the lesson claims."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
)
from tests.support.local_tasks import wait_until

STEM = "05_input_pipelines"
CHECKS = {check.name: check for check in checks_of(STEM)}
ORDER, SHARD, REST, PREDICT = CHECKS.values()
AUTO = tf.data.AUTOTUNE
solution = functools.cache(functools.partial(load_solution, STEM))
stub = functools.cache(functools.partial(load_stub, STEM))


@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
def test_the_solution_passes(check):
    assert_solution_passes(check, solution()[check.function], seeds=range(2))


@pytest.mark.parametrize("check", [SHARD, REST, PREDICT], ids=lambda check: check.name)
def test_a_stub_is_not_started(check):
    assert_stub_earns_nothing(check, stub()[check.function])


def test_the_pipeline_as_handed_out_earns_nothing():
    assert_stub_earns_nothing(ORDER, stub()["make_pipeline"], status="not yet")


# Task 1: repair_pipeline


def source(numbers):
    return tf.data.Dataset.from_tensor_slices(numbers)


def order_augment_before_shuffle(numbers, read, augment, batch, seed):
    kept = source(numbers).map(read, num_parallel_calls=2, deterministic=True).cache()
    return kept.map(augment).shuffle(len(numbers), seed=seed).batch(batch).prefetch(1)


def order_with_options(numbers, read, augment, batch, seed):
    """Augments whole batches one by one, and sets options behind the prefetch."""
    data = source(numbers).apply(lambda given: given.map(read, num_parallel_calls=4)).cache()
    data = data.shuffle(10 * len(numbers), seed=seed, reshuffle_each_iteration=True)
    data = data.map(augment, num_parallel_calls=AUTO).batch(batch, num_parallel_calls=2)
    return data.prefetch(2).with_options(tf.data.Options())


def order_shuffled_before_read(numbers, read, augment, batch, seed):
    """A cache before the shuffle again: numbers are cheap to shuffle, so both are shuffled."""
    data = source(numbers).shuffle(len(numbers), seed=seed, reshuffle_each_iteration=False)
    data = data.map(read, num_parallel_calls=AUTO).cache().shuffle(len(numbers), seed=seed)
    return data.map(augment).batch(batch).prefetch(AUTO)


@pytest.mark.parametrize(
    "answer", [order_augment_before_shuffle, order_with_options, order_shuffled_before_read]
)
def test_order_takes_different_right_answers(answer):
    assert_solution_passes(ORDER, answer, seeds=range(2))


def order_of(*stages, at_once=AUTO, seeded=True, anew=True):
    """An answer with these stages, in their order."""

    def make_pipeline(numbers, read, augment, batch, seed):
        data = source(numbers)
        for stage in stages:
            if stage == "read":
                data = data.map(read, num_parallel_calls=at_once)
            elif stage == "augment":
                data = data.map(augment)
            elif stage == "cache":
                data = data.cache()
            elif stage == "shuffle":
                used = seed if seeded else None
                data = data.shuffle(len(numbers), seed=used, reshuffle_each_iteration=anew)
            elif stage == "batch":
                data = data.batch(batch)
            else:
                data = data.prefetch(2)
        return data

    return make_pipeline


ORDER_MISTAKES = {
    "never_cached": order_of("read", "shuffle", "augment", "batch", "prefetch"),
    "never_shuffled": order_of("read", "cache", "augment", "batch", "prefetch"),
    "cache_after_shuffle": order_of("read", "shuffle", "cache", "augment", "batch", "prefetch"),
    "one_order": order_of("read", "cache", "shuffle", "augment", "batch", "prefetch", anew=False),
    "augmentation_cached": order_of("read", "augment", "cache", "shuffle", "batch", "prefetch"),
    "shuffle_after_batch": order_of("read", "cache", "augment", "batch", "shuffle", "prefetch"),
    "no_seed": order_of("read", "cache", "shuffle", "augment", "batch", "prefetch", seeded=False),
    "prefetch_first": order_of("prefetch", "read", "cache", "shuffle", "augment", "batch"),
    "no_prefetch": order_of("read", "cache", "shuffle", "augment", "batch"),
    "one_at_a_time": order_of(
        "read", "cache", "shuffle", "augment", "batch", "prefetch", at_once=None
    ),
}


def test_order_has_a_wrong_answer_for_each_mistake():
    assert set(ORDER_MISTAKES) == {mistake.name for mistake in ORDER.mistakes}


@pytest.mark.parametrize("mistake", ORDER_MISTAKES)
def test_order_names_the_mistake(mistake):
    assert_mistake_is_caught(ORDER, ORDER_MISTAKES[mistake], mistake, seeds=(1, 2))


def test_a_cache_at_the_end_is_named_although_it_freezes_the_augmentation_too():
    cache_last = order_of("read", "augment", "shuffle", "batch", "cache", "prefetch")
    assert_mistake_is_caught(ORDER, cache_last, "cache_after_shuffle", seeds=(1,))


def test_order_says_so_if_the_answer_is_no_data_set():
    report = run_check(ORDER, lambda *_: [1, 2], seeds=(1,))
    assert report.earned == 0
    assert "a tf.data.Dataset of batches" in repr(report)


# Task 2: shard_files


def shard_by_slices(context, files, load, decode, seed):
    workers, me = context.num_input_pipelines, context.input_pipeline_id
    enough = len(files) >= workers
    lines = source(files[me::workers] if enough else files).interleave(load, cycle_length=2)
    lines = lines if enough else lines.enumerate().filter(lambda n, _: n % workers == me)
    lines = lines if enough else lines.map(lambda _, line: line)
    return lines.map(decode).shuffle(1000, seed=seed)


def shard_shuffled_files(context, files, load, decode, seed):
    """The same shuffle on all workers, before the sharding."""
    data, by = source(files), (context.num_input_pipelines, context.input_pipeline_id)
    if len(files) < by[0]:
        return data.flat_map(load).shuffle(1000, seed=seed).shard(*by).map(decode)
    return data.shuffle(100, seed=seed).shard(*by).flat_map(load).shuffle(9, seed=seed).map(decode)


@pytest.mark.parametrize("answer", [shard_by_slices, shard_shuffled_files])
def test_shard_takes_different_right_answers(answer):
    assert_solution_passes(SHARD, answer, seeds=(1,))


def sharding(
    *,
    before=lambda lines, by, files: lines,
    files_by=lambda files, by: files.shard(*by),
    lines_by=lambda lines, by: lines.shard(*by),
    by=lambda context: (context.num_input_pipelines, context.input_pipeline_id),
    few_too=True,
    shuffle=lambda data, seed: data.shuffle(1000, seed=seed),
    last=lambda data, decode: data.map(decode),
):
    def my_examples(context, files, load, decode, seed):
        data, pair = source(files), by(context)
        if len(files) >= context.num_input_pipelines or not few_too:
            lines = files_by(data, pair).flat_map(load)
        else:
            lines = lines_by(data.flat_map(load), pair)
        return last(shuffle(lines, seed), decode)

    return my_examples


def unseeded_then_shard(context, files, load, decode, seed):
    lines = source(files).flat_map(load).shuffle(1000)
    return lines.shard(context.num_input_pipelines, context.input_pipeline_id).map(decode)


def decode_then_shard(context, files, load, decode, seed):
    decoded = source(files).flat_map(load).map(decode)
    by = (context.num_input_pipelines, context.input_pipeline_id)
    return decoded.shard(*by).shuffle(1000, seed=seed)


def lines_always(context, files, load, decode, seed):
    lines = source(files).flat_map(load)
    by = (context.num_input_pipelines, context.input_pipeline_id)
    return lines.shard(*by).shuffle(1000, seed=seed).map(decode)


SHARD_MISTAKES = {
    "shard_arguments": sharding(by=lambda c: (c.input_pipeline_id, c.num_input_pipelines)),
    "not_decoded": sharding(last=lambda data, decode: data),
    "both_read_all": sharding(files_by=lambda files, by: files, lines_by=lambda lines, by: lines),
    "unseeded_shuffle_then_shard": unseeded_then_shard,
    "same_part": sharding(by=lambda c: (c.num_input_pipelines, 0)),
    "fewer_files_than_workers": sharding(few_too=False),
    "decodes_everything": decode_then_shard,
    "opens_every_file": lines_always,
    "not_shuffled": sharding(shuffle=lambda data, seed: data),
}


def test_shard_has_a_wrong_answer_for_each_mistake():
    assert set(SHARD_MISTAKES) == {mistake.name for mistake in SHARD.mistakes}


@pytest.mark.parametrize("mistake", SHARD_MISTAKES)
def test_shard_names_the_mistake(mistake):
    assert_mistake_is_caught(SHARD, SHARD_MISTAKES[mistake], mistake, seeds=(1,))


def test_a_shuffle_without_the_seed_behind_the_shard_is_named():
    unseeded = sharding(shuffle=lambda data, seed: data.shuffle(1000))
    assert_mistake_is_caught(SHARD, unseeded, "not_shuffled", seeds=(1,))


# Task 3: rest_of_epoch


def by_context(context):
    return context.num_input_pipelines, context.input_pipeline_id


def size_of(context, global_batch):
    return context.get_per_replica_batch_size(global_batch)


def rest_in_pieces(context, numbers, decode, global_batch, steps_done):
    """Consecutive pieces of each batch, as DATA cuts them."""
    workers, me = by_context(context)
    pieces = source(numbers).batch(global_batch // workers).skip(steps_done * workers)
    mine = pieces.shard(workers, me).unbatch()
    return mine.map(decode).batch(size_of(context, global_batch))


def rest_by_slices(context, numbers, decode, global_batch, steps_done):
    workers, me = by_context(context)
    mine = source(numbers[steps_done * global_batch :][me::workers])
    batch = global_batch // context.num_replicas_in_sync
    return mine.map(decode, num_parallel_calls=2).batch(batch).prefetch(2)


@pytest.mark.parametrize("answer", [rest_in_pieces, rest_by_slices])
def test_rest_takes_different_right_answers(answer):
    assert_solution_passes(REST, answer, seeds=range(2))


def resting(
    *,
    by=by_context,
    size=size_of,
    before=lambda data, done, batch: data.skip(done * batch),
    part=lambda data, by, count: data.shard(*by),
    after=lambda data, done, batch: data,
    last=lambda data, done: data,
    decode_first=False,
    batched=True,
):
    """An answer that drops what was trained before or after the part, or as whole batches."""

    def rest_of_epoch(context, numbers, decode, global_batch, steps_done):
        data = before(source(numbers), steps_done, global_batch)
        data = data.map(decode) if decode_first else data
        data = part(data, by(context), int(data.cardinality()))
        data = after(data, steps_done, global_batch)
        data = data if decode_first else data.map(decode)
        return last(data.batch(size(context, global_batch)) if batched else data, steps_done)

    return rest_of_epoch


def consecutive(data, by, count):
    return data.skip(by[1] * (count // by[0])).take(count // by[0])


def not_yet(data, done, batch):
    return data


REST_MISTAKES = {
    "shard_arguments": resting(by=lambda c: by_context(c)[::-1]),
    "not_batched": resting(batched=False),
    "global_batch_per_replica": resting(size=lambda context, batch: batch),
    "batch_per_worker": resting(size=lambda context, batch: batch // context.num_input_pipelines),
    "both_read_all": resting(part=lambda data, by, count: data),
    "same_part": resting(by=lambda c: (c.num_input_pipelines, 0)),
    "shard_by_replica": resting(by=lambda c: (c.num_replicas_in_sync, c.input_pipeline_id)),
    "starts_again": resting(before=not_yet),
    "skipped_on_each_worker": resting(
        before=not_yet, after=lambda data, done, batch: data.skip(done * batch)
    ),
    "one_batch_for_a_step": resting(before=not_yet, last=lambda data, done: data.skip(done)),
    "consecutive_parts": resting(part=consecutive),
    "decodes_trained": resting(before=not_yet, last=lambda data, done: data.skip(2 * done)),
    "decodes_everything": resting(decode_first=True),
}


def test_rest_has_a_wrong_answer_for_each_mistake():
    assert set(REST_MISTAKES) == {mistake.name for mistake in REST.mistakes}


@pytest.mark.parametrize("mistake", REST_MISTAKES)
def test_rest_names_the_mistake(mistake):
    assert_mistake_is_caught(REST, REST_MISTAKES[mistake], mistake, seeds=(1, 2))


# Task 4: predict_step


def predict_by_cases(read_ms, compute_ms, global_batch, workers, policy, at_once, reads_ahead):
    mine = {"FILE": global_batch / workers, "DATA": global_batch}[policy]
    reading = -(-mine // at_once) * read_ms
    if not reads_ahead:
        return reading + compute_ms
    return compute_ms if compute_ms > reading else reading


def predict_by_counting(read_ms, compute_ms, global_batch, workers, policy, at_once, reads_ahead):
    left, reading = global_batch // (workers if policy == "FILE" else 1), 0
    while left > 0:
        left, reading = left - at_once, reading + read_ms
    return np.max([reading, compute_ms]) if reads_ahead else np.sum([reading, compute_ms])


@pytest.mark.parametrize("answer", [predict_by_cases, predict_by_counting])
def test_predict_takes_different_right_answers(answer):
    assert_solution_passes(PREDICT, answer, seeds=range(8))


def predicting(
    *,
    ahead=max,
    in_turns=lambda a, b: a + b,
    shares=("FILE",),
    rounds=lambda examples, at_once: math.ceil(examples / at_once),
):
    def step_ms(read_ms, compute_ms, global_batch, workers, policy, at_once, reads_ahead):
        examples = global_batch // (workers if policy in shares else 1)
        reading = rounds(examples, at_once) * read_ms
        return (ahead if reads_ahead else in_turns)(reading, compute_ms)

    return step_ms


PREDICT_MISTAKES = {
    "data_shares_work": predicting(shares=("FILE", "DATA")),
    "file_reads_all": predicting(shares=()),
    "one_call_at_a_time": predicting(rounds=lambda examples, at_once: examples),
    "part_of_a_round": predicting(rounds=lambda examples, at_once: examples / at_once),
    "rounded_down": predicting(rounds=lambda examples, at_once: examples // at_once),
    "always_ahead": predicting(in_turns=max),
    "prefetch_changes_nothing": predicting(ahead=lambda a, b: a + b),
    "prefetch_hides_input": predicting(ahead=lambda reading, compute: compute),
}


def test_predict_has_a_wrong_answer_for_each_mistake():
    assert set(PREDICT_MISTAKES) == {mistake.name for mistake in PREDICT.mistakes}


@pytest.mark.parametrize("mistake", PREDICT_MISTAKES)
def test_predict_names_the_mistake(mistake):
    assert_mistake_is_caught(PREDICT, PREDICT_MISTAKES[mistake], mistake, seeds=range(1, 6))


# What the lesson says and does not show


def test_a_keyed_draw_does_not_depend_on_parallel_calls():
    def drawn(at_once):
        keys = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True)
        pairs = tf.data.Dataset.zip(tf.data.Dataset.range(20), keys)
        data = pairs.map(
            lambda _, key: tf.random.stateless_uniform([], [key, 0]), num_parallel_calls=at_once
        )
        return [[float(number) for number in data] for _ in range(2)]

    first, second = drawn(at_once=None)
    assert drawn(at_once=4) == [first, second]
    assert first != second


def test_a_seed_of_the_operation_freezes_it_as_well():
    data = tf.data.Dataset.range(4).map(lambda _: tf.random.uniform([], seed=3))
    first, second = ([float(number) for number in data] for _ in range(2))
    assert first == second
    assert len(set(first)) == 4


@pytest.mark.parametrize(("seed", "each_once"), [(1, True), (None, False)])
def test_data_needs_the_same_order_on_every_worker(seed, each_once):
    from distlab.coursework.input_probes import pipeline_of_worker

    def on_worker(number):  # each worker builds its own pipeline, as a program of its own does
        data = tf.data.Dataset.range(64).shuffle(64, seed=seed).batch(8)
        return pipeline_of_worker(data, workers=2, worker=number)

    read = [int(n) for worker in range(2) for batch in on_worker(worker) for n in batch]
    assert len(read) == 64
    assert (len(set(read)) == 64) is each_once


def test_a_cache_is_complete_only_after_a_full_pass():
    from distlab.coursework.input_probes import CountedCalls

    calls = CountedCalls()
    part = tf.data.Dataset.range(8).map(calls.counted("read")).cache().take(3)
    list(part)
    list(part)
    assert calls["read"] == 6


def test_shuffle_brings_an_element_at_most_its_buffer_forward():
    order = [int(n) for n in tf.data.Dataset.range(200).shuffle(10, seed=1)]
    assert max(number - place for place, number in enumerate(order)) == 9


def test_either_of_two_optimizations_reads_a_batch_ahead():
    from distlab.coursework.input_probes import CountedCalls

    def pipeline_without(*optimizations):
        calls, options = CountedCalls(), tf.data.Options()
        for name in optimizations:
            setattr(options.experimental_optimization, name, False)
        data = tf.data.Dataset.range(400).map(calls.counted("read")).batch(4)
        return calls, iter(data.with_options(options))

    calls_without_both, iterator_without_both = pipeline_without(
        "inject_prefetch", "map_and_batch_fusion"
    )
    next(iterator_without_both)
    for name in ("inject_prefetch", "map_and_batch_fusion"):
        calls, iterator = pipeline_without(name)
        next(iterator)
        wait_until(lambda calls=calls: calls["read"] >= 8)
    assert calls_without_both["read"] == 4


def test_a_map_behind_batch_is_called_once_for_each_batch():
    from distlab.coursework.input_probes import CountedCalls

    calls = CountedCalls()
    list(tf.data.Dataset.range(64).batch(16).map(calls.counted("scale")))
    assert calls["scale"] == 4


def test_batches_from_a_function_are_shared_like_those_from_files():
    strategy = dl.make_strategy("mirrored", devices=4)

    def numbers(context):
        data = tf.data.Dataset.range(42)
        return data.batch(context.get_per_replica_batch_size(16))

    *_, last = strategy.distribute_datasets_from_function(numbers)
    shares = tuple(len(part) for part in strategy.experimental_local_results(last))
    plan = dl.plan_batch(global_batch=16, replicas=4)
    assert shares == plan.shares_of(10, source="files") == (4, 4, 2, 0)
