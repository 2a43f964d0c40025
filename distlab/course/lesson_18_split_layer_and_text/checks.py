"""Checks of lesson 18: a layer that is split, Adam that is sharded, a pipeline, a mesh."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Equal, Fault, Form, Inputs, Plain, Then
from distlab.course.runs.replicas import give_each, mirrored

# --- split_gated: split a gated layer by column and then by row

_EXAMPLES, _FEATURES, _OUTPUTS = 5, 4, 8
_KERNELS = ("gate", "up", "down")


def _split_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    devices = (4, 2)[seed % 2]  # the first draw has 2
    hidden = 4 * int(draw.integers(5, 8))  # no axis is as long as half of a different one
    shapes = {
        "x": (_EXAMPLES, _FEATURES),
        "gate": (_FEATURES, hidden),
        "up": (_FEATURES, hidden),
        "down": (hidden, _OUTPUTS),
        "bias": (_OUTPUTS,),
    }
    arrays = {name: draw.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    return {"devices": devices, **arrays}


def _split_call(split_gated: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    tensors = {key: tf.constant(value) for key, value in inputs.items() if key != "devices"}
    answer = split_gated(*(tensors[name] for name in _KERNELS), inputs["devices"])
    if not (isinstance(answer, tuple) and len(answer) == 2 and callable(answer[1])):
        return {"form": type(answer).__name__}
    pieces = [[tf.convert_to_tensor(kernel) for kernel in piece] for piece in answer[0]]
    forward = answer[1]
    if [len(piece) for piece in pieces] != [3] * inputs["devices"]:
        return {"form": f"{[len(piece) for piece in pieces]} pieces"}
    shapes = [[kernel.shape.as_list() for kernel in piece] for piece in pieces]
    if shapes != _split_reference(inputs)["shapes"]:
        return {"form": "", "shapes": shapes, "output": None}
    strategy = mirrored(inputs["devices"])
    own = [give_each(strategy, kernels) for kernels in zip(*pieces, strict=True)]
    run = tf.function(lambda *own: strategy.run(forward, args=own))
    results = run(tensors["x"], *own, tensors["bias"])
    return {
        "form": "",
        "shapes": shapes,
        "output": list(strategy.experimental_local_results(results)),
    }


def _split_reference(
    given: Inputs,
    *,
    cut: tuple[int, int] = (1, 0),
    combine: str = "sum",
    bias: str = "once",
) -> Plain:
    """The pieces' shapes and each device's output, cut along these axes and combined like this."""
    devices, (first, second) = given["devices"], cut
    axes = zip(_KERNELS, (first, first, second), strict=True)
    kernels = (np.split(given[name], devices, axis=axis) for name, axis in axes)
    pieces = list(zip(*kernels, strict=True))
    shapes = [[list(kernel.shape) for kernel in piece] for piece in pieces]
    if cut != (1, 0):
        return {"form": "", "shapes": shapes, "output": None}
    partial = np.stack([_gated(given["x"], *piece) for piece in pieces])
    partial += given["bias"] if bias == "on each" else 0
    summed = {
        "sum": [partial.sum(axis=0)] * devices,
        "mean": [partial.mean(axis=0)] * devices,
        "none": list(partial),
    }[combine]
    output = [each + (given["bias"] if bias == "once" else 0) for each in summed]
    return {"form": "", "shapes": shapes, "output": output}


def _gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
    opened = x @ gate
    return (opened / (1 + np.exp(-opened)) * (x @ up)) @ down


SPLIT = Check(
    name="split_gated",
    title="A gated layer, split by column and then by row",
    question="Which axis of `down` belongs to the same hidden units as the columns of `gate`?",
    direction=(
        "Follow one hidden unit through all three kernels. Everything that belongs to this unit "
        "should be on one device."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_split_inputs,
    call=_split_call,
    reference=_split_reference,
    criteria=(
        Form(
            "a list with three kernels for each device, and a function",
            lambda _, out: out["form"] == "",
            key="form",
        ),
        Equal("shapes", "shapes of gate, up and down on each device"),
        Then(
            Close("output", "on every device, the output of the whole layer", atol=1e-4, points=2)
        ),
    ),
    hint="Cut gate and up by column (axis 1) and down by row (axis 0). Each device then has a part "
    "of every output's sum: all_reduce adds these parts up. Add the bias behind it.",
    revisit='"Split two layers by hand" in lesson 18',
    mistakes=(
        Fault("split_twice_by_column", sees="shapes", cut=(1, 1)).feedback(
            "You cut all three kernels by column. A device then computes a part of the hidden "
            "units, and its piece of `down` asks for all of them. Which cut of `down` needs only "
            "the hidden units that are already on the device?"
        ),
        Fault("row_first", sees="shapes", cut=(0, 1)).feedback(
            "You cut `gate` and `up` by row. Each device then has a part of the sum of every "
            "hidden unit, and silu of a part is not a part of silu. Which cut gives a device "
            "whole hidden units?"
        ),
        Fault("all_reduce_forgotten", combine="none")
        .or_with(combine="none", bias="on each")
        .feedback(
            "Each of your devices returns the part of the output that comes from its own hidden "
            "units, so the devices differ. An output is a sum over all hidden units. Which "
            "collective completes this sum?"
        ),
        Fault("mean_for_sum", combine="mean").feedback(
            "You averaged what the devices computed. Each of them has a different part of one "
            "sum, and not an estimate of the whole. How do you put the parts of a sum together?"
        ),
        Fault("bias_on_each", bias="on each").feedback(
            "You added the bias on each device before the sum, so the output has it as many times "
            "as there are devices. Where in your function is there only one output left?"
        ),
    ),
)


# --- sharded_adam: Adam whose state is divided among the replicas

_PIECE, _MORE = "its own piece", "more than its own piece"
_RATE, _FIRST, _SECOND, _TINY = 0.1, 0.9, 0.99, 1e-7


def _adam_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    replicas, piece = 2 + (seed + 1) % 3, int(draw.integers(2, 6))  # the first draw has 4

    def vectors(length: int) -> Any:
        return draw.normal(size=(replicas, length)).astype("float32")

    return {
        "replicas": replicas,
        "weights": vectors(piece).ravel(),
        "gradient": vectors(replicas * piece),
        "m": vectors(piece),
        "v": vectors(piece) ** 2,
    }


def _update(weights: Any, gradient: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    """One step of Adam, without its correction of the first steps, on vectors of one length."""
    m = _FIRST * m + (1 - _FIRST) * gradient
    v = _SECOND * v + (1 - _SECOND) * gradient**2
    return weights - _RATE * m / (v**0.5 + _TINY), m, v


def _adam_call(sharded_adam: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(inputs["replicas"])
    own = [
        give_each(strategy, [tf.constant(each) for each in inputs[key]])
        for key in ("gradient", "m", "v")
    ]
    weights, updated = tf.constant(inputs["weights"]), set()

    def update(weights: Any, gradient: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
        updated.add(_PIECE if m.shape == inputs["m"][0].shape else _MORE)
        return _update(weights, gradient, m, v)

    step = tf.function(lambda *args: strategy.run(sharded_adam, args=(update, *args)))
    answer = step(weights, *own)
    if not (isinstance(answer, tuple) and len(answer) == 3):
        return {"form": type(answer).__name__}
    weights, m, v = (list(strategy.experimental_local_results(part)) for part in answer)
    return {"form": "", "updated": sorted(updated), "state": [m, v], "weights": weights}


def _adam_reference(
    given: Inputs,
    *,
    summed: bool = True,
    whole_state: bool = False,
    weights: str = "gathered",
) -> Plain:
    """Returns each replica's result, if gradients, state and weights are combined in these ways."""
    replicas, gradient = given["replicas"], given["gradient"]
    total = np.broadcast_to(gradient.sum(axis=0), gradient.shape) if summed else gradient
    old = given["weights"].reshape(replicas, -1)
    own = np.stack([total[n].reshape(replicas, -1)[n] for n in range(replicas)])
    new, m, v = _update(old, own, given["m"], given["v"])
    after = {
        "gathered": [new.ravel()] * replicas,
        "own piece": list(new),
        "own piece in place": [
            np.concatenate([*old[:n], new[n], *old[n + 1 :]]) for n in range(replicas)
        ],
    }[weights]
    updated = [_MORE if whole_state else _PIECE]
    return {"form": "", "updated": updated, "state": [list(m), list(v)], "weights": after}


