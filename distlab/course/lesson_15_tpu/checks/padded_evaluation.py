"""A check of lesson 15: an evaluation over all examples, in batches of one shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Fault,
    Form,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    size = int(draw.integers(5, 9))
    rows = 2 * size + int(draw.integers(1, size - 2))
    return {
        "size": size,
        "images": draw.normal(size=(rows, 6)).astype("float32"),
        "labels": draw.integers(4, size=rows),
        "kernel": draw.normal(size=(6, 4)),
    }


def _losses_and_hits(images: Any, labels: Any, kernel: Any) -> tuple[Any, Any]:
    scores = np.asarray(images, float) @ kernel
    labels = np.asarray(labels).astype(int)
    own = scores[np.arange(len(labels)), labels]
    return np.log(np.exp(scores).sum(axis=1)) - own, (scores.argmax(axis=1) == labels) * 1.0


def _call(evaluate: Callable[..., Any], inputs: Inputs) -> Plain:
    def run(rows: int) -> Plain:
        sizes, losses, hits = [], [], []

        def step(images: Any, labels: Any) -> tuple[Any, Any]:
            result = _losses_and_hits(images, labels, inputs["kernel"])
            sizes.append(len(result[0]))
            losses.extend(result[0])
            hits.extend(result[1])
            return result

        found = evaluate(step, inputs["images"][:rows], inputs["labels"][:rows], inputs["size"])
        return {"found": found, "sizes": sizes, "losses": losses, "hits": hits}

    return {"partial": run(len(inputs["images"])), "full": run(2 * inputs["size"])}


def _read(given: Inputs, outputs: Plain) -> Plain:
    """Takes apart what was returned, and what the step saw."""
    partial, full = outputs["partial"], outputs["full"]
    pairs = [run["found"] for run in (partial, full)]
    pairs = [each.tolist() if isinstance(each, np.ndarray) else each for each in pairs]
    if not all(isinstance(pair, list) and np.shape(pair) == (2,) for pair in pairs):
        return {"form": pairs[0], "good": False}
    return {
        "form": pairs[0],
        "good": True,
        "loss": pairs[0][0],
        "accuracy": pairs[0][1],
        "full": pairs[1],
        "sizes": partial["sizes"],
        "padded": sum(partial["sizes"]) > len(given["images"]),
        "full_calls": len(full["sizes"]),
        "of_all_places": [np.mean(partial["losses"]), np.mean(partial["hits"])],
    }


def _reference(given: Inputs, *, drops_partial: bool = False, of_batches: bool = False) -> Plain:
    size, rows = given["size"], len(given["images"])
    both = np.array(_losses_and_hits(given["images"], given["labels"], given["kernel"]))
    full = both[:, : 2 * size].mean(axis=1)
    pieces = [both[:, at : at + size] for at in range(0, rows, size)]
    if drops_partial:
        pieces = pieces[:-1]
    mean = np.concatenate(pieces, axis=1).mean(axis=1)
    if of_batches:
        mean = np.mean([piece.mean(axis=1) for piece in pieces], axis=0)
    return {
        "form": mean,
        "good": True,
        "loss": mean[0],
        "accuracy": mean[1],
        "full": full,
        "sizes": [size] * len(pieces),
        "padded": False,
        "full_calls": 2,
    }


def _near(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, atol=1e-5))


EVALUATION = Check(
    name="evaluate_padded",
    title="An evaluation in batches of one shape",
    question="Which numbers that `step` returns belong to an example, and which to a filled place?",
    direction=(
        "Follow the last batch: how many of its rows are examples? Only their losses and hits may "
        "enter the sums, and only they may be counted."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form("two numbers, the mean loss and the accuracy", lambda _, out: out["good"], key="form"),
        Close("loss", "the mean loss over all examples", atol=1e-5, points=1.5),
        Close("accuracy", "the accuracy over all examples", atol=1e-5, points=1.5),
        Then(
            Holds(
                "each batch has the same number of rows",
                lambda given, out: set(out["sizes"]) == {given["size"]},
                lambda given, out: f"`step` saw batches of {', '.join(map(str, out['sizes']))}",
                points=1,
            ),
            Close("full", "the same, if the examples fill all batches", atol=1e-5, points=0.5),
            Holds(
                "and no batch of padding only",
                lambda _, out: out["full_calls"] == 2,
                "two full batches of examples needed more than two steps",
                points=0.5,
            ),
        ),
    ),
    hint="Pad with np.pad or np.concatenate up to `size` rows. Take `losses[:count]` and "
    "`hits[:count]` of what `step` returns, add them up, and divide once by `len(images)`.",
    revisit='"Pad, and count what is there" in lesson 15',
    mistakes=(
        Fault("remainder_dropped_in_eval", drops_partial=True).feedback(
            "You left out the last, partial batch. That is usual in training, where the next epoch "
            "shuffles again. Here some examples are never tested. Which share of the examples does "
            "your accuracy describe?"
        ),
        Fault("mean_of_batch_means", of_batches=True).feedback(
            "You averaged the means of the batches. An example of the partial batch counts more "
            "than the others. How much should each example count?"
        ),
        Observed(
            "padding_in_loss",
            lambda _, out: (
                len(set(out["sizes"])) == 1 and _near(out["loss"], out["of_all_places"][0])
            ),
        ).feedback(
            "You averaged the losses of all rows, and some rows of the last batch are padding. The "
            "loss now depends on how you fill a place. What tells a loss of an example from a loss "
            "of a filled place?"
        ),
        Observed(
            "metric_counts_padding",
            lambda _, out: out["padded"] and _near(out["accuracy"], out["of_all_places"][1]),
        ).feedback(
            "Your loss leaves the padding out, but your accuracy counts it. A filled place is "
            "right or wrong by chance. Which rows may the accuracy count?"
        ),
        Observed("ragged_batch", lambda given, out: set(out["sizes"]) != {given["size"]}).feedback(
            "You gave `step` a last batch with fewer rows. The numbers are right, and a compiler "
            "makes a second program for this shape. How can the last batch have as many rows as "
            "the others?"
        ),
    ),
)
