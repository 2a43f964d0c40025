"""A check of lesson 07: the dynamic loss scale, on four replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close, expect_true
from distlab.grading.replicas import MOST_REPLICAS, give_each, mirrored

_STEPS, _START, _CLIP, _GROW_EVERY = 11, 1024.0, 1.0, 3


def _inputs(seed: int) -> Inputs:
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
    gradients[8, 0, place] = 100.0
    gradients[8, other, place] = -100.0
    return {"gradients": gradients.astype("float32"), "other": other}


def _in_float16(gradient: Any, scale: Any) -> Any:
    """A replica's gradient of the scaled loss, as it comes out of float16."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (gradient * scale).astype("float16").astype("float32")


def _call(scaled_update: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)
    scales, good = [_START] * MOST_REPLICAS, [0] * MOST_REPLICAS
    seen: dict[str, list[Any]] = {"steps": [], "scales": [], "good": []}
    for gradients in inputs["gradients"]:
        rounded = [_in_float16(g, s) for g, s in zip(gradients, scales, strict=True)]
        given = (
            give_each(strategy, [tf.constant(g) for g in rounded]),
            give_each(strategy, [tf.constant(s, tf.float32) for s in scales]),
            give_each(strategy, [tf.constant(n, tf.int32) for n in good]),
        )
        answer = strategy.run(scaled_update, args=(*given, _CLIP, _GROW_EVERY))
        three = isinstance(answer, (tuple, list)) and len(answer) == 3
        parts = [_each(strategy, part) for part in answer] if three else []
        if [{np.size(one) for one in part} for part in parts] != [{3}, {1}, {1}]:
            raise TypeError(
                "return three things: the step, a vector; the scale and the good steps, a number "
                "each"
            )
        step, scale, count = parts
        scales, good = [float(s) for s in scale], [int(n) for n in count]
        seen["steps"].append(np.array([np.asarray(s, dtype="float64") for s in step]))
        seen["scales"].append(list(scales))
        seen["good"].append(list(good))
    return {name: np.array(values) for name, values in seen.items()}


def _each(strategy: Any, value: Any) -> Any:
    """A value for each replica, also where all returned one and the same object."""
    values = strategy.experimental_local_results(value)
    return values if len(values) == MOST_REPLICAS else values * MOST_REPLICAS


def _results(
    inputs: Inputs,
    *,
    combine: str = "SUM",
    unscale: bool = True,
    clip: str = "after",
    grow_after: int = _GROW_EVERY,
    shrink: float = 0.5,
    reset: bool = True,
    restart: bool = True,
    by_next: bool = False,
) -> Plain:
    """What a loss scale with these properties gives, the same on every replica."""
    scale, good = _START, 0
    steps, scales = [], []
    for gradients in inputs["gradients"].astype("float64"):
        rounded = np.array([_in_float16(g.astype("float32"), scale) for g in gradients])
        with np.errstate(invalid="ignore"):
            if clip == "own":
                rounded = np.array([_clipped(each / scale) * scale for each in rounded])
            total = rounded.astype("float64").sum(axis=0) / (4 if combine == "MEAN" else 1)
        if np.isfinite(total).all():
            if clip == "before":
                total = _clipped(total)
            doubles = 2 if by_next and good + 1 == grow_after else 1
            step = total / (scale * doubles) if unscale else total
            step = _clipped(step) if clip == "after" else step
            good += 1
        else:
            step, scale = np.zeros(3), scale * shrink
            good = 0 if reset else good
        if good >= grow_after:
            scale, good = scale * 2, 0 if restart else good
        steps.append([step] * MOST_REPLICAS)
        scales.append([scale] * MOST_REPLICAS)
    return {"steps": np.array(steps), "scales": np.array(scales)}


def _clipped(gradient: Any) -> Any:
    return gradient * min(1.0, _CLIP / max(float(np.linalg.norm(gradient)), 1e-12))


def _overflowed(inputs: Inputs) -> Any:
    """For each step, whether a replica overflows in it where the scale is kept rightly."""
    return ~_results(inputs)["steps"].any(axis=(1, 2))


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    right, skipped = _results(inputs), _overflowed(inputs)
    steps, scales = outputs["steps"], outputs["scales"]
    same = bool((scales == scales[:, :1]).all()) and _agree(steps)
    taken = expect_close(
        "the steps: global, unscaled, clipped",
        yours=steps[~skipped][:, 0],
        expected=right["steps"][~skipped][:, 0],
        atol=5e-3,
        weight=2,
    )
    halved_then_grown = expect_close(
        "the scale after each step", yours=scales[:, 0], expected=right["scales"][:, 0], atol=0.1
    )
    if not (taken.passed or halved_then_grown.passed):
        return Verdict.of(taken, halved_then_grown)  # zeros alone skip nothing
    return Verdict.of(
        taken,
        halved_then_grown,
        expect_true(
            "no step where a replica overflowed",
            (steps[_lost(inputs, outputs)] == 0).all(),
            message="the weights moved in a step in which a gradient was infinite",
        ),
        expect_true(
            "all replicas do the same",
            same,
            message="in some step one replica stepped or scaled otherwise than another",
        ),
    )


