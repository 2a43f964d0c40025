"""The checks of lesson 05 take right answers, and name each mistake; and what the lesson claims."""

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
    edited_solution,
)
from tests.support.local_tasks import wait_until

STEM = "05_input_pipelines"
ORDER, SHARD, PREDICT, REST = checks_of(STEM)
AUTO = tf.data.AUTOTUNE


def source(numbers):
    return tf.data.Dataset.from_tensor_slices(numbers)


def by_context(context):
    return context.num_input_pipelines, context.input_pipeline_id


# --- repair_pipeline


def shuffled_before_read(numbers, read, augment, batch, seed):
    """A cache before the shuffle again: numbers are cheap to shuffle, so both are shuffled."""
    data = source(numbers).shuffle(len(numbers), seed=seed, reshuffle_each_iteration=False)
    data = data.map(read, num_parallel_calls=AUTO).cache().shuffle(len(numbers), seed=seed)
    return data.map(augment).batch(batch).prefetch(AUTO)


def pipeline_of(stages):
    """An answer with the stages that these words name, in their order."""

    def make_pipeline(numbers, read, augment, batch, seed):
        apply = {
            "slow_read": lambda data: data.map(read),
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


def test_repair_pipeline():
    assert_right_answers_pass(ORDER, shuffled_before_read)
    wrong = {
        "never_cached": pipeline_of("read shuffle augment batch prefetch"),
        "cache_after_shuffle": pipeline_of("read shuffle cache augment batch prefetch"),
        "augmentation_cached": pipeline_of("read augment cache shuffle batch prefetch"),
        "shuffle_after_batch": pipeline_of("read cache augment batch shuffle prefetch"),
        "prefetch_first": pipeline_of("prefetch read cache shuffle augment batch"),
    }
    assert_mistakes_are_caught(ORDER, wrong, earned=3)
    wrong = {
        "one_call_at_a_time": pipeline_of("slow_read cache shuffle augment batch prefetch"),
        "nothing_kept_ready": pipeline_of("read cache shuffle augment batch"),
    }
    assert_mistakes_are_caught(ORDER, wrong, earned=3)
    # It freezes the augmentation, too.
    at_the_end = pipeline_of("read augment shuffle batch cache prefetch")
    assert assert_mistake_is_caught(ORDER, at_the_end, "cache_after_shuffle").earned == 0
    assert_feedback_says(ORDER, {"a tf.data.Dataset of batches": lambda *_: [1, 2]})
    said = {" versions, and ": pipeline_of("read augment cache shuffle batch prefetch")}
    assert_feedback_says(ORDER, said, earned=3)


# --- shard_files


def by_slices(context, files, load, decode, seed):
    workers, me = by_context(context)
    if len(files) >= workers:
        lines = source(files[me::workers]).interleave(load, cycle_length=2)
    else:
        numbered = source(files).flat_map(load).enumerate()
        lines = numbered.filter(lambda n, _: n % workers == me).map(lambda _, line: line)
    return lines.map(decode).shuffle(1000, seed=seed)


def reading(stages):
    """An answer with the stages that these words name, in their order."""

    def my_examples(context, files, load, decode, seed):
        apply = {
            "load": lambda data: data.flat_map(load),
            "shard": lambda data: data.shard(*by_context(context)),
            "decode": lambda data: data.map(decode),
            "cache": lambda data: data.cache(),
            "shuffle": lambda data: data.shuffle(1000, seed=seed),
            "unseeded": lambda data: data.shuffle(1000),
        }
        data = source(files)
        for stage in stages.split():
            data = apply[stage](data)
        return data

    return my_examples


def decoded_once(context, files, load, decode, seed):
    """The examples in a cache, before anything random: each is decoded once in all epochs."""
    first = "shard load" if len(files) >= context.num_input_pipelines else "load shard"
    return reading(f"{first} decode cache shuffle")(context, files, load, decode, seed)


def test_shard_files():
    assert_right_answers_pass(SHARD, by_slices, decoded_once)
    wrong = {
        "both_read_all": reading("load shuffle decode"),
        "unseeded_shuffle_then_shard": reading("load unseeded shard decode"),
        "fewer_files_than_workers": reading("shard load shuffle decode"),
        "decodes_everything": reading("load decode shard shuffle"),
        "opens_every_file": reading("load shard shuffle decode"),
    }
    assert_mistakes_are_caught(SHARD, wrong)
    cached = reading("load decode cache shard shuffle")
    assert_mistake_is_caught(SHARD, cached, "decodes_everything")


# --- predict_step


def by_counting(shares_of):
    """An answer that counts the rounds, of the examples that a policy gives to each worker."""

    def step_ms(read_ms, compute_ms, global_batch, workers, policy, at_once, reads_ahead):
        left, reading = global_batch // shares_of(policy, workers), 0
        while left > 0:
            left, reading = left - at_once, reading + read_ms
        return np.max([reading, compute_ms]) if reads_ahead else np.sum([reading, compute_ms])

    return step_ms


def test_predict_step():
    by_policy = by_counting(lambda policy, workers: workers if policy == "FILE" else 1)
    assert_right_answers_pass(PREDICT, by_policy)
    wrong = {
        "data_shares_work": by_counting(lambda policy, n: n),
        "part_of_a_round": edited_solution(STEM, "step_ms", {"math.ceil": "float"}),
    }
    earned = {"data_shares_work": 0, "part_of_a_round": 2}
    assert_mistakes_are_caught(PREDICT, wrong, earned=earned)
    assert_feedback_says(PREDICT, {"nothing: is there a `return`?": lambda *_: None})
    assert_feedback_says(PREDICT, {", policy, ": lambda *_: 0.0})


# --- rest_of_epoch


def rest_by_slices(batch_size):
    def rest_of_epoch(context, numbers, decode, global_batch, steps_done):
        workers, me = by_context(context)
        mine = source(numbers[steps_done * global_batch :][me::workers])
        batch = batch_size(context, global_batch)
        return mine.map(decode, num_parallel_calls=2).batch(batch).prefetch(2)

    return rest_of_epoch


def skipped_on_each_worker(context, numbers, decode, global_batch, steps_done):
    mine = source(numbers).shard(*by_context(context)).skip(steps_done * global_batch)
    return mine.map(decode).batch(context.get_per_replica_batch_size(global_batch))


def test_rest_of_epoch():
    by_division = rest_by_slices(lambda context, batch: batch // context.num_replicas_in_sync)
    assert_right_answers_pass(REST, by_division)
    wrong = {
        "global_batch_per_replica": rest_by_slices(lambda context, batch: batch),
        "skipped_on_each_worker": skipped_on_each_worker,
    }
    assert_mistakes_are_caught(REST, wrong)


# --- what the lesson says and does not show


def test_a_seed_of_the_operation_freezes_it_as_well():
    data = tf.data.Dataset.range(4).map(lambda _: tf.random.uniform([], seed=3))
    first, second = ([float(number) for number in data] for _ in range(2))
    assert first == second
    assert len(set(first)) == 4
    in_one_pass = [float(number) for number in data.repeat(3)]
    assert len({in_one_pass[0], in_one_pass[4], in_one_pass[8]}) == 3


def test_a_full_cache_calls_nothing_before_it():
    calls = CountedCalls()
    data = tf.data.Dataset.range(8).map(calls.counted("read")).cache().batch(4)
    for _ in range(3):
        list(data)
    assert calls["read"] == 8


def test_a_cache_is_complete_only_after_a_full_pass():
    calls = CountedCalls()
    part = tf.data.Dataset.range(8).map(calls.counted("read")).cache().take(3)
    list(part)
    list(part)
    assert calls["read"] == 6


def test_shuffle_brings_an_element_at_most_its_buffer_forward():
    order = [int(n) for n in tf.data.Dataset.range(200).shuffle(10, seed=1)]
    assert max(number - place for place, number in enumerate(order)) == 9


def test_a_shuffle_behind_batch_leaves_the_same_examples_together():
    eight = tf.data.Dataset.range(8)

    def batches_in_3_epochs(data):
        return {tuple(sorted(batch.numpy().tolist())) for _ in range(3) for batch in data}

    assert batches_in_3_epochs(eight.batch(4).shuffle(2, seed=1)) == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert len(batches_in_3_epochs(eight.shuffle(8, seed=1).batch(4))) > 2


def options_without(*optimizations):
    options = tf.data.Options()
    for name in optimizations:
        setattr(options.experimental_optimization, name, False)
    return options


def test_a_distributed_data_set_reads_more_than_one_batch_ahead():
    strategy, calls = dl.make_strategy("mirrored", devices=4), CountedCalls()
    data = tf.data.Dataset.range(400).map(calls.counted("read")).batch(4)
    iterator = iter(strategy.experimental_distribute_dataset(data))
    next(iterator)
    wait_until(lambda: calls["read"] > 8)


def test_a_prefetch_before_map_leaves_its_calls_inside_the_step():
    calls = CountedCalls()
    numbers = tf.data.Dataset.range(400).map(calls.counted("number")).prefetch(8)
    data = numbers.map(calls.counted("read")).batch(4)
    options = options_without("inject_prefetch", "map_and_batch_fusion")
    iterator = iter(data.with_options(options))
    next(iterator)
    wait_until(lambda: calls["number"] >= 12)
    assert calls["read"] == 4


def test_either_of_two_optimizations_reads_a_batch_ahead():
    def pipeline_without(*optimizations):
        calls, options = CountedCalls(), options_without(*optimizations)
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
