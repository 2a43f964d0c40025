"""Checks of lesson 03: the compiled loop, and the whole one against one device's weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.batching import split_batch
from distlab.course.checks import Check, Close, Fault, Holds, Inputs, Observed, Plain, Then
from distlab.course.checks.shared_checks import SEEN, Counter, not_distributed, shares_work, softmax
from distlab.course.lesson_03_custom_training_loop.checks.losses import mean_of_means, one_device
from distlab.course.runs.replicas import MOST_REPLICAS, mirrored

# --- train_in_calls


def _loop_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    steps = [int(n) for n in draw.permutation([2, 3, 4])]
    # More batches than are asked for, so that a step too many is seen and not an error.
    values = draw.integers(1, 10, size=(sum(steps) + 4) * MOST_REPLICAS).astype("float32")
    return {"steps": steps, "values": values}


@functools.cache
def _total_variable() -> Any:
    import tensorflow as tf

    with mirrored(MOST_REPLICAS).scope():
        return tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)


def _loop_call(train_in_calls: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy, total = mirrored(MOST_REPLICAS), _total_variable()
    total.assign(0.0)
    seen: list[str] = []

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def replica_step(batch: Any) -> Any:
        seen.append(_place_of_step())
        total.assign_add(tf.reduce_sum(batch))
        return tf.reduce_sum(batch) / MOST_REPLICAS

    data = tf.data.Dataset.from_tensor_slices(inputs["values"]).batch(MOST_REPLICAS)
    iterator = iter(strategy.experimental_distribute_dataset(data))
    losses = train_in_calls(strategy, replica_step, iterator, list(inputs["steps"]))
    noted = {"traces": len(seen) / MOST_REPLICAS, "eager": "eager" in seen, "loop": "loop" in seen}
    return {"losses": losses, "total": total.numpy(), **noted}


def _place_of_step() -> str:
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


def _loop_reference(given: Inputs, *, one_batch_a_call: bool = False) -> Plain:
    """Calls that train on a batch in each step, or on one batch in all their steps."""
    steps, batches = given["steps"], given["values"].astype("float64").reshape(-1, MOST_REPLICAS)
    places = np.repeat(range(len(steps)), steps) if one_batch_a_call else np.arange(sum(steps))
    calls = np.split(batches[places], np.cumsum(steps)[:-1])
    return {
        "losses": [float(trained_on.mean()) for trained_on in calls],
        "total": float(batches[places].sum()),
        "traces": 1,
        "eager": False,
        "loop": True,
    }


CALLS = Check(
    name="train_in_calls",
    title="The compiled loop",
    question="Which of your lines does Python run at every step, and which does TensorFlow?",
    direction="Python's loop runs while the function is traced. Look for a loop, a number or a "
    "list that should be TensorFlow's.",
    inputs=_loop_inputs,
    call=_loop_call,
    reference=_loop_reference,
    criteria=(
        Holds(
            "the loop over the steps is inside the tf.function",
            lambda given, out: out["loop"] and not out["eager"],
            "Python starts every step itself",
        ),
        Then(
            Close("total", "all that was trained on, added up", atol=1e-2),
            Close("losses", "the mean loss of each call", atol=1e-3, points=0.5),
            Holds(
                "traced once for all calls",
                # A second trace is TensorFlow's own, where the first made variables.
                lambda given, out: out["traces"] <= 2,
                lambda given, out: f"`replica_step` was traced {out['traces']:g} times",
                points=0.5,
            ),
        ),
    ),
    hint="One tf.function with the arguments `iterator` and `steps`. In it, a loop over "
    "tf.range(steps) that calls next(iterator). Give it `steps` as tf.constant(n).",
    revisit="Compile the loop",
    mistakes=(
        Fault("same_batch_again", sees="total", one_batch_a_call=True).feedback(
            "All steps of a call train on the same batch. The other batches come one call later. "
            "Where do you call next(iterator)?"
        ),
        Observed("never_compiled", lambda given, out: out["eager"]).feedback(
            "Nothing in your answer is compiled. Python starts every operation of every step. "
            "Which decorator makes a graph of a function?"
        ),
        Observed("retraces", lambda given, out: out["loop"] and out["traces"] > 2).feedback(
            "Your function is traced again for every call, which costs more than the steps. "
            "TensorFlow traces again for a new Python number and for a new tf.function. Which of "
            "the two happens in each of your calls?"
        ),
        Observed("unrolled", lambda given, out: not out["loop"] and out["traces"] > 2).feedback(
            "Python ran your loop while it was traced. The graph has a copy of each step, and "
            "every number of steps needs its own graph. Which range does TensorFlow run itself?"
        ),
        Observed("syncs_each_step", lambda given, out: not out["loop"]).feedback(
            "You compiled one step, and Python starts each one. Python then waits for every step. "
            "Which of your loops could move into the tf.function?"
        ),
    ),
)

# --- train

_RATE, _MOMENTUM, _L2 = 0.3, 0.5, 0.05
_BATCH, _EXAMPLES, _EPOCHS = 16, 42, 2  # the last batch: 3, 3, 3 and 1
_BUILT_LATE = "built in the trace"


def _train_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(_EXAMPLES, 4)).astype("float32")
    y = draw.integers(0, 3, size=_EXAMPLES).astype("int32")
    kernel = draw.normal(size=(4, 3)).astype("float32")
    return {"x": x, "y": y, "has_label": _draw_labels(draw), "kernel": kernel, "epochs": _EPOCHS}


def _draw_labels(draw: Any) -> Any:
    """1 for an example with a label, else 0; some have one on each replica, not all on any four."""
    parts = []
    for start in range(0, _EXAMPLES, _BATCH):
        for share in split_batch(min(_BATCH, _EXAMPLES - start), MOST_REPLICAS):
            labelled = int(draw.integers(1, max(share, 2)))
            parts.append(draw.permutation(np.arange(share) < labelled))
    return np.concatenate(parts).astype("float32")


def _train_call(train: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras
    import tensorflow as tf

    strategy, built = mirrored(MOST_REPLICAS), list[bool]()

    class Notes(keras.layers.Layer):  # type: ignore[misc]
        """Notes whether the optimizer is built when a replica's step is traced."""

        def call(self, x: Any) -> Any:
            in_replica = not tf.distribute.in_cross_replica_context()
            if not tf.executing_eagerly() and in_replica:
                built.append(model.optimizer.built)
            return x

        def compute_output_spec(self, x: Any) -> Any:
            return keras.KerasTensor(x.shape, self.compute_dtype)

    with strategy.scope():
        dense = keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(_L2))
        counter = Counter(strategy)
        model = keras.Sequential([keras.Input((4,)), counter.layer(), Notes(), dense])
        model.compile(keras.optimizers.SGD(_RATE, momentum=_MOMENTUM))
    model.set_weights([inputs["kernel"], np.zeros(3)])
    arrays = (inputs["x"], inputs["y"], inputs["has_label"])
    train(strategy, model, tf.data.Dataset.from_tensor_slices(arrays).batch(_BATCH), _EPOCHS)
    weights = {"kernel": dense.kernel.numpy(), "bias": dense.bias.numpy()}
    is_late = bool(built) and not built[0] and model.optimizer.built
    return {**weights, SEEN: counter.on_replicas(), _BUILT_LATE: is_late}


