"""Checks of lesson 16: Adam that is sharded, gradients of pieces, and the bytes that both send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Form,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)
from distlab.course.lesson_16_shard_everything.piece_gradients import (
    REPLICAS,
    draw_stack,
    piece_gradients,
)
from distlab.course.runs.replicas import give_each, mirrored, take_each

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
        # Far from 0: dividing by a small root would enlarge the rounding of a sum.
        "v": draw.uniform(0.5, 2, size=(replicas, piece)).astype("float32"),
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
    weights, m, v = (take_each(strategy, part) for part in answer)
    return {"form": "", "updated": sorted(updated), "state": [m, v], "weights": weights}


def _adam_reference(
    given: Inputs, *, summed: bool = True, whole_state: bool = False, weights: str = "gathered"
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


ADAM = Check(
    name="sharded_adam",
    title="Adam's state divided among the replicas",
    question="Which part of the summed gradient does a replica need for its piece of Adam's state?",
    direction="Write down how long each of the five vectors is. Which two must never be as long as "
    "all weights, and which one must be in the end?",
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
    revisit='"ZeRO 1: update between the halves" in lesson 16',
    mistakes=(
        Fault("state_gathered", whole_state=True).feedback(
            "You gathered Adam's state. While it updates, each replica holds as much as before the "
            "state was divided, and it has sent more. Which of the vectors must be whole for the "
            "next forward pass?"
        ),
        Fault("own_gradient_only", summed=False).feedback(
            "You updated with the gradient of the replica's own examples, so each piece of the "
            "weights learns from a different part of the batch. Which collective gives a piece the "
            "gradient of all examples?"
        ),
        Fault("params_not_gathered", weights="own piece")
        .or_with(weights="own piece in place")
        .feedback(
            "Each of your replicas knows the update of its own piece of the weights only, so the "
            "replicas start the next step with different weights. How does a replica get the "
            "pieces that the others have updated?"
        ),
    ),
)


# --- fsdp_gradients: ZeRO 3 for a stack of layers


def _fsdp_call(fsdp_gradients: Callable[..., Any], inputs: Inputs) -> Plain:
    gradients, notes = piece_gradients(fsdp_gradients, inputs)
    if gradients is None:
        return {"form": "no gradient for each piece", "notes": notes.letters}
    shapes = [list(each[0].shape) for each in gradients]
    answer = {"form": "", "shapes": shapes, "notes": notes.letters}
    if shapes != _fsdp_reference(inputs)["shapes"]:
        return {**answer, "gradients": None}
    return {**answer, "gradients": _by_replica(gradients)}


def _by_replica(gradients: Sequence[Any]) -> Any:
    """Returns a row for each replica, with the numbers of all its gradients."""
    return np.concatenate([np.reshape(each, [REPLICAS, -1]) for each in gradients], axis=1)


def _fsdp_reference(
    given: Inputs,
    *,
    examples: str = "all",
    whole: bool = False,
    total: str = "once",
) -> Plain:
    """Returns the gradients of the pieces, summed over these examples and in this way."""
    shares = zip(np.split(given["x"], REPLICAS), np.split(given["y"], REPLICAS), strict=True)
    of_shares = [_backward(given["kernels"], x, y, len(given["x"])) for x, y in shares]
    gradients = []
    for of_kernel in zip(*of_shares, strict=True):
        summed = np.stack(np.split(np.sum(of_kernel, axis=0), REPLICAS))
        if examples == "own":
            summed = np.stack([np.split(own, REPLICAS)[n] for n, own in enumerate(of_kernel)])
        again = np.broadcast_to(summed.sum(axis=0), summed.shape)
        gradients.append({"once": summed, "mean": summed / REPLICAS, "twice": again}[total])
    shapes = [list(each.shape[1:]) for each in gradients]
    notes = " ".join(["g l"] * len(gradients) + ["g l s"] * len(gradients))
    shapes = [list(kernel.shape) for kernel in given["kernels"]] if whole else shapes
    return {"form": "", "shapes": shapes, "gradients": _by_replica(gradients), "notes": notes}


def _backward(kernels: Sequence[Any], x: Any, y: Any, count: int) -> list[Any]:
    """The gradients of the sum of squared errors over `count` examples."""
    outputs = [x]
    for kernel in kernels:
        outputs.append(np.tanh(outputs[-1] @ kernel))
    back, gradients = 2 * (outputs[-1] - y) / count, []
    for kernel, given, out in zip(kernels[::-1], outputs[-2::-1], outputs[::-1], strict=False):
        back = back * (1 - out**2)
        gradients.append(given.T @ back)
        back = back @ kernel.T
    return gradients[::-1]


def _gathers(given: Inputs, out: Plain) -> int:
    return str(out["notes"]).count("g")


def _one_at_a_time(given: Inputs, out: Plain) -> bool:
    return "g g" not in out["notes"] and _gathers(given, out) >= len(given["kernels"])


def _gathered_again(given: Inputs, out: Plain) -> bool:
    """The last layer's kernel may stay whole: its backward pass comes at once."""
    return _gathers(given, out) >= 2 * len(given["kernels"]) - 1