def _agree(steps: Any) -> bool:
    return bool(np.allclose(steps, steps[:, :1], atol=1e-6, equal_nan=True))


def _steps_of(**how: Any) -> Callable[[Inputs], Plain]:
    return lambda inputs: {"steps": _results(inputs, **how)["steps"]}


def _scales_of(**how: Any) -> Callable[[Inputs], Plain]:
    return lambda inputs: {"scales": _results(inputs, **how)["scales"]}


def _lost(inputs: Inputs, outputs: Plain) -> Any:
    """For each step, whether a replica overflows in it with the scales that the answer keeps."""
    before = np.concatenate([np.full((1, MOST_REPLICAS), _START), outputs["scales"][:-1]])
    scaled = _in_float16(inputs["gradients"], before[..., None])
    return ~np.isfinite(scaled).all(axis=(1, 2))


def _only_partly_left_out(inputs: Inputs, outputs: Plain) -> bool:
    steps = outputs["steps"]
    return bool(np.isfinite(steps).all() and steps[_lost(inputs, outputs)].any())


def _never_unscaled(inputs: Inputs, outputs: Plain) -> bool:
    wrong = [_results(inputs, unscale=False, clip=clip)["steps"] for clip in ("after", "never")]
    return any(np.allclose(outputs["steps"], steps, rtol=1e-3, atol=5e-3) for steps in wrong)


UPDATE = Check(
    name="scaled_update",
    function="scaled_update",
    title="A loss scale that finds itself, on four replicas",
    points=4,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="In this order: all_reduce, is_finite, divide by the scale, clip, and then `tf.where("
    "finite, ..., ...)` for each of the three things you return.",
    revisit="With replicas: who looks?",
    mistakes=(
        Mistake(
            "not_reduced",
            "Each replica takes a step of its own. Add the gradients up over the replicas first.",
            when=lambda inputs, outputs: not _agree(outputs["steps"][:1]),
        ),
        Mistake(
            "local_finite_check",
            "Each replica looks at its own gradient, so only the one that overflowed skips and "
            "halves, and the copies drift apart. Look at the reduced gradient: it is the same "
            "everywhere.",
            when=lambda inputs, outputs: bool(
                (outputs["scales"] != outputs["scales"][:, :1]).any()
            ),
        ),
        Mistake(
            "no_skip_on_inf",
            "An infinite gradient went into the weights. Divided by the scale it is infinite "
            "still, and clipped it is NaN: such a step must be left out.",
            when=lambda inputs, outputs: not np.isfinite(outputs["steps"]).all(),
        ),
        Mistake(
            "only_partly_left_out",
            "Where one number of the gradient is infinite, the whole step is left out: the others "
            "would go in another direction.",
            when=_only_partly_left_out,
        ),
        Mistake(
            "clipped_before_the_sum",
            "You clip what each replica has, and add up then. Clip the gradient of the global "
            "batch.",
            yields=_steps_of(clip="own"),
            atol=5e-3,
        ),
        Mistake(
            "divided_by_next_scale",
            "In a step that doubles the scale you divide by the new one. The gradient was "
            "multiplied by the one that you were given.",
            yields=_steps_of(by_next=True),
            atol=5e-3,
        ),
        Mistake(
            "clip_before_unscale",
            "You clip the scaled gradient and divide then: no step is longer than 1 / scale, and "
            "training stands still.",
            yields=_steps_of(clip="before"),
            atol=5e-6,
        ),
        Mistake(
            "never_clipped",
            "Long steps come through unclipped.",
            yields=_steps_of(clip="never"),
            atol=5e-3,
        ),
        Mistake(
            "never_unscaled",
            "The step is still as large as the scaled gradient, or as far as the clipping lets "
            "it: divide by the scale first.",
            when=_never_unscaled,
        ),
        Mistake(
            "mean_for_sum",
            "Each replica's loss was divided by the global batch already, so the gradients are "
            "added up. A mean is four times too small.",
            yields=_steps_of(combine="MEAN"),
            atol=5e-3,
        ),
        Mistake(
            "never_halved",
            "The scale is as high after an overflow as before it, so the next step will overflow "
            "too.",
            yields=_scales_of(shrink=1.0),
        ),
        Mistake(
            "never_grows",
            "The scale only falls: after `grow_every` good steps in a row it doubles.",
            yields=_scales_of(grow_after=10**6),
        ),
        Mistake(
            "counter_not_reset",
            "Good steps count only in a row: after an overflow the count starts at 0 again.",
            yields=_scales_of(reset=False),
        ),
        Mistake(
            "count_goes_on",
            "After a doubling the count starts at 0 again. Yours goes on, and the scale doubles "
            "in every step.",
            yields=_scales_of(restart=False),
        ),
        Mistake(
            "one_step_early",
            "The scale doubles one step too early: `grow_every` good steps make a row.",
            yields=_scales_of(grow_after=_GROW_EVERY - 1),
        ),
        Mistake(
            "one_step_late",
            "The scale doubles one step too late: it is due after the good step that completes "
            "the row.",
            yields=_scales_of(grow_after=_GROW_EVERY + 1),
        ),
    ),
)
