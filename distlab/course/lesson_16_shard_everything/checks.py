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
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Raises,
    Then,
)
from distlab.course.lesson_16_shard_everything.piece_gradients import (
    NO_GRADIENT,
    REPLICAS,
    draw_stack,
    piece_gradients,
)
from distlab.course.runs.noted_collectives import Notes
from distlab.course.runs.replicas import give_each, mirrored, take_each

# --- sharded_adam: Adam whose state is divided among the replicas

_PIECE, _MORE = "its own piece", "more than its own piece"
_RATE, _FIRST, _SECOND, _TINY = 0.1, 0.9, 0.99, 1e-7


def _form(label: str) -> Gate:
    """The form of an answer, of which the call has noted in words what it is otherwise."""
    return Gate(
        Holds(
            label, lambda _, out: out["form"] == "", lambda _, out: f"yours returned {out['form']}"
        )
    )


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
    if not (isinstance(answer, tuple | list) and len(answer) == 3):
        values = f"{len(answer)} values" if isinstance(answer, tuple | list) else "one value"
        return {"form": "None" if answer is None else values}
    weights, m, v = (take_each(strategy, part) for part in answer)
    return {"form": "", "updated": sorted(updated), "state": [m, v], "weights": weights}


def _adam_reference(
    given: Inputs,
    *,
    total: str = "sum",
    cut: str = "blocks",
    whole_state: bool = False,
    weights: str = "gathered",
) -> Plain:
    """Returns each replica's result, if gradients, state and weights are combined in these ways."""
    replicas, gradient = given["replicas"], given["gradient"]

    def pieces(vector: Any) -> Any:
        blocks = vector.reshape(replicas, -1)
        return blocks if cut == "blocks" else vector.reshape(-1, replicas).T

    summed = np.broadcast_to(gradient.sum(axis=0), gradient.shape)
    totals = {"sum": summed, "mean": summed / replicas, "own": gradient}[total]
    old = pieces(given["weights"])
    own = np.stack([pieces(totals[n])[n] for n in range(replicas)])
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
        _form("three values: weights, m and v"),
        Equal("updated", "what each replica passes to `update`", points=0.5),
        Then(Close("state", "on each replica, its piece of m and of v", atol=1e-5, points=0.5)),
        Then(Close("weights", "on every replica, all updated weights", atol=1e-4, points=2)),
    ),
    hint="all_reduce the gradient, and keep piece number replica_id_in_sync_group of it and of the "
    "weights. Call update with these pieces. all_gather the new piece of the weights.",
    revisit='"ZeRO 1: divide the state" in lesson 16',
    mistakes=(
        Fault("state_gathered", whole_state=True).feedback(
            "You gathered Adam's state. While it updates, each replica holds as much as before the "
            "state was divided, and it has sent more. Which of the vectors must be whole for the "
            "next forward pass?"
        ),
        Raises("method_of_the_lesson", r"has no attribute '(reduce_scatter|own_rows)'").feedback(
            "You called a method of the lesson's context. Here you have TensorFlow's own, which "
            "sums whole vectors and gathers pieces, but has neither `reduce_scatter` nor "
            "`own_rows`. How do you cut the own piece out of a vector that is whole?"
        ),
        Fault("mean_of_gradients", sees="state", total="mean").feedback(
            "You averaged the gradients of the replicas. Their losses are already divided by all "
            "examples of the global batch, so your gradient is too small by the number of "
            "replicas. What do the replicas' parts of one sum make together?"
        ),
        Fault("cut_by_stride", sees="state", cut="stride").feedback(
            "You gave a replica every N-th number of a vector, for N replicas. `m` and `v` belong "
            "to N blocks of neighbours, and replica 0 owns the first, so your gradients meet "
            "averages of other weights. Which shape lets you take a whole block with one index?"
        ),
        Fault("own_gradient_only", total="own").feedback(
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
    noted = {"notes": notes.letters, "gathers": _gathers_of_each(inputs, notes)}
    if isinstance(gradients, str):
        return {"form": gradients, **noted}
    shapes = [list(each[0].shape) for each in gradients]
    answer = {"form": "", "shapes": shapes, **noted}
    if shapes != _fsdp_reference(inputs)["shapes"]:
        return {**answer, "gradients": None}
    return {**answer, "gradients": _by_replica(gradients)}


def _gathers_of_each(given: Inputs, notes: Notes) -> list[int]:
    """How often each kernel was gathered; no two have the same size."""
    gathered = [note.bytes for note in notes.notes if note.letter == "g"]
    return [gathered.count(kernel.nbytes) for kernel in given["kernels"]]


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
    gathers = [2] * len(gradients)
    answer = {"form": "", "shapes": shapes, "notes": notes, "gathers": gathers}
    return {**answer, "gradients": _by_replica(gradients)}


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


def _one_at_a_time(given: Inputs, out: Plain) -> bool:
    return "g g" not in out["notes"] and all(out["gathers"])


def _gathered_again(given: Inputs, out: Plain) -> bool:
    """The last layer's kernel may stay whole: its backward pass comes at once."""
    return all(count > 1 for count in out["gathers"][:-1])


def _several_on_the_way_back(given: Inputs, out: Plain) -> bool:
    """Whether the way back gathers a kernel before the gradient of the one before it has left."""
    until_first, *between = str(out["notes"]).split("s")
    forward = len(given["kernels"])
    return until_first.count("g") > forward + 1 or any(part.count("g") > 1 for part in between)


def _dropped(given: Inputs, out: Plain) -> bool:
    return _gathered_again(given, out) and not _several_on_the_way_back(given, out)


def _not_dropped(given: Inputs, out: Plain) -> str:
    if _gathered_again(given, out):
        return f"your notes are {out['notes']}"
    return f"of the kernels, your notes have {out['gathers']} gathers"


def _is_right(given: Inputs, out: Plain) -> bool:
    """Whether the gradients are those of the reference."""
    yours = out.get("gradients")
    return yours is not None and np.allclose(yours, _fsdp_reference(given)["gradients"], atol=1e-5)


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
        _form("a list with a gradient for each piece"),
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
                _dropped,
                _not_dropped,
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
        Observed("no_gradient", lambda given, out: out["form"].startswith(NO_GRADIENT)).feedback(
            "Your tape has no gradient for a piece, so nothing tells its owner how to change it. A "
            "tape follows what it watches, and `tf.recompute_grad` gives gradients only for "
            "arguments. Is each piece watched, and is it an argument of the function that's "
            "recomputed?"
        ),
        Observed(
            "other_context", lambda given, out: "g" not in out["notes"] and _is_right(given, out)
        ).feedback(
            "You didn't gather with the `context` you were given. Your gradients are right, but "
            "the notes know nothing of your gathers, so they can't say when a kernel is whole. "
            "Whose `all_gather` do you call?"
        ),
        Observed(
            "not_gathered", lambda given, out: "shapes" in out and "g" not in out["notes"]
        ).feedback(
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
        Observed(
            "kept_whole", lambda given, out: "shapes" in out and not _gathered_again(given, out)
        ).feedback(
            "You gathered all kernels, or some of them, only once. The tape keeps each of these "
            "whole until its gradient is there, so several are whole at once. How can the backward "
            "pass get a kernel that was dropped after its layer?"
        ),
        Observed(
            "recomputed_at_once",
            lambda given, out: "shapes" in out and _several_on_the_way_back(given, out),
        ).feedback(
            "You recompute several layers at once: on the way back your notes have gathers of "
            "several kernels before the next gradient leaves, and until then all of these are "
            "whole. How much may one `recompute_grad` go around, if one kernel is to be whole at a "
            "time?"
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
    given: Inputs, *, rounds: int = 2, chunks: str = "others", times: int = 0
) -> Plain:
    """Returns the bytes of each step, by these habits of counting."""
    count = given["replicas"]
    passed_on = {"others": count - 1, "all": count, "one": 1}[chunks]
    share = passed_on / count * float(count) ** times
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
        Fault("own_chunk_sent", chunks="all").feedback(
            "You counted whole tensors. In each half of an all-reduce a rank passes on N - 1 of N "
            "chunks, so you have one too many. Which chunk does its neighbour not need?"
        ),
        Fault("one_chunk_sent", chunks="one").feedback(
            "You counted one chunk, `size / N`, for each half of an all-reduce. A rank passes on a "
            "chunk in every step of the ring, so your number is right only for 2 ranks. How many "
            "steps does one half take with N ranks?"
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
