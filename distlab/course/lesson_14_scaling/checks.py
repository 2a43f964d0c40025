"""Checks of lesson 14: a timer, alpha and beta, buckets, the fastest number of replicas."""

from __future__ import annotations

import itertools
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
    revisit='"A clock that tells the truth" in lesson 14',
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


# --- the rubric of the report

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
    revisit='"What the network gives" in lesson 14',
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


# --- bucket_overlap: when the last bucket has arrived


def _bucket_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # A large embedding comes first, as in a language model, and small layers follow.
    sizes = [60.0, *draw.uniform(4, 16, 11)]
    return {
        "layers": [(round(float(draw.uniform(2, 6)), 2), round(float(mb), 1)) for mb in sizes],
        "latency_ms": round(float(draw.uniform(1, 3)), 2),
        "mb_per_ms": round(float(draw.uniform(2, 5)), 2),
    }


def _bucket_cases(given: Inputs) -> dict[str, list[tuple[Any, float]]]:
    """The layers, and the MB at which a bucket leaves."""
    layers = list(given["layers"])
    small_first = [(layers[0][0], 0.5), *layers[1:]]  # it is left over
    full_by_one = layers[-1][1]  # exactly
    return {
        "each": [(layers, 0.5)],
        "some": [(layers, 25.0), (layers, full_by_one), (small_first, 0.6)],
        "one": [(layers, 1e4)],
    }


def _bucket_call(last_arrival: Callable[..., Any], inputs: Inputs) -> Plain:
    network = {key: inputs[key] for key in ("latency_ms", "mb_per_ms")}
    answers = {
        case: [last_arrival(layers=list(rows), bucket_mb=size, **network) for rows, size in pairs]
        for case, pairs in _bucket_cases(inputs).items()
    }
    for value in itertools.chain(*answers.values()):
        if not isinstance(value, (int, float)):
            return {"form": value}
    return answers


def _bucket_reference(
    given: Inputs,
    *,
    backward: bool = True,
    overlaps: bool = True,
    queues: bool = True,
    leftover: bool = True,
    latencies: str = "each",
    includes_the_last: bool = True,
) -> Plain:
    def arrival(layers: list[tuple[float, float]], bucket_mb: float) -> float:
        now = held = 0.0
        full: list[tuple[float, float]] = []  # when each bucket is full, and its MB
        for ms, mb in reversed(layers) if backward else layers:
            before, now = now, now + ms
            held += mb
            if held >= bucket_mb:
                full.append((now if includes_the_last else before, held))
                held = 0.0
        if held and leftover:
            full.append((now, held))
        free = last = 0.0
        for number, (ready, mb) in enumerate(full):
            latency = given["latency_ms"] if latencies == "each" or number == 0 else 0.0
            start = ready if overlaps else now
            free = (max(start, free) if queues else start) + latency + mb / given["mb_per_ms"]
            last = max(last, free)
        return last

    return {
        case: [arrival(*pair) for pair in pairs] for case, pairs in _bucket_cases(given).items()
    }


BUCKETS = Check(
    name="bucket_overlap",
    function="last_arrival",
    title="When the last bucket has arrived",
    question="What are the two things that a bucket waits for before it can leave?",
    direction=(
        "Draw two lanes, one for the backward pass and one for the network. Put three layers into "
        "the first, the last layer first, and let each bucket begin where both lanes allow it."
    ),
    cost=Cost.PURE,
    inputs=_bucket_inputs,
    call=_bucket_call,
    reference=_bucket_reference,
    criteria=(
        Form("a number of milliseconds", lambda given, out: "form" not in out, key="form"),
        Close("one", "all gradients in one bucket", atol=1e-4, points=0.5),
        Close("each", "a bucket for each layer", atol=1e-4, points=1),
        Close("some", "buckets of several layers", atol=1e-4, points=1.5),
    ),
    hint="Let now, free and held be 0. For each layer of `reversed(layers)` add its ms to `now` "
    "and its MB to `held`. If `held >= bucket_mb`: free = max(now, free) + latency_ms + held / "
    "mb_per_ms, and held = 0. After the loop send what is left in the same way.",
    revisit='"Send while you compute" in lesson 14',
    mistakes=(
        Fault("nothing_overlaps", overlaps=False).feedback(
            "Your first bucket leaves when the whole backward pass is over, so however you cut, "
            "nothing is hidden. When did the first bucket have all its gradients?"
        ),
        Fault("first_layer_first", backward=False).feedback(
            "You went through the layers from first to last, so your first bucket holds the first "
            "layers. In which order does a backward pass compute its gradients?"
        ),
        Fault("network_never_busy", queues=False).feedback(
            "Your buckets leave as soon as they are full, even while the one before is on its way, "
            "so the network carries several at full speed. What else must a full bucket wait for?"
        ),
        Fault("last_bucket_forgotten", leftover=False).feedback(
            "You send a bucket when it is full, and the last one never gets full, so its gradients "
            "stay where they are. What is left in your hands after the loop?"
        ),
        Fault("one_latency", latencies="first").feedback(
            "You added the latency once for all buckets, so small buckets cost you nothing. How "
            "often is an all-reduce started?"
        ),
        Fault("leaves_too_early", includes_the_last=False).feedback(
            "Your bucket leaves when the layer that fills it begins, and the gradient of that "
            "layer is not there yet. When is the last gradient of a bucket ready?"
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
    revisit='"What a curve can\'t know" in lesson 14',
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


CHECKS = (TIMER, ALPHA_BETA, BUCKETS, KNEE)
