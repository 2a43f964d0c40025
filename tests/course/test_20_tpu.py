"""The checks of lesson 20: right answers pass, mistakes are named, the lesson's claims hold."""

import functools
from pathlib import Path

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
    load_stub,
)

STEM = "20_tpu"
LOSS, EVALUATION, VERDICTS = checks_of(STEM)
ONE_DRAW = (1,)
edited = functools.partial(edited_solution, STEM)


# labelled_loss


def cross_entropy(labels, scores):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)


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


def test_losses_are_judged():
    assert_right_answers_pass(LOSS, loss_by_where, seeds=ONE_DRAW)
    wrong = {
        "python_branch_on_tensor": load_stub(STEM)[LOSS.function],
        "nan_times_zero": edited("labelled_loss", {"tf.maximum(labels, 0)": "labels"}),
        "dynamic_shape_op": loss_of_selected,
    }
    earned = {"python_branch_on_tensor": 0, "dynamic_shape_op": 4}
    assert_mistakes_are_caught(LOSS, wrong, earned=earned, seeds=ONE_DRAW)
    divided = edited("labelled_loss", {"tf.math.divide_no_nan": "tf.divide"})
    assert_feedback_says(LOSS, {"the loss of a batch without labels": divided}, earned=4.5)


# evaluate_padded


def evaluated_with_repeats(step, images, labels, size):
    """Fills places with the first examples, and masks."""
    batches = -(-len(images) // size)
    order = np.arange(batches * size)
    mask = (order < len(images)).reshape(batches, size)
    order = np.where(order < len(images), order, 0).reshape(batches, size)
    results = np.array([step(images[rows], labels[rows]) for rows in order])
    return (results * mask[:, None]).sum(axis=(0, 2)) / mask.sum()


def test_evaluations_are_judged():
    assert_right_answers_pass(EVALUATION, evaluated_with_repeats)
    places = "(-(-len(images) // size) * size)"
    wrong = {
        "padding_in_loss": {
            "losses[:count]": "losses",
            "loss_sum / len(images)": f"loss_sum / {places}",
        },
        "metric_counts_padding": {
            "hits[:count]": "hits",
            "hit_sum / len(images)": f"hit_sum / {places}",
        },
        "ragged_batch": {"size - len(some)": "0"},
    }
    wrong = edited_solutions(STEM, "evaluate_padded", wrong)
    assert_mistakes_are_caught(EVALUATION, wrong)
    a_batch_of_padding = {
        "    return ": "    step(np.zeros((size, images.shape[1])), np.zeros(size))\n    return "
    }
    said = {"more than two steps": edited("evaluate_padded", a_batch_of_padding)}
    assert_feedback_says(EVALUATION, said, earned=4.5, seeds=EVALUATION.cost.seeds)


# give_verdict


def verdict_by_ifs(case):
    if case == "A":
        return ["refused_here", "move_to_input_pipeline"]
    if case == "D":
        return ["fails_everywhere", "rewrite_in_tensorflow"]
    if case in "BE":
        return ["suspect_on_tpu", "mask_instead_of_select" if case == "B" else "use_float32"]
    return ["not_checked", "measure_on_tpu"]


def test_verdicts_are_judged():
    def but(**changed):
        return lambda case: changed.get(case, verdict_by_ifs(case))

    assert_right_answers_pass(VERDICTS, verdict_by_ifs)
    wrong = {
        "compiled_means_ready": but(C=("runs_on_tpu", "measure_on_tpu")),
        "refused_means_never": but(A=("fails_on_tpu", "move_to_input_pipeline")),
    }
    assert_mistakes_are_caught(VERDICTS, wrong)


def test_the_findings_of_the_task_are_what_tensorflow_and_xla_do():
    """A looks up strings, B cuts a slice with a computed end, D calls NumPy, E brings float64."""
    scores, labels, words = tf.zeros([64, 10]), tf.constant([3] * 64), ["a", "b"]

    def finding_a(scores, given):
        numbers = tf.lookup.KeyValueTensorInitializer(words, tf.constant([1, 2]))
        return cross_entropy(tf.lookup.StaticHashTable(numbers, 0).lookup(given), scores)

    def finding_b(scores, labels):
        count = 1 + tf.reduce_max(labels)
        return cross_entropy(labels[:count], scores[:count])

    def finding_d(scores, labels):
        return np.sqrt(tf.reduce_mean(cross_entropy(labels, scores)))

    def finding_e(scores, labels):
        weights = tf.constant(np.linspace(0.5, 1.5, 64))
        return tf.cast(cross_entropy(labels, scores), weights.dtype) * weights

    assert tf.function(finding_a)(scores, tf.constant(words * 32)).shape == [64]
    with pytest.raises(tf.errors.InvalidArgumentError, match="DT_STRING"):
        compiled(finding_a)(scores, tf.constant(words * 32))
    assert compiled(finding_b)(scores, labels).shape == [4]
    with pytest.raises(NotImplementedError, match="to a numpy array"):
        tf.function(finding_d)(scores, labels)
    program = compiled(finding_e).experimental_get_compiler_ir(scores, labels)(stage="hlo")
    assert "f64[64]" in program


# What the lesson says


def compiled(function):
    return tf.function(function, jit_compile=True)


def test_a_value_is_refused_while_a_step_is_compiled():
    for wants_a_value in (lambda loss: loss.numpy(), lambda loss: max(loss, 1.0)):
        with pytest.raises((AttributeError, NotImplementedError, TypeError)):
            compiled(wants_a_value)(tf.constant(2.0))


def test_xla_on_a_cpu_refuses_tf_print():
    def step(loss):
        tf.print(loss)
        return loss * 2

    with pytest.raises(tf.errors.InvalidArgumentError, match="StringFormat"):
        compiled(step)(tf.constant(2.0))


def test_an_assertion_is_silent_in_a_compiled_step():
    def step(loss):
        tf.debugging.assert_less(loss, 1.0)
        return loss * 2

    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(step)(tf.constant(2.0))
    assert compiled(step)(tf.constant(2.0)) == 4


def test_complex128_is_a_type_for_cpus_and_not_for_tpus():
    headers = {"compiler/tf2xla/xla_op_registry.h": "kCpuAllTypes"}
    headers["core/tpu/tpu_defs.h"] = "kTpuAllTypes"
    for header, types in headers.items():
        text = (Path(tf.sysconfig.get_include()) / "tensorflow" / header).read_text("utf-8")
        names = text.partition(f"{types} = ")[2].partition(";")[0]
        assert "DT_COMPLEX64" in names
        assert ("DT_COMPLEX128" in names) == (types == "kCpuAllTypes")


def test_a_keras_loss_divides_by_padding_unless_its_reduction_says_otherwise():
    def loss(**how):
        kind = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **how)
        scores, labels = tf.constant([[0.0, 1.0]] * 4), tf.constant([0, 0, 1, 1])
        return float(kind(labels, scores, sample_weight=tf.constant([1.0, 1.0, 0.0, 0.0])))

    of_examples = float(np.log(1 + np.e))
    assert loss() == pytest.approx(of_examples / 2)
    assert loss(reduction="mean_with_sample_weight") == pytest.approx(of_examples)


def test_keras_counts_padding_in_metrics_and_not_in_weighted_metrics():
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
    assert run_python(COUNT, warm=True).splitlines() == [
        "fixed (2, 2) (1, 1)",
        "slice (1, 3)",
        "mask (1, 1)",
        "open (1, 2)",
        "fit (1, 2)",
    ]
