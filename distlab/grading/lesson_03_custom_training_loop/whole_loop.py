"""A check of lesson 03: the whole loop, against one device's weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close
from distlab.grading.lesson_03_custom_training_loop.gradients import (
    mean_of_means,
    one_device,
    share_of_each,
    softmax,
)
from distlab.grading.replicas import MOST_REPLICAS, mirrored
from distlab.grading.shared_out import SEEN, Counter, expect_shared, not_shared

_RATE, _L2, _BATCH, _EXAMPLES = 0.3, 0.05, 16, 42  # the last batch has 10: 3, 3, 3 and 1


def _train_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "x": draw.normal(size=(_EXAMPLES, 4)).astype("float32"),
        "y": draw.integers(0, 3, size=_EXAMPLES).astype("int32"),
        "kernel": draw.normal(size=(4, 3)).astype("float32"),
        "epochs": 2,
    }


def _train_call(train: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)
    with strategy.scope():
        dense = keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(_L2))
        counter = Counter(strategy)
        model = keras.Sequential([keras.Input((4,)), counter.layer(), dense])
        model.compile(keras.optimizers.SGD(_RATE))
    model.set_weights([inputs["kernel"], np.zeros(3)])
    dataset = tf.data.Dataset.from_tensor_slices((inputs["x"], inputs["y"])).batch(_BATCH)
    train(strategy, model, dataset, inputs["epochs"])
    weights = {"kernel": dense.kernel.numpy(), "bias": dense.bias.numpy()}
    return {**weights, SEEN: counter.on_replicas()}


def _train_results(
    inputs: Inputs,
    *,
    weight_of: Callable[[Any], Any] = one_device,
    penalties: int = 1,
    epochs: int | None = None,
    examples: int = _EXAMPLES,
) -> Plain:
    """Softmax regression by SGD, example weights and the number of penalties as given."""
    kernel, bias = inputs["kernel"].astype("float64"), np.zeros(3)
    for _ in range(epochs or inputs["epochs"]):
        for start in range(0, examples, _BATCH):
            x, y = (inputs[name][start : start + _BATCH] for name in ("x", "y"))
            weights = weight_of(share_of_each(len(y)))[:, None]
            error = (softmax(x @ kernel + bias) - np.eye(3)[y]) * weights
            kernel = kernel - _RATE * (x.T @ error + 2 * _L2 * penalties * kernel)
            bias = bias - _RATE * error.sum(axis=0)
    return {"kernel": kernel, "bias": bias}


def _train_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    weights = [
        expect_close(f"{name}, one device's", yours=outputs[name], expected=value, atol=1e-4)
        for name, value in _train_results(inputs).items()
    ]
    if not all(criterion.passed for criterion in weights):
        return Verdict.of(*weights)  # work that leads elsewhere need not be shared
    return Verdict.of(*weights, expect_shared(outputs, examples=_examples_of(inputs)))


def _examples_of(inputs: Inputs) -> int:
    return _EXAMPLES * int(inputs["epochs"])


def _trains(**how: Any) -> Callable[[Inputs], Plain]:
    return lambda inputs: _train_results(inputs, **how)


TRAIN = Check(
    name="train",
    function="train",
    title="The whole loop",
    points=3,
    inputs=_train_inputs,
    call=_train_call,
    judge=_train_judge,
    hint="Put together what you have: the loss of task 2, the penalty over the replicas, "
    "and a step inside strategy.run that calls model.optimizer.apply.",
    revisit="Metrics",
    mistakes=(
        Mistake(
            "nominal_batch",
            "The last batch of each epoch is a partial one: count its examples.",
            yields=_trains(weight_of=lambda share: np.full(len(share), 1 / _BATCH)),
            atol=1e-4,
        ),
        Mistake(
            "mean_of_means",
            "In the last batch one example is alone on its replica, and weighs three times "
            "as much as the others.",
            yields=_trains(weight_of=mean_of_means),
            atol=1e-4,
        ),
        Mistake(
            "divided_twice",
            "Keras has divided by the number of replicas, and so have you.",
            yields=_trains(weight_of=lambda share: mean_of_means(share) / MOST_REPLICAS),
            atol=1e-4,
        ),
        Mistake(
            "not_divided",
            "Each replica takes the mean of its own examples, and four means are added.",
            yields=_trains(weight_of=lambda share: 1 / share),
            atol=1e-4,
        ),
        Mistake(
            "reduced_twice",
            "Steps four times too long: you add the gradients up over the replicas, and "
            "`model.optimizer.apply` adds them up once more.",
            yields=_trains(
                weight_of=lambda share: MOST_REPLICAS * one_device(share),
                penalties=MOST_REPLICAS,
            ),
            atol=1e-4,
        ),
        Mistake(
            "l2_unscaled",
            "Every replica adds the whole penalty, so it counts four times.",
            yields=_trains(penalties=MOST_REPLICAS),
            atol=1e-4,
        ),
        Mistake(
            "no_penalty",
            "The penalty in model.losses is missing.",
            yields=lambda inputs: _train_results(inputs, penalties=0),
            atol=1e-4,
        ),
        Mistake(
            "one_epoch",
            "These are the weights after one epoch: begin a new iterator for each.",
            yields=_trains(epochs=1),
            atol=1e-4,
        ),
        Mistake(
            "last_batch_dropped",
            "The last batch of each epoch is missing. It is smaller, and counts as well.",
            yields=_trains(examples=_EXAMPLES // _BATCH * _BATCH),
            atol=1e-4,
        ),
        Mistake(
            "never_applied",
            "The weights are where they were: the gradients never reach the optimizer.",
            when=lambda inputs, outputs: np.array_equal(outputs["kernel"], inputs["kernel"]),
        ),
        not_shared(_examples_of),
    ),
)