FSDP = Check(
    name="fsdp_gradients",
    title="Gradients of pieces, with one whole kernel at a time",
    question="When does a layer need its whole kernel, and who needs the gradient of which rows?",
    direction="Write one function that gathers a piece and runs its layer. Which tool of lesson 15 "
    "forgets what such a function has made, and what does the tape do with the gather?",
    cost=Cost.TENSORFLOW,
    inputs=draw_stack,
    call=_fsdp_call,
    reference=_fsdp_reference,
    criteria=(
        Form(
            "a list with a gradient for each piece",
            lambda _, out: out["form"] == "",
            key="form",
        ),
        Equal("shapes", "each gradient has the shape of its piece", points=0.5),
        Then(Close("gradients", "gradients of the pieces, over all examples", atol=1e-5, points=2)),
        Then(
            Holds(
                "no two kernels are gathered one after the other",
                _one_at_a_time,
                lambda given, out: f"your notes are {out['notes']}",
                points=0.5,
            ),
            Holds(
                "each kernel is dropped after its layer, and gathered again on the way back",
                _gathered_again,
                lambda given, out: (
                    f"{_gathers(given, out)} gathers for {len(given['kernels'])} layers"
                ),
                points=1,
            ),
        ),
    ),
    hint="Inside a GradientTape that watches the pieces, run for each piece "
    "`x = tf.recompute_grad(gathered)(piece, x)`, where `gathered(piece, x)` returns "
    "`layer(context.all_gather(piece, axis=0), x)`. Then ask the tape for the pieces' gradients.",
    revisit='"ZeRO 3: gather, use, drop" in lesson 16',
    mistakes=(
        Fault("whole_gradient", sees="shapes", whole=True).feedback(
            "You return the gradient of every whole kernel on every replica, which is as much as "
            "mirrored replicas keep. Of which tensor should the tape compute the gradient, if you "
            "want only your own rows of it?"
        ),
        Observed("not_gathered", lambda given, out: "g" not in out["notes"]).feedback(
            "You gathered nothing, so each layer ran with the rows of one replica, and its output "
            "isn't that of the whole kernel. Which collective makes a kernel whole?"
        ),
        Fault("own_examples_only", sees="gradients", examples="own").feedback(
            "You cut the own rows out of a gradient of the replica's own examples. Each piece then "
            "learns from a different part of the batch. What does the tape do on the way back, if "
            "it watches the piece and not the whole kernel?"
        ),
        Fault("summed_again", sees="gradients", total="twice").feedback(
            "You summed gradients that the gather's gradient had already summed. The second sum "
            "adds up gradients of different rows, which belong to different weights. How often has "
            "each example been counted before your own collective?"
        ),
        Fault("mean_for_sum", sees="gradients", total="mean").feedback(
            "Your gradients are right, but divided by the number of replicas. The loss is already "
            "divided by all examples, so this step is too short. What do the replicas' parts of "
            "one sum make together?"
        ),
        Observed("all_gathered_first", lambda given, out: "g g" in out["notes"]).feedback(
            "You gathered every kernel before the first layer ran. Your gradients are right, but "
            "all kernels are whole at once, and that's what the pieces were meant to avoid. When "
            "does the second layer need its kernel for the first time?"
        ),
        Observed("kept_whole", lambda given, out: not _gathered_again(given, out)).feedback(
            "You gathered each kernel once, so the tape keeps it whole until its gradient is "
            "there. At the end of the forward pass every kernel is whole. How can the backward "
            "pass get a kernel that was dropped after its layer?"
        ),
    ),
)


