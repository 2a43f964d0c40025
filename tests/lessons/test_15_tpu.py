"""The checks of lesson 15: right answers pass, mistakes are named, the lesson's claims hold."""

import functools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    load_solution,
    load_stub,
)

STEM = "15_tpu"
LOSS, EVALUATION, VERDICTS = checks_of(STEM)
solution = functools.cache(functools.partial(load_solution, STEM))
ONE_DRAW = (1,)


@pytest.mark.parametrize("check", [LOSS, EVALUATION, VERDICTS], ids=lambda check: check.name)
def test_the_solution_passes(check):
    assert_solution_passes(check, solution()[check.function], seeds=range(2))


# labelled_loss


def cross_entropy(labels, scores):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)


def loss_by(
    *,
    clip=lambda scores: tf.clip_by_value(scores, -3.0, 3.0),
    fill=lambda labels: tf.maximum(labels, 0),
    mask=lambda labels: tf.cast(labels >= 0, tf.float32),
    count=tf.reduce_sum,
    divide=tf.math.divide_no_nan,
):
    def labelled_loss(scores, labels):
        losses = cross_entropy(fill(labels), clip(scores))
        return divide(tf.reduce_sum(losses * mask(labels)), count(mask(labels)))

    return labelled_loss


def loss_by_one_hot(scores, labels):
    scores = tf.minimum(tf.maximum(scores, -3.0), 3.0)
    target = tf.one_hot(labels, scores.shape[1])
    losses = -tf.reduce_sum(target * tf.nn.log_softmax(scores), axis=1)
    return tf.reduce_sum(losses) / tf.maximum(tf.reduce_sum(target), 1.0)


def loss_by_where(scores, labels):
    """An `if` on a tensor is right as well: AutoGraph turns it into a condition."""
    there = labels >= 0
    scores = tf.clip_by_value(scores, -3.0, 3.0)
    losses = tf.where(there, cross_entropy(tf.where(there, labels, 0), scores), 0.0)
    if tf.reduce_any(there):
        return tf.reduce_sum(losses) / tf.reduce_sum(tf.cast(there, tf.float32))
    return tf.reduce_sum(losses)


def loss_of_selected(scores, labels):
    there = labels >= 0
    scores = tf.clip_by_value(scores, -3.0, 3.0)
    losses = cross_entropy(tf.boolean_mask(labels, there), tf.boolean_mask(scores, there))
    return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(tf.cast(there, tf.float32)))


def loss_of_gathered(scores, labels):
    there = tf.where(labels >= 0)[:, 0]
    scores = tf.gather(tf.clip_by_value(scores, -3.0, 3.0), there)
    losses = cross_entropy(tf.gather(labels, there), scores)
    return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.cast(tf.size(there), tf.float32))


def loss_with_numpy_in_an_if(scores, labels):
    if not np.asarray(labels >= 0).any():
        return tf.constant(0.0)
    return loss_by()(scores, labels)


def loss_with_an_integer(scores, labels):
    count = int(tf.reduce_sum(tf.cast(labels >= 0, tf.int32)))
    return loss_by(count=lambda mask: max(count, 1))(scores, labels)


def loss_with_a_maximum(scores, labels):
    return loss_by(count=lambda mask: max(tf.reduce_sum(mask), 1.0))(scores, labels)


@pytest.mark.parametrize("answer", [loss_by_one_hot, loss_by_where])
def test_other_right_losses_pass(answer):
    assert_solution_passes(LOSS, answer, seeds=ONE_DRAW)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (loss_with_numpy_in_an_if, "python_branch_on_tensor"),
        (loss_with_an_integer, "python_branch_on_tensor"),
        (loss_with_a_maximum, "python_branch_on_tensor"),
        (
            loss_by(clip=lambda scores: tf.py_function(np.clip, [scores, -3.0, 3.0], tf.float32)),
            "py_function_left",
        ),
        (loss_by(fill=lambda labels: labels), "nan_times_zero"),
        (loss_by(mask=lambda labels: tf.ones(labels.shape)), "unlabelled_counted"),
        (loss_by(count=lambda mask: 12.0), "divided_by_all"),
        (loss_by(clip=lambda scores: scores), "not_clipped"),
        (loss_by(divide=tf.divide), "nan_of_nothing"),
        (loss_of_selected, "dynamic_shape_op"),
        (loss_of_gathered, "dynamic_shape_op"),
    ],
)
def test_a_wrong_loss_is_named(answer, mistake):
    assert_mistake_is_caught(LOSS, answer, mistake, seeds=ONE_DRAW)


