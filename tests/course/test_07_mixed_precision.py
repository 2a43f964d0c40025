"""The checks of lesson 07: right answers pass, and each mistake is named."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.runs import precision_probes as probes
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
)

STEM = "07_mixed_precision"
HEAD, UPDATE, TRAIN, MEMORY, CHOICE = checks_of(STEM)


# --- float32_head


def softmax_in(dtype):
    """A head whose softmax computes in this type, and gives its answer in float32."""

    def head(features, classes, temperature):
        scores = keras.layers.Dense(classes, dtype="float32")(features)
        scores = keras.ops.cast(scores, dtype) / temperature
        return keras.ops.cast(keras.ops.softmax(scores), "float32")

    return head


def softmax_of_the_policy(features, classes, temperature):
    return keras.layers.Softmax()(keras.layers.Dense(classes)(features) / temperature)


def test_float32_head():
    assert_right_answers_pass(HEAD, softmax_in("float32"))
    wrong = {
        "softmax_float16": softmax_of_the_policy,
        "cast_after_softmax": softmax_in("float16"),
    }
    assert_mistakes_are_caught(HEAD, wrong, earned=0)
    said = {"your function returned a Dense": lambda *given: keras.layers.Dense(3)}
    assert_feedback_says(HEAD, said)


# --- scaled_update


def update(*, clip="after", skip=True, own=False):
    """An answer to `scaled_update` with one thing done otherwise."""

    def scaled_update(gradient, scale, good_steps, clip_norm, grow_every):
        context = tf.distribute.get_replica_context()
        total = context.all_reduce("SUM", gradient)
        finite = tf.reduce_all(tf.math.is_finite(gradient if own else total))
        if clip == "after":
            step = tf.clip_by_norm(total / scale, clip_norm)
        else:
            step = tf.clip_by_norm(total, clip_norm) / scale
        step = tf.where(finite, step, 0.0) if skip else step
        good = tf.where(finite, good_steps + 1, 0)
        grow = good >= grow_every
        scale = scale * tf.where(finite, tf.where(grow, 2.0, 1.0), 0.5)
        return step, scale, tf.where(grow, 0, good)

    return scaled_update


def by_asking_each(gradient, scale, good_steps, clip_norm, grow_every):
    """Each replica looks at its own, and all are asked; arithmetic in place of choices."""
    context = tf.distribute.get_replica_context()
    mine = tf.cast(tf.reduce_all(tf.math.is_finite(gradient)), tf.int32)
    good = tf.cast(context.all_reduce("SUM", mine) == context.num_replicas_in_sync, tf.int32)
    kept = tf.where(tf.math.is_finite(gradient), gradient, 0.0)
    (step,), _ = tf.clip_by_global_norm([context.all_reduce("SUM", kept) / scale], clip_norm)
    counted = (good_steps + 1) * good
    doublings = good - 1 + counted // grow_every
    return [
        step * tf.cast(good, tf.float32),
        scale * 2.0 ** tf.cast(doublings, tf.float32),
        counted % grow_every,
    ]


def test_updates_that_go_wrong_are_named():
    assert_right_answers_pass(UPDATE, by_asking_each)
    wrong = {
        "clip_before_unscale": update(clip="before"),
        "no_skip_on_inf": update(skip=False),
        "local_finite_check": update(own=True),
    }
    assert_mistakes_are_caught(UPDATE, wrong)
    said = {"return three things: the step, a vector;": lambda *given: update()(*given)[:2]}
    assert_feedback_says(UPDATE, said)


def test_what_the_check_expects_is_what_keras_does_on_one_device():
    inputs = UPDATE.inputs(1)
    weight = keras.Variable(np.zeros(3))
    inner = keras.optimizers.SGD(1.0, clipnorm=1.0)
    optimizer = keras.optimizers.LossScaleOptimizer(
        inner, initial_scale=1024.0, dynamic_growth_steps=3
    )
    optimizer.build([weight])
    steps, scales = [], []
    for gradients in inputs["gradients"]:
        scale = float(optimizer.dynamic_scale)
        with np.errstate(over="ignore"):
            parts = [(g * scale).astype("float16").astype("float32") for g in gradients]
        before = weight.numpy()
        optimizer.apply([tf.constant(np.sum(parts, axis=0))], [weight])
        steps.append([before - weight.numpy()] * 4)
        scales.append([float(optimizer.dynamic_scale)] * 4)
    outputs = {"steps": np.array(steps), "scales": np.array(scales)}
    assert UPDATE.verdict(inputs, outputs).passed


# --- train_float16


def trainer(*, multiply=True, divide=True, share=16, outside=False):
    """An answer to `train` with one thing done otherwise."""

    def train(strategy, model, optimizer, dataset, scale):
        weights = model.trainable_variables

        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(x) - y) ** 2) / share
                scaled = loss * scale if multiply else loss
            if outside:
                scaled = loss * scale
            gradients = tape.gradient(scaled, weights)
            optimizer.apply([g / scale if divide else g for g in gradients], weights)
            return loss

        losses = []
        for batch in strategy.experimental_distribute_dataset(dataset):
            loss = strategy.run(replica_step, args=batch)
            losses.append(strategy.reduce("SUM", loss, axis=None))
        return losses

    return train


def by_keras_loss(strategy, model, optimizer, dataset, scale):
    """Keras's default reduction, which divides by the replicas, and a compiled loop."""
    mean_loss, weights = keras.losses.MeanSquaredError(), model.trainable_variables

    @tf.function
    def step(batch):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = mean_loss(y, model(x))
                scaled = tf.cast(scale, tf.float32) * loss
            optimizer.apply([g / scale for g in tape.gradient(scaled, weights)], weights)
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    return [step(batch).numpy() for batch in strategy.experimental_distribute_dataset(dataset)]


