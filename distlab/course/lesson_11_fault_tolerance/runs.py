"""Lesson 11's report: trains the learner's loop undisturbed, killed, and from weights alone.

    runs = run_and_kill(train)
    draw_resumed(runs.undisturbed, runs.resumed, stopped_at=runs.went_on_from, killed_in=48)

It runs on two workers, with the digits and Adam. One of them is killed in the middle of a step.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distlab.course.lesson_11_fault_tolerance.training import digits
from distlab.course.lesson_11_fault_tolerance.worker_kill import killing
from distlab.course.runs.cluster_calls import call_on_workers

BATCHES, EPOCHS, EVERY_STEPS, KILLED_IN = 10, 6, 5, 48
_EXAMPLES, _BATCH, _KEEP, _KILLED = 320, 32, 2, 1
_TIMEOUT_SECS = 120.0  # the longest takes some seconds; a machine may be busy


@dataclass(frozen=True)
class Runs:
    """How a learner's training went three times.

    Attributes:
        undisturbed: The loss on all digits after each step.
        went_on_from: How many steps were done when the killed training resumed.
        resumed: By "your training" and "weights only", the losses after each step from there on.
        equal_to_the_bit: Whether the killed training ends with the weights of the undisturbed.
    """

    undisturbed: list[float]
    went_on_from: int
    resumed: dict[str, list[float]]
    equal_to_the_bit: bool


@dataclass(frozen=True)
class _Order:
    """The job of the workers, with the weights and the epoch to begin from if not the first."""

    place: str
    killed_in: int = -1
    weights: Sequence[Any] | None = None
    epoch: int = 0


def run_and_kill(train: Callable[..., Any]) -> Runs:
    """Runs a training three times: undisturbed, killed in step 48, and on from its weights only."""
    undisturbed = _weights_by_step(train)
    killed = _weights_by_step(train, killed_in=KILLED_IN)
    # The steps of the last life; of a new optimizer they count from 1 again.
    went_on_from = min(killed) - 1
    saved = undisturbed.get(went_on_from)
    rest = _weights_by_step(train, weights=saved, epoch=went_on_from // BATCHES)
    last = EPOCHS * BATCHES
    pairs = zip(undisturbed[last], killed.get(last, undisturbed[1]), strict=True)
    return Runs(
        undisturbed=_losses(undisturbed),
        went_on_from=went_on_from,
        resumed={"your training": _losses(killed), "weights only": _losses(rest)},
        equal_to_the_bit=all(np.array_equal(one, other) for one, other in pairs),
    )


def _weights_by_step(train: Callable[..., Any], **how: Any) -> dict[int, list[Any]]:
    """Returns the weights after each step of the training's last life."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        order = _Order(place, **how)
        with killing(folder / "process", when=folder / "hangs"):
            call_on_workers(_train, train, order, timeout_secs=_TIMEOUT_SECS, restarts=1)
        lives = sorted(folder.glob("life-0-*"), key=lambda life: int(life.name.split("-")[-1]))
        weights = {int(file.stem): _read(file) for file in lives[-1].iterdir()}
    if not weights:
        raise ValueError("no step was taken: model.optimizer was never asked to apply a gradient")
    return weights


def _read(file: Path) -> list[Any]:
    with np.load(file) as arrays:
        return [arrays[name] for name in arrays.files]


def _train(strategy: Any, train: Callable[..., Any], order: _Order) -> None:
    """On each worker."""
    import distlab as dl

    index, place = strategy.cluster_resolver.task_id, Path(order.place)
    number = len(list(place.glob(f"life-{index}-*")))
    life = place / f"life-{index}-{number}"
    life.mkdir()
    if index == _KILLED:
        (place / "process").write_text(str(os.getpid()))
    hangs_in = order.killed_in if index == _KILLED and number == 0 else -1

    def note(step: Any, *weights: Any) -> Any:
        if step == hangs_in:
            (place / "hangs").touch()
            time.sleep(600)
        np.savez(life / f"{step}.npz", *weights)
        return step

    checkpoints = place / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    dl.set_seed(1 + number, deterministic=True)  # as chance would have it in a new process
    build = _builder(note, order.weights)
    epochs = EPOCHS - order.epoch
    train(strategy, build, _batches_of(order.epoch), epochs, str(checkpoints), EVERY_STEPS, _KEEP)


def _builder(note: Callable[..., Any], weights: Sequence[Any] | None) -> Callable[[], Any]:
    import keras
    import tensorflow as tf

    class NotingAdam(keras.optimizers.Adam):  # type: ignore[misc]
        """Notes the weights after each step, whatever the loop around it looks like."""

        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            done = super().apply(grads, trainable_variables)
            after = [weight.value for weight in self._trainable_variables]
            tf.numpy_function(note, [self.iterations.value, *after], tf.int64)
            return done

    def build() -> Any:
        model = _model()
        if weights is not None:
            model.set_weights(weights)
        model.compile(NotingAdam(0.03))
        return model

    return build


def _model() -> Any:
    import keras

    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu")]
    # Named as in every new process: what is saved by a layer's name must be found again.
    layers += [keras.layers.Dropout(0.1, seed=1, name="dropout"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers])


def _batches_of(first_epoch: int) -> Callable[[int], Any]:
    images, labels = digits()

    def batches_of(epoch: int) -> Any:
        import tensorflow as tf

        order = np.random.default_rng(first_epoch + epoch).permutation(_EXAMPLES)
        return tf.data.Dataset.from_tensor_slices((images[order], labels[order])).batch(_BATCH)

    return batches_of


def _losses(weights_by_step: dict[int, list[Any]]) -> list[float]:
    """The loss on all digits with each step's weights, in the order of the steps."""
    import keras

    images, labels = digits()
    model = _model()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(weights: Sequence[Any]) -> float:
        model.set_weights(weights)
        return float(loss_of(labels, model(images)))

    return [loss(weights) for _, weights in sorted(weights_by_step.items())]