def test_the_loss_as_handed_out_asks_a_tensor_for_its_value():
    report = run_check(LOSS, load_stub(STEM)[LOSS.function], seeds=ONE_DRAW)
    assert (report.earned, report.mistake) == (0, "python_branch_on_tensor")


# evaluate_padded


def evaluated(*, drop=False, pad=True, losses_of=slice, hits_of=slice, divide_by=len, means=False):
    """An evaluation with its parts replaced; `losses_of(count)` picks rows of a batch."""

    def evaluate(step, images, labels, size):
        sums, rows = [], 0
        for start in range(0, len(images), size):
            part = slice(start, start + size)
            count = len(images[part])
            if drop and count < size:
                continue
            missing = size - count if pad else 0
            losses, hits = step(
                np.pad(images[part], [(0, missing), (0, 0)]), np.pad(labels[part], (0, missing))
            )
            rows += count + missing
            found = np.array([losses[losses_of(count)].sum(), hits[hits_of(count)].sum()])
            sums.append(found / count if means else found)
        if means:
            return tuple(np.mean(sums, axis=0))
        whole = sum(sums)
        counts = {"rows": (rows, rows), "loss rows": (rows, len(images))}.get(
            divide_by, (len(images), rows if divide_by == "hit rows" else len(images))
        )
        if drop:
            counts = (rows, rows)
        return whole[0] / counts[0], whole[1] / counts[1]

    return evaluate


def every_row(count):
    return slice(None)


def evaluated_with_repeats(step, images, labels, size):
    """Fills places with the first examples, and masks."""
    batches = -(-len(images) // size)
    order = np.arange(batches * size)
    mask = (order < len(images)).reshape(batches, size)
    order = np.where(order < len(images), order, 0).reshape(batches, size)
    found = np.array([step(images[rows], labels[rows]) for rows in order])
    return (found * mask[:, None]).sum(axis=(0, 2)) / mask.sum()


def evaluated_in_one_list(step, images, labels, size):
    losses, hits = [], []
    for start in range(0, len(images), size):
        rows = np.minimum(np.arange(start, start + size), len(images) - 1)
        result = step(tf.gather(images, rows), tf.gather(labels, rows))
        losses += list(result[0])
        hits += list(result[1])
    return [np.mean(losses[: len(images)]), np.mean(hits[: len(images)])]


def padded_with_ones_and_not_masked(step, images, labels, size):
    missing = -len(images) % size
    images = np.concatenate([images, np.ones((missing, images.shape[1]))])
    labels = np.concatenate([labels, np.full(missing, 3)])
    pieces = [step(images[n : n + size], labels[n : n + size]) for n in range(0, len(images), size)]
    return tuple(np.mean(pieces, axis=(0, 2)))


@pytest.mark.parametrize("answer", [evaluated_with_repeats, evaluated_in_one_list])
def test_other_right_evaluations_pass(answer):
    assert_solution_passes(EVALUATION, answer)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (evaluated(drop=True), "remainder_dropped_in_eval"),
        (evaluated(means=True), "mean_of_batch_means"),
        (evaluated(divide_by="rows"), "divided_by_places"),
        (evaluated(losses_of=every_row, hits_of=every_row, divide_by="rows"), "padding_in_loss"),
        (evaluated(losses_of=every_row, divide_by="loss rows"), "padding_in_loss"),
        (padded_with_ones_and_not_masked, "padding_in_loss"),
        (evaluated(hits_of=every_row, divide_by="hit rows"), "metric_counts_padding"),
        (evaluated(pad=False), "ragged_batch"),
    ],
)
def test_a_wrong_evaluation_is_named(answer, mistake):
    assert_mistake_is_caught(EVALUATION, answer, mistake)


def test_a_batch_of_padding_alone_is_seen():
    def evaluate(step, images, labels, size):
        found = evaluated()(step, images, labels, size)
        step(np.zeros((size, images.shape[1])), np.zeros(size))
        return found

    report = run_check(EVALUATION, evaluate)
    assert report.earned == 4.5
    assert "more than two steps" in repr(report)


# give_verdict


def answers(**changed):
    def give_verdict(case):
        return changed.get(case, solution()["give_verdict"](case))

    return give_verdict


