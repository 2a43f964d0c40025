"""A check of lesson 17: choose the axes of a mesh for models on a cluster of several hosts."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Form, Inputs, Plain

_CASES = {
    "small": "a model that one device holds",
    "part": "a model that a part of a host holds",
    "host": "a model that a whole host holds",
    "hosts": "a model that needs several hosts",
}
_Model = dict[str, Any]


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    activations, hosts = int(draw.integers(10, 17)), int(draw.choice([4, 8]))
    room = 80 - activations

    def model(gb: float) -> _Model:
        facts = {"bytes_per_parameter": 16, "activations_gb": activations, "device_gb": 80}
        return {"parameters": int(gb / 16 * 1e9), **facts}

    stages = int(draw.choice([2, 4]))
    models = {
        "small": model(room * draw.uniform(0.3, 0.9)),
        # Two devices would hold it if there were no activations.
        "part": model(2 * room + draw.uniform(0.3, 1.7) * activations),
        "host": model(room * draw.uniform(4.5, 7)),
        "hosts": model(8 * stages * room * draw.uniform(0.6, 0.95)),
    }
    order = draw.permutation(sorted(models)).tolist()
    return {"models": models, "hosts": hosts, "per_host": 8, "order": order}


def _call(choose_mesh: Callable[..., Any], inputs: Inputs) -> Plain:
    cluster = inputs["hosts"], inputs["per_host"]
    meshes = {name: choose_mesh(dict(inputs["models"][name]), *cluster) for name in inputs["order"]}
    try:
        return {name: [operator.index(size) for size in mesh] for name, mesh in meshes.items()}
    except TypeError:
        return meshes


def _reference(
    given: Inputs,
    *,
    bytes_each: int = 16,
    activations: bool = True,
    parts: Callable[[int], int] = lambda least: 2 ** math.ceil(math.log2(least)),
    tensor: Callable[[int, Inputs], int] = lambda parts, given: min(parts, given["per_host"]),
) -> Plain:
    """The sizes (batch, pipeline, tensor) for each model, chosen with these habits."""
    devices = given["hosts"] * given["per_host"]

    def sizes(model: _Model) -> list[int]:
        room = model["device_gb"] - (model["activations_gb"] if activations else 0)
        count = parts(math.ceil(model["parameters"] * bytes_each / 1e9 / room))
        inside = tensor(count, given)
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
    inputs=_inputs,
    call=_call,
    reference=_reference,
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
    revisit='"A mesh of data and model" in lesson 17',
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
        Fault("tensor_across_hosts", tensor=lambda parts, given: parts).feedback(
            "You let tensor parallelism go beyond a host. It waits for the links four times in "
            "each layer, and those between hosts are slow. Which kind sends only the activations "
            "between two groups of layers?"
        ),
        Fault("whole_host_always", tensor=lambda parts, given: given["per_host"]).feedback(
            "You cut every model over all devices of a host. A small model then waits for links "
            "that it does not need, and has fewer copies. How many devices must hold it together?"
        ),
    ),
)
