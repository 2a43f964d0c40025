"""A check of lesson 17: Adam whose state is divided among the replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Equal, Fault, Form, Inputs, Plain, Then
from distlab.course.runs.replicas import give_each, mirrored

_PIECE, _MORE = "its own piece", "more than its own piece"
_RATE, _FIRST, _SECOND, _TINY = 0.1, 0.9, 0.99, 1e-7


def _inputs(seed: int) -> Inputs:
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


def _call(sharded_adam: Callable[..., Any], inputs: Inputs) -> Plain:
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


def _reference(
    given: Inputs,
    *,
    summed: bool = True,
    whole_state: bool = False,
    weights: str = "gathered",
    piece: str = "own",
) -> Plain:
    """What each replica returns, if gradients, state and weights are combined in these ways."""
    replicas, gradient = given["replicas"], given["gradient"]
    total = np.broadcast_to(gradient.sum(axis=0), gradient.shape) if summed else gradient
    old = given["weights"].reshape(replicas, -1)
    owners = [0] * replicas if piece == "first" else list(range(replicas))
    cut = np.stack([total[n].reshape(replicas, -1)[owners[n]] for n in range(replicas)])
    new, m, v = _update(old[owners], cut, given["m"], given["v"])
    after = {
        "gathered": [new.ravel()] * replicas,
        "own piece": list(new),
        "own piece in place": [
            np.concatenate([*old[:n], new[n], *old[n + 1 :]]) for n in range(replicas)
        ],
        "summed": [new.sum(axis=0)] * replicas,
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
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Form("three values: weights, m and v", lambda _, out: out["form"] == "", key="form"),
        Equal("updated", "what each replica passes to `update`", points=0.5),
        Then(Close("state", "on each replica, its piece of m and of v", atol=1e-5, points=0.5)),
        Then(Close("weights", "on every replica, all updated weights", atol=1e-4, points=2)),
    ),
    hint="all_reduce the gradient, and keep piece number replica_id_in_sync_group of it and of the "
    "weights. Call update with these pieces. all_gather the new piece of the weights.",
    revisit='"Divide Adam\'s state" in lesson 17',
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
        Fault("pieces_summed", weights="summed").feedback(
            "You added up the pieces of the weights. They belong to different weights, so their "
            "sum has no meaning, and it is too short. Which collective puts pieces one after the "
            "other?"
        ),
        Fault("same_piece_on_all", piece="first").feedback(
            "Every one of your replicas updates the first piece of the weights. The other weights "
            "stay as they were. What tells a replica which piece is its own?"
        ),
    ),
)
