"""The checks of lesson 03: right answers pass, wrong ones are named, one device is the measure."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from distlab.course.lesson_03_custom_training_loop.runs import apart
from distlab.course.runs.replicas import mirrored
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
)

STEM = "03_custom_training_loop"
REPAIR, EXACT, CALLS, TRAIN = checks_of(STEM)

cross_entropy = keras.losses.SparseCategoricalCrossentropy


def replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


# A draw changes no shape, so one shows what an answer does; `test_faults.py` has the others.
ONE_DRAW = (1,)


# --- repair_losses


def losses(digit="sum", odd="sum", penalty="scaled"):
    """An answer to `repair_losses`, of the parts named."""

    def replica_loss(model, x, y, global_batch):
        digit_logits, odd_logits = model(x)
        is_odd = tf.cast(y % 2, tf.float32)[:, None]
        each = cross_entropy(from_logits=True, reduction="none")(y, digit_logits)
        keras_mean = cross_entropy(from_logits=True)(y, digit_logits)
        odd_each = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")(
            is_odd, odd_logits
        )
        parts = {
            "digit": {
                "sum": tf.reduce_sum(each) / global_batch,
                "default": keras_mean,
                "twice": keras_mean / replicas(),
                "mean": tf.reduce_mean(each),
            },
            "odd": {
                "sum": tf.reduce_sum(odd_each) / global_batch,
                "mean over replicas": tf.reduce_mean(odd_each) / replicas(),
                "mean": tf.reduce_mean(odd_each),
                "twice": tf.reduce_sum(odd_each) / global_batch / replicas(),
            },
            "penalty": {
                "scaled": tf.nn.scale_regularization_loss(tf.add_n(model.losses)),
                "whole": sum(model.losses),
                "by share": tf.add_n(model.losses) * len(x) / global_batch,
                "by examples": tf.add_n(model.losses) / global_batch,
            },
        }
        return parts["digit"][digit] + parts["odd"][odd] + parts["penalty"][penalty]

    return replica_loss


def test_other_right_losses_pass():
    keras_mean = losses(digit="default", penalty="by share")
    assert_right_answers_pass(REPAIR, keras_mean, losses(odd="mean over replicas"))


def test_each_bug_is_named_and_costs_its_third():
    wrong = {
        "divided_twice": losses(digit="twice"),
        "odd_divided_twice": losses(odd="twice"),
        "digit_not_divided": losses(digit="mean"),
        "l2_unscaled": losses(penalty="whole"),
        "l2_by_examples": losses(penalty="by examples"),
    }
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


def all_reduced(how, value):
    return tf.distribute.get_replica_context().all_reduce(how, value)


def count(mask):
    """How many tokens, or examples, all replicas have together."""
    return all_reduced(tf.distribute.ReduceOp.SUM, tf.reduce_sum(mask))


def exact_by_share(per_token, is_token):
    mine = tf.reduce_sum(is_token)
    mean = tf.math.divide_no_nan(tf.reduce_sum(per_token * is_token), mine)
    return mean * mine / count(is_token)


def exact_by_boolean_mask(per_token, is_token):
    """All replicas take part in the count before one without sentences leaves."""
    tokens = count(is_token)
    if not len(per_token):
        return 0.0
    return tf.reduce_sum(tf.boolean_mask(per_token, is_token > 0)) / tokens


def test_other_exact_losses_pass():
    answers = exact_by_share, exact_by_boolean_mask
    assert_right_answers_pass(EXACT, *answers, seeds=range(4))  # four ways to share the sentences


def summed(per_token, is_token):
    return tf.reduce_sum(per_token * is_token)


def replicas_mean(per_token, is_token):
    return tf.math.divide_no_nan(summed(per_token, is_token), tf.reduce_sum(is_token))


def nan_on_empty(per_token, is_token):
    """A right gradient, and a loss of NaN where there is no sentence."""
    mine = tf.reduce_sum(is_token)
    return summed(per_token, is_token) / mine * (mine / count(is_token))


def test_exact_losses_that_are_none_are_named():
    wrong = {
        "own_mean": replicas_mean,
        "mean_of_means": lambda each, mask: replicas_mean(each, mask) / replicas(),
        "counts_padding": lambda each, mask: summed(each, mask) / count(tf.ones_like(mask)),
        "counted_as_many_times": lambda each, mask: (
            summed(each, mask) / all_reduced("MEAN", tf.reduce_sum(mask))
        ),
        "nan_on_empty": nan_on_empty,
    }
    earned = dict.fromkeys(wrong, 0) | {"nan_on_empty": 1.5}
    # In the second draw a replica has no sentence.
    assert_mistakes_are_caught(EXACT, wrong, earned=earned, seeds=(1, 2))


# --- train_in_calls


def calls(*, tensor=True, loop=None):
    """An answer to `train_in_calls`; `loop` is what makes the numbers of the steps."""
    loop = loop or tf.range

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


def step_by_step(strategy, replica_step, iterator, steps_of_calls):
    @tf.function
    def step(iterator):
        taken = strategy.run(replica_step, args=(next(iterator),))
        return strategy.reduce("SUM", taken, axis=None)

    return [np.mean([float(step(iterator)) for _ in range(n)]) for n in steps_of_calls]


def by_while_loop(strategy, replica_step, iterator, steps_of_calls):
    @tf.function(reduce_retracing=True)
    def call(iterator, steps):
        done, total = 0, tf.constant(0.0)
        while done < steps:
            taken = strategy.run(replica_step, args=(next(iterator),))
            total, done = total + strategy.reduce("SUM", taken, axis=None), done + 1
        return total / tf.cast(steps, tf.float32)

    return [call(iterator, tf.convert_to_tensor(n)).numpy() for n in steps_of_calls]


def one_batch_for_a_call(strategy, replica_step, iterator, steps_of_calls):
    @tf.function
    def call(batch, steps):
        total = 0.0
        for _ in tf.range(steps):
            total += strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)
        return total / tf.cast(steps, tf.float32)

    return [call(next(iterator), tf.constant(steps)) for steps in steps_of_calls]


def test_other_compiled_loops_pass():
    # AutoGraph makes a loop of the graph of Python's `range`, where it is given a tensor.
    assert_right_answers_pass(CALLS, by_while_loop, calls(loop=range), seeds=ONE_DRAW)


def never_compiled(strategy, replica_step, iterator, steps_of_calls):
    """The loop that the exercise shows."""
    means = []
    for steps in steps_of_calls:
        taken = [strategy.run(replica_step, args=(next(iterator),)) for _ in range(steps)]
        sums = [float(strategy.reduce("SUM", each, axis=None)) for each in taken]
        means.append(sum(sums) / steps)
    return means


def test_loops_that_are_not_compiled_well_are_named():
    wrong = {
        "retraces": calls(tensor=False),
        "unrolled": calls(tensor=False, loop=range),
        "syncs_each_step": step_by_step,
        "same_batch_again": one_batch_for_a_call,
        "never_compiled": never_compiled,
    }
    assert_mistakes_are_caught(CALLS, wrong, earned={"never_compiled": 0}, seeds=ONE_DRAW)


# --- train

EACH = cross_entropy(from_logits=True, reduction="none")


def masked_sum(y, logits, has_label):
    return tf.reduce_sum(EACH(y, logits) * has_label)


def counted(y, logits, has_label):
    return masked_sum(y, logits, has_label) / count(has_label)


def trainer(loss_of=counted, share=None, then=lambda gradients: gradients, build=True):
    """An answer to `train`, with the loss of (labels, logits, has_label) given.

    `share` makes of a strategy and the data what is gone through, `then` comes before the step.
    """
    share = share or (lambda strategy, dataset: strategy.experimental_distribute_dataset(dataset))

    def train(strategy, model, dataset, epochs):
        weights = model.trainable_variables
        if build:
            with strategy.scope():
                model.optimizer.build(weights)

        def replica_step(x, y, has_label):
            with tf.GradientTape() as tape:
                penalty = tf.nn.scale_regularization_loss(tf.add_n(model.losses))
                loss = loss_of(y, model(x), has_label) + penalty
            gradients = then(tape.gradient(loss, weights))
            model.optimizer.apply_gradients(zip(gradients, weights, strict=True))

        step = tf.function(lambda iterator: strategy.run(replica_step, args=next(iterator)))
        for _ in range(epochs):
            iterator = iter(share(strategy, dataset))
            for _ in range(len(dataset)):
                step(iterator)

    return train


def in_eager_steps(strategy, model, dataset, epochs):
    """Nothing is compiled, so nothing has to be there before: the first step builds it."""
    weights = model.trainable_variables

    def replica_step(x, y, has_label):
        with tf.GradientTape() as tape:
            loss = counted(y, model(x), has_label) + tf.add_n(model.losses) / 4
        summed = all_reduced("SUM", tape.gradient(loss, weights))
        model.optimizer.apply([gradient / 4 for gradient in summed], weights)

    for _ in range(epochs):
        for batch in strategy.experimental_distribute_dataset(dataset):
            strategy.run(replica_step, args=batch)


def summed_over_replicas(gradients):
    return all_reduced("SUM", gradients)


def test_other_right_loops_pass():
    assert_right_answers_pass(TRAIN, trainer(), in_eager_steps, seeds=ONE_DRAW)


def keras_mean(y, logits, has_label):
    return cross_entropy(from_logits=True)(y, logits, sample_weight=has_label)


def test_loops_that_scale_wrongly_are_named():
    """Where every replica gets the whole batch, the count is that of four batches."""
    wrong = {
        "mean_of_means": trainer(keras_mean),
        "reduced_twice": trainer(then=summed_over_replicas),
        "not_distributed": trainer(share=lambda strategy, dataset: dataset),
        "optimizer_built_late": trainer(build=False),
    }
    earned = {"not_distributed": 2, "optimizer_built_late": 2.5}
    assert_mistakes_are_caught(TRAIN, wrong, earned=earned, seeds=ONE_DRAW)


# --- what the lesson says and does not run


_TWO_LOOPS = """
import distlab as dl

