"""The checks of lesson 03: right answers pass, wrong ones are named, one device is the measure."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.checks.example_sharing import SEEN
from distlab.checks.lesson_03_custom_training_loop import whole_loop
from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from distlab.coursework.loop_paths import apart
from distlab.coursework.replicas import mirrored
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    load_solution,
)

STEM = "03_custom_training_loop"
CHECKS = {check.name: check for check in checks_of(STEM)}
REPAIR, EXACT, CALLS, TRAIN = CHECKS.values()
solution = functools.cache(functools.partial(load_solution, STEM))

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
                "helper": tf.nn.compute_average_loss(each, global_batch_size=global_batch),
                "twice": keras_mean / replicas(),
                "mean": tf.reduce_mean(each),
                "summed": tf.reduce_sum(each),
            },
            "odd": {
                "sum": tf.reduce_sum(odd_each) / global_batch,
                "mean over replicas": tf.reduce_mean(odd_each) / replicas(),
                "mean": tf.reduce_mean(odd_each),
                "logits": tf.reduce_sum(
                    tf.nn.sigmoid_cross_entropy_with_logits(is_odd, odd_logits) / global_batch
                ),
                "reduction sum": keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")(
                    is_odd, odd_logits
                )
                / global_batch,
                "twice": tf.reduce_sum(odd_each) / global_batch / replicas(),
            },
            "penalty": {
                "scaled": tf.nn.scale_regularization_loss(tf.add_n(model.losses)),
                "whole": sum(model.losses),
                "by share": tf.add_n(model.losses) * len(x) / global_batch,
                "by examples": tf.add_n(model.losses) / global_batch,
                "none": 0.0,
            },
        }
        return parts["digit"][digit] + parts["odd"][odd] + parts["penalty"][penalty]

    return replica_loss


@pytest.mark.parametrize(
    "right",
    [
        {"digit": "default"},
        {"digit": "helper"},
        {"odd": "mean over replicas"},
        {"odd": "logits"},
        {"odd": "reduction sum"},
        {"penalty": "by share"},
    ],
    ids=lambda right: next(iter(right.values())),
)
def test_other_right_losses_pass(right):
    assert_solution_passes(REPAIR, losses(**right), seeds=range(3))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        ({"digit": "twice"}, "divided_twice"),
        ({"odd": "mean"}, "not_divided"),
        ({"penalty": "whole"}, "l2_unscaled"),
        ({"penalty": "by examples"}, "l2_by_examples"),
        ({"digit": "mean"}, "digit_not_divided"),
        ({"odd": "twice"}, "odd_divided_twice"),
        ({"digit": "summed"}, "summed_only"),
        ({"penalty": "none"}, "no_penalty"),
    ],
)
def test_each_bug_is_named_and_costs_its_third(wrong, mistake):
    assert assert_mistake_is_caught(REPAIR, losses(**wrong), mistake).earned == 2


def test_each_of_three_bugs_gets_a_question_of_its_own():
    wrong = losses(digit="twice", odd="mean", penalty="by examples")
    messages = [criterion.message for criterion in run_check(REPAIR, wrong, seeds=(1,)).criteria]
    assert [message.split(",")[0].split(":")[0] for message in messages] == [
        "it counts a quarter",
        "it counts four times",
        "what divides it",
    ]


def test_a_different_loss_earns_nothing():
    def other(model, x, y, global_batch):
        return tf.reduce_sum(model(x)[0] ** 2)

    assert run_check(REPAIR, other).earned == 0


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda loss: None, "is there a `return`?"),
        (float, "a plain number, which has no gradient"),
        (lambda loss: (loss, loss), "yours has the shape [2]"),
    ],
    ids=["nothing", "a plain number", "two losses"],
)
def test_what_is_no_loss_is_refused_with_the_reason(returned, said):
    report = run_check(REPAIR, lambda *given: returned(losses()(*given)))
    assert said in repr(report)
    assert report.earned == 0


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


def exact_in_one_place(per_token, is_token):
    def counts_added(strategy, mine):
        return strategy.reduce("SUM", mine, axis=None)

    context = tf.distribute.get_replica_context()
    tokens = context.merge_call(counts_added, args=(tf.math.count_nonzero(is_token),))
    return tf.reduce_sum(tf.where(is_token == 1, per_token, 0.0) / tf.cast(tokens, tf.float32))


@pytest.mark.parametrize("right", [exact_by_share, exact_by_boolean_mask, exact_in_one_place])
def test_other_exact_losses_pass(right):
    assert_solution_passes(EXACT, right, seeds=range(4))  # four ways to share the sentences


def summed(per_token, is_token):
    return tf.reduce_sum(per_token * is_token)


def own_sentences(per_token, is_token):
    """The sum over this replica's sentences of each one's mean."""
    means = tf.reduce_sum(per_token * is_token, axis=1) / tf.reduce_sum(is_token, axis=1)
    return tf.reduce_sum(means)


def replicas_mean(per_token, is_token):
    return tf.math.divide_no_nan(summed(per_token, is_token), tf.reduce_sum(is_token))


WRONG_EXACT = {
    "own mean": (replicas_mean, "own_mean"),
    "mean of means": (lambda each, mask: replicas_mean(each, mask) / replicas(), "mean_of_means"),
    "mean of sentences": (
        lambda each, mask: own_sentences(each, mask) / count(mask[:, :1]),
        "mean_of_sentences",
    ),
    "padding is counted": (
        lambda each, mask: summed(each, mask) / count(tf.ones_like(mask)),
        "counts_padding",
    ),
    "no mask at all": (
        lambda each, mask: tf.reduce_sum(each) / count(tf.ones_like(each)),
        "padding_weighs",
    ),
    "the mask only counts": (
        lambda each, mask: tf.reduce_sum(each) / count(mask),
        "padding_in_the_sum",
    ),
    "a mean count": (
        lambda each, mask: summed(each, mask) / all_reduced("MEAN", tf.reduce_sum(mask)),
        "counted_as_many_times",
    ),
    "all losses added": (
        lambda each, mask: all_reduced("SUM", summed(each, mask)) / count(mask),
        "counted_as_many_times",
    ),
    "and by the replicas": (
        lambda each, mask: summed(each, mask) / count(mask) / replicas(),
        "divided_twice",
    ),
    "a sum": (summed, "summed_only"),
    "len": (
        lambda each, mask: summed(each, mask) / all_reduced("SUM", len(each)),
        "python_number",
    ),
    "not added up": (lambda each, mask: each * mask / count(mask), "a_loss_for_each"),
}


@pytest.mark.parametrize(("wrong", "mistake"), WRONG_EXACT.values(), ids=WRONG_EXACT)
def test_exact_losses_that_are_none_are_named(wrong, mistake):
    assert assert_mistake_is_caught(EXACT, wrong, mistake).earned == 0


def test_a_mean_of_nothing_is_named_although_the_gradient_is_right():
    def nan_on_empty(per_token, is_token):
        mine = tf.reduce_sum(is_token)
        return summed(per_token, is_token) / mine * (mine / count(is_token))

    assert assert_mistake_is_caught(EXACT, nan_on_empty, "nan_on_empty").earned == 1.5


# --- train_in_calls


def calls(*, less=0, tensor=True, loop=None, summed=False, how="SUM", keep=True):
    """An answer to `train_in_calls`; `loop` is what makes the numbers of the steps."""
    loop = loop or tf.range

    def train_in_calls(strategy, replica_step, iterator, steps_of_calls):
        @tf.function
        def call(iterator, steps):
            total = 0.0
            for _ in loop(steps - less):
                taken = strategy.run(replica_step, args=(next(iterator),))
                total = total * keep + strategy.reduce(how, taken, axis=None)
            return total if summed else total / tf.cast(steps - less, tf.float32)

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


def by_metric(strategy, replica_step, iterator, steps_of_calls):
    with strategy.scope():
        on_read, added = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
        total = tf.Variable(0.0, synchronization=on_read, aggregation=added)

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)])
    def call(steps):
        for _ in tf.range(steps):
            strategy.run(
                lambda batch: total.assign_add(replica_step(batch)), args=(next(iterator),)
            )

    means = []
    for steps in steps_of_calls:
        total.assign(0.0)
        call(steps)
        means.append(total.read_value() / steps)
    return tf.stack(means)


def compiled_for_each_call(strategy, replica_step, iterator, steps_of_calls):
    alone = ([steps] for steps in steps_of_calls)
    return [calls()(strategy, replica_step, iterator, steps)[0] for steps in alone]


def one_batch_for_a_call(strategy, replica_step, iterator, steps_of_calls):
    @tf.function
    def call(batch, steps):
        total = 0.0
        for _ in tf.range(steps):
            total += strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)
        return total / tf.cast(steps, tf.float32)

    return [call(next(iterator), tf.constant(steps)) for steps in steps_of_calls]


def one_tensor_as_args(strategy, replica_step, iterator, steps_of_calls):
    return [strategy.run(replica_step, args=next(iterator)) for _ in steps_of_calls]


def one_tensor_as_args_compiled(strategy, replica_step, iterator, steps_of_calls):
    @tf.function
    def call(iterator, steps):
        for _ in tf.range(steps):
            strategy.run(replica_step, args=next(iterator))

    return [call(iterator, tf.constant(steps)) for steps in steps_of_calls]


def test_other_compiled_loops_pass():
    assert_solution_passes(CALLS, by_while_loop, seeds=range(2))
    assert_solution_passes(CALLS, by_metric, seeds=range(2))
    # AutoGraph makes a loop of the graph of Python's `range`, where it is given a tensor.
    assert_solution_passes(CALLS, calls(loop=range), seeds=range(2))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (calls(less=1), "one_step_short"),
        (calls(tensor=False), "retraces"),
        (calls(tensor=False, loop=range), "unrolled"),
        (calls(summed=True), "sum_for_mean"),
        (step_by_step, "syncs_each_step"),
        (calls(less=-1), "one_step_more"),
        (one_batch_for_a_call, "same_batch_again"),
        (compiled_for_each_call, "retraces"),
        (calls(how="MEAN"), "mean_over_replicas"),
        (calls(keep=False, summed=True), "last_step_only"),
        (one_tensor_as_args, "args_of_one_tensor"),
        (one_tensor_as_args_compiled, "args_of_one_tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_loops_that_are_not_compiled_well_are_named(wrong, mistake):
    assert_mistake_is_caught(CALLS, wrong, mistake, seeds=ONE_DRAW)


def test_the_loop_that_the_exercise_shows_is_never_compiled_and_earns_nothing():
    def slow(strategy, replica_step, iterator, steps_of_calls):
        means = []
        for steps in steps_of_calls:
            taken = [strategy.run(replica_step, args=(next(iterator),)) for _ in range(steps)]
            sums = [float(strategy.reduce("SUM", one, axis=None)) for one in taken]
            means.append(sum(sums) / steps)
        return means

    assert assert_mistake_is_caught(CALLS, slow, "never_compiled", seeds=ONE_DRAW).earned == 0


@pytest.mark.parametrize(
    ("returned", "said"),
    [(lambda losses: None, "is there a `return`?"), (lambda losses: losses[0], "the shape is []")],
    ids=["nothing", "one number"],
)
def test_a_compiled_loop_with_a_wrong_result_says_what_is_wrong(returned, said):
    report = run_check(CALLS, lambda *given: returned(calls()(*given)), seeds=(1,))
    assert said in repr(report)
    assert report.earned == 2.5


# --- train

EACH = cross_entropy(from_logits=True, reduction="none")


def masked_sum(y, logits, has_label):
    return tf.reduce_sum(EACH(y, logits) * has_label)


def counted(y, logits, has_label):
    return masked_sum(y, logits, has_label) / count(has_label)


def trainer(
    loss_of=counted,
    penalty=tf.nn.scale_regularization_loss,
    epochs=None,
    share=None,
    then=lambda gradients: gradients,
    build=True,
):
    """An answer to `train`, with the loss of (labels, logits, has_label) and penalty given.

    `share` makes of a strategy and the data what is gone through, `then` comes before the step.
    """

    def train(strategy, model, dataset, epochs_asked):
        weights = model.trainable_variables
        if build:
            with strategy.scope():
                model.optimizer.build(weights)

        def replica_step(x, y, has_label):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x), has_label) + penalty(tf.add_n(model.losses))
            gradients = then(tape.gradient(loss, weights))
            if gradients:
                model.optimizer.apply_gradients(zip(gradients, weights, strict=True))

        step_through(strategy, replica_step, dataset, epochs or epochs_asked, share=share)

    return train


def step_through(strategy, replica_step, dataset, epochs, share=None):
    share = share or (lambda strategy, dataset: strategy.experimental_distribute_dataset(dataset))
    step = tf.function(lambda iterator: strategy.run(replica_step, args=next(iterator)))
    for _ in range(epochs):
        iterator = iter(share(strategy, dataset))
        for _ in range(len(dataset)):
            step(iterator)


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


def on_full_batches(strategy, model, dataset, epochs):
    trainer()(strategy, model, dataset.take(2), epochs)


@pytest.mark.parametrize("right", [trainer(), in_eager_steps], ids=["compiled", "eager"])
def test_other_right_loops_pass(right):
    assert_solution_passes(TRAIN, right, seeds=ONE_DRAW)


def keras_mean(y, logits, has_label):
    return cross_entropy(from_logits=True)(y, logits, sample_weight=has_label)


WRONG_TRAIN = {
    "batch size": (
        trainer(lambda y, z, mask: masked_sum(y, z, mask) / 16),
        "nominal_batch",
    ),
    "all are counted": (
        trainer(lambda y, z, mask: masked_sum(y, z, mask) / count(tf.ones_like(mask))),
        "counts_unlabelled",
    ),
    "no mask": (
        trainer(lambda y, z, mask: counted(y, z, tf.ones_like(mask))),
        "unlabelled_weigh",
    ),
    "Keras's mean without a mask": (
        trainer(lambda y, z, mask: cross_entropy(from_logits=True)(y, z)),
        "unlabelled_weigh",
    ),
    "Keras's mean": (trainer(keras_mean), "mean_of_means"),
    "mean of means": (
        trainer(lambda y, z, mask: masked_sum(y, z, mask) / tf.reduce_sum(mask) / replicas()),
        "mean_of_means",
    ),
    "divided twice": (trainer(lambda *given: counted(*given) / replicas()), "divided_twice"),
    "Keras's mean, divided": (trainer(lambda *g: keras_mean(*g) / replicas()), "divided_twice"),
    "own mean": (
        trainer(lambda y, z, mask: masked_sum(y, z, mask) / tf.reduce_sum(mask)),
        "not_divided",
    ),
    "whole penalty": (trainer(penalty=lambda whole: whole), "l2_unscaled"),
    "no penalty": (trainer(penalty=lambda whole: 0.0), "no_penalty"),
    "one epoch": (trainer(epochs=1), "one_epoch"),
    "reduced twice": (trainer(then=summed_over_replicas), "reduced_twice"),
    "full batches": (on_full_batches, "last_batch_dropped"),
    "never applied": (trainer(then=lambda gradients: None), "never_applied"),
}


@pytest.mark.parametrize(("wrong", "mistake"), WRONG_TRAIN.values(), ids=WRONG_TRAIN)
def test_loops_that_scale_wrongly_are_named(wrong, mistake):
    assert_mistake_is_caught(TRAIN, wrong, mistake, seeds=ONE_DRAW)


def test_a_loop_in_which_every_replica_does_all_the_work_is_named():
    """The batch was never cut, and the count of the examples is that of four batches."""
    undistributed = trainer(share=lambda strategy, dataset: dataset)
    report = assert_mistake_is_caught(TRAIN, undistributed, "not_distributed", seeds=ONE_DRAW)
    assert report.earned == 2


def test_an_optimizer_that_is_first_built_in_the_trace_is_named():
    late = trainer(build=False)
    report = assert_mistake_is_caught(TRAIN, late, "optimizer_built_late", seeds=ONE_DRAW)
    assert report.earned == 2.5


def on_one_device(inputs):
    """The model of the check after a loop on one device, in plain Keras and TensorFlow."""
    layer = keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(whole_loop._L2))
    model = keras.Sequential([keras.Input((4,)), layer])
    optimizer = keras.optimizers.SGD(whole_loop._RATE, momentum=whole_loop._MOMENTUM)
    model.set_weights([inputs["kernel"], np.zeros(3)])
    arrays = [inputs[name] for name in ("x", "y", "has_label")]
    weights = model.trainable_variables
    for _ in range(inputs["epochs"]):
        for start in range(0, whole_loop._EXAMPLES, whole_loop._BATCH):
            x, y, has_label = (array[start : start + whole_loop._BATCH] for array in arrays)
            with tf.GradientTape() as tape:
                loss = masked_sum(y, model(x), has_label) / has_label.sum() + sum(model.losses)
            optimizer.apply(tape.gradient(loss, weights), weights)
    return model


def test_a_loop_that_no_replica_takes_part_in_does_not_pass():
    inputs = TRAIN.inputs(1)
    weights = on_one_device(inputs).get_weights()
    report = run_check(TRAIN, lambda s, model, *_: model.set_weights(weights), seeds=ONE_DRAW)
    assert "a replica has seen no example at all" in repr(report)
    assert report.earned == 2


def test_what_the_check_expects_is_what_one_device_does():
    inputs = TRAIN.inputs(1)
    kernel, bias = on_one_device(inputs).get_weights()
    outputs = {"kernel": kernel, "bias": bias, SEEN: [22, 22, 22, 18]}
    assert TRAIN.verdict(inputs, {**outputs, whole_loop._BUILT_LATE: False}).passed


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
    for make in (keras.optimizers.Adam, lambda: keras.optimizers.SGD(0.1, momentum=0.9)):
        print([outcome(strategy, make, built=built) for built in (False, True)])
"""