# --- sent_bytes: the bytes that each replica sends, from the notes of a step

_STAGES = {
    "mirrored": ("l l l r r r", "a mirrored step"),
    "zero_1": ("l l l s g s g s g", "a step of ZeRO 1"),
    "zero_2": ("l l l s s s l l l s s s g g g", "a step of ZeRO 2 with two micro-batches"),
    "zero_3": ("g l g l g l g l s g l s g l s", "a step of ZeRO 3"),
}


def _bytes_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    replicas = int(draw.choice([3, 4, 6]))
    cases = {}
    for name, (letters, _) in _STAGES.items():
        sizes = 4 * replicas * draw.integers(10, 200, size=len(letters.split()))
        pairs = zip(letters.split(), sizes.tolist(), strict=True)
        cases[name] = [[letter, 0 if letter == "l" else size] for letter, size in pairs]
    return {"replicas": replicas, "cases": cases}


def _bytes_call(sent_bytes: Callable[..., Any], inputs: Inputs) -> Plain:
    return {
        name: sent_bytes([(letter, size) for letter, size in notes], inputs["replicas"])
        for name, notes in inputs["cases"].items()
    }


def _bytes_reference(
    given: Inputs, *, rounds: int = 2, keeps_own: bool = True, times: int = 0
) -> Plain:
    """Returns the bytes of each step, by these habits of counting."""
    count = given["replicas"]
    share = ((count - 1) / count if keeps_own else 1) * float(count) ** times
    halves = {"g": 1, "s": 1, "r": rounds, "l": 0}
    return {
        name: sum(halves[letter] * size * share for letter, size in notes)
        for name, notes in given["cases"].items()
    }


BYTES = Check(
    name="sent_bytes",
    title="The bytes of a step, from its notes",
    question="Of a tensor that N ranks put together in a ring, what does one rank never send?",
    direction="Take an all-gather of 4 ranks with one chunk each. Which chunks does rank 0 pass "
    "on, and which one is already where it would go?",
    cost=Cost.PURE,
    inputs=_bytes_inputs,
    call=_bytes_call,
    reference=_bytes_reference,
    criteria=tuple(Close(name, label, atol=1e-3) for name, (_, label) in _STAGES.items()),
    hint='Count "g" and "s" once and "r" twice, and each time take size * (N - 1) / N.',
    revisit='"ZeRO 3: gather, use, drop" in lesson 16',
    mistakes=(
        Fault("all_reduce_counted_once", rounds=1).feedback(
            "You counted an all-reduce like a gather. Then mirrored replicas would send half of "
            "what ZeRO 1 sends. Which two collectives does an all-reduce consist of?"
        ),
        Fault("own_chunk_sent", keeps_own=False).feedback(
            "You counted whole tensors. In each half of an all-reduce a rank passes on N - 1 of N "
            "chunks, so you have one too many. Which chunk does its neighbour not need?"
        ),
        Fault("all_replicas_counted", times=1).feedback(
            "Your number is what all replicas send together. They send at the same time, each over "
            "its own link. How much does one of them send?"
        ),
        Fault("piece_for_whole", times=-1).feedback(
            "You divided by the number of replicas once too often. The notes hold the size of the "
            "whole tensor, and a ring passes on N - 1 chunks of it. How large is one chunk?"
        ),
    ),
)


CHECKS = (ADAM, FSDP, BYTES)
