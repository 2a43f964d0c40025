"""What one device comes to in lesson 09's loop, and what it would be with a mistake in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Inputs, Plain
from distlab.grading.clusters import WORKERS

RATE, PER_WORKER, EPOCHS = 0.3, 4, 2
GLOBAL_BATCH = PER_WORKER * WORKERS

_Weights = Callable[[Any], Any]  # from how many examples each one's worker has, to its weight


def _one_device(company: Any) -> Any:
    return np.full(len(company), 1 / len(company))


def mean_of_means(company: Any) -> Any:
    """Returns the weight of each example where each worker takes the mean of its own.

    Args:
        company: For each example, how many its worker has.
    """
    return 1 / (WORKERS * company)


def _company(examples: int, per_worker: int) -> Any:
    """For each example of a global batch, how many its worker has."""
    shares = [min(examples, per_worker), max(examples - per_worker, 0)]
    if examples < WORKERS * per_worker:  # a partial batch is halved
        shares = [-(-examples // WORKERS), examples // WORKERS]
    return np.repeat(shares, shares).astype("float64")


def results_of(
    inputs: Inputs,
    *,
    per_worker: int = PER_WORKER,
    weight_of: _Weights = _one_device,
    partial: bool = True,
    epochs: int = EPOCHS,
) -> Plain:
    """Softmax regression by SGD, in float64.

    Args:
        inputs: Those of the check: `x`, `y` and the first `kernel`.
        per_worker: Examples that a worker takes in a full step.
        weight_of: The weight of each example in a step, from how many its worker has.
        partial: Whether the last batch of an epoch is used where it is not full.
        epochs: How many.

    Returns:
        `kernel`, `bias`, `losses` by epoch, and `of batches`: by epoch, the mean of each batch.
    """
    kernel, bias = inputs["kernel"].astype("float64"), np.zeros(3)
    examples, losses, of_batches = len(inputs["y"]), [], list[list[float]]()
    used = examples if partial else examples - examples % (WORKERS * per_worker)
    for _ in range(epochs):
        total = 0.0
        of_batches.append([])
        for start in range(0, used, WORKERS * per_worker):
            x, y = (inputs[name][start:used][: WORKERS * per_worker] for name in ("x", "y"))
            logits = x @ kernel + bias
            raised = np.exp(logits - logits.max(axis=1, keepdims=True))
            chances = raised / raised.sum(axis=1, keepdims=True)
            weights = weight_of(_company(len(y), per_worker))[:, None]
            error = (chances - np.eye(3)[y]) * weights
            kernel, bias = kernel - RATE * x.T @ error, bias - RATE * error.sum(axis=0)
            loss = -np.log(chances[np.arange(len(y)), y]).sum()
            total += loss
            of_batches[-1].append(loss / len(y))
        losses.append(total / used)
    return {"kernel": kernel, "bias": bias, "losses": losses, "of batches": of_batches}
