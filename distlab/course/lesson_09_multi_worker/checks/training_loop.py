"""A check of lesson 09: a custom loop on two workers, against one device's weights and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Inputs, Plain
from distlab.course.checks.criteria import Holds, Then
from distlab.course.checks.matchers import same_plain
from distlab.course.checks.mistakes import Fault, Raises
from distlab.course.checks.rubric import RubricRow, WrittenReport
from distlab.course.checks.shared_checks import softmax
from distlab.course.runs.cluster_calls import WORKERS, call_on_workers

_RATE, _PER_WORKER, _EPOCHS = 0.3, 4, 2
_GLOBAL_BATCH = _PER_WORKER * WORKERS
_WEIGHTS = ("kernel", "bias")  # a loss may be NaN for a worker without examples


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
    chief, other = workers = call_on_workers(_train_on_worker, train, inputs)
    return {
        **{key: chief[key] for key in _WEIGHTS},
        **{f"other {key}": other[key] for key in _WEIGHTS},
        **{f"losses of worker:{index}": worker["losses"] for index, worker in enumerate(workers)},
        "trained on": [worker["trained on"] for worker in workers],
    }


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
        model.compile(keras.optimizers.SGD(_RATE), loss)
        return model

    result = train(strategy, build, inputs["x"], inputs["y"], _PER_WORKER, _EPOCHS)
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


def _is_shared(given: Inputs, out: Plain) -> bool:
    steps = _EPOCHS * -(-len(given["y"]) // _GLOBAL_BATCH)
    # A worker that has none of the last batch may fill it up with examples of no weight.
    return bool(min(out["trained on"]) > 0 and max(out["trained on"]) <= steps * _PER_WORKER)


def _is_trained(given: Inputs, out: Plain) -> bool:
    return not same_plain(out["kernel"], given["kernel"])


def _are_alike(out: Plain, atol: float) -> bool:
    return all(same_plain(out[key], out[f"other {key}"], atol=atol) for key in _WEIGHTS)


def _one_device(worker_sizes: Any) -> Any:
    """The weight of each example on one device."""
    return np.full(len(worker_sizes), 1 / len(worker_sizes))


def _nominal_batch(worker_sizes: Any) -> Any:
    """The weight of each example where a partial batch is divided like a full one."""
    return np.full(len(worker_sizes), 1 / _GLOBAL_BATCH)


def _mean_of_means(worker_sizes: Any) -> Any:
    """The weight of each example where workers' means are averaged."""
    return 1 / (WORKERS * worker_sizes)


def _nan_of_nothing(worker_sizes: Any) -> Any:
    """As `_mean_of_means`, and NaN where a worker has no example."""
    return _mean_of_means(worker_sizes) if len(worker_sizes) >= WORKERS else np.nan * worker_sizes


