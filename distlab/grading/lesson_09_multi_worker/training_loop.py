"""A check of lesson 09: a custom loop on two workers, against one device's weights and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.clusters import WORKERS, call_on_workers
from distlab.grading.comparing import expect_close, expect_true, same_plain

_RATE, _PER_WORKER, _EPOCHS = 0.3, 4, 2
_GLOBAL = _PER_WORKER * WORKERS


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # The last batch has 1 example, so one worker has none of it; or 5, so 3 and 2.
    examples = 17 if seed % 2 else 21
    return {
        "x": draw.normal(size=(examples, 4)).astype("float32"),
        "y": draw.integers(0, 3, size=examples).astype("int32"),
        "kernel": draw.normal(size=(4, 3)).astype("float32"),
    }


def _call(train: Callable[..., Any], inputs: Inputs) -> Plain:
    return call_on_workers(_train_on_worker, train, inputs)


def _train_on_worker(strategy: Any, train: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras
    import tensorflow as tf

    trained_on = tf.Variable(0)  # on this worker alone

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def count(x: Any) -> Any:
        def backward(gradient: Any) -> Any:
            trained_on.assign_add(tf.shape(gradient)[0])
            return gradient

        return tf.identity(x), backward

    class Count(keras.layers.Layer):  # type: ignore[misc]
        def call(self, logits: Any) -> Any:
            return count(logits)

    def build() -> Any:
        dense = keras.layers.Dense(3)
        model = keras.Sequential([keras.Input((4,)), dense, Count()])
        model.set_weights([inputs["kernel"], np.zeros(3)])
        model.compile(keras.optimizers.SGD(_RATE))
        return model

    result = train(strategy, build, inputs["x"], inputs["y"], _PER_WORKER, _EPOCHS)
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeError(f"two things were asked for, model and losses; yours is {result!r}"[:200])
    model, losses = result
    kernel, bias = model.get_weights()
    return {
        "kernel": kernel,
        "bias": bias,
        "losses": [float(loss) for loss in losses],
        "trained on": int(trained_on.numpy()),
    }


# --- what one device does, and what mistakes do ---------------------------------------------

_Weights = Callable[[Any], Any]  # from how many examples each one's worker has, to its weight


def _one_device(company: Any) -> Any:
    return np.full(len(company), 1 / len(company))


def _mean_of_means(company: Any) -> Any:
    return 1 / (WORKERS * company)


def _company(examples: int, per_worker: int) -> Any:
    """For each example of a global batch, how many its worker has."""
    shares = [min(examples, per_worker), max(examples - per_worker, 0)]
    if examples < WORKERS * per_worker:  # a partial batch is halved
        shares = [-(-examples // WORKERS), examples // WORKERS]
    return np.repeat(shares, shares).astype("float64")


def _results(
    inputs: Inputs,
    *,
    per_worker: int = _PER_WORKER,
    weight_of: _Weights = _one_device,
    partial: bool = True,
    epochs: int = _EPOCHS,
) -> Plain:
    """Softmax regression by SGD, with the weights of examples given."""
    kernel, bias = inputs["kernel"].astype("float64"), np.zeros(3)
    examples, losses = len(inputs["y"]), []
    used = examples if partial else examples - examples % (WORKERS * per_worker)
    for _ in range(epochs):
        total = 0.0
        for start in range(0, used, WORKERS * per_worker):
            x, y = (inputs[name][start:used][: WORKERS * per_worker] for name in ("x", "y"))
            logits = x @ kernel + bias
            raised = np.exp(logits - logits.max(axis=1, keepdims=True))
            chances = raised / raised.sum(axis=1, keepdims=True)
            weights = weight_of(_company(len(y), per_worker))[:, None]
            error = (chances - np.eye(3)[y]) * weights
            kernel, bias = kernel - _RATE * x.T @ error, bias - _RATE * error.sum(axis=0)
            total -= np.log(chances[np.arange(len(y)), y]).sum()
        losses.append(total / used)
    return {"kernel": kernel, "bias": bias, "losses": losses}


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    right = _results(inputs)
    chief, *others = outputs
    trained_on = [worker["trained on"] for worker in outputs]
    whole = _EPOCHS * len(inputs["y"])
    return Verdict.of(
        *(
            expect_close(
                f"{name}, as one device has it", yours=chief[name], expected=right[name], atol=1e-4
            )
            for name in ("kernel", "bias")
        ),
        expect_true(
            "both workers have the same weights",
            all(same_plain(_weights(chief), _weights(other), atol=1e-6) for other in others),
            message="their weights differ: did they add up their gradients?",
        ),
        expect_true(
            "the workers share each batch",
            sum(trained_on) <= whole,
            message=f"of {whole} examples in {_EPOCHS} epochs they trained on {trained_on}",
        ),
        *(
            expect_close(
                f"the losses that worker:{index} returns, those of all examples",
                yours=worker["losses"],
                expected=right["losses"],
                atol=1e-4,
            )
            for index, worker in enumerate(outputs)
        ),
    )


def _weights(worker: Plain) -> list[Plain]:
    return [worker["kernel"], worker["bias"]]


def _ends_like(**how: Any) -> Callable[[Inputs, Plain], bool]:
    """Whether the chief's weights are those that a mistake leads to."""

    def when(inputs: Inputs, outputs: Plain) -> bool:
        wrong = _results(inputs, **how)
        return same_plain(_weights(outputs[0]), _weights(wrong), atol=1e-4)

    return when