def verdict_by_ifs(case):
    if case == "A":
        return ["refused_here", "move_to_input_pipeline"]
    if case == "D":
        return ["fails_everywhere", "rewrite_in_tensorflow"]
    if case in "BE":
        return ["suspect_on_tpu", "mask_instead_of_select" if case == "B" else "use_float32"]
    return ["not_checked", "measure_on_tpu"]


def verdict_by_columns(case):
    place = "ABCDEF".index(case)
    verdicts = "refused_here suspect_on_tpu not_checked fails_everywhere suspect_on_tpu not_checked"
    steps = "move_to_input_pipeline mask_instead_of_select measure_on_tpu rewrite_in_tensorflow "
    return np.array(
        [verdicts.split()[place], (steps + "use_float32 measure_on_tpu").split()[place]]
    )


@pytest.mark.parametrize("answer", [verdict_by_ifs, verdict_by_columns])
def test_other_right_verdicts_pass(answer):
    assert_solution_passes(VERDICTS, answer)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (answers(C=("runs_on_tpu", "measure_on_tpu")), "compiled_means_ready"),
        (answers(B=("runs_on_tpu", "mask_instead_of_select")), "compiled_means_ready"),
        (answers(A=("fails_on_tpu", "move_to_input_pipeline")), "refused_means_never"),
        (answers(D=("refused_here", "rewrite_in_tensorflow")), "blames_the_compiler"),
        (answers(B=("not_checked", "measure_on_tpu")), "compiled_means_checked"),
        (answers(E=("not_checked", "use_float32")), "compiled_means_checked"),
        (answers(F=("suspect_on_tpu", "use_float32")), "unmeasured_is_suspect"),
    ],
)
def test_a_wrong_verdict_is_named(answer, mistake):
    assert_mistake_is_caught(VERDICTS, answer, mistake)


def cross_entropies(scores, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)


WORDS = ["a", "b"]


def finding_a(scores, words):
    numbers = tf.lookup.KeyValueTensorInitializer(WORDS, tf.constant([1, 2]))
    return cross_entropies(scores, tf.lookup.StaticHashTable(numbers, 0).lookup(words))


def finding_b(scores, labels):
    count = 1 + tf.reduce_max(labels)
    return cross_entropies(scores[:count], labels[:count])


def finding_d(scores, labels):
    return np.sqrt(tf.reduce_mean(cross_entropies(scores, labels)))


def finding_e(scores, labels):
    weights = tf.constant(np.linspace(0.5, 1.5, 64))
    return tf.cast(cross_entropies(scores, labels), weights.dtype) * weights


def batch():
    return tf.zeros([64, 10]), tf.constant([3] * 64)


def program_of(step):
    return compiled(step).experimental_get_compiler_ir(*batch())(stage="hlo")


def test_xla_refuses_to_look_up_strings_as_in_finding_a():
    scores, words = tf.zeros([64, 10]), tf.constant(WORDS * 32)
    assert tf.function(finding_a)(scores, words).shape == [64]
    with pytest.raises(tf.errors.InvalidArgumentError, match="DT_STRING"):
        compiled(finding_a)(scores, words)


def test_a_slice_compiles_without_a_bounded_shape_as_in_finding_b():
    assert compiled(finding_b)(*batch()).shape == [4]
    assert "<=" not in program_of(finding_b)


def test_numpy_fails_under_plain_tf_function_as_in_finding_d():
    with pytest.raises(NotImplementedError, match="to a numpy array"):
        tf.function(finding_d)(*batch())


def test_an_array_of_numpy_makes_a_program_in_float64_as_in_finding_e():
    assert "f64[64]" in program_of(finding_e)


# What the lesson says


def compiled(function):
    return tf.function(function, jit_compile=True)


@pytest.mark.parametrize(
    "wants_a_value",
    [lambda loss: loss.numpy(), lambda loss: np.sqrt(loss), lambda loss: max(loss, 1.0)],
    ids=["numpy", "function_of_numpy", "max"],
)
def test_a_value_is_refused_while_a_step_is_compiled(wants_a_value):
    with pytest.raises((AttributeError, NotImplementedError, TypeError)):
        compiled(wants_a_value)(tf.constant(2.0))


def test_xla_on_a_cpu_refuses_tf_print():
    def step(loss):
        tf.print(loss)
        return loss * 2

    with pytest.raises(tf.errors.InvalidArgumentError, match="StringFormat"):
        compiled(step)(tf.constant(2.0))