def _worker_sizes(examples: int, per_worker: int) -> Any:
    """For each example of a global batch, how many its worker has."""
    shares = [min(examples, per_worker), max(examples - per_worker, 0)]
    if examples < WORKERS * per_worker:  # a partial batch is halved
        shares = [-(-examples // WORKERS), examples // WORKERS]
    return np.repeat(shares, shares).astype("float64")


def _reference(
    given: Inputs, *, per_worker: int = _PER_WORKER, weigh: Callable[[Any], Any] = _one_device
) -> Plain:
    """Softmax regression by SGD, in float64, as both workers should have it."""
    kernel, bias = given["kernel"].astype("float64"), np.zeros(3)
    examples, global_batch = len(given["y"]), WORKERS * per_worker
    losses = []
    for _ in range(_EPOCHS):
        total = 0.0
        for start in range(0, examples, global_batch):
            x, y = (given[name][start : start + global_batch] for name in ("x", "y"))
            chances = softmax(x @ kernel + bias)
            error = (chances - np.eye(3)[y]) * weigh(_worker_sizes(len(y), per_worker))[:, None]
            kernel, bias = kernel - _RATE * x.T @ error, bias - _RATE * error.sum(axis=0)
            total -= np.log(chances[np.arange(len(y)), y]).sum()
        losses.append(total / examples)
    return {
        "kernel": kernel,
        "bias": bias,
        "other kernel": kernel,
        "other bias": bias,
        **{f"losses of worker:{index}": losses for index in range(WORKERS)},
        "trained on": [_EPOCHS * (-(-examples // WORKERS)), _EPOCHS * (examples // WORKERS)],
    }


TRAIN = Check(
    name="train_on_two_workers",
    function="train",
    title="A custom loop on two workers",
    question="What does each worker compute alone, and what do both compute together?",
    direction=(
        "Follow one batch: which examples reach which worker, by what the loss is divided, and what"
        " happens if a worker has no example."
    ),
    cost=Cost.CLUSTER,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Holds(
            "the workers share each batch",
            _is_shared,
            lambda given, out: (
                f"of {_EPOCHS * len(given['y'])} examples in {_EPOCHS} epochs they trained on "
                f"{out['trained on']}"
            ),
        ),
        Then(
            *(Close(key, f"{key}, as one device has it", atol=1e-4) for key in _WEIGHTS),
            Holds(
                "both workers have the same weights",
                lambda given, out: _is_trained(given, out) and _are_alike(out, 1e-6),
                lambda given, out: (
                    "their weights differ: did they add up their gradients?"
                    if _is_trained(given, out)
                    else "the model has the weights that it had before"
                ),
            ),
            *(
                Close(
                    f"losses of worker:{index}",
                    f"the losses that worker:{index} returns, those of all examples",
                    atol=1e-4,
                )
                for index in range(WORKERS)
            ),
        ),
    ),
    hint="Batch the data by the global size and distribute it. In the step divide the sum "
    "of this worker's losses by the count of all workers' examples, which the replica "
    "context's all_reduce gives.",
    revisit="The loop",
    mistakes=(
        Raises(
            "unequal_steps",
            r"still waits here; worker:\d has finished|Shape mismatch in the collective",
        ).feedback(
            "One worker took more steps than the other. Its last all-reduce waited for a "
            "partner, or met a different collective. What makes the number of steps the same "
            "on all workers, even if a worker has no example left?"
        ),
        Raises(
            "outside_scope",
            r"^(AssertionError\W*)+$|Mixing different tf.distribute.Strategy objects",
        ).feedback(
            "You called `build` outside of the strategy's scope. So each worker has variables "
            "of its own, and TensorFlow refuses to update them in a step of the strategy. "
            "Where must variables be made?"
        ),
        Fault(
            "per_worker_batch_as_global", sees=_WEIGHTS, per_worker=_PER_WORKER // WORKERS
        ).feedback(
            "You distributed batches of `per_worker_batch` examples. Each worker took a part "
            "of them, so a step had only half of the intended examples. How large is a global "
            "batch?"
        ),
        Fault("nominal_batch", sees=_WEIGHTS, weigh=_nominal_batch).feedback(
            "You divided by the size of a full batch, even in the last, partial one. So its "
            "examples weigh too little. How can a worker find out how many examples all "
            "workers have in this batch?"
        ),
        Fault("mean_of_means", sees=_WEIGHTS, weigh=_mean_of_means)
        .or_with(weigh=_nan_of_nothing)
        .feedback(
            "You averaged the workers' means. In the last batch one worker has fewer examples, "
            "so each of those weighs more (and the mean of none is NaN). By which number must "
            "every example be divided?"
        ),
    ),
)

REPORTS = (
    WrittenReport(
        name="who_read_what",
        title="Two workers and one device",
        rubric=(
            RubricRow(
                "same_loss",
                1,
                "says that both log the mean over all examples, because counts or gradients are "
                "added up over the workers",
            ),
            RubricRow(
                "own_losses",
                1,
                "says that two curves would be seen, of about half of the digits each",
            ),
            RubricRow(
                "last_batch",
                2,
                "reads 2 and 1 digits off the picture (1); gives 1/4 and 1/2 in place of 1/3 (1)",
            ),
            RubricRow(
                "bytes_sent",
                2,
                "computes 2,600 bytes in a step and 15,600 in an epoch (1); says that the size of "
                "the batch does not change a step (1)",
            ),
        ),
    ),
)