SHARDED = Check(
    name="sharded_adam",
    title="Adam's state divided among the replicas",
    question="Which part of the summed gradient does a replica need for its piece of Adam's state?",
    direction=(
        "Three vectors have the length of all weights at some point, and two never do. Write down "
        "the length of each before you combine anything."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_adam_inputs,
    call=_adam_call,
    reference=_adam_reference,
    criteria=(
        Form("three values: weights, m and v", lambda _, out: out["form"] == "", key="form"),
        Equal("updated", "what each replica passes to `update`", points=0.5),
        Then(Close("state", "on each replica, its piece of m and of v", atol=1e-5, points=0.5)),
        Then(Close("weights", "on every replica, all updated weights", atol=1e-4, points=2)),
    ),
    hint="all_reduce the gradient, and keep piece number replica_id_in_sync_group of it and of the "
    "weights. Call update with these pieces. all_gather the new piece of the weights.",
    revisit='"Divide Adam\'s state" in lesson 18',
    mistakes=(
        Fault("state_gathered", whole_state=True).feedback(
            "You gathered Adam's state. Each replica then holds as much as before it was divided, "
            "and has sent more. Which of the three vectors must be whole for the next forward pass?"
        ),
        Fault("own_gradient_only", summed=False).feedback(
            "You updated with the gradient of the replica's own examples, so each piece of the "
            "weights learns from a different part of the batch. Which collective gives a "
            "piece the gradient of all examples?"
        ),
        Fault("params_not_gathered", weights="own piece")
        .or_with(weights="own piece in place")
        .feedback(
            "Each of your replicas knows the update of its own piece of the weights only. The "
            "replicas start the next step with different weights. How does a replica get the "
            "pieces that the other replicas have updated?"
        ),
    ),
)


# --- pipeline_idle: which share of a pipeline is idle if its stages differ

_KINDS = ("equal", "unequal")


def _idle_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)

    def stages(kind: str) -> list[float]:
        count, ms = int(draw.integers(3, 7)), draw.uniform(10, 40)
        # The slowest stage is neither the first nor the last one.
        slower = draw.permutation(np.linspace(1.2, 1.8, count - 2)) if kind == "unequal" else 1
        return [round(float(each), 1) for each in ms * np.r_[1, np.ones(count - 2) * slower, 1.1]]

    def case(kind: str) -> dict[str, Any]:
        stage_ms = stages(kind)
        stage_ms = [stage_ms[0]] * len(stage_ms) if kind == "equal" else stage_ms
        return {"stage_ms": stage_ms, "micro_batches": int(draw.integers(2, 13))}

    return {kind: [case(kind) for _ in range(3)] for kind in _KINDS}


