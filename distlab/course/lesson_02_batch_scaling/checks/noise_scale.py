"""A check of lesson 02: the two parts of the gradient noise scale, computed on the replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Form, Inputs, Observed, Plain, Raises
from distlab.course.runs.replicas import MOST_REPLICAS, give_each, mirrored

_STEPS = 3


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    common = draw.normal(size=(_STEPS, 1, 3))
    own = draw.normal(size=(_STEPS, MOST_REPLICAS, 3))
    return {
        "gradients": (common + own).astype("float32"),
        "per_replica": int(draw.integers(5, 30)),
    }


def _call(noise_parts: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)
    steps = []
    for gradients in inputs["gradients"]:
        given = give_each(strategy, [tf.constant(each) for each in gradients])
        answer = strategy.run(noise_parts, args=(given, inputs["per_replica"]))
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            return {"a different form": None if answer is None else type(answer).__name__}
        parts = [strategy.experimental_local_results(part) for part in answer]
        steps.append([[float(np.sum(copy)) for copy in copies] for copies in parts])
    return {"parts": [[(part * MOST_REPLICAS)[:MOST_REPLICAS] for part in two] for two in steps]}


def _read(given: Inputs, outputs: Plain) -> Plain:
    if "parts" not in outputs:
        return outputs
    parts = np.asarray(outputs["parts"], dtype="float64")  # [steps, 2, replicas]
    alike = np.allclose(parts, parts[..., :1], rtol=1e-4, atol=1e-5)
    return {"noise": parts[:, 0, 0], "signal": parts[:, 1, 0], "same": alike}


def _reference(
    given: Inputs,
    *,
    norm_as_signal: str = "",
    summed: bool = False,
    batches_of: Callable[[Inputs], tuple[int, int]] = lambda given: (
        given["per_replica"],
        given["per_replica"] * MOST_REPLICAS,
    ),
) -> Plain:
    """Noise and signal, the same on every replica."""
    gradients = np.asarray(given["gradients"], dtype="float64")
    together = gradients.sum(axis=1) if summed else gradients.mean(axis=1)
    small = (gradients**2).sum(axis=-1).mean(axis=1)
    big = (together**2).sum(axis=-1)
    few, many = batches_of(given)
    noise = (small - big) / (1 / few - 1 / many)
    signal = (many * big - few * small) / (many - few)
    signals = {"": signal, "big": big, "small": small}
    return {"noise": noise, "signal": signals[norm_as_signal], "same": True}


NOISE = Check(
    name="noise_parts",
    title="Noise and signal of a gradient, on four replicas",
    question=(
        "Which of the two norms is larger, and what does it contain that the other has less of?"
    ),
    direction=(
        "Each replica needs two squared norms: of the replicas' gradients, on average, and of "
        "their mean. One all-reduce gives each. Then put the two batch sizes in their places."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form("two numbers", lambda given, out: "noise" in out, key="a different form"),
        Close("noise", "the noise: the variance of one example's gradient", atol=1e-3, points=1.5),
        Close("signal", "the signal: the squared norm without noise", atol=1e-3, points=1.5),
    ),
    hint='small = context.all_reduce("MEAN", tf.reduce_sum(gradient**2)). The global gradient is '
    'context.all_reduce("MEAN", gradient), and big is its squared norm. b = per_replica, '
    "B = b * replicas: noise = (small - big) / (1 / b - 1 / B), signal = (B * big - b * small) / "
    "(B - b).",
    revisit='"How noisy is a gradient?" in lesson 02',
    mistakes=(
        Observed("own_norm", lambda given, out: not out["same"]).feedback(
            "You used each replica's own gradient without the others, so the replicas return "
            "different numbers. Which call gives every replica the mean of all?"
        ),
        Fault("biased_norms", norm_as_signal="big")
        .or_with(norm_as_signal="small")
        .feedback(
            "You took a norm as it is for the signal. Noise makes every norm longer, so the signal "
            "is too large and the noise scale too small. How much noise is left in the global "
            "gradient?"
        ),
        Fault("sum_for_mean", summed=True).feedback(
            "You added up the replicas' gradients. Each is a mean over its own share, so their "
            "sum is four times too long. What makes them the gradient of the global batch?"
        ),
        Fault("replicas_for_batches", batches_of=lambda given: (1, MOST_REPLICAS)).feedback(
            "You counted replicas in place of examples. Your noise is that of a whole share, and "
            "not of one example. How many examples are in each of the two gradients?"
        ),
        Raises("reduce_on_a_replica", "cross-replica context|Mixing different tf.dist").feedback(
            "You called `strategy.reduce` on a replica, and it works only outside "
            "`strategy.run`. Which object, that every replica can ask for, has an "
            "`all_reduce`?"
        ),
    ),
)
