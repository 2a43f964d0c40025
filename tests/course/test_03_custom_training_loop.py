"""The checks of lesson 03: right answers pass, wrong ones are named, one device is the measure."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab
from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from distlab.course.lesson_03_custom_training_loop.runs import max_difference
from distlab.course.runs.replicas import mirrored
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
)

STEM = "03_custom_training_loop"
LESSONS = Path(distlab.__file__).parent / "course"
REPAIR, EXACT, CALLS, TRAIN = checks_of(STEM)

cross_entropy = keras.losses.SparseCategoricalCrossentropy


# A draw changes no shape, so one shows what an answer does; `test_faults.py` has the others.
ONE_DRAW = (1,)


def replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


def all_reduced(how, value):
    return tf.distribute.get_replica_context().all_reduce(how, value)


# --- repair_losses


def losses(digit="default", odd="sum", penalty="by share"):
    """An answer to `repair_losses`, of the parts named."""

    def replica_loss(model, x, y, global_batch):
        digit_logits, odd_logits = model(x)
        is_odd = tf.cast(y % 2, tf.float32)[:, None]
        keras_mean = cross_entropy(from_logits=True)(y, digit_logits)
        each = cross_entropy(from_logits=True, reduction="none")(y, digit_logits)
        odd_loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
        odd_each = odd_loss(is_odd, odd_logits)
        penalties = tf.add_n(model.losses)
        digit_losses = {
            "default": keras_mean,
            "twice": keras_mean / replicas(),
            "mean": tf.reduce_mean(each),
        }
        odd_losses = {
            "sum": tf.reduce_sum(odd_each) / global_batch,
            "mean": tf.reduce_mean(odd_each),
        }
        penalty_losses = {
            "by share": penalties * len(x) / global_batch,
            "whole": penalties,
            "by examples": penalties / global_batch,
        }
        return digit_losses[digit] + odd_losses[odd] + penalty_losses[penalty]

    return replica_loss


def test_repair_losses():
    assert_right_answers_pass(REPAIR, losses())
    wrong = {"digit_not_divided": losses(digit="mean"), "l2_unscaled": losses(penalty="whole")}
    assert_mistakes_are_caught(REPAIR, wrong, earned=2, seeds=ONE_DRAW)


def test_each_of_three_bugs_gets_a_question_of_its_own():
    wrong = losses(digit="twice", odd="mean", penalty="by examples")
    messages = [criterion.message for criterion in run_check(REPAIR, wrong, seeds=(1,)).criteria]
    assert [message.split(",")[0].split(":")[0] for message in messages] == [
        "it counts a quarter",
        "it counts four times",
        "what divides it",
    ]


def test_what_is_no_loss_is_refused_with_the_reason():
    returned = {
        "is there a `return`?": lambda loss: None,
        "a plain number, which has no gradient": float,
        "yours has the shape [2]": lambda loss: (loss, loss),
    }
    said = {
        text: lambda *given, form=form: form(losses()(*given)) for text, form in returned.items()
    }
    assert_feedback_says(REPAIR, said)


# --- exact_loss


def count(mask):
    """How many tokens, or examples, all replicas have together."""
    return all_reduced("SUM", tf.reduce_sum(mask))


def exact_by_boolean_mask(per_token, is_token):
    """All replicas take part in the count before one without sentences leaves."""
    tokens = count(is_token)
    if not len(per_token):
        return 0.0
    return tf.reduce_sum(tf.boolean_mask(per_token, is_token > 0)) / tokens


def own_mean_by_part(per_token, is_token):
    """A right gradient, and a loss of NaN where there is no sentence."""
    mine = tf.reduce_sum(is_token)
    return tf.reduce_sum(per_token * is_token) / mine * (mine / count(is_token))


def all_positions(per_token, is_token):
    return tf.reduce_sum(per_token * is_token) / count(tf.ones_like(is_token))


def test_exact_loss():
    # Four ways to share the sentences; in the second draw a replica has none.
    assert_right_answers_pass(EXACT, exact_by_boolean_mask, seeds=range(4))
    wrong = {"counts_padding": all_positions, "nan_on_empty": own_mean_by_part}
    earned = {"counts_padding": 0, "nan_on_empty": 1.5}
    assert_mistakes_are_caught(EXACT, wrong, earned=earned, seeds=(2,))


# --- train_in_calls


def calls(*, tensor=True, loop=range):
    """An answer to `train_in_calls`; `loop` is what makes the numbers of the steps."""

    def train_in_calls(strategy, replica_step, iterator, steps_of_calls):
        @tf.function
        def call(iterator, steps):
            total = 0.0
            for _ in loop(steps):
                losses = strategy.run(replica_step, args=(next(iterator),))
                total += strategy.reduce("SUM", losses, axis=None)
            return total / tf.cast(steps, tf.float32)

        return [call(iterator, tf.constant(n) if tensor else n) for n in steps_of_calls]

    return train_in_calls


def step_by_step(compiled):
    """The loop that the exercise shows, and the same with a compiled step."""

    def train_in_calls(strategy, replica_step, iterator, steps_of_calls):
        def step(iterator):
            taken = strategy.run(replica_step, args=(next(iterator),))
            return strategy.reduce("SUM", taken, axis=None)

        step = tf.function(step) if compiled else step
        return [np.mean([float(step(iterator)) for _ in range(n)]) for n in steps_of_calls]

    return train_in_calls


def test_train_in_calls():
    # AutoGraph makes a loop of the graph of Python's `range`, where it is given a tensor.
    assert_right_answers_pass(CALLS, calls())
    wrong = {
        "retraces": calls(tensor=False, loop=tf.range),
        "unrolled": calls(tensor=False),
        "syncs_each_step": step_by_step(compiled=True),
        "never_compiled": step_by_step(compiled=False),
    }
    assert_mistakes_are_caught(CALLS, wrong, earned={"never_compiled": 0})


# --- train


def trainer(distribute=True, build=True, compiled=True):
    """An answer to `train`, with some of its parts left out."""

    def train(strategy, model, dataset, epochs):
        weights = model.trainable_variables
        if build:
            with strategy.scope():
                model.optimizer.build(weights)

        def replica_step(x, y, has_label):
            with tf.GradientTape() as tape:
                penalty = tf.nn.scale_regularization_loss(tf.add_n(model.losses))
                each = cross_entropy(from_logits=True, reduction="none")(y, model(x))
                loss = tf.reduce_sum(each * has_label) / count(has_label) + penalty
            model.optimizer.apply(tape.gradient(loss, weights), weights)

        def step(iterator):
            strategy.run(replica_step, args=next(iterator))

        step = tf.function(step) if compiled else step
        data = strategy.experimental_distribute_dataset(dataset) if distribute else dataset
        for _ in range(epochs):
            iterator = iter(data)
            for _ in range(len(dataset)):
                step(iterator)

    return train


def test_train():
    """Where every replica gets the whole batch, the count is that of four batches."""
    # In eager steps nothing has to be there before: the first step builds it.
    assert_right_answers_pass(TRAIN, trainer(compiled=False, build=False))
    wrong = {
        "not_distributed": trainer(distribute=False),
        "optimizer_built_late": trainer(build=False),
    }
    earned = {"not_distributed": 2, "optimizer_built_late": 2.5}
    assert_mistakes_are_caught(TRAIN, wrong, earned=earned)


# --- the whole loop on one page

_RESUMED_AND_WHOLE = """
from distlab.course.lesson_03_custom_training_loop.runs import max_difference