def _idle_call(pipeline_idle: Callable[..., Any], inputs: Inputs) -> Plain:
    return {
        kind: [pipeline_idle(list(case["stage_ms"]), case["micro_batches"]) for case in cases]
        for kind, cases in inputs.items()
    }


def _idle_reference(
    given: Inputs,
    *,
    cut: bool = True,
    pace: Callable[[Any], Any] = max,
    of_the_work: bool = False,
) -> Plain:
    """The idle share of each case, by these habits of counting."""

    def share(stage_ms: list[float], micro_batches: int) -> float:
        count = micro_batches if cut else 1
        took = (sum(stage_ms) + (count - 1) * float(pace(stage_ms))) / count
        available = len(stage_ms) * took
        return (available - sum(stage_ms)) / (sum(stage_ms) if of_the_work else available)

    return {kind: [share(**case) for case in cases] for kind, cases in given.items()}


IDLE = Check(
    name="pipeline_idle",
    title="The bubble of a pipeline whose stages differ",
    question="When does a stage start its first micro-batch, and when does it end its last one?",
    direction=(
        "Draw three micro-batches through stages that take 1, 3 and 1 ms for each of them. Which "
        "stage never waits once it has started?"
    ),
    cost=Cost.PURE,
    inputs=_idle_inputs,
    call=_idle_call,
    reference=_idle_reference,
    criteria=(
        Close("equal", "idle share where all stages take the same time", atol=1e-4),
        Then(Close("unequal", "idle share where one stage is slower", atol=1e-4, points=2)),
    ),
    hint="With m micro-batches the pass takes (sum(stage_ms) + (m - 1) * max(stage_ms)) / m. All "
    "stages together have that many milliseconds once each, and work for sum(stage_ms) of them.",
    revisit='"A pipeline and its bubble" in lesson 18',
    mistakes=(
        Fault("micro_batches_ignored", cut=False).feedback(
            "Your share is that of a batch that moves through the stages as a whole: one stage "
            "works and all others wait. Can stage 1 start before stage 0 has seen the last "
            "example?"
        ),
        Fault("slowest_stage_ignored", pace=np.mean).feedback(
            "You used the formula for equal stages, and one stage here is slower. After a while "
            "micro-batches queue in front of it. Which stage's time lies between two micro-batches "
            "that leave the pipeline?"
        ),
        Fault("share_of_the_work", of_the_work=True).feedback(
            "You divided the idle time by the time of work. That is how Megatron-LM's authors "
            "state the bubble, and it can be above 1. The task asks for a share of all time. What "
            "must be below the line?"
        ),
    ),
)


# --- choose_mesh: choose the axes of a mesh for models on a cluster of several hosts