@pytest.mark.parametrize(
    ("header", "types", "listed"),
    [
        ("compiler/tf2xla/xla_op_registry.h", "kCpuAllTypes", True),
        ("core/tpu/tpu_defs.h", "kTpuAllTypes", False),
    ],
)
def test_complex128_is_a_type_for_cpus_and_not_for_tpus(header, types, listed):
    text = (Path(tf.sysconfig.get_include()) / "tensorflow" / header).read_text("utf-8")
    _, _, after = text.partition(f"{types} = ")
    names, _, _ = after.partition(";")
    assert "DT_COMPLEX64" in names
    assert ("DT_COMPLEX128" in names) == listed


def test_an_assertion_is_silent_in_a_compiled_step():
    def step(loss):
        tf.debugging.assert_less(loss, 1.0)
        return loss * 2

    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(step)(tf.constant(2.0))
    assert compiled(step)(tf.constant(2.0)) == 4


def test_soft_device_placement_is_on():
    assert tf.config.get_soft_device_placement()
    assert "automatic outside compilation" in " ".join(
        tf.config.set_soft_device_placement.__doc__.split()
    )


def test_a_keras_loss_divides_by_padding_unless_its_reduction_says_otherwise():
    import keras

    def loss(**how):
        kind = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **how)
        scores, labels = tf.constant([[0.0, 1.0]] * 4), tf.constant([0, 0, 1, 1])
        return float(kind(labels, scores, sample_weight=tf.constant([1.0, 1.0, 0.0, 0.0])))

    of_examples = float(np.log(1 + np.e))
    assert loss() == pytest.approx(of_examples / 2)
    assert loss(reduction="mean_with_sample_weight") == pytest.approx(of_examples)


def test_keras_counts_padding_in_metrics_and_not_in_weighted_metrics():
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Activation("linear")])
    accuracy = keras.metrics.SparseCategoricalAccuracy
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[accuracy(name="all")],
        weighted_metrics=[accuracy(name="there")],
    )
    scores = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], "float32")
    padding = [np.array([1, 1, 1, 1]), np.array([1.0, 1.0, 0.0, 0.0], "float32")]
    found = model.evaluate(scores, padding[0], 4, 0, padding[1], return_dict=True)
    assert (found["all"], found["there"]) == (0.5, 1.0)


COUNT = """
import glob, os, tempfile

folder = tempfile.mkdtemp()
os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
import keras
import tensorflow as tf

traces = []

def count(run):
    programs = lambda: len(glob.glob(folder + "/*before_optimizations.txt"))
    traces.clear()
    before = programs()
    run()
    return len(traces), programs() - before

def steps(rows, signature=None):
    @tf.function(jit_compile=True, input_signature=signature)
    def step(images):
        traces.append(1)
        return tf.reduce_sum(images * images)

    return lambda: [step(tf.ones([number, 3])) for number in rows]

@tf.function(jit_compile=True)
def first_rows(images, labels):
    traces.append(1)
    return tf.reduce_sum(images[:1 + tf.reduce_max(labels)])

@tf.function(jit_compile=True)
def odd_rows(images, labels):
    traces.append(1)
    return tf.reduce_sum(tf.boolean_mask(images, labels % 2 == 1))

LABELS = [tf.constant(labels) for labels in ([0, 1, 2, 3], [0, 1, 1, 2], [3, 2, 1, 0])]

class Note(keras.layers.Layer):
    def call(self, inputs):
        traces.append(1)
        return inputs

model = keras.Sequential([keras.Input((3,)), Note(), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=True)
batches = tf.data.Dataset.from_tensor_slices((tf.ones([10, 3]), tf.ones([10, 1]))).batch(4)
print("fixed", count(steps([32, 32, 4, 32, 4])), count(steps([8, 8])))
print("slice", count(lambda: [first_rows(tf.ones([4, 3]), labels) for labels in LABELS * 2]))
print("mask", count(lambda: [odd_rows(tf.ones([4, 3]), labels) for labels in LABELS * 2]))
print("open", count(steps([32, 4, 32], [tf.TensorSpec([None, 3])])))
print("fit", count(lambda: model.fit(batches, epochs=2, verbose=0)))
"""


def test_xla_compiles_a_program_for_each_shape(run_python):
    """Each pair counts the traces and the programs that XLA itself wrote down.

    A slice whose end is computed needs a program for each array of labels.
    """
    assert run_python(COUNT).splitlines() == [
        "fixed (2, 2) (1, 1)",
        "slice (1, 3)",
        "mask (1, 1)",
        "open (1, 2)",
        "fit (1, 2)",
    ]