def _train_reference(
    given: Inputs,
    *,
    weigh: Callable[[Any], Any] = one_device,
    penalties: int = 1,
) -> Plain:
    """Softmax regression by SGD on one device; `weigh` gives the weight of each example."""
    weights = {"kernel": given["kernel"].astype("float64"), "bias": np.zeros(3)}
    speed = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for _ in range(_EPOCHS):
        for start in range(0, _EXAMPLES, _BATCH):
            x, y, has_label = (
                given[name][start : start + _BATCH] for name in ("x", "y", "has_label")
            )
            weigh_each = weigh(has_label.astype("float64"))[:, None]
            logits = x @ weights["kernel"] + weights["bias"]
            error = (softmax(logits) - np.eye(3)[y]) * weigh_each
            gradients = {
                "kernel": x.T @ error + 2 * _L2 * penalties * weights["kernel"],
                "bias": error.sum(axis=0),
            }
            for name, gradient in gradients.items():
                speed[name] = _MOMENTUM * speed[name] - _RATE * gradient
                weights[name] = weights[name] + speed[name]
    return {**weights, SEEN: [11 * _EPOCHS] * 3 + [9 * _EPOCHS], _BUILT_LATE: False}


def _keras_mean(has_label: Any) -> Any:
    """Keras's own reduction: it divides by the replica's examples, labelled or not."""
    shares = split_batch(len(has_label), MOST_REPLICAS)
    return has_label / (MOST_REPLICAS * np.repeat(shares, shares))


def _examples_of(given: Inputs) -> int:
    return _EXAMPLES * _EPOCHS


TRAIN = Check(
    name="train",
    title="The whole loop",
    question="After which step do your weights first differ from those of one device?",
    direction="Check the parts one by one: the weight of each example in the loss, the penalty, "
    "the partial batch, and the number of epochs.",
    inputs=_train_inputs,
    call=_train_call,
    reference=_train_reference,
    criteria=(
        Close("kernel", "the kernel is one device's", atol=1e-4),
        Close("bias", "the bias is one device's", atol=1e-4, points=0.5),
        Then(
            shares_work(_examples_of, points=1),
            Holds(
                "the optimizer's variables are there before the loop is compiled",
                lambda given, out: not out[_BUILT_LATE],
                "they are made while the loop is traced",
                points=0.5,
            ),
        ),
    ),
    hint="Take your `exact_loss`, with `has_label` in the place of `is_token`, and add the penalty "
    "divided by the number of replicas. Call model.optimizer.build(...) in the scope. The step "
    "runs inside strategy.run and calls model.optimizer.apply.",
    revisit="The right loss",
    mistakes=(
        Fault("mean_of_means", weigh=mean_of_means)
        .or_with(weigh=_keras_mean)
        .feedback(
            "You averaged the replicas' means. An example then weighs more on a replica that has "
            "few labels. What would each replica have to know to give every example the same "
            "weight?"
        ),
        Fault(
            "reduced_twice",
            weigh=lambda has_label: MOST_REPLICAS * one_device(has_label),
            penalties=MOST_REPLICAS,
        ).feedback(
            "Your steps are four times too long, for the loss and the penalty alike. You add up "
            "the gradients of all replicas, and something else does it as well. What does "
            "`model.optimizer.apply` do before it updates?"
        ),
        Fault("l2_unscaled", penalties=MOST_REPLICAS).feedback(
            "Every replica adds the whole penalty. It counts four times, and pulls the weights too "
            "hard towards zero. What part of it should each replica add?"
        ),
        not_distributed(_examples_of),
        Observed("optimizer_built_late", lambda given, out: out[_BUILT_LATE]).feedback(
            "The optimizer makes its variables while your loop is compiled. Here that costs a "
            "second trace. With TensorFlow's default all-reduce your loop would crash. Which call "
            "makes them earlier, and in whose scope?"
        ),
    ),
)
