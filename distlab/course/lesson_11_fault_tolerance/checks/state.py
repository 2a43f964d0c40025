"""A check of lesson 11: every part of a training, restored in a new one."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Criterion, Inputs, Observed, Plain
from distlab.course.checks.matchers import same_plain

_STEPS, _BATCH = 10, 4


@dataclass(frozen=True)
class AsUndisturbed(Close):
    """Equal to the bit to an undisturbed training, whose dropout masks no reference draws."""

    of: Callable[[Inputs, Plain], Plain] = field(kw_only=True)
    atol: float = field(default=0, kw_only=True)

    def look(self, inputs: Inputs, outputs: Plain, right: Plain) -> Criterion:
        """Compares with the undisturbed training instead of the reference."""
        return super().look(inputs, outputs, self.of(inputs, outputs))


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "draw": seed,
        "x": draw.normal(size=(_STEPS * _BATCH, 5)).astype("float32"),
        "y": draw.integers(0, 3, size=_STEPS * _BATCH).astype("int32"),
        "kernel": draw.normal(size=(5, 3)).astype("float32"),
        "stopped_at": int(draw.integers(3, _STEPS - 2)),
        "dropouts": 1 + seed % 2,
        "seed": int(draw.integers(1000)),
    }


class _Training:
    """Softmax regression behind dropout, by Adam; eager, so that a check is quick."""

    def __init__(self, inputs: Inputs, *, new: bool) -> None:
        import keras
        import tensorflow as tf

        # A new process: what is not restored begins elsewhere.
        seeds = [inputs["seed"] + 10 * number + int(new) for number in range(inputs["dropouts"])]
        # Named as they are in every process: what goes by names must find them again.
        layers = [
            keras.layers.Dropout(0.4, seed=seed, name=f"dropout_{number}")
            for number, seed in enumerate(seeds)
        ]
        # Some of its weights are not trained: no optimizer holds them.
        norm, dense = keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(3)
        self.model = keras.Sequential([keras.Input((5,)), *layers, norm, dense])
        dense.set_weights([inputs["kernel"] * (0.5 if new else 1), np.zeros(3)])
        self.optimizer = keras.optimizers.Adam(0.1)
        self.optimizer.build(self.model.trainable_variables)
        self.step = tf.Variable(0, dtype=tf.int64)
        self._states = [layer.seed_generator.state for layer in layers]
        self._inputs = inputs

    def run(self, until: int) -> None:
        import keras
        import tensorflow as tf

        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        while (step := int(self.step.numpy())) < until:
            x, y = (self._inputs[name][step * _BATCH :][:_BATCH] for name in ("x", "y"))
            with tf.GradientTape() as tape:
                loss = loss_of(y, self.model(x, training=True))
            self.optimizer.apply(tape.gradient(loss, self.model.trainable_variables))
            self.step.assign_add(1)

    def weights(self) -> Any:
        return np.concatenate([weight.ravel() for weight in self.model.get_weights()])

    def state(self) -> dict[str, Plain]:
        iterations = self.optimizer.iterations
        others = [v for v in self.optimizer.variables if v is not iterations]
        return {
            "weights": self.weights(),
            "optimizer": np.concatenate([np.ravel(variable.numpy()) for variable in others]),
            "iterations": int(iterations.numpy()),
            "step": int(self.step.numpy()),
            "seeds": np.concatenate([np.ravel(state.numpy()) for state in self._states]),
        }


def _call(whole_state: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    def checkpoint_of(training: _Training) -> Any:
        checkpoint = whole_state(training.model, training.optimizer, training.step)
        if not isinstance(checkpoint, tf.train.Checkpoint):
            raise TypeError(f"a tf.train.Checkpoint was asked for; yours is {checkpoint!r}"[:200])
        return checkpoint

    stopped, fresh = _Training(inputs, new=False), _Training(inputs, new=True)
    stopped.run(inputs["stopped_at"])
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint_of(stopped).write(str(Path(folder, "all")))
        checkpoint_of(fresh).read(path).expect_partial()
    restored = fresh.state()
    # A place that is lost sends the loop elsewhere; the steps to do are as many.
    fresh.run(restored["step"] + _STEPS - inputs["stopped_at"])
    return {**restored, "at the end": fresh.weights()}


@functools.lru_cache(maxsize=4)
def _undisturbed(draw: int) -> dict[str, Plain]:
    """All of a training that was not stopped, by the seed of its draw."""
    inputs = _inputs(draw)
    training = _Training(inputs, new=False)
    training.run(inputs["stopped_at"])
    state = training.state()
    training.run(_STEPS)
    return {**state, "at the end": training.weights()}


def _restored(key: str, label: str) -> AsUndisturbed:
    return AsUndisturbed(key, label, points=0.5, of=lambda given, _: _undisturbed(given["draw"]))


def _is_lost(*names: str) -> Callable[[Inputs, Plain], bool]:
    def when(given: Inputs, out: Plain) -> bool:
        right = _undisturbed(given["draw"])
        return any(not same_plain(out[name], right[name]) for name in names)

    return when


STATE = Check(
    name="whole_state",
    title="All that a training consists of",
    question="What does a resumed run need that is not in the weights?",
    direction=(
        "List everything that changes in a step: in the model, in the optimizer, in the random "
        "numbers, and in your loop."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    criteria=(
        _restored("weights", "the weights, restored"),
        _restored("optimizer", "what Adam remembers, restored"),
        _restored("iterations", "the steps that Adam has counted"),
        _restored("step", "the place in the data"),
        _restored("seeds", "the state of the seeds"),
        _restored("at the end", "the weights at the end, bit for bit"),
    ),
    hint="tf.train.Checkpoint takes any number of parts by name. Save four: model, "
    "optimizer, step, and a list of the `seed_generator.state` of each layer that has "
    "a seed generator.",
    revisit="What a training run consists of",
    mistakes=(
        Observed("no_model", _is_lost("weights")).feedback(
            "You did not save all weights of the model. The optimizer holds only those that it "
            "trains, and BatchNormalization has others. Which object holds all of them?"
        ),
        Observed("weights_only", _is_lost("optimizer", "iterations")).feedback(
            "You did not save what Adam remembers. So after a restart it takes steps of the "
            "full rate, and the loss jumps. Which of your three arguments holds it?"
        ),
        Observed("no_data_position", _is_lost("step")).feedback(
            "You did not save the place in the data. So the restarted training does not know "
            "which batch comes next. Which of your three arguments says it?"
        ),
        Observed("seed_state_lost", _is_lost("seeds")).feedback(
            "You did not save the seed state of every dropout layer. So dropout draws its "
            "first masks again. It is not saved with the model: where does each layer keep it?"
        ),
    ),
)
