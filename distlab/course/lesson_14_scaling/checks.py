"""Checks of lesson 14: a timer, efficiencies, alpha and beta, the fastest number of replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Equal, Fault, Form, Inputs, Plain, Then
from distlab.course.checks.rubric import RubricRow, WrittenReport

# --- step_timer: the seconds of one step, on a device that computes while Python goes on

_LAUNCH_SECS = 1e-5


def _timer_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "trace_secs": round(float(draw.uniform(1, 3)), 2),
        "step_secs": round(float(draw.uniform(0.01, 0.05)), 3),
        "calls": int(draw.integers(4, 12)),
    }


class _Device:
    """A device with a clock: a step returns when it is queued, and runs when the device is free."""

    def __init__(self, given: Inputs) -> None:
        self._trace, self._secs = given["trace_secs"], given["step_secs"]
        self._now, self._busy_until = 100.0, 0.0

    def step(self) -> None:
        self._now += _LAUNCH_SECS + self._trace
        self._trace = 0.0
        self._busy_until = max(self._now, self._busy_until) + self._secs

    def wait(self) -> None:
        self._now = max(self._now, self._busy_until)

    def clock(self) -> float:
        return self._now


def _timer_call(secs_per_step: Callable[..., Any], inputs: Inputs) -> Plain:
    device = _Device(inputs)
    return {"secs": secs_per_step(device.step, device.wait, device.clock, inputs["calls"])}


def _timer_reference(
    given: Inputs,
    *,
    traced: bool = False,
    waits: bool = True,
    steps_before: int = 0,
    divided: bool = True,
) -> Plain:
    """The seconds between two looks at the clock, by what happens between them."""
    calls = given["calls"]
    total = given["trace_secs"] * traced + calls * _LAUNCH_SECS
    if waits:
        total = given["trace_secs"] * traced + (calls + steps_before) * given["step_secs"]
    return {"secs": total / calls if divided else total}


TIMER = Check(
    name="step_timer",
    function="secs_per_step",
    title="The seconds of one step",
    question="What does the device do at each of the two moments at which you read the clock?",
    direction=(
        "Draw two lines of time, one for Python and one for the device. Mark the first step, the "
        "steps that count, and both readings of the clock."
    ),
    cost=Cost.PURE,
    inputs=_timer_inputs,
    call=_timer_call,
    reference=_timer_reference,
    criteria=(
        Form(
            "a number of seconds",
            lambda given, out: isinstance(out["secs"], (int, float)),
            key="secs",
        ),
        # Waiting for each step, or once for all, differs by the time of a launch.
        Close("secs", "the mean seconds of one step", atol=1e-4, points=3),
    ),
    hint="Call step() once, and wait(). Read the clock, call step() `calls` times, wait(), and "
    "read the clock again. Divide by `calls`.",
    revisit='"A stopwatch" in lesson 14',
    mistakes=(
        Fault("includes_tracing", traced=True)
        .or_with(traced=True, waits=False)
        .feedback(
            "Your clock was running during the first call. That call also traces the function, "
            "which takes as long as many steps. When may the clock start?"
        ),
        Fault("no_sync", waits=False).feedback(
            "You read the clock when the last call returned. By then the device had only been "
            "given its work, so you timed how fast Python hands it over. How do you learn that "
            "the device is done?"
        ),
        Fault("counts_the_warm_up", steps_before=1)
        .or_with(steps_before=2)
        .or_with(steps_before=3)
        .feedback(
            "When you started the clock, the device was still busy with the calls before. Their "
            "time is in your result. What must come between the warm-up and the clock?"
        ),
        Fault("total_for_mean", divided=False).feedback(
            "You returned the seconds of all calls together, so the result grows with `calls`. "
            "How long did one step take?"
        ),
    ),
)


# --- efficiencies: strong and weak scaling from throughput, and the rubric of its report


def _efficiency_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    counts = [4, 8, 16, 32] if seed % 2 else [2, 4, 6, 12]
    return {
        "batch": int(draw.choice([96, 192, 384])),
        "replicas": counts,
        "ms_per_example": round(float(draw.uniform(0.5, 2)), 2),
        "ms_per_step": round(float(draw.uniform(5, 20)), 1),
        "ms_per_replica": round(float(draw.uniform(1, 6)), 1),
    }


def _per_sec(given: Inputs, replicas: int, global_batch: float) -> float:
    each = given["ms_per_example"] * global_batch / replicas
    step_ms = each + given["ms_per_step"] + given["ms_per_replica"] * (replicas - 1)
    return float(1000 * global_batch / step_ms)


def _efficiency_call(efficiencies: Callable[..., Any], inputs: Inputs) -> Plain:
    def examples_per_sec(replicas: int, global_batch: int) -> float:
        return _per_sec(inputs, replicas, global_batch)

    return efficiencies(examples_per_sec, inputs["batch"], list(inputs["replicas"]))


def _efficiency_reference(
    given: Inputs,
    *,
    grows: tuple[str, ...] = ("weak",),
    divided: tuple[str, ...] = ("strong", "weak"),
    of_one: tuple[str, ...] = (),
) -> Plain:
    """Efficiencies; `of_one` takes the baseline's "batch" or "count" for that of one replica."""
    batch, first = given["batch"], given["replicas"][0]

    def efficiency(kind: str, n: int) -> float:
        times = n / (1 if "batch" in of_one else first)
        counts = n / (1 if "count" in of_one else first) if kind in divided else 1
        grown = batch * times if kind in grows else batch
        return _per_sec(given, n, grown) / _per_sec(given, first, batch) / counts

    return {kind: [efficiency(kind, n) for n in given["replicas"]] for kind in ("strong", "weak")}


