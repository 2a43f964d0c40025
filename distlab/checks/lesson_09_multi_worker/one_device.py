"""What one device comes to in lesson 09's loop, and what it would be with a mistake in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import Inputs, Plain
from distlab.checks.lesson_03_custom_training_loop.gradients import softmax
from distlab.coursework.cluster_calls import WORKERS

RATE, PER_WORKER, EPOCHS = 0.3, 4, 2
GLOBAL_BATCH = PER_WORKER * WORKERS


def one_device(company: Any) -> Any:
    """The weight of each example on one device."""
    return np.full(len(company), 1 / len(company))


def own_mean(company: Any) -> Any:
    """The weight of each example where workers' means are added."""
    return 1 / company


def mean_of_means(company: Any) -> Any:
    """The weight of each example where workers' means are averaged."""
    return 1 / (WORKERS * company)


def nan_of_nothing(company: Any) -> Any:
    """As `mean_of_means`, and NaN where a worker has no example."""
    return mean_of_means(company) if len(company) >= WORKERS else np.nan * company


def _company(examples: int, per_worker: int) -> Any:
    """For each example of a global batch, how many its worker has."""
    shares = [min(examples, per_worker), max(examples - per_worker, 0)]
    if examples < WORKERS * per_worker:  # a partial batch is halved
        shares = [-(-examples // WORKERS), examples // WORKERS]
    return np.repeat(shares, shares).astype("float64")


def train(
    given: Inputs,
    *,
    per_worker: int = PER_WORKER,
    weigh: Callable[[Any], Any] = one_device,
    partial: bool = True,
    epochs: int = EPOCHS,
    log: str = "of examples",
) -> Plain:
    """Softmax regression by SGD, in float64, as both workers should have it."""
    kernel, bias = given["kernel"].astype("float64"), np.zeros(3)
    examples, global_batch = len(given["y"]), WORKERS * per_worker
    used = examples if partial else examples - examples % global_batch
    of_batches = np.zeros((epochs, -(-used // global_batch)))  # the sum of each batch's losses
    for epoch, batch in np.ndindex(of_batches.shape):
        places = slice(batch * global_batch, min((batch + 1) * global_batch, used))
        x, y = given["x"][places], given["y"][places]
        chances = softmax(x @ kernel + bias)
        error = (chances - np.eye(3)[y]) * weigh(_company(len(y), per_worker))[:, None]
        kernel, bias = kernel - RATE * x.T @ error, bias - RATE * error.sum(axis=0)
        of_batches[epoch, batch] = -np.log(chances[np.arange(len(y)), y]).sum()
    sizes = np.diff([*range(0, used, global_batch), used])
    of_epochs = of_batches.sum(axis=1) / used
    losses = {
        "of examples": of_epochs,
        "never reset": np.cumsum(of_epochs) / np.arange(1, epochs + 1),
        "mean of batches": (of_batches / sizes).mean(axis=1),
        "last batch": (of_batches / sizes)[:, -1],
    }[log]
    return {
        "kernel": kernel,
        "bias": bias,
        "other kernel": kernel,
        "other bias": bias,
        **{f"losses of worker:{index}": losses for index in range(WORKERS)},
        "trained on": [EPOCHS * (-(-examples // WORKERS)), EPOCHS * (examples // WORKERS)],
    }
