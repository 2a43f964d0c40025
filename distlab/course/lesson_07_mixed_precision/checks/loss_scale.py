"""Checks of lesson 07: a dynamic loss scale on four replicas, and a loop with a fixed scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Fault, Holds, Inputs, Observed, Plain, Raises, Then
from distlab.course.checks.rubric import RubricRow, WrittenReport
from distlab.course.checks.shared_checks import SEEN, Counter, shares_work
from distlab.course.runs.replicas import MOST_REPLICAS, give_each, mirrored, take_each

# --- scaled_update

_STEPS, _START, _CLIP, _GROW_EVERY = 12, 1024.0, 1.0, 3
_OVERFLOWS = [2, 9]  # the steps to leave out; between them the scale grows twice


def _update_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    gradients = draw.normal(size=(_STEPS, MOST_REPLICAS, 3))
    # The sum has a norm of 0.5 in some steps and of 2 in others: clipping must let some pass.
    norms = np.linalg.norm(gradients.sum(axis=1), axis=-1)
    wanted = draw.permutation([0.5, 2.0] * 6)[:_STEPS]
    gradients *= (wanted / norms)[:, None, None]
    # 100 times the scale is more than float16 holds; half of that is not. One number is enough to
    # lose a step, and two of different signs add up to NaN.
    other, place = int(draw.integers(1, MOST_REPLICAS)), int(draw.integers(3))
    gradients[2, other, place] = 100.0
    gradients[3, other, place] = 100.0
    gradients[9, 0, place] = 100.0
    gradients[9, other, place] = -100.0
    return {"gradients": gradients.astype("float32"), "other": other}


def _in_float16(gradient: Any, scale: Any) -> Any:
    """A replica's gradient of the scaled loss, as it comes out of float16."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (gradient * scale).astype("float16").astype("float32")


def _update_call(scaled_update: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)
    scales, good = [_START] * MOST_REPLICAS, [0] * MOST_REPLICAS
    seen: dict[str, list[Any]] = {"steps": [], "scales": []}
    for gradients in inputs["gradients"]:
        rounded = [_in_float16(g, s) for g, s in zip(gradients, scales, strict=True)]
        given = (
            give_each(strategy, [tf.constant(g) for g in rounded]),
            give_each(strategy, [tf.constant(s, tf.float32) for s in scales]),
            give_each(strategy, [tf.constant(n, tf.int32) for n in good]),
        )
        answer = strategy.run(scaled_update, args=(*given, _CLIP, _GROW_EVERY))
        three = isinstance(answer, (tuple, list)) and len(answer) == 3
        parts = [take_each(strategy, part) for part in answer] if three else []
        if [{np.size(copy) for copy in part} for part in parts] != [{3}, {1}, {1}]:
            raise TypeError(
                "return three things: the step, a vector; the scale and the good steps, a number "
                "each"
            )
        step, scale, count = parts
        scales, good = [float(s) for s in scale], [int(n) for n in count]
        seen["steps"].append(np.array([np.asarray(s, dtype="float64") for s in step]))
        seen["scales"].append(list(scales))
    return {name: np.array(values) for name, values in seen.items()}


def _update_read(given: Inputs, outputs: Plain) -> Plain:
    """Replica 0's steps and scales; whether the others have the same, and what was left out."""
    steps, scales = outputs["steps"], outputs["scales"]
    before = np.concatenate([np.full((1, MOST_REPLICAS), _START), scales[:-1]])
    # Whether a replica overflows in a step, with the scales that the answer keeps.
    lost = ~np.isfinite(_in_float16(given["gradients"], before[..., None])).all(axis=(1, 2))
    alike = [np.allclose(step, step[:1], atol=1e-6, equal_nan=True) for step in steps]
    return {
        "steps": np.delete(steps[:, 0], _OVERFLOWS, axis=0),
        "scales": scales[:, 0],
        "finite": bool(np.isfinite(steps).all()),
        "stood still": bool((steps[lost] == 0).all()),
        "same steps": all(alike),
        "same scales": bool((scales == scales[:, :1]).all()),
    }


def _update_reference(
    given: Inputs, *, parts: int = 1, unscale: bool = True, clip: str = "after"
) -> Plain:
    """Returns the steps and scales of all replicas; `clip`: before or after unscaling, or never."""
    scale, good = _START, 0
    steps, scales = [], []
    for gradients in given["gradients"]:
        with np.errstate(invalid="ignore"):
            total = _in_float16(gradients, scale).astype("float64").sum(axis=0) / parts
        if np.isfinite(total).all():
            total = _clipped(total) if clip == "before" else total
            step = total / scale if unscale else total
            step = _clipped(step) if clip == "after" else step
            good += 1
        else:
            step, scale, good = np.zeros(3), scale / 2, 0
        if good == _GROW_EVERY:
            scale, good = scale * 2, 0
        steps.append(step)
        scales.append(scale)
    right = ("finite", "stood still", "same steps", "same scales")
    taken = np.delete(steps, _OVERFLOWS, axis=0)
    return {"steps": taken, "scales": scales, **dict.fromkeys(right, True)}


