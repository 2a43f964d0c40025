"""The checks of lesson 05 take right answers, and name each mistake; and what the lesson claims."""

import math

import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.lesson_05_input_pipelines.runs import CountedCalls
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistake_is_caught,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
)
from tests.support.local_tasks import wait_until

STEM = "05_input_pipelines"
ORDER, SHARD, REST, PREDICT = checks_of(STEM)
ONE_DRAW = (1,)
IN_ORDER = "read cache shuffle augment batch prefetch"
AUTO = tf.data.AUTOTUNE


# Task 1: repair_pipeline


def source(numbers):
    return tf.data.Dataset.from_tensor_slices(numbers)


def order_shuffled_before_read(numbers, read, augment, batch, seed):
    """A cache before the shuffle again: numbers are cheap to shuffle, so both are shuffled."""
    data = source(numbers).shuffle(len(numbers), seed=seed, reshuffle_each_iteration=False)
    data = data.map(read, num_parallel_calls=AUTO).cache().shuffle(len(numbers), seed=seed)
    return data.map(augment).batch(batch).prefetch(AUTO)


def test_order_takes_different_right_answers():
    answers = order_of(IN_ORDER), order_shuffled_before_read
    assert_right_answers_pass(ORDER, *answers, seeds=ONE_DRAW)


def order_of(stages):
    """An answer with the stages that these words name, in their order."""

    def make_pipeline(numbers, read, augment, batch, seed):
        apply = {
            "read": lambda data: data.map(read, num_parallel_calls=AUTO),
            "augment": lambda data: data.map(augment),
            "cache": lambda data: data.cache(),
            "shuffle": lambda data: data.shuffle(len(numbers), seed=seed),
            "batch": lambda data: data.batch(batch),
            "prefetch": lambda data: data.prefetch(2),
        }
        data = source(numbers)
        for stage in stages.split():
            data = apply[stage](data)
        return data

    return make_pipeline


def test_order_names_the_mistake():
    wrong = {
        "never_cached": order_of("read shuffle augment batch prefetch"),
        "cache_after_shuffle": order_of("read shuffle cache augment batch prefetch"),
        "augmentation_cached": order_of("read augment cache shuffle batch prefetch"),
        "shuffle_after_batch": order_of("read cache augment batch shuffle prefetch"),
        "prefetch_first": order_of("prefetch read cache shuffle augment batch"),
    }
    assert_mistakes_are_caught(ORDER, wrong, seeds=ONE_DRAW)
    # It freezes the augmentation, too.
    at_the_end = order_of("read augment shuffle batch cache prefetch")
    assert_mistake_is_caught(ORDER, at_the_end, "cache_after_shuffle", seeds=ONE_DRAW)


def test_order_says_so_if_the_answer_is_no_data_set():
    assert_feedback_says(ORDER, {"a tf.data.Dataset of batches": lambda *_: [1, 2]})


# Task 2: shard_files


def shard_by_slices(context, files, load, decode, seed):
    workers, me = context.num_input_pipelines, context.input_pipeline_id
    enough = len(files) >= workers
    lines = source(files[me::workers] if enough else files).interleave(load, cycle_length=2)
    lines = lines if enough else lines.enumerate().filter(lambda n, _: n % workers == me)
    lines = lines if enough else lines.map(lambda _, line: line)
    return lines.map(decode).shuffle(1000, seed=seed)


def test_shard_takes_different_right_answers():
    assert_right_answers_pass(SHARD, sharding, shard_by_slices, seeds=ONE_DRAW)


def by_context(context):
    return context.num_input_pipelines, context.input_pipeline_id


def sharding(context, files, load, decode, seed):
    data, by = source(files), by_context(context)
    if len(files) >= context.num_input_pipelines:
        lines = data.shard(*by).flat_map(load)
    else:
        lines = data.flat_map(load).shard(*by)
    return lines.shuffle(1000, seed=seed).map(decode)


def reads_all(context, files, load, decode, seed):
    return source(files).flat_map(load).shuffle(1000, seed=seed).map(decode)


def files_always(context, files, load, decode, seed):
    lines = source(files).shard(*by_context(context)).flat_map(load)
    return lines.shuffle(1000, seed=seed).map(decode)


def unseeded_then_shard(context, files, load, decode, seed):
    lines = source(files).flat_map(load).shuffle(1000)
    return lines.shard(*by_context(context)).map(decode)