def test_train_float16():
    assert_right_answers_pass(TRAIN, by_keras_loss)
    wrong = {
        "never_unscaled": trainer(divide=False),
        "never_scaled": trainer(multiply=False, divide=False),
        "not_divided": trainer(share=4),
        "scaled_outside_tape": trainer(outside=True),
    }
    assert_mistakes_are_caught(TRAIN, wrong, earned=0)


# --- training_bytes


def by_bits(*optimizer_and_activations):
    """An answer with these bits of Adam's numbers and of an activation in a mixed policy."""
    optimizer, narrow = optimizer_and_activations

    def training_bytes(parameters, activations, global_batch, replicas, policy):
        bits = np.array([32, 32, optimizer, narrow if policy.startswith("mixed") else 32])
        counts = np.array([parameters] * 3 + [activations * (global_batch // replicas)])
        names = ("weights", "gradients", "optimizer", "activations")
        return dict(zip(names, (bits * counts) // 8, strict=True))

    return training_bytes


def test_training_bytes():
    assert_right_answers_pass(MEMORY, by_bits(64, 16))
    assert_mistakes_are_caught(MEMORY, {"one_slot": by_bits(32, 16)}, earned=1.5)
    said = {
        "yours returned {'weights': 1}": lambda **asked: {"weights": 1},
        "a dictionary with weights, gradients, optimizer, activations": lambda **asked: 7,
    }
    assert_feedback_says(MEMORY, said)


# --- choose_policy


def by_units(device):
    has_bfloat16 = device.startswith(("L", "TPU"))
    has_float16 = device in {"Titan V", "RTX 2080"}
    policy = "mixed_bfloat16" if has_bfloat16 else "mixed_float16" if has_float16 else "float32"
    return [policy, np.bool_(has_float16)]


def test_choose_policy():
    def bfloat16_on_turing(device):
        return ("mixed_bfloat16", False) if device == "RTX 2080" else by_units(device)

    assert_right_answers_pass(CHOICE, by_units)
    assert_mistakes_are_caught(CHOICE, {"bf16_before_ampere": bfloat16_on_turing}, earned=2)
    said = {
        "return two things": lambda device: "mixed_float16",
        "the first thing is a policy": lambda device: (True, "mixed_float16"),
        "the second thing is True or False": lambda device: ("mixed_float16", "True"),
    }
    assert_feedback_says(CHOICE, said)


# --- what the lesson claims


def test_one_examples_gradient_in_float16_is_nan_for_probabilities_from_1_5e_5_down_to_1e_7():
    loss_of = keras.losses.SparseCategoricalCrossentropy()

    def push(gap):
        scores = tf.constant([[gap] + 9 * [0.0]], tf.float16)
        with tf.GradientTape() as tape:
            tape.watch(scores)
            probabilities = tf.cast(keras.ops.softmax(scores), tf.float32)
            loss = loss_of(tf.constant([3]), probabilities)
        return -float(tape.gradient(loss, scores)[0, 3]), float(probabilities[0, 3])

    found = [push(gap) for gap in (11.0, 11.2, 13.0, 16.0, 17.0)]
    pushes, probabilities = zip(*found, strict=True)
    assert probabilities == pytest.approx((1.67e-5, 1.37e-5, 2.26e-6, 1.1e-7, 6e-8), rel=0.1)
    assert pushes == pytest.approx([1, np.nan, np.nan, np.nan, 0], nan_ok=True)


@pytest.mark.bfloat16
def test_a_bias_gradient_in_bfloat16_is_a_quarter_on_a_cpu_and_a_kernel_gradient_is_right():
    with dl.mixed_precision("mixed_bfloat16"):
        layer = keras.layers.Dense(3)
        layer.build((None, 4))
    with tf.device("CPU:0"), tf.GradientTape() as tape:
        mean = tf.reduce_sum(tf.cast(layer(tf.ones((1024, 4))), tf.float32)) / 1024
    kernel, bias = tape.gradient(mean, layer.trainable_variables)
    assert (float(kernel[0, 0]), float(bias[0])) == (1.0, 0.25)


def test_numbers_below_1e_38_become_zero_in_kernels_and_small_float16_numbers_do_not():
    for tiny, kept in ((tf.constant(1e-39), False), (tf.constant(1e-7, tf.float16), True)):
        assert bool(tiny * tf.ones((), tiny.dtype) > 0) == kept


def test_the_16_bit_copy_of_a_weight_lives_from_the_forward_to_the_backward_pass():
    with dl.mixed_precision("mixed_float16"):
        layer = keras.layers.Dense(3, use_bias=False)
        layer.build((None, 4))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x))
        return tape.gradient(loss, x)

    graph = step.get_concrete_function(tf.ones((2, 4))).graph
    products = [op for op in graph.get_operations() if op.type == "MatMul"]
    forward, *backward = products
    copy = forward.inputs[1]
    assert copy.dtype == tf.float16
    assert any(used.name == copy.name for product in backward for used in product.inputs)


def test_with_twice_the_batch_gradients_of_outputs_halve_and_those_of_weights_do_not():
    dl.set_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    x, y = np.random.default_rng(0).normal(size=(8, 4)).astype("float32"), np.arange(8) % 2
    twice = (np.tile(x, (2, 1)), np.tile(y, 2))
    (once_1, *_), (twice_1, *_) = (
        probes.gradients_by_layer(model, *batch).values() for batch in ((x, y), twice)
    )
    np.testing.assert_allclose(twice_1[:8], once_1 / 2, rtol=1e-5)
    np.testing.assert_allclose(x.T @ once_1, twice[0].T @ twice_1, rtol=1e-4, atol=1e-6)


def test_where_xla_compiles_for_gpus_the_loss_scale_is_decided_by_each_replica():
    """No GPU is needed to read it: TensorFlow drops `merge_call`, and Keras then looks locally."""
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
    from tensorflow.python.distribute.mirrored_strategy import MirroredExtended

    without = inspect.getsource(MirroredExtended._use_merge_call)
    assert "GraphOrParentsInXlaContext" in without
    assert "_is_gpu_device" in without
    apply = inspect.getsource(LossScaleOptimizer._tf_apply)
    assert apply.index("strategy_supports_no_merge_call") < apply.index("_common_apply")
    assert "check_finite(grads)" in inspect.getsource(LossScaleOptimizer._common_apply)


def test_the_last_layers_weights_have_the_largest_gradients():
    (digits,) = dl.load_dataset("digits", splits=["train[:1024]"], batch_size=1024)
    images, labels = next(iter(digits))
    dl.set_seed(1)
    layers = [keras.layers.Flatten()] + [keras.layers.Dense(32, "sigmoid") for _ in range(8)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(10)])
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images))
    gradients = tape.gradient(loss, model.trainable_variables)
    largest = [float(tf.reduce_max(tf.abs(gradient))) for gradient in gradients]
    assert max(largest[:-2]) < 2.0**-6 < 2.0**-4 < min(largest[-2:])
    end_of_float16 = float(np.finfo("float16").max)
    assert max(largest) * 2.0**19 < end_of_float16 < max(largest) * 2.0**20


def test_the_time_on_a_gpu_is_measured_with_tf32_which_is_then_as_before(monkeypatch):
    """No GPU is needed to see the setting: TensorFlow only says that there is one."""
    config, while_timed = tf.config.experimental, []
    devices = tf.config.list_physical_devices("CPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: devices)
    monkeypatch.setattr(config, "reset_memory_stats", lambda device: None)
    monkeypatch.setattr(config, "get_memory_info", lambda device: {"peak": 0})

    def fit(model, data, **_):
        while_timed.append(config.tensor_float_32_execution_enabled())

    monkeypatch.setattr(keras.Model, "fit", fit)
    before = config.tensor_float_32_execution_enabled()
    config.enable_tensor_float_32_execution(False)
    try:
        assert "ms a step" in probes.time_on_gpu("float32", width=4, batch=2, steps=1)
        assert while_timed == [True, True]
        assert not config.tensor_float_32_execution_enabled()
    finally:
        config.enable_tensor_float_32_execution(before)