def _clipped(gradient: Any) -> Any:
    return gradient * min(1.0, _CLIP / max(float(np.linalg.norm(gradient)), 1e-12))


def _shorter_than_the_scale(given: Inputs, out: Plain) -> bool:
    """Whether the scaled gradient was clipped: steps so short that few digits tell them from 0."""
    wrong = _update_reference(given, clip="before")["steps"]
    return np.allclose(out["steps"], wrong, rtol=5e-6, atol=5e-6)


UPDATE = Check(
    name="scaled_update",
    title="A dynamic loss scale, on four replicas",
    question="What does each replica know about an overflow on a different replica?",
    direction="Decide for each operation whether it comes before or after the all-reduce, and "
    "before or after the division by the scale.",
    inputs=_update_inputs,
    call=_update_call,
    read=_update_read,
    reference=_update_reference,
    criteria=(
        Close("steps", "the steps: global, unscaled, clipped", atol=5e-3, points=2),
        Close("scales", "the scale after each step", atol=0.1, points=1),
        Then(
            Holds(
                "no step where a replica overflowed",
                lambda given, out: out["stood still"],
                "the weights moved in a step in which a gradient was infinite",
                points=0.5,
            ),
            Holds(
                "all replicas do the same",
                lambda given, out: out["same steps"] and out["same scales"],
                "in some step, two replicas stepped or scaled differently",
                points=0.5,
            ),
            after=any,  # zeros alone skip nothing
        ),
    ),
    hint="In this order: context.all_reduce, tf.math.is_finite, divide by the scale, "
    "tf.clip_by_norm, and then tf.where(finite, ..., ...) for each of the three things you return.",
    revisit='"One replica overflows" in lesson 07',
    mistakes=(
        Observed("local_finite_check", lambda given, out: not out["same scales"]).feedback(
            "You checked each replica's own gradient. Only the replica that overflowed skips and "
            "halves, and the copies drift apart. Which gradient is the same on every replica?"
        ),
        Observed("no_skip_on_inf", lambda given, out: not out["finite"]).feedback(
            "You applied a gradient that is infinite or NaN, and one such step destroys the "
            "weights. Dividing or clipping does not make it finite. What should `step` be then?"
        ),
        Observed("clip_before_unscale", _shorter_than_the_scale).feedback(
            "You clipped the scaled gradient, and divided by the scale afterwards. No step is "
            "longer than clip_norm / scale, and training stands still. For which gradient was "
            "`clip_norm` chosen?"
        ),
        Fault("never_unscaled", unscale=False)
        .or_with(unscale=False, clip="never")
        .feedback(
            "You returned the gradient of the scaled loss, at most clipped. Its length says "
            "nothing about the true gradient. What undoes the multiplication by `scale`?"
        ),
        Fault("mean_for_sum", parts=MOST_REPLICAS).feedback(
            "You took the mean over the replicas. Each replica's loss was already divided by the "
            "global batch, so your steps are four times too small. How do four shares become a "
            "whole?"
        ),
    ),
)


# --- train_float16

# So small that a gradient is about 2^-27, which float16 rounds to 0. The rate makes up for it.
_SIZE, _BATCH, _BATCHES, _FEATURES = 2.0**-13, 16, 3, 3
_RATE, _SCALE = 2.0**24, 2.0**15
_IN_PLAIN_SIGHT = 1e8  # losses are shown times this


def _train_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    examples = _BATCH * _BATCHES
    x = draw.uniform(0.5, 1.0, size=(examples, _FEATURES)) * _SIZE
    x *= draw.choice([-1, 1], size=x.shape)
    x = x.astype("float16").astype("float32")
    wanted = draw.uniform(0.5, 1.0, size=_FEATURES) * draw.choice([-1, 1], size=_FEATURES)
    return {"x": x, "y": (x @ wanted).astype("float32")[:, None]}