def test_an_optimizer_first_made_in_the_loop_crashes_under_the_usual_all_reduce(
    run_python, tmp_path
):
    """In a process of its own: that all-reduce knows one size of group in a process."""
    script = tmp_path / "two_loops.py"  # AutoGraph reads the source of a loop from its file
    script.write_text(_TWO_LOOPS)
    code = f"import runpy; runpy.run_path({str(script)!r})"
    lines = run_python(code, warm=True).splitlines()
    assert (
        lines == ["['crashes at a placeholder', '1 traces']"] * 2 + ["['2 traces', '1 traces']"] * 2
    )


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


def test_the_loop_of_the_solution_and_the_distributed_fit_end_alike():
    strategy = mirrored(4)

    def build():
        penalty = keras.regularizers.L2(0.05)
        layer = keras.layers.Dense(3, kernel_regularizer=penalty)
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile(keras.optimizers.SGD(0.3), loss=cross_entropy(from_logits=True))
        model.set_weights([np.linspace(-1, 1, 12).reshape(4, 3), np.zeros(3)])
        return model

    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(42, 4)).astype("float32"), draw.integers(0, 3, size=42)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)  # the last batch has 10
    with strategy.scope():
        by_hand = build()
    all_labelled = data.map(lambda x, y: (x, y, tf.ones_like(x[:, 0])))
    solution()["train"](strategy, by_hand, all_labelled, epochs=2)
    by_fit = dl.distribute(build, strategy)
    by_fit.fit(data, epochs=2, verbose=0, shuffle=False)
    for ours, theirs in zip(by_hand.get_weights(), by_fit.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)