def _has_lists(given: Inputs, out: Plain) -> bool:
    return isinstance(out, dict) and all(
        isinstance(out.get(kind), (list, np.ndarray)) and len(out[kind]) == len(given["replicas"])
        for kind in ("strong", "weak")
    )


EFFICIENCIES = Check(
    name="efficiencies",
    title="The efficiency of strong and of weak scaling",
    question=(
        "On twice as many replicas, how many examples does each replica have in strong scaling, "
        "and in weak scaling?"
    ),
    direction=(
        "Imagine perfect replicas that lose nothing. How many examples per second do they process "
        "together, compared with the baseline? Which part of that do the measured ones reach?"
    ),
    cost=Cost.PURE,
    inputs=_efficiency_inputs,
    call=_efficiency_call,
    reference=_efficiency_reference,
    criteria=(
        Form("two lists in a dictionary, with a number for each count", _has_lists),
        Close("strong", "the efficiency of strong scaling", atol=1e-4, points=1.5),
        Close("weak", "the efficiency of weak scaling", atol=1e-4, points=1.5),
    ),
    hint="Let first = replicas[0] and base = examples_per_sec(first, batch) / first. Strong: "
    "examples_per_sec(n, batch) / n / base. Weak: the same with a batch of batch // first * n.",
    revisit='"Strong and weak scaling" in lesson 14',
    mistakes=(
        Fault("weak_with_fixed_global", grows=()).feedback(
            "In your weak scaling the global batch stays the same, so each replica gets less and "
            "less to do. That is strong scaling. What stays the same on each replica in weak "
            "scaling, and what does `examples_per_sec` take?"
        ),
        Fault("strong_with_growing_batch", grows=("strong", "weak")).feedback(
            "In your strong scaling the global batch grows with the replicas, so the work is not "
            "the same for all of them. What stays the same in strong scaling?"
        ),
        Fault("baseline_of_one", of_one=("batch",))
        .or_with(of_one=("count",))
        .or_with(of_one=("batch", "count"))
        .feedback(
            "You treated the baseline as if it were one replica, and it has several. `batch` and "
            "its examples per second belong to all of them together. How many times as many "
            "replicas as the baseline does each count have?"
        ),
        Fault("speedup_for_efficiency", divided=("weak",))
        .or_with(divided=("strong",))
        .feedback(
            "Your numbers are speedups: 2 for twice as many perfect replicas. An efficiency says "
            "which part of the replicas' time is used. What is it for perfect replicas?"
        ),
    ),
)

REPORTS = (
    WrittenReport(
        name="one_against_many",
        title="One device against many, for a CNN",
        rubric=(
            RubricRow(
                "what_differs",
                2,
                "names a pair of steps whose difference is larger than their spread (1), and calls "
                "no difference a speedup that lies within it (1: speedup_within_noise)",
            ),
            RubricRow(
                "which_part",
                2,
                "says which part grows with the replicas, with a figure (1), and why it does on "
                "this machine (1)",
            ),
            RubricRow(
                "what_to_change",
                2,
                "says what a device of its own for each replica changes (1), and what it does not "
                "change (1)",
            ),
        ),
    ),
)


# --- fit_link: alpha and beta from some all-reduces, tested on others

_KEYS = ("latency_ms", "ms_per_mb", "largest_error")


def _points(sizes: list[float], times: Any) -> list[tuple[float, float]]:
    return [(size, round(float(time), 3)) for size, time in zip(sizes, times, strict=True)]


