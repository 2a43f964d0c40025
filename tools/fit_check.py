"""The page "Is your `fit` right?": what training does for each combination of its answers.

    python tools/fit_check.py --write    # measures, and writes docs/_static/fit_check.json
    python tools/fit_check.py --check    # and fails where the words of a cell are others now

Each combination trains a small model for two epochs: on one device, by Keras's own `fit` on two
replicas, and by `distribute` on two. The words around the table are the page's own.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import distlab as dl
from distlab.errors import DistlabError
from tests.support.parity import Run, differences, too_far
from tools.fit_questions import DATA, Answers, Measured, combinations, key, write
from tools.measured_pages import asked_to_write, measure_rows, report
from tools.support_matrix import BATCH, CPUS, ENTROPY, IGNORES, X, Y, crash, fit, in_order, in_scope
from tools.zoo import in_words

SHAPES = {"full": (64, BATCH), "partial": (73, BATCH), "uneven": (66, BATCH + 1)}
WEIGHTS = np.linspace(0.5, 2, len(X), dtype="float32")
ON_ONE_MACHINE = ("mirrored", "central_storage")
CLASS_WEIGHT = {0: 1.0, 1: 2.0, 2: 0.5, 3: 3.0}


class Step(keras.Sequential):
    """Trains by a step of its own, as Keras's guide to customizing `fit` has it."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y, self(x, training=True), weights)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        for metric in self.metrics:
            metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}

    def loss_of(self, x: Any, y: Any, scores: Any, weights: Any) -> Any:
        return self.compute_loss(x=x, y=y, y_pred=scores, sample_weight=weights)


class RawStep(Step):
    """Takes the mean over the batch itself."""

    def loss_of(self, x: Any, y: Any, scores: Any, weights: Any) -> Any:
        errors = squares(y, scores)
        return ops.mean(errors if weights is None else errors * weights)


def squares(y: Any, scores: Any) -> Any:
    """Returns an error for each example."""
    return ops.mean((ops.one_hot(ops.reshape(y, (-1,)), 4) - scores) ** 2, axis=-1)


# By the answer, the class of the model and its loss.
LOSSES: dict[str, tuple[Any, Any]] = {
    "keras": (keras.Sequential, ENTROPY),
    "values": (keras.Sequential, squares),
    "number": (keras.Sequential, lambda y, scores: ops.mean(squares(y, scores))),
    "ignores": (keras.Sequential, IGNORES),
    "step": (Step, ENTROPY),
    "raw_step": (RawStep, ENTROPY),
}


def build(answers: Answers) -> keras.Model:
    """Returns a new compiled model as the answers say."""
    keras.utils.set_random_seed(3)
    kind, loss = LOSSES[answers["loss"]]
    own: list[Any] = [layers.Dense(6, activation="tanh")]
    if answers["norm"] != "none":
        own.append(layers.BatchNormalization(synchronized=answers["norm"] == "synchronized"))
    if answers["dropout"] == "yes":
        own.append(layers.Dropout(0.5, seed=1))
    model = kind([keras.Input(X.shape[1:]), *own, layers.Dense(4)])
    clip = {} if answers["clip"] == "none" else {answers["clip"]: 0.05}
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, **clip)
    model.compile(optimizer, loss, jit_compile=False)  # it is off under a strategy, too
    return model


def train(model: keras.Model, answers: Answers) -> Run:
    """Trains for two epochs, with batches and weights as the answers say."""
    rows, batch = SHAPES[answers["batches"]]
    data = in_order(X[:rows], Y[:rows], batch)
    if answers["weights"] == "sample":
        weights = tf.data.Dataset.from_tensor_slices(WEIGHTS[:rows]).batch(batch)
        data = tf.data.Dataset.zip(data, weights).map(lambda pair, weights: (*pair, weights))
    return fit(model, data, class_weight=CLASS_WEIGHT if answers["weights"] == "class" else None)


def alone(answers: Answers) -> Run:
    """Trains on one device, without a graph, which spares the tracing."""
    model = build(answers)
    model.run_eagerly = True
    return train(model, answers)


@functools.cache
def strategy_of(name: str) -> tf.distribute.Strategy:
    """Returns the one strategy of this process; on one machine it is TensorFlow's own."""
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(CPUS)
    if name == "central_storage":
        return tf.distribute.experimental.CentralStorageStrategy(CPUS)
    return dl.make_strategy(name)


def cells(answers: Answers) -> list[str]:
    """Measures a combination: what Keras's own `fit` and `distribute` do."""
    strategy, expected = strategy_of(answers["strategy"]), alone(answers)  # workers first join

    def cell(make: Callable[..., keras.Model]) -> str:
        try:
            found = train(make(functools.partial(build, answers), strategy), answers)
        except DistlabError:
            return "named error"
        except Exception as error:
            return crash(error)
        far = differences(expected, found)
        return in_words(far, too_far(far))

    ours = cell(dl.distribute)  # first: it leaves several processes in step
    return [cell(in_scope), ours]


def measure_here(row: str) -> dict[str, str]:
    """Measures the combinations that differ in how they clip, by their keys and ways to train."""
    dl.split_devices(2, kind="cpu")
    return _row([answers for answers in combinations() if _without_clip(answers) == row])


def _row(several: list[Answers]) -> dict[str, str]:
    found = {}
    for answers in several:
        found |= dict(zip(_ways(key(answers)), cells(answers), strict=True))
    return found


def _ways(name: str) -> tuple[str, str]:
    return f"{name} | fit", f"{name} | distribute"


def _without_clip(answers: Answers) -> str:
    return key({**answers, "clip": ""})


def in_task(strategy: str) -> dict[str, str]:
    """Measures a strategy in a task of a cluster, which imports this module there."""
    there = importlib.import_module("tools.fit_check")
    row: dict[str, str] = there._row([a for a in combinations() if a["strategy"] == strategy])
    return row


def measure() -> Measured:
    """Measures all combinations, in some minutes."""
    here = [answers for answers in combinations() if answers["strategy"] in ON_ONE_MACHINE]
    rows = measure_rows(measure_here, dict.fromkeys(map(_without_clip, here)))
    found = {name: each for row in rows.values() for name, each in row.items()}
    with dl.LocalCluster(workers=2) as cluster:
        found |= cluster.run(in_task, "multi_worker")[0]
    with dl.LocalCluster(workers=1, parameter_servers=1) as cluster:
        found |= cluster.run(in_task, "parameter_server", tasks="chief")[0]
    return {key(a): [found[way] for way in _ways(key(a))] for a in combinations()}


def changed(stored: Measured, measured: Measured) -> list[str]:
    """Returns a line for each cell whose words differ; another processor changes digits."""

    def words(cell: str) -> str:
        return re.sub(r"(?<=off by) \S+$", "", cell)

    return [
        f"{name}: {was} is written, {now} was measured"
        for name in stored | measured
        if list(map(words, was := stored.get(name, [])))
        != list(map(words, now := measured.get(name, [])))
    ]


def main() -> int:
    """Measures, and writes or compares; returns the exit code."""
    writes, measured = asked_to_write(__doc__), measure()
    if not writes:
        stored = json.loads(DATA.read_text(encoding="utf-8"))
        return report(changed(stored["measured"], measured))
    packages = {"TensorFlow": "tensorflow", "Keras": "keras"}
    versions = {name: importlib.metadata.version(package) for name, package in packages.items()}
    write(measured, {**versions, "Python": platform.python_version()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
