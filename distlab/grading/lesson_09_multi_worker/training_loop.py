"""A check of lesson 09: a custom loop on two workers, against one device's weights and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.clusters import WORKERS, call_on_workers
from distlab.grading.comparing import expect_close, expect_true, same_plain
from distlab.grading.lesson_09_multi_worker.one_device import (
    EPOCHS,
    GLOBAL_BATCH,
    PER_WORKER,
    RATE,
    mean_of_means,
    results_of,
)


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
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(RATE), loss)
        return model

    result = train(strategy, build, inputs["x"], inputs["y"], PER_WORKER, EPOCHS)
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeError(f"two things were asked for, model and losses; yours is {result!r}"[:200])
    model, losses = result
    if not hasattr(model, "get_weights"):
        raise TypeError(f"first the model was asked for, then the losses; yours is {model!r}"[:200])
    if np.ndim(losses) != 1:
        raise TypeError(
            f"a list with a loss for each epoch was asked for; yours is {losses!r}"[:200]
        )
    kernel, bias = model.get_weights()
    return {
        "kernel": kernel,
        "bias": bias,
        "losses": [float(loss) for loss in losses],
        "trained on": int(trained_on.numpy()),
    }


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    right = results_of(inputs)
    chief, *others = outputs
    trained_on = [worker["trained on"] for worker in outputs]
    is_trained = not same_plain(chief["kernel"], inputs["kernel"])
    whole, steps = EPOCHS * len(inputs["y"]), -(-len(inputs["y"]) // GLOBAL_BATCH)
    return Verdict.of(
        *(
            expect_close(
                f"{name}, as one device has it", yours=chief[name], expected=right[name], atol=1e-4
            )
            for name in ("kernel", "bias")
        ),
        expect_true(
            "both workers have the same weights",
            is_trained
            and all(same_plain(_weights(chief), _weights(other), atol=1e-6) for other in others),
            message="their weights differ: did they add up their gradients?"
            if is_trained
            else "the model has the weights that it had before",
        ),
        expect_true(
            "the workers share each batch",
            # Who has none of the last batch may fill it up with what has no weight.
            min(trained_on) > 0 and max(trained_on) <= EPOCHS * steps * PER_WORKER,
            message=f"of {whole} examples in {EPOCHS} epochs they trained on {trained_on}",
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
        wrong = results_of(inputs, **how)
        return same_plain(_weights(outputs[0]), _weights(wrong), atol=1e-4)

    return when


def _has_nan(outputs: Plain) -> bool:
    return any(np.isnan(array).any() for worker in outputs for array in _weights(worker))


def _own_losses(inputs: Inputs, outputs: Plain) -> bool:
    right = results_of(inputs)
    ends_right = same_plain(_weights(outputs[0]), _weights(right), atol=1e-4)
    return ends_right and not same_plain(outputs[0]["losses"], outputs[1]["losses"], atol=1e-4)


def _logs(of_epochs: Callable[[Plain], Any]) -> Callable[[Inputs, Plain], bool]:
    """Whether the weights are right, and the losses another summary of what they come from."""

    def when(inputs: Inputs, outputs: Plain) -> bool:
        right = results_of(inputs)
        ends_right = same_plain(_weights(outputs[0]), _weights(right), atol=1e-4)
        return ends_right and same_plain(outputs[0]["losses"], of_epochs(right), atol=1e-4)

    return when


def _so_far(right: Plain) -> list[float]:
    return [float(np.mean(right["losses"][: n + 1])) for n in range(len(right["losses"]))]


def _of_batches(of: Callable[[Any], Any]) -> Callable[[Plain], list[float]]:
    return lambda right: [float(of(losses)) for losses in right["of batches"]]


def _apart(_: Inputs, outputs: Plain) -> bool:
    return not same_plain(_weights(outputs[0]), _weights(outputs[1]), atol=1e-4)


def _both_train_on_all(inputs: Inputs, outputs: Plain) -> bool:
    return all(worker["trained on"] >= EPOCHS * len(inputs["y"]) for worker in outputs)


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
                "outside_scope",
                "TensorFlow refuses an update: the model was made outside of the strategy's "
                "scope. Call `build` in `with strategy.scope():`.",
                error=r"^(AssertionError\W*)+$|Mixing different tf.distribute.Strategy objects",
            ),
            Mistake(
                "keras_own_fit",
                "Keras's own `fit` cannot be used on several workers: a loop of yours is asked "
                "for, whose step runs by `strategy.run`.",
                error=r"convert a value \(PerReplica",
            ),
            Mistake(
                "both_read_all",
                "Both workers train on all examples. Distribute the data set, and each reads "
                "its part.",
                when=_both_train_on_all,
            ),
            Mistake(
                "trained_alone",
                "Each worker has trained a model of its own. The step has to run by "
                "`strategy.run`, on a model that was made in the scope: then gradients are added "
                "up.",
                when=_apart,
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
                when=_ends_like(per_worker=PER_WORKER // WORKERS),
            ),
            Mistake(
                "twice_the_global_batch",
                "What is distributed has batches of twice the global size. "
                "`num_replicas_in_sync` counts the replicas of all workers already.",
                when=_ends_like(per_worker=GLOBAL_BATCH),
            ),
            Mistake(
                "sum_for_mean",
                "The losses of a batch are added up, and never divided by how many there are.",
                when=_ends_like(weight_of=lambda company: np.ones(len(company))),
            ),
            Mistake(
                "nominal_batch",
                "The last batch is a partial one: count its examples.",
                when=_ends_like(weight_of=lambda company: np.full(len(company), 1 / GLOBAL_BATCH)),
            ),
            Mistake(
                "mean_of_means",
                "The mean of each worker's mean: in the last batch an example weighs more where "
                "it has less company, and a mean of nothing is NaN.",
                when=lambda inputs, outputs: (
                    _ends_like(weight_of=mean_of_means)(inputs, outputs) or _has_nan(outputs)
                ),
            ),
            Mistake(
                "not_divided",
                "Each worker takes the mean of its own examples, and two means are added: the "
                "steps are twice too long.",
                when=lambda inputs, outputs: (
                    _ends_like(weight_of=lambda company: 1 / company)(inputs, outputs)
                    or _ends_like(weight_of=lambda company: 0 * company + 1 / PER_WORKER)(
                        inputs, outputs
                    )
                ),
            ),
            Mistake(
                "one_epoch",
                "These are the weights after one epoch.",
                when=_ends_like(epochs=1),
            ),
            Mistake(
                "never_reset",
                "The losses go on from epoch to epoch: the second is the mean of both epochs. "
                "Reset what counts at the start of each.",
                when=_logs(_so_far),
            ),
            Mistake(
                "batches_for_examples",
                "The weights are right. The losses are those of batches: the last one, or the mean "
                "of them all, where the last batch has fewer examples and counts as much.",
                when=lambda inputs, outputs: (
                    _logs(_of_batches(np.mean))(inputs, outputs)
                    or _logs(_of_batches(lambda losses: losses[-1]))(inputs, outputs)
                ),
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