def _link_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    known, unseen = [0.1, 1.0, 4.0, 16.0, 32.0], [2.0, 8.0, 64.0]
    # An alpha below 1 is not below 0; the noise must not push it there.
    alpha, noise = (draw.uniform(1, 3), 0.04) if seed % 2 else (draw.uniform(0.4, 0.8), 0.004)
    beta = draw.uniform(0.4, 2)

    def times(sizes: list[float], latency: float, noise: float) -> Any:
        exact = latency + beta * np.array(sizes)
        return exact * draw.uniform(1 - noise, 1 + noise, size=len(sizes))

    # Large messages that are slower than the line of the small ones push alpha below 0.
    bent = np.array([0.04, 0.4, 1.5, 9.0, 22.0]) * beta
    return {
        "usual": [_points(known, times(known, alpha, noise)),
                  _points(unseen, times(unseen, alpha, 0.15))],
        "bent": [_points(known, bent), _points(unseen, times(unseen, 0.0, 0.15) * 0.6)],
    }  # fmt: skip


def _link_call(fit_and_test: Callable[..., Any], inputs: Inputs) -> Plain:
    answers = {case: fit_and_test(*points) for case, points in inputs.items()}
    if not all(isinstance(line, dict) and set(_KEYS) <= set(line) for line in answers.values()):
        return {"form": next(iter(answers.values()))}
    (usual, usual_error), (bent, bent_error) = (
        ([line["latency_ms"], line["ms_per_mb"]], line["largest_error"])
        for line in answers.values()
    )
    return {"line": usual, "error": usual_error, "bent": bent, "bent_error": bent_error}


def _line(points: Any, *, below_0: str) -> tuple[float, float]:
    """Alpha and beta by least squares; what becomes of an alpha below 0 is an argument."""
    sizes, times = np.array(points).T
    beta, alpha = np.polyfit(sizes, times, 1)
    if alpha < 0 and below_0 == "fitted again":
        return 0.0, float(sizes @ times / (sizes @ sizes))
    return (0.0 if alpha < 0 and below_0 == "cut" else float(alpha)), float(beta)


def _link_reference(
    given: Inputs,
    *,
    below_0: str = "fitted again",
    fitted: Callable[[Any, Any], Any] = lambda known, unseen: known,
    tested: Callable[[Any, Any], Any] = lambda known, unseen: unseen,
) -> Plain:
    def answer(known: Any, unseen: Any) -> tuple[list[float], float]:
        alpha, beta = _line(fitted(known, unseen), below_0=below_0)
        sizes, times = np.array(tested(known, unseen)).T
        return [alpha, beta], float(np.max(abs((alpha + beta * sizes) / times - 1)))

    (usual, usual_error), (bent, bent_error) = answer(*given["usual"]), answer(*given["bent"])
    return {"line": usual, "error": usual_error, "bent": bent, "bent_error": bent_error}


ALPHA_BETA = Check(
    name="fit_link",
    function="fit_and_test",
    title="Alpha and beta, tested on sizes that were not fitted",
    question="Which of the points decide your line, and which decide whether you may trust it?",
    direction=(
        "Separate three steps: a line through `known`, what it says of `unseen`, and how far that "
        "is from what was measured. What does an alpha below 0 say of a message of 0 bytes?"
    ),
    cost=Cost.PURE,
    inputs=_link_inputs,
    call=_link_call,
    reference=_link_reference,
    criteria=(
        Form(
            "a dictionary with " + ", ".join(_KEYS),
            lambda given, out: "form" not in out,
            key="form",
        ),
        Close("line", "alpha and beta", atol=1e-4, points=1),
        Close("error", "the largest relative error on the unseen sizes", atol=1e-4, points=1),
        Then(
            Close("bent", "alpha and beta where the best line starts below 0", atol=1e-4, points=1)
        ),
    ),
    hint="`beta, alpha = np.polyfit(sizes, times, 1)`. If alpha is below 0, take 0, and "
    "`beta = sizes @ times / (sizes @ sizes)`. The error is "
    "`abs((alpha + beta * sizes) / times - 1).max()` over `unseen`.",
    revisit='"Two numbers for every size" in lesson 14',
    mistakes=(
        Fault("tested_on_fitted_points", tested=lambda known, unseen: known).feedback(
            "You computed the error on the points through which you laid the line. A line always "
            "looks good there, and would even if it were wrong for all other sizes. Which points "
            "can surprise it?"
        ),
        Fault("fitted_to_all_points", fitted=lambda known, unseen: [*known, *unseen]).feedback(
            "You fitted the line to `unseen` as well, so nothing was left to test it. What must "
            "your line not know before it is tested?"
        ),
        Fault("negative_alpha", below_0="kept").feedback(
            "One of your alphas is below 0: by your line a small message arrives before it is "
            "sent. What is the smallest value that a latency can have, and which line is the best "
            "one then?"
        ),
        Fault("alpha_cut_off", below_0="cut").feedback(
            "You set an alpha below 0 to 0 and kept the beta that belonged to it. This line is "
            "above most of the points. Which beta is the best one if alpha is 0?"
        ),
    ),
)


# --- predict_knee: on how many replicas a step is fastest, in strong scaling