CPUS = dl.split_devices(2, kind="cpu")
import keras
import tensorflow as tf

data = tf.data.Dataset.from_tensor_slices((tf.ones((12, 4)), tf.ones((12, 3)))).batch(4)


def train(strategy, *, optimizer, built):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        if built:
            optimizer.build(model.trainable_variables)

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
    return train_steps.experimental_get_tracing_count()


def outcome(strategy, make, *, built):
    with strategy.scope():
        optimizer = make()
    try:
        return f"{train(strategy, optimizer=optimizer, built=built)} traces"
    except tf.errors.InvalidArgumentError as error:
        said = "must feed a value for placeholder" in str(error)
        return "crashes at a placeholder" if said else str(error)


usual = tf.distribute.MirroredStrategy(CPUS)
ours = dl.make_strategy("mirrored", devices=CPUS)
for strategy in (usual, ours):
    print([outcome(strategy, keras.optimizers.Adam, built=built) for built in (False, True)])
"""


def test_an_optimizer_first_made_in_the_loop_crashes_under_the_usual_all_reduce(
    run_python, tmp_path
):
    """In a process of its own: that all-reduce knows one size of group in a process."""
    script = tmp_path / "two_loops.py"  # AutoGraph reads the source of a loop from its file
    script.write_text(_TWO_LOOPS)
    code = f"import runpy; runpy.run_path({str(script)!r})"
    lines = run_python(code, warm=True).splitlines()
    assert lines == ["['crashes at a placeholder', '1 traces']", "['2 traces', '1 traces']"]


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
    """The class that the lesson shows under "A third way"."""

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


def test_distribute_trains_a_step_that_compares_examples_as_one_device():
    class Compares(keras.Model):
        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                pairs = tf.reduce_sum((outputs[:, None] - outputs[None]) ** 2, axis=-1)
                loss = tf.reduce_max(pairs) + tf.reduce_mean(1 / (1 + pairs))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    def build():
        inputs = keras.Input((4,))
        model = Compares(inputs, keras.layers.Dense(3)(inputs))
        model.compile(keras.optimizers.SGD(0.01))
        model.set_weights([np.linspace(-1, 1, 12).reshape(4, 3), np.zeros(3)])
        return model

    x = np.random.default_rng(1).normal(size=(42, 4)).astype("float32")
    models = [build(), dl.distribute(build, mirrored(4))]
    logs = [m.fit(x, x, batch_size=16, shuffle=False, verbose=0).history["loss"] for m in models]
    assert apart(*models) < 1e-6
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)


def test_a_train_step_is_one_device_with_full_batches_only_and_logs_a_quarter():
    strategy = mirrored(4)
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(42, 4)).astype("float32"), draw.integers(0, 3, size=42)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)  # the last one has 10

    def build():
        inputs = keras.Input((4,))
        model = Classifier(inputs, keras.layers.Dense(3)(inputs))
        model.compile(keras.optimizers.SGD(0.3))
        model.set_weights([np.linspace(-1, 1, 12).reshape(4, 3), np.zeros(3)])
        return model

    def losses_of(data):
        logs = [model.fit(data, verbose=0, shuffle=False).history for model in models]
        return [log["loss"][-1] for log in logs]

    distributed, alone = dl.distribute(build, strategy), build()
    with strategy.scope():
        keras_fit = build()
    models = keras_fit, distributed, alone
    loss_of_fit, _, loss = losses_of(data.take(2))
    assert loss_of_fit / loss == pytest.approx(1 / 4, rel=1e-5)
    assert apart(keras_fit, alone) < 1e-6
    _, loss_of_distributed, loss = losses_of(data)
    assert loss_of_distributed == pytest.approx(loss, rel=1e-5)
    assert apart(distributed, alone) < 1e-6
    assert apart(keras_fit, alone) > 1e-3