def test_a_keras_loss_of_nothing_is_0_in_a_compiled_step_and_a_mean_of_nothing_is_nan():
    # As in a distributed batch, how many examples there are is not known while tracing.
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 3])])
    def loss(labels, logits):
        return cross_entropy(from_logits=True)(labels, logits)

    assert loss(tf.zeros([0], tf.int64), tf.zeros([0, 3])).numpy() == 0
    assert np.isnan(tf.reduce_mean(tf.zeros([0])))


@pytest.mark.parametrize(("epsilon", "apart_by"), [(1e-7, (1e-4, 1e-2)), (1e-12, (0, 1e-6))])
def test_only_epsilon_lets_adam_see_a_constant_factor(epsilon, apart_by):
    def steps(factor):
        weight = keras.Variable([1.0])
        optimizer = keras.optimizers.Adam(0.01, epsilon=epsilon)
        for _ in range(16):
            optimizer.apply([factor * tf.constant([1e-6])], [weight])
        return weight.numpy()

    apart = abs(steps(4.0) - steps(1.0)).item() / 16
    least, most = apart_by
    assert least <= apart < most


def test_a_penalty_that_is_read_after_the_optimizer_is_that_of_the_new_weights():
    layer = keras.layers.Dense(1, use_bias=False, kernel_regularizer=keras.regularizers.L2(1.0))
    model = keras.Sequential([keras.Input((1,)), layer])
    model.set_weights([np.ones((1, 1))])
    assert float(sum(model.losses)) == 1
    keras.optimizers.SGD(0.5).apply([tf.ones((1, 1))], model.trainable_variables)
    assert float(sum(model.losses)) == 0.25


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