_COUNTS = [2**power for power in range(13)]


def _knee_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "compute_ms": round(float(draw.uniform(250, 500)), 1),
        "latency_ms": round(float(draw.uniform(0.01, 0.04)), 3),
        "gradient_mb": round(float(draw.uniform(40, 120)), 1),
        "mb_per_ms": round(float(draw.uniform(8, 12)), 2),
        "counts": _COUNTS,
    }


def _cases(given: Inputs) -> dict[str, Inputs]:
    # Ten times the gradients and a tenth of the compute: every all-reduce costs more than it saves.
    large = {"compute_ms": given["compute_ms"] / 10, "gradient_mb": given["gradient_mb"] * 10}
    return {"usual": given, "large": {**given, **large}}


def _knee_call(fastest: Callable[..., Any], inputs: Inputs) -> Plain:
    answers = {case: fastest(**given) for case, given in _cases(inputs).items()}
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in answers.values()):
        return {"form": answers["usual"]}
    return {
        f"{column} {case}": answer[place]
        for case, answer in answers.items()
        for place, column in enumerate(("replicas", "ms"))
    }


def _ring_mb(replicas: int, gradient_mb: float) -> float:
    return 2 * (replicas - 1) / replicas * gradient_mb


def _knee_reference(
    given: Inputs,
    *,
    rounds: Callable[[int], float] = lambda replicas: 2 * (replicas - 1),
    moved: Callable[[int, float], float] = _ring_mb,
) -> Plain:
    def fastest(case: Inputs) -> tuple[int, float]:
        def step_ms(replicas: int) -> float:
            latency = rounds(replicas) * case["latency_ms"]
            transfer = moved(replicas, case["gradient_mb"]) / case["mb_per_ms"]
            return float(case["compute_ms"] / replicas + latency + transfer)

        best = min(case["counts"], key=step_ms)
        return best, step_ms(best)

    return {
        f"{column} {name}": fastest(case)[place]
        for name, case in _cases(given).items()
        for place, column in enumerate(("replicas", "ms"))
    }


KNEE = Check(
    name="predict_knee",
    function="fastest",
    title="The number of replicas with the fastest step",
    question="Which part of a step shrinks with more replicas, which grows, and which stays?",
    direction=(
        "Write down the step on 1 replica, on 2 and on 4,096, part by part. What must the "
        "communication be on 1 replica?"
    ),
    cost=Cost.PURE,
    inputs=_knee_inputs,
    call=_knee_call,
    reference=_knee_reference,
    criteria=(
        Form(
            "two values: the number of replicas, and the milliseconds of its step",
            lambda given, out: "form" not in out,
            key="form",
        ),
        Equal("replicas usual", "the number of replicas", points=1),
        Close("ms usual", "the milliseconds of its step", atol=1e-4, points=1),
        Equal("replicas large", "the same with large gradients and little compute", points=0.5),
        Close("ms large", "and the milliseconds of that step", atol=1e-4, points=0.5),
    ),
    hint="For n replicas: compute_ms / n + 2 * (n - 1) * latency_ms + 2 * (n - 1) / n * "
    "gradient_mb / mb_per_ms. `min(counts, key=...)` finds the smallest.",
    revisit='"From two cores to 4,096 GPUs" in lesson 14',
    mistakes=(
        Fault("latency_ignored", rounds=lambda replicas: 0).feedback(
            "Your step only gets shorter with more replicas, so you chose the most. The bytes of a "
            "ring hardly grow, but something else does. How many rounds does a ring with n "
            "replicas have, and what does each cost?"
        ),
        Fault("n_times_bytes", moved=lambda replicas, size: replicas * size)
        .or_with(moved=lambda replicas, size: (replicas - 1) * size)
        .or_with(moved=lambda replicas, size: 2 * (replicas - 1) * size)
        .feedback(
            "Your communication moves all gradients of all replicas through one link, so it grows "
            "with their number. A ring cuts the gradients into pieces. How many bytes does one "
            "link carry on 2 replicas, and how many on 4,096?"
        ),
        Fault(
            "half_of_the_ring",
            rounds=lambda replicas: replicas - 1,
            moved=lambda replicas, size: (replicas - 1) / replicas * size,
        ).feedback(
            "You counted one half of the all-reduce. After the reduce-scatter each replica has the "
            "sum of one piece only. What must follow?"
        ),
        Fault("one_latency", rounds=lambda replicas: min(1, replicas - 1))
        .or_with(rounds=lambda replicas: 2 * min(1, replicas - 1))
        .feedback(
            "You added the latency once for the whole all-reduce. A message goes from neighbour to "
            "neighbour, and each round waits for the one before. How many rounds are there?"
        ),
    ),
)


CHECKS = (TIMER, EFFICIENCIES, ALPHA_BETA, KNEE)
