"""An evaluation that runs beside a training, in a process of its own.

    evaluations = evaluate_checkpoints(build, test, folder="checkpoints")

The training is given `dl.Resume("checkpoints")`. Each checkpoint is evaluated once, soon after it
is written; where there is an "evaluator" in TF_CONFIG, this is what that task runs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

from distlab.training import variables
from distlab.training.distribute import distribute
from distlab.training.keras_private import models
from distlab.training.resume import checkpoints

_BETWEEN_LOOKS_SECS = 0.2


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluation of one checkpoint.

    Attributes:
        epoch: Epochs that were done.
        step: Steps that were done, over all epochs.
        logs: As `evaluate` returns them.
    """

    epoch: int
    step: int
    logs: dict[str, float]

    def __str__(self) -> str:
        """As in "step 240, 3 epochs done: loss 0.512, accuracy 0.83"."""
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.logs.items())
        epochs = "1 epoch" if self.epoch == 1 else f"{self.epoch} epochs"
        return f"step {self.step}, {epochs} done: {values}"


def evaluate_checkpoints(
    build: Callable[[], keras.Model],
    data: tf.data.Dataset,
    *,
    folder: str | Path = "checkpoints",
    epochs: int | None = None,
    strategy: tf.distribute.Strategy | None = None,
    timeout_secs: float = 600,
    verbose: bool = True,
) -> list[Evaluation]:
    """Evaluates the checkpoints of a training as they come, each once, until it has ended.

    It has ended with the checkpoint of its last epoch, or of the one in which a callback stopped
    it. Checkpoints that `Resume` removes before they are read (`keep`) are passed over.
    """
    model = distribute(build, strategy or tf.distribute.get_strategy())
    models.build(model, data.element_spec, of_step=models.has_own(model, "train_step"))
    done: list[Evaluation] = []
    last: checkpoints.Checkpoint | None = None
    deadline = time.monotonic() + timeout_secs
    while time.monotonic() < deadline:
        for checkpoint in checkpoints.newer(Path(folder), last):
            done.append(_evaluate(model, data, checkpoint))
            last = checkpoint
            if verbose:
                print(done[-1], flush=True)  # noqa: T201
            deadline = time.monotonic() + timeout_secs
        if last is not None and _is_last(last, epochs):
            return done
        time.sleep(_BETWEEN_LOOKS_SECS)
    warnings.warn(
        f"evaluate_checkpoints: no new checkpoint in {str(folder)!r} for {timeout_secs:g} s, after "
        f"{len(done)}, and the training did not say that it has ended",
        UserWarning,
        stacklevel=2,
    )
    return done


def _evaluate(
    model: keras.Model, data: tf.data.Dataset, checkpoint: checkpoints.Checkpoint
) -> Evaluation:
    state = checkpoint.state
    variables.check(model, state["variables"], optimizer=state["optimizer"], metrics=False)
    variables.write(model, state["variables"], checkpoint.values, metrics=False)
    logs = model.evaluate(data, return_dict=True, verbose=0)
    return Evaluation(epoch=checkpoint.epoch, step=checkpoint.step, logs=dict(logs))


def _is_last(checkpoint: checkpoints.Checkpoint, epochs: int | None) -> bool:
    state = checkpoint.state
    planned = state.get("epochs", float("inf")) if epochs is None else epochs
    return bool(state["stopped"]) or checkpoint.epoch >= planned