def test_a_train_step_is_one_device_with_full_batches_only_and_logs_a_quarter():
    strategy = mirrored(4)
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(42, 4)).astype("float32"), draw.integers(0, 3, size=42)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

    def build():
        inputs = keras.Input((4,))
        model = Classifier(inputs, keras.layers.Dense(3)(inputs))
        model.compile(keras.optimizers.SGD(0.3))
        model.set_weights([np.linspace(-1, 1, 12).reshape(4, 3), np.zeros(3)])
        return model

    def in_scope():
        with strategy.scope():
            return build()

    def compared(make, batches):
        """The distance of the weights, and the logged loss, both against one device."""
        fits = [
            (model, model.fit(data.take(batches), verbose=0, shuffle=False).history["loss"][-1])
            for model in (make(), build())
        ]
        (model, loss), (one, loss_of_one) = fits
        return apart(model, one), loss / loss_of_one

    distance, quarter = compared(in_scope, batches=2)
    assert distance < 1e-6
    assert quarter == pytest.approx(1 / 4)
    distance, _ = compared(in_scope, batches=3)  # the last one has 10 examples
    assert distance > 1e-3
    distance, whole = compared(lambda: dl.distribute(build, strategy), batches=3)
    assert distance < 1e-6
    assert whole == pytest.approx(1)