_CASES = {
    "small": "a model that one device holds",
    "part": "a model that a part of a host holds",
    "host": "a model that a whole host holds",
    "hosts": "a model that needs several hosts",
}
_Model = dict[str, Any]


def _mesh_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    activations, hosts = int(draw.integers(10, 17)), int(draw.choice([4, 8]))
    room = 80 - activations

    def model(gb: float) -> _Model:
        facts = {"bytes_per_parameter": 16, "activations_gb": activations, "device_gb": 80}
        return {"parameters": int(gb / 16 * 1e9), **facts}

    stages = (2, hosts)[seed % 2]
    models = {
        "small": model(room * draw.uniform(0.3, 0.9)),
        # Two devices would hold it if there were no activations.
        "part": model(2 * room + draw.uniform(0.3, 1.7) * activations),
        "host": model(8 * room),  # which fits exactly
        "hosts": model(4 * stages * room + 0.5),  # which is half a GB too large for half of them
    }
    order = draw.permutation(sorted(models)).tolist()
    return {"models": models, "hosts": hosts, "per_host": 8, "order": order}


def _mesh_call(choose_mesh: Callable[..., Any], inputs: Inputs) -> Plain:
    cluster = inputs["hosts"], inputs["per_host"]
    meshes = {name: choose_mesh(dict(inputs["models"][name]), *cluster) for name in inputs["order"]}
    try:
        return {name: [operator.index(size) for size in mesh] for name, mesh in meshes.items()}
    except TypeError:
        return meshes


def _mesh_reference(
    given: Inputs,
    *,
    bytes_each: int = 16,
    activations: bool = True,
    parts: Callable[[int], int] = lambda least: 2 ** math.ceil(math.log2(least)),
    within_host: bool = True,
) -> Plain:
    """The sizes (batch, pipeline, tensor) for each model, chosen with these habits."""
    devices = given["hosts"] * given["per_host"]

    def sizes(model: _Model) -> list[int]:
        room = model["device_gb"] - (model["activations_gb"] if activations else 0)
        count = parts(math.ceil(model["parameters"] * bytes_each / 1e9 / room))
        inside = min(count, given["per_host"]) if within_host else count
        pipeline = math.ceil(count / inside)
        return [devices // (inside * pipeline), pipeline, inside]

    return {name: sizes(model) for name, model in given["models"].items()}


def _three_numbers(given: Inputs, out: Plain) -> bool:
    return all(isinstance(mesh, list | np.ndarray) and len(mesh) == 3 for mesh in out.values())


MESH = Check(
    name="choose_mesh",
    title="A mesh for four models on a cluster",
    question="How many devices must share one copy of the model, and where do they stand?",
    direction=(
        "Work out by hand how many gigabytes the model needs, and how many a device has left for "
        "it. Then try 1, 2, 4 and 8 devices of a host, and after that several hosts."
    ),
    cost=Cost.PURE,
    inputs=_mesh_inputs,
    call=_mesh_call,
    reference=_mesh_reference,
    criteria=(
        Form("three whole numbers for each model", _three_numbers),
        *(
            Equal(name, f"{label}: (batch, pipeline, tensor)", points=1 + (name == "hosts"))
            for name, label in _CASES.items()
        ),
    ),
    hint="room = device_gb - activations_gb. `tensor` is the smallest of 1, 2, 4, 8 for which "
    "gb / tensor <= room. If none is enough, tensor = per_host, and `pipeline` is the smallest "
    "number that divides hosts and is enough. The devices that are left make `batch`.",
    revisit='"A mesh of data and model" in lesson 18',
    mistakes=(
        Fault("weights_only", bytes_each=2)
        .or_with(bytes_each=4)
        .feedback(
            "You counted the weights only. A step also needs the gradients and the optimizer's "
            "state. How many bytes does each parameter take in all?"
        ),
        Fault("activations_ignored", activations=False).feedback(
            "You let the model take all of a device's memory. Then there is no room for the "
            "activations, and the first step fails. How many gigabytes are left for the model?"
        ),
        Fault("uneven_parts", parts=lambda least: least).feedback(
            "You took the smallest number of devices that is enough, and it does not divide those "
            "of a host. Then some devices belong to no copy. Which numbers can a mesh have along "
            "an axis?"
        ),
        Fault("tensor_across_hosts", within_host=False).feedback(
            "You let tensor parallelism go beyond a host. It waits for the links four times in "
            "each layer, and those between hosts are slow. Which kind sends only the activations "
            "between two groups of layers?"
        ),
    ),
)


CHECKS = (SPLIT, SHARDED, IDLE, MESH)