def _has_nan(outputs: Plain) -> bool:
    return any(np.isnan(array).any() for worker in outputs for array in _weights(worker))


def _own_losses(inputs: Inputs, outputs: Plain) -> bool:
    right = _results(inputs)
    ends_right = same_plain(_weights(outputs[0]), _weights(right), atol=1e-4)
    return ends_right and not same_plain(outputs[0]["losses"], outputs[1]["losses"], atol=1e-4)


def _both_train_on_all(inputs: Inputs, outputs: Plain) -> bool:
    return all(worker["trained on"] >= _EPOCHS * len(inputs["y"]) for worker in outputs)


LOOP_CHECKS = (
    Check(
        name="train_on_two_workers",
        function="train",
        title="A custom loop on two workers",
        points=6,
        inputs=_inputs,
        call=_call,
        judge=_judge,
        hint="Batch the data by the global size and distribute it: TensorFlow gives each worker "
        "its part. In the step add up the losses of this worker's examples and divide by the "
        "examples of all: the replica context's all_reduce counts them.",
        revisit="The loop",
        mistakes=(
            Mistake(
                "unequal_steps",
                "One worker has more batches than the other. Its last all-reduce waits for nobody, "
                "or meets another one. How many steps there are must not depend on the worker: "
                "distribute the data set, then one whose share is empty takes the step all the "
                "same.",
                error=r"still waits here; worker:\d has finished|Shape mismatch in the collective",
            ),
            Mistake(
                "both_read_all",
                "Both workers train on all examples. Distribute the data set, and each reads "
                "its part.",
                when=_both_train_on_all,
            ),
            Mistake(
                "remainder_dropped",
                "The last, partial batch of each epoch is missing.",
                when=_ends_like(partial=False),
            ),
            Mistake(
                "per_worker_batch_as_global",
                "What is distributed has batches of `per_worker_batch`, and each worker takes a "
                "part of those. A distributed data set is batched by the global size.",
                when=_ends_like(per_worker=_PER_WORKER // WORKERS),
            ),
            Mistake(
                "nominal_batch",
                "The last batch is a partial one: count its examples.",
                when=_ends_like(weight_of=lambda company: np.full(len(company), 1 / _GLOBAL)),
            ),
            Mistake(
                "mean_of_means",
                "The mean of each worker's mean: in the last batch an example weighs more where "
                "it has less company, and a mean of nothing is NaN.",
                when=lambda inputs, outputs: (
                    _ends_like(weight_of=_mean_of_means)(inputs, outputs) or _has_nan(outputs)
                ),
            ),
            Mistake(
                "not_divided",
                "Each worker takes the mean of its own examples, and two means are added: the "
                "steps are twice too long.",
                when=_ends_like(weight_of=lambda company: 1 / company),
            ),
            Mistake(
                "one_epoch",
                "These are the weights after one epoch.",
                when=_ends_like(epochs=1),
            ),
            Mistake(
                "own_losses",
                "The weights are right. But each worker returns the loss of its own examples: "
                "add up what all have.",
                when=_own_losses,
            ),
        ),
    ),
)
