"""Checks of lesson 18: a layer in parts, a mesh, and a text around a ring."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Equal, Fault, Form, Inputs, Plain, Then
from distlab.course.lesson_18_split_layer_and_text.causal_ring import busy_share, pairs_by_turn
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
    revisit='"Cut two layers by hand" in lesson 18',
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


# --- choose_mesh: choose the axes of a mesh for models on a cluster of several hosts

_CASES = {
    "sharded": "a model that fits when everything is sharded",
    "layer": "a model with a layer that is too large",
    "batch": "a batch with fewer examples than devices",
    "hosts": "a batch with fewer examples than hosts",
}
_Model = dict[str, Any]
_PER_HOST = 8


def _mesh_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    hosts = int(draw.choice([4, 8]))
    devices = hosts * _PER_HOST
    shard = int(draw.integers(50, 53)) + 0.6  # the GB that each device holds of everything

    def model(*, layer: float, activations: float, examples: int) -> _Model:
        facts: _Model = {"parameters": int(shard * devices / 16 * 1e9), "bytes_per_parameter": 16}
        facts["layer_gb"], facts["activations_gb"] = round(layer, 1), round(activations, 1)
        return facts | {"device_gb": 80, "examples": examples}

    room = 80 - shard
    layer = draw.uniform(0.8, 0.95) * room
    small = {"layer": draw.uniform(0.1, 0.3) * room, "activations": draw.uniform(0.2, 0.6) * room}
    models = {
        "sharded": model(**small, examples=devices),  # one example for each is enough
        # Four devices lack 0.3 GB each, and five would be enough; without the layer four would be,
        # and without activations one.
        "layer": model(layer=layer, activations=4 * (room + 0.3) - layer, examples=devices),
        "batch": model(**small, examples=devices // 3),  # a quarter of them is the next mesh
        "hosts": model(**small, examples=(1, 3 * hosts // 4)[seed % 2]),
    }
    order = draw.permutation(sorted(models)).tolist()
    return {"models": models, "hosts": hosts, "per_host": _PER_HOST, "order": order}


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
    sharded: bool = True,
    layer: bool = True,
    activations: bool = True,
    examples: bool = True,
    even: bool = True,
    first: str = "tensor",
    within_host: bool = True,
) -> Plain:
    """The sizes (data, tensor, pipeline) for each model, chosen with these habits."""
    hosts, per_host = given["hosts"], given["per_host"]
    devices = hosts * per_host
    inside = [n for n in range(1, per_host + 1) if not even or per_host % n == 0]
    across = [n for n in range(1, hosts + 1) if hosts % n == 0]
    sizes = [(n, 1) for n in inside] + [(per_host, n) for n in across[1:]]
    if first == "pipeline":
        sizes = [(1, n) for n in across] + [(n, hosts) for n in inside[1:]]
    if not within_host:
        sizes = [(n, 1) for n in range(1, devices + 1) if devices % n == 0]

    def works(model: _Model, tensor: int, pipeline: int) -> bool:
        whole = model["parameters"] * bytes_each / 1e9
        held = whole / (devices if sharded else tensor * pipeline)
        held += (layer * model["layer_gb"] + activations * model["activations_gb"]) / tensor
        data = devices // (tensor * pipeline)
        return held <= model["device_gb"] and (data <= model["examples"] or not examples)

    def choose(model: _Model) -> list[int]:
        mesh = next((each for each in sizes if works(model, *each)), sizes[-1])
        return [devices // (mesh[0] * mesh[1]), *mesh]

    return {name: choose(model) for name, model in given["models"].items()}


def _three_numbers(given: Inputs, out: Plain) -> bool:
    return all(isinstance(mesh, list | np.ndarray) and len(mesh) == 3 for mesh in out.values())


MESH = Check(
    name="choose_mesh",
    title="A mesh for four models on a cluster",
    question="Which part of a device's memory shrinks with every device, and which with `tensor`?",
    direction=(
        "Compute the equal part of all parameters' bytes first: it's the same for every mesh. Then "
        "list the meshes in the order of the task, and ask both questions of each."
    ),
    cost=Cost.PURE,
    inputs=_mesh_inputs,
    call=_mesh_call,
    reference=_mesh_reference,
    criteria=(
        Form("three whole numbers for each model", _three_numbers),
        *(
            Equal(name, f"{label}: (data, tensor, pipeline)", points=1 + (name == "hosts"))
            for name, label in _CASES.items()
        ),
    ),
    hint="part = parameters * bytes_per_parameter / 1e9 / devices. Try (tensor, 1) for tensor = 1, "
    "2, 4, 8, and then (per_host, pipeline) for the divisors of hosts. Take the first one with "
    "part + (layer_gb + activations_gb) / tensor <= device_gb and data <= examples.",
    revisit='"Combine the cuts in a mesh" in lesson 18',
    mistakes=(
        Fault("replicas_copy", sharded=False).feedback(
            "You let every replica along `data` keep the whole model, so you cut layers or build a "
            "pipeline where sharding would do, and devices wait for each other in every layer or "
            "stage. Over how many devices are the bytes divided if everything is sharded?"
        ),
        Fault("weights_only", bytes_each=2)
        .or_with(bytes_each=4)
        .feedback(
            "You counted the weights only. A step also needs the gradients and the optimizer's "
            "state. How many bytes does each parameter take in all?"
        ),
        Fault("activations_ignored", activations=False).feedback(
            "You left no room for the activations, so the first step fails. How many gigabytes "
            "does one example need beside the shard?"
        ),
        Fault("layer_forgotten", layer=False).feedback(
            "You counted a device's shard and its activations, but a shard computes nothing: "
            "before a layer runs, its weights are gathered from all devices. Where do the "
            "gathered weights lie?"
        ),
        Fault("examples_ignored", examples=False).feedback(
            "Some of your replicas have no example to train on, because the batch has fewer "
            "examples than there are replicas. Which axes let several devices share one example?"
        ),
        Fault("uneven_parts", even=False).feedback(
            "You took the smallest number of devices that is enough, and it doesn't divide those "
            "of a host. Then some devices belong to no replica. Which numbers can a mesh have "
            "along an axis?"
        ),
        Fault("tensor_across_hosts", within_host=False).feedback(
            "You let tensor parallelism go beyond a host. It waits for the links four times in "
            "each layer, and those between hosts are slow. Which kind sends only the activations "
            "between two groups of layers?"
        ),
        Fault("pipeline_first", first="pipeline").feedback(
            "You built a pipeline before you cut layers. A pipeline leaves every layer whole, and "
            "its stages wait for each other, while the fast links of a host stay unused. What does "
            "`tensor` divide that `pipeline` doesn't?"
        ),
    ),
)


# --- ring_step: one more piece of the keys, in a causal attention

_SIZES = ("small", "large")
_LARGE = 30  # by which queries are larger where `exp` overflows without a maximum


def _ring_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    devices, piece, width = 3 + seed % 2, int(draw.integers(4, 7)), 8
    q, k, v = (draw.normal(size=(devices * piece, width)) for _ in "qkv")
    return {"devices": devices, "small": 2 * q, "large": _LARGE * width * q, "k": k, "v": v}


def _ring_call(ring_step: Callable[..., Any], inputs: Inputs) -> Plain:
    with np.errstate(all="ignore"):
        outputs = {size: _around(ring_step, inputs, inputs[size]) for size in _SIZES}
    unlike = [output for output in outputs.values() if isinstance(output, str)]
    return {"form": unlike[0]} if unlike else {"form": "", **outputs}


def _around(ring_step: Callable[..., Any], inputs: Inputs, q: Any) -> Any:
    """The attention of all devices by the learner's step; or, in words, what it returned."""
    at = np.array_split(np.arange(len(q)), inputs["devices"])
    outputs = []
    for mine in at:
        shape = (len(mine), 1)
        state: Any = (np.full(shape, -np.inf), np.zeros(shape), np.zeros_like(q[mine]))
        for other in at[mine[0] // len(mine) :: -1]:  # its own piece first; none that comes later
            k, v = inputs["k"][other], inputs["v"][other]
            state = ring_step(state, q[mine], k.copy(), v.copy(), mine.copy(), other.copy())
            if not (isinstance(state, tuple | list) and len(state) == 3):
                return type(state).__name__
            state = tuple(np.asarray(part) for part in state)
            shapes = [list(part.shape) for part in state]
            if shapes != [[*shape], [*shape], [len(mine), q.shape[1]]]:
                return f"parts of shapes {shapes}"
        outputs.append(state[2] / state[1])
    return np.concatenate(outputs)


def _ring_reference(
    given: Inputs,
    *,
    average: bool = False,
    rescale: str = "both",
    maximum: bool = True,
    mask: str = "tokens",
) -> Plain:
    """The attention of all tokens, computed piece by piece with these habits."""

    def step(state: Any, q: Any, k: Any, v: Any, at_q: Any, at_k: Any) -> Any:
        highest, total, output = state
        sees = {
            "tokens": at_q[:, None] >= at_k,
            "local": (at_q - at_q[0])[:, None] >= at_k - at_k[0],
            "pieces": np.full((len(at_q), len(at_k)), at_q[0] >= at_k[0]),
        }[mask]
        scores = np.where(sees, q @ k.T / q.shape[1] ** 0.5, -np.inf)
        own = scores.max(axis=1, keepdims=True)
        if average:
            weights = np.exp(scores - own)
            weights /= weights.sum(axis=1, keepdims=True)
            return highest, total + 1, output + weights @ v
        new = np.maximum(highest, own) if maximum else np.zeros_like(own)
        shrink = np.exp(highest - new) if maximum else 1.0
        weights = np.exp(scores - new)
        kept = {"both": (shrink, shrink), "none": (1.0, 1.0), "total": (shrink, 1.0)}[rescale]
        total = kept[0] * total + weights.sum(axis=1, keepdims=True)
        return new, total, kept[1] * output + weights @ v

    with np.errstate(all="ignore"):
        return {"form": "", **{size: _around(step, given, given[size]) for size in _SIZES}}


RING = Check(
    name="ring_step",
    title="One step of ring attention",
    question="Which parts of the state were computed with a maximum that is no longer the largest?",
    direction=(
        "Take two pieces of two keys each and one query, and compute the softmax of all four "
        "scores by hand. Then do it piece by piece, and compare after each piece."
    ),
    cost=Cost.PURE,
    inputs=_ring_inputs,
    call=_ring_call,
    reference=_ring_reference,
    criteria=(
        Form(
            "a new state: highest, total and output, of the old shapes",
            lambda _, out: out["form"] == "",
            key="form",
        ),
        Close("small", "after all pieces, the attention of one device", atol=1e-6, points=2),
        Then(Close("large", "the same for scores in the hundreds", atol=1e-6)),
    ),
    hint="Mask the scores with at_q[:, None] >= at_k. new = the larger one of highest and the "
    "largest score of each row. Multiply total and output by exp(highest - new), and add the sum "
    "of exp(scores - new) to the one and exp(scores - new) @ v to the other.",
    revisit='"Send a text around a ring" in lesson 18',
    mistakes=(
        Fault("softmax_of_each_piece", average=True).feedback(
            "You took the softmax of each piece and averaged, so a piece with low scores weighs "
            "as much as one with high scores. What must a piece tell the others, so that its "
            "weights can be compared with theirs?"
        ),
        Fault("maximum_not_rescaled", rescale="none").feedback(
            "You subtract the new maximum from the new scores, but what was summed before still "
            "has the old one. The two can't be added as they are. By which factor does an old "
            "weight change if the maximum grows?"
        ),
        Fault("output_not_rescaled", rescale="total").feedback(
            "You shrink the total and leave the output as it was, so old values count too much. "
            "The output is a sum of weights, too. Which factor does it need?"
        ),
        Fault("no_maximum", sees="large", maximum=False).feedback(
            "Your sums are right as long as scores are small. For large ones `exp` overflows, and "
            "the output is NaN. What can you subtract from all scores of a token without changing "
            "its softmax?"
        ),
        Fault("mask_by_local_position", mask="local").feedback(
            "You masked by the position inside a piece, so a token misses some keys of earlier "
            "pieces, all of which it should see. Which two numbers say where a query and a key "
            "are in the text?"
        ),
        Fault("first_turn_unmasked", mask="pieces").feedback(
            "You let a token see all keys of its device's own piece. Some of these come after the "
            "token, so the model reads what it should predict. In which piece do some pairs count "
            "and others not?"
        ),
    ),
)


# --- deal: a text dealt out so that no device waits


def _deal_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    devices = (4, 3, 5)[seed % 3]
    return {"devices": devices, "length": 2 * devices * int(draw.integers(3, 6))}


def _deal_call(deal: Callable[..., Any], inputs: Inputs) -> Plain:
    answer = deal(inputs["length"], inputs["devices"])
    try:
        positions = [[operator.index(position) for position in mine] for mine in answer]
    except TypeError:
        return {"form": type(answer).__name__}
    if len(positions) != inputs["devices"] or not all(positions):
        return {"form": f"{len(positions)} lists"}
    return _dealt(positions)


def _dealt(positions: list[list[int]]) -> dict[str, Any]:
    """The facts that count in any deal."""
    return {
        "form": "",
        "counts": [len(mine) for mine in positions],
        "all": sorted(position for mine in positions for position in mine),
        "busy": 100 * busy_share(pairs_by_turn(positions)),
    }


def _deal_reference(given: Inputs, *, kind: str = "zigzag") -> Plain:
    length, devices = given["length"], given["devices"]
    pieces = np.arange(length).reshape(2 * devices, -1)
    positions: Any = {
        "zigzag": [np.r_[pieces[d], pieces[-1 - d]] for d in range(devices)],
        "in order": np.arange(length).reshape(devices, -1),
        "one by one": np.arange(length).reshape(-1, devices).T,
        "halves": [np.r_[pieces[d], pieces[devices + d]] for d in range(devices)],
    }[kind]
    return _dealt([list(map(int, mine)) for mine in positions])


DEAL = Check(
    name="deal",
    title="A text dealt out to a ring",
    question="How many keys does the first token of a text see, and how many the last one?",
    direction=(
        "Cut the text into twice as many pieces as there are devices, and write down how many "
        "pieces each of them sees. Which two of these numbers always have the same sum?"
    ),
    cost=Cost.PURE,
    inputs=_deal_inputs,
    call=_deal_call,
    reference=_deal_reference,
    criteria=(
        Form(
            "a list of whole numbers for each device", lambda _, out: out["form"] == "", key="form"
        ),
        Equal("counts", "how many tokens each device gets", points=0.5),
        Then(Equal("all", "all positions, each of them once", points=0.5)),
        Then(Close("busy", "percent of the time that the devices are busy", atol=1e-3, points=2)),
    ),
    hint="Cut range(length) into 2 * devices equal pieces. Device d gets piece d and piece "
    "2 * devices - 1 - d.",
    revisit='"Deal the text so that nobody waits" in lesson 18',
    mistakes=(
        Fault("in_order", kind="in order").feedback(
            "You dealt the text in order. The first device then has nothing to do after turn 0, "
            "and the last one works in every turn. Which part of the text could the first device "
            "take over?"
        ),
        Fault("halves_in_order", kind="halves").feedback(
            "You gave each device a piece of each half, but both halves in the same order. So the "
            "first device has the easier piece of either half. Who should get the easiest piece "
            "of the second half?"
        ),
        Fault("one_by_one", kind="one by one").feedback(
            "You dealt single tokens, like cards. That's striped attention, and with long texts "
            "it's nearly as good. But in each turn some device's tokens stand one place behind the "
            "keys, and have fewer pairs. Which deal makes the devices exactly equal?"
        ),
    ),
)


CHECKS = (SPLIT, MESH, RING, DEAL)