def _train_call(train: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras
    import tensorflow as tf

    from distlab.precision import mixed_precision

    strategy = mirrored(MOST_REPLICAS)
    with mixed_precision("mixed_float16"), strategy.scope():
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        as_float32 = keras.layers.Activation("linear", dtype="float32")
        counter = Counter(strategy)
        layers = [keras.Input((_FEATURES,)), counter.layer(), dense, as_float32]
        model = keras.Sequential(layers)
        optimizer = keras.optimizers.SGD(_RATE)
        optimizer.build(model.trainable_variables)
    data = tf.data.Dataset.from_tensor_slices((inputs["x"], inputs["y"])).batch(_BATCH)
    losses = train(strategy, model, optimizer, data, _SCALE)
    kernel = dense.kernel.numpy().ravel()
    return {"kernel": kernel, "losses": losses, SEEN: counter.on_replicas()}


def _train_read(given: Inputs, outputs: Plain) -> Plain:
    try:
        losses = np.multiply(outputs["losses"], _IN_PLAIN_SIGHT)
    except TypeError:  # None, or words
        return outputs
    return {**outputs, "losses": losses}


def _train_reference(given: Inputs, *, factor: float = 1.0, logged: float = 1.0) -> Plain:
    """Linear regression by SGD in float64, the gradient and the losses times a factor."""
    kernel, losses = np.zeros((_FEATURES, 1)), []
    for start in range(0, len(given["x"]), _BATCH):
        x, y = (given[name][start : start + _BATCH].astype("float64") for name in ("x", "y"))
        error = x @ kernel - y
        losses.append(float(np.mean(error**2)) * logged * _IN_PLAIN_SIGHT)
        kernel = kernel - _RATE * factor * 2 * x.T @ error / _BATCH
    share = _BATCH * _BATCHES // MOST_REPLICAS
    return {"kernel": kernel.ravel(), "losses": losses, SEEN: [share] * MOST_REPLICAS}


def _exploded(given: Inputs, out: Plain) -> bool:
    return not (np.abs(out["kernel"]) < 100).all()  # of weights below 1; NaN as well


def _examples_of(given: Inputs) -> int:
    return len(given["x"])


TRAIN = Check(
    name="train_float16",
    function="train",
    title="A loop in float16, with SGD on four replicas",
    question="Which of your numbers are small enough to become 0 in float16?",
    direction="Follow the scale through one step: where it comes in, where it must be gone again, "
    "and which loss you return.",
    inputs=_train_inputs,
    call=_train_call,
    read=_train_read,
    reference=_train_reference,
    criteria=(
        Close("kernel", "the weights, float32's on one device", atol=5e-3, points=2),
        # Losses of other weights are no losses to compare.
        Then(
            Close("losses", f"the losses, times {_IN_PLAIN_SIGHT:g}", atol=0.03, points=0.5),
            shares_work(_examples_of, points=0.5),
        ),
    ),
    hint="Multiply the loss by `scale` inside the tape. After tape.gradient, divide each gradient "
    "by `scale`. Return the loss from before the multiplication.",
    revisit='"Scale the loss" in lesson 07',
    mistakes=(
        Raises(
            "scaled_outside_tape",
            "'NoneType' and|No gradients provided|NoneType.* to (a )?[Tt]ensor",
        ).feedback(
            "You asked the tape for the gradient of a number that it has not seen being computed, "
            "so a gradient is None. Which of your lines belongs inside the `with`?"
        ),
        Fault("never_scaled", sees="kernel", factor=0.0).feedback(
            "You did not scale the loss before the gradient was taken. Every gradient was 0 in "
            "float16, and the weights did not move. Where must the loss be multiplied?"
        ),
        Observed("never_unscaled", _exploded).feedback(
            "You gave the optimizer the gradients of the scaled loss. With SGD this is a learning "
            "rate 32768 times too high, and the weights exploded. What must happen to each "
            "gradient first?"
        ),
        Fault("not_divided", sees="kernel", factor=float(MOST_REPLICAS)).feedback(
            "You took the mean over each replica's own examples. The optimizer adds the four "
            "gradients up, so your steps are four times too long. By how many examples must each "
            "replica divide?"
        ),
        Fault("scaled_loss_logged", logged=_SCALE).feedback(
            "You trained correctly and returned the scaled losses, which are 32768 times too "
            "large. Which loss does a reader of your log expect?"
        ),
    ),
)

REPORTS = (
    WrittenReport(
        name="what_float16_loses",
        title="What float16 loses, and what a loss scale saves",
        rubric=(
            RubricRow(
                "lost_where",
                2,
                "says that the gradients become 0, not the loss or the predictions (1); compares "
                "their size with float16's smallest number (1)",
            ),
            RubricRow(
                "skipped_steps",
                2,
                "explains the first skipped steps by a start that is too high, and the later ones "
                "by the doubling (1); names their price and what lowers it (1)",
            ),
            RubricRow("which_device", 1, "T4 yes, H200 and TPU no, because bfloat16 is fast there"),
            RubricRow(
                "why_bfloat16", 1, "says that bfloat16 has float32's exponents, and fewer digits"
            ),
        ),
    ),
)
