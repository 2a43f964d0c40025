"""Two checks of lesson 03: the compiled loop, and the whole loop against one device's weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close, expect_true
from distlab.grading.lesson_03_custom_training_loop.gradients import (
    mean_of_means,
    one_device,
    share_of_each,
    softmax,
)
from distlab.grading.replicas import MOST_REPLICAS, mirrored

# --- train_in_calls -------------------------------------------------------------------------


def _calls_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    steps = [int(n) for n in draw.permutation([2, 3, 4])]
    # More batches than are asked for, so that a step too many is seen and not an error.
    values = draw.integers(1, 10, size=(sum(steps) + 4) * MOST_REPLICAS).astype("float32")
    return {"steps": steps, "values": values}


@functools.cache
def _total() -> Any:
    import tensorflow as tf

    with mirrored(MOST_REPLICAS).scope():
        return tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)


def _calls_call(train_in_calls: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy, total = mirrored(MOST_REPLICAS), _total()
    total.assign(0.0)
    seen: list[str] = []

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def replica_step(batch: Any) -> Any:
        seen.append(_where())
        total.assign_add(tf.reduce_sum(batch))
        return tf.reduce_sum(batch) / MOST_REPLICAS

    data = tf.data.Dataset.from_tensor_slices(inputs["values"]).batch(MOST_REPLICAS)
    iterator = iter(strategy.experimental_distribute_dataset(data))
    losses = train_in_calls(strategy, replica_step, iterator, list(inputs["steps"]))
    return {
        "losses": None if losses is None else [float(loss) for loss in losses],
        "total": total.numpy(),
        "times called": len(seen) / MOST_REPLICAS,
        "eager": "eager" in seen,
        "looped": "loop" in seen,
    }


def _where() -> str:
    """Whether a replica's step runs eagerly, or is traced inside a loop of the graph, or not."""
    import tensorflow as tf

    if tf.executing_eagerly():
        return "eager"
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if "WhileBody" in type(graph).__name__:
            return "loop"
        graph = getattr(graph, "outer_graph", None)
    return "graph"


def _calls_results(inputs: Inputs, *, fewer: int = 0, summed: bool = False) -> Plain:
    batches = inputs["values"].reshape(-1, MOST_REPLICAS).mean(axis=1)
    losses, start = [], 0
    for steps in inputs["steps"]:
        taken = batches[start : start + steps - fewer]
        losses.append(float(taken.sum() if summed else taken.mean()))
        start += steps - fewer
    return {"losses": losses, "total": MOST_REPLICAS * batches[:start].sum()}


def _calls_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    right = _calls_results(inputs)
    compiled = outputs["looped"] and not outputs["eager"]
    trained = expect_close(
        "what was trained on", yours=outputs["total"], expected=right["total"], atol=1e-2
    )
    if not trained.passed:  # how it was done counts only where something was done
        return Verdict.of(trained)
    return Verdict.of(
        trained,
        expect_close(
            "the mean loss of each call",
            yours=outputs["losses"],
            expected=right["losses"],
            atol=1e-3,
        ),
        expect_true(
            "the loop over the steps is inside the tf.function",
            compiled,
            message="Python goes round the loop, once for every step",
        ),
        expect_true(
            "traced once for all calls",
            # A second trace is TensorFlow's own, where the first made variables.
            compiled and outputs["times called"] <= 2,
            message=f"`replica_step` was traced {outputs['times called']:g} times",
        ),
    )


# --- train ----------------------------------------------------------------------------------

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
        model = keras.Sequential([keras.Input((4,)), dense])
        model.compile(keras.optimizers.SGD(_RATE))
    model.set_weights([inputs["kernel"], np.zeros(3)])
    dataset = tf.data.Dataset.from_tensor_slices((inputs["x"], inputs["y"])).batch(_BATCH)
    train(strategy, model, dataset, inputs["epochs"])
    return {"kernel": dense.kernel.numpy(), "bias": dense.bias.numpy()}


def _train_results(
    inputs: Inputs,
    *,
    weight_of: Callable[[Any], Any] = one_device,
    penalties: int = 1,
    epochs: int | None = None,
) -> Plain:
    """Softmax regression by SGD, example weights and the number of penalties as given."""
    kernel, bias = inputs["kernel"].astype("float64"), np.zeros(3)
    for _ in range(epochs or inputs["epochs"]):
        for start in range(0, _EXAMPLES, _BATCH):
            x, y = (inputs[name][start : start + _BATCH] for name in ("x", "y"))
            weights = weight_of(share_of_each(len(y)))[:, None]
            error = (softmax(x @ kernel + bias) - np.eye(3)[y]) * weights
            kernel = kernel - _RATE * (x.T @ error + 2 * _L2 * penalties * kernel)
            bias = bias - _RATE * error.sum(axis=0)
    return {"kernel": kernel, "bias": bias}


def _train_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    right = _train_results(inputs)
    return Verdict.of(
        *(
            expect_close(f"{name}, one device's", yours=outputs[name], expected=value, atol=1e-4)
            for name, value in right.items()
        ),
    )


def _trains(**how: Any) -> Callable[[Inputs], Plain]:
    return lambda inputs: _train_results(inputs, **how)


LOOP_CHECKS = (
    Check(
        name="train_in_calls",
        function="train_in_calls",
        title="The compiled loop",
        points=3,
        inputs=_calls_inputs,
        call=_calls_call,
        judge=_calls_judge,
        hint="One tf.function with the arguments `iterator` and `steps`, in it a loop over "
        "tf.range(steps) that calls next(iterator). Give it `steps` as tf.constant(n).",
        revisit="Compile the loop",
        mistakes=(
            Mistake(
                "one_step_short",
                "Each call takes one step less than asked: where does your range end?",
                when=lambda inputs, outputs: np.isclose(
                    outputs["total"], _calls_results(inputs, fewer=1)["total"]
                ),
            ),
            Mistake(
                "never_compiled",
                "Nothing is compiled: every step runs operation by operation.",
                when=lambda inputs, outputs: outputs["eager"],
            ),
            Mistake(
                "retraces",
                "A Python number as `steps` is part of what was traced: each new number is "
                "traced anew. Give a tensor.",
                when=lambda inputs, outputs: outputs["looped"] and outputs["times called"] > 2,
            ),
            Mistake(
                "unrolled",
                "A Python `range` inside a tf.function writes each step into the graph, one "
                "after the other. Use tf.range.",
                when=lambda inputs, outputs: not outputs["looped"] and outputs["times called"] > 2,
            ),
            Mistake(
                "syncs_each_step",
                "One step is compiled, but Python starts each one and waits for it. Put the loop "
                "inside the tf.function.",
                when=lambda inputs, outputs: not outputs["looped"],
            ),
            Mistake(
                "sum_for_mean",
                "These are the sums over the steps of a call; the mean was asked for.",
                yields=lambda inputs: {"losses": _calls_results(inputs, summed=True)["losses"]},
            ),
        ),
    ),
    Check(
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
        ),
    ),
)