def decode_then_shard(context, files, load, decode, seed):
    decoded = source(files).flat_map(load).map(decode)
    return decoded.shard(*by_context(context)).shuffle(1000, seed=seed)


def lines_always(context, files, load, decode, seed):
    lines = source(files).flat_map(load)
    return lines.shard(*by_context(context)).shuffle(1000, seed=seed).map(decode)


def test_shard_names_the_mistake():
    wrong = {
        "both_read_all": reads_all,
        "unseeded_shuffle_then_shard": unseeded_then_shard,
        "fewer_files_than_workers": files_always,
        "decodes_everything": decode_then_shard,
        "opens_every_file": lines_always,
    }
    assert_mistakes_are_caught(SHARD, wrong, seeds=ONE_DRAW)


# Task 3: rest_of_epoch


def size_of(context, global_batch):
    return context.get_per_replica_batch_size(global_batch)


def rest_by_slices(context, numbers, decode, global_batch, steps_done):
    workers, me = by_context(context)
    mine = source(numbers[steps_done * global_batch :][me::workers])
    batch = global_batch // context.num_replicas_in_sync
    return mine.map(decode, num_parallel_calls=2).batch(batch).prefetch(2)


def test_rest_takes_different_right_answers():
    assert_right_answers_pass(REST, resting(), rest_by_slices, seeds=range(2))


def resting(
    *,
    by=by_context,
    size=size_of,
    part=lambda data, by, count: data.shard(*by),
    skip_own=False,
    decode_first=False,
):
    """An answer that drops what was trained before or after the part."""

    def rest_of_epoch(context, numbers, decode, global_batch, steps_done):
        data, trained = source(numbers), steps_done * global_batch
        data = data if skip_own else data.skip(trained)
        data = data.map(decode) if decode_first else data
        data = part(data, by(context), int(data.cardinality()))
        data = data.skip(trained) if skip_own else data
        data = data if decode_first else data.map(decode)
        return data.batch(size(context, global_batch))

    return rest_of_epoch


def consecutive(data, by, count):
    return data.skip(by[1] * (count // by[0])).take(count // by[0])


def test_rest_names_the_mistake():
    wrong = {
        "global_batch_per_replica": resting(size=lambda context, batch: batch),
        "shard_by_replica": resting(by=lambda c: (c.num_replicas_in_sync, c.input_pipeline_id)),
        "skipped_on_each_worker": resting(skip_own=True),
        "consecutive_parts": resting(part=consecutive),
        "decodes_everything": resting(decode_first=True),
    }
    assert_mistakes_are_caught(REST, wrong, seeds=ONE_DRAW)


# Task 4: predict_step


def predict_by_counting(read_ms, compute_ms, global_batch, workers, policy, at_once, reads_ahead):
    left, reading = global_batch // (workers if policy == "FILE" else 1), 0
    while left > 0:
        left, reading = left - at_once, reading + read_ms
    return np.max([reading, compute_ms]) if reads_ahead else np.sum([reading, compute_ms])


def test_predict_takes_different_right_answers():
    assert_right_answers_pass(PREDICT, predicting(), predict_by_counting, seeds=range(8))


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


def test_predict_names_the_mistake():
    wrong = {
        "data_shares_work": predicting(shares=("FILE", "DATA")),
        "one_call_at_a_time": predicting(rounds=lambda examples, at_once: examples),
        "part_of_a_round": predicting(rounds=lambda examples, at_once: examples / at_once),
        "always_ahead": predicting(in_turns=max),
        "prefetch_hides_input": predicting(ahead=lambda reading, compute: compute),
    }
    assert_mistakes_are_caught(PREDICT, wrong)


# What the lesson says and does not show


def test_a_seed_of_the_operation_freezes_it_as_well():
    data = tf.data.Dataset.range(4).map(lambda _: tf.random.uniform([], seed=3))
    first, second = ([float(number) for number in data] for _ in range(2))
    assert first == second
    assert len(set(first)) == 4


def test_a_cache_is_complete_only_after_a_full_pass():
    calls = CountedCalls()
    part = tf.data.Dataset.range(8).map(calls.counted("read")).cache().take(3)
    list(part)
    list(part)
    assert calls["read"] == 6


def test_shuffle_brings_an_element_at_most_its_buffer_forward():
    order = [int(n) for n in tf.data.Dataset.range(200).shuffle(10, seed=1)]
    assert max(number - place for place, number in enumerate(order)) == 9


def test_either_of_two_optimizations_reads_a_batch_ahead():
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