resumed = train(2, "stopped")
print(max_difference(resumed, train(2, "whole")) < 1e-5)
"""


def test_the_whole_loop_runs_from_a_file_and_resumes_in_a_new_process(run_python, tmp_path):
    """It stops on one device, under TensorFlow's own strategy, and goes on with two replicas."""
    lesson = LESSONS / "lesson_03_custom_training_loop" / "lesson.py"
    (cell,) = [cell for cell in lesson.read_text().split("# %%") if "def train_data(" in cell]
    page = cell.partition("\n")[2]  # without the cell's tag
    script = tmp_path / "train.py"  # AutoGraph reads the source of a loop from its file

    def run(page, end):
        script.write_text(f"{page}\n{end}")
        return run_python(f"import runpy; runpy.run_path({str(script)!r})", warm=True).splitlines()

    ours = 'dl.make_strategy("mirrored")'
    one_device = page.replace(ours, "tf.distribute.MirroredStrategy()")
    two_replicas = page.replace("strategy = ", "dl.split_devices(2)\nstrategy = ")
    assert ours in page
    stopped = run(one_device, 'train(1, "stopped")')
    assert [line.split(":")[0] for line in stopped] == ["epoch 1"]
    after = run(two_replicas, _RESUMED_AND_WHOLE)
    assert [line.split(":")[0] for line in after] == ["epoch 2", "epoch 1", "epoch 2", "True"]


# --- what the lesson says and does not run


_TWO_LOOPS = """
import distlab as dl

CPUS = dl.split_devices(2, kind="cpu")
import keras
import tensorflow as tf

data = tf.data.Dataset.from_tensor_slices((tf.ones((12, 4)), tf.ones((12, 3)))).batch(4)


def train(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        optimizer = keras.optimizers.Adam()

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    @tf.function
    def train_steps(iterator, steps):
        for _ in tf.range(steps):
            strategy.run(replica_step, args=next(iterator))

    train_steps(iter(strategy.experimental_distribute_dataset(data)), tf.constant(3))
    return f"{train_steps.experimental_get_tracing_count()} traces"


try:
    print(train(tf.distribute.MirroredStrategy(CPUS)))
except tf.errors.InvalidArgumentError as error:
    print("must feed a value for placeholder" in str(error))
print(train(dl.make_strategy("mirrored", devices=CPUS)))
"""


def test_an_optimizer_first_made_in_the_loop_crashes_under_the_usual_all_reduce(
    run_python, tmp_path
):
    """In a process of its own: that all-reduce knows one size of group in a process."""
    script = tmp_path / "two_loops.py"  # AutoGraph reads the source of a loop from its file
    script.write_text(_TWO_LOOPS)
    code = f"import runpy; runpy.run_path({str(script)!r})"
    lines = run_python(code, warm=True).splitlines()
    assert lines == ["True", "2 traces"]


def test_a_python_number_in_a_compiled_loop_becomes_an_operation_and_waits_for_nothing():
    """`float` is traced, and the loop gives the sum of all steps without Python."""
    strategy = mirrored(2)

    @tf.function
    def total_of(iterator, steps):
        total = 0.0
        for _ in tf.range(steps):
            parts = strategy.run(tf.reduce_sum, args=(next(iterator),))
            total += float(strategy.reduce("SUM", parts, axis=None))
        return total

    data = tf.data.Dataset.from_tensor_slices(tf.range(12.0)).batch(4)
    iterator = iter(strategy.experimental_distribute_dataset(data))
    assert total_of(iterator, tf.constant(3)).numpy() == 66
    assert total_of.experimental_get_tracing_count() == 1


def test_a_keras_loss_of_nothing_is_0_in_a_compiled_step_and_a_mean_of_nothing_is_nan():
    # As in a distributed batch, how many examples there are is not known while tracing.
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 3])])
    def loss(labels, logits):
        return cross_entropy(from_logits=True)(labels, logits)

    assert loss(tf.zeros([0], tf.int64), tf.zeros([0, 3])).numpy() == 0
    assert np.isnan(tf.reduce_mean(tf.zeros([0])))


class Classifier(keras.Model):
    """A model with a `train_step` as in Keras's guide, of which the lesson tells."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.tracker = keras.metrics.Mean(name="loss")
        self.mean_loss = cross_entropy(from_logits=True)

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.mean_loss(y, self(x, training=True))
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def test_a_train_step_is_one_device_with_full_batches_only_and_logs_a_quarter():
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(42, 4)).astype("float32"), draw.integers(0, 3, size=42)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)  # the last one has 10

    def build():
        inputs = keras.Input((4,))
        model = Classifier(inputs, keras.layers.Dense(3)(inputs))
        model.compile(keras.optimizers.SGD(0.3))
        model.set_weights([np.linspace(-1, 1, 12).reshape(4, 3), np.zeros(3)])
        return model

    def loss_of(model, data):
        return model.fit(data, verbose=0, shuffle=False).history["loss"][-1]

    alone = build()
    with mirrored(4).scope():
        on_replicas = build()
    quarter = loss_of(on_replicas, data.take(2)) / loss_of(alone, data.take(2))
    assert quarter == pytest.approx(1 / 4, rel=1e-5)
    assert max_difference(on_replicas, alone) < 1e-6
    loss_of(on_replicas, data), loss_of(alone, data)
    assert max_difference(on_replicas, alone) > 1e-3
