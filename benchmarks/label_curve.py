"""Accuracy by the number of labels: from scratch, on a frozen body, and fine-tuned.

    python benchmarks/label_curve.py --write      # about eight minutes on two cores

Lesson 19 draws the result (`distlab/course/lesson_19_fine_tuning/figures.json`). The model
and the tasks are the functions of the lesson's own cells. For each seed, one body is pretrained on
the digits 0 to 4 and one on all ten digits. Then, for each number of labels a class, seven models
learn the digits 5 to 9 on two replicas, which normalize by their own rows. Each takes 100 steps;
four of them continue from the frozen body's head.
"""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import distlab as dl
from distlab.course.lesson_19_fine_tuning.figures import RECORDED

LESSON = Path(__file__).parents[1] / "distlab/course/lesson_19_fine_tuning/lesson.py"
LABELS = (1, 3, 10, 30, 140)
SEEDS = range(10)
BATCH, STEPS = 16, 100
SCRATCH, HEAD, TUNED = 0.003, 0.01, 0.001
WAYS = (
    "scratch",
    "frozen",
    "head for 200 steps",
    "fine-tuned",
    "rate of the head",
    "normalization in training",
    "leaky",
)


def main() -> None:
    """Measures, prints, and with `--write` keeps the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the result for the lesson")
    options = parser.parse_args()
    dl.split_devices(2)
    text = json.dumps(measure(), indent=1)
    if options.write:
        RECORDED.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)


def measure() -> dict[str, Any]:
    """Returns, by the way of training, a list of accuracies for each number of labels."""
    lesson, strategy = lesson_functions(), dl.make_strategy("mirrored", devices=2)
    train, test = (arrays(split) for split in dl.load_dataset("digits"))
    old_train = lesson.task(*train, range(5))
    (x, y), (test_x, test_y) = (lesson.task(*each, range(5, 10)) for each in (train, test))
    runs = Runs(lesson, strategy)
    accuracies: dict[str, list[list[float]]] = {way: [[] for _ in LABELS] for way in WAYS}
    for seed in SEEDS:
        body = runs.pretrained(old_train, seed=seed, classes=5, epochs=8)
        leaky = runs.pretrained(train, seed=seed, classes=10, epochs=4)
        for place, count in enumerate(LABELS):
            rows = drawn_rows(y, count, seed=seed)
            trained = runs.train_all(body, leaky, seed=seed, data=(x[rows], y[rows]))
            for way, model in trained.items():
                right = np.argmax(model.predict(test_x, batch_size=256, verbose=0), 1) == test_y
                accuracies[way][place].append(round(float(np.mean(right)), 4))
            found = {way: each[place][-1] for way, each in accuracies.items()}
            print(f"seed {seed}, {count} labels a class: {found}", flush=True)
    return {
        "command": "python benchmarks/label_curve.py --write",
        "replicas": 2,
        "labels": list(LABELS),
        "accuracies": accuracies,
    }


def drawn_rows(labels: Any, count: int, *, seed: int) -> Any:
    """Draws `count` rows of each class; returns the rows of all steps, one after the other."""
    draw = np.random.default_rng(seed)
    rows = [draw.permutation(np.flatnonzero(labels == each))[:count] for each in range(5)]
    chosen, passes = np.concatenate(rows), -(-STEPS * BATCH // (5 * count))
    # One epoch of that many steps, for any number of labels.
    return np.concatenate([draw.permutation(chosen) for _ in range(passes)])[: STEPS * BATCH]


class Runs:
    """Trains the lesson's models; each way of training has one model, which is traced once."""

    def __init__(self, lesson: SimpleNamespace, strategy: Any) -> None:
        self._lesson, self._strategy = lesson, strategy
        self._models: dict[str, Any] = {}

    def pretrained(self, data: Any, *, seed: int, classes: int, epochs: int) -> Any:
        """Returns the weights of a body that has learnt the classes of the data."""

        def build() -> Any:
            return self._lesson.build(rate=SCRATCH, classes=classes, seed=14 + seed)

        source = dl.distribute(build, self._strategy, batch_norm="replica")
        self._lesson.fit(source, data, epochs=epochs, batch_size=64)
        return source.get_layer("body").get_weights()

    def train_all(self, body: Any, leaky: Any, *, seed: int, data: Any) -> dict[str, Any]:
        """Returns each way's model, trained on one draw of labelled images."""
        fresh = self._lesson.build(rate=SCRATCH, seed=100 + seed)
        new_body, new_head = (fresh.get_layer(each).get_weights() for each in ("body", "head"))
        found = {}

        def train(way: str, rate: float, free: str, weights: Any, head: Any) -> Any:
            model = found[way] = self._ready(way, free)
            model.get_layer("body").set_weights(weights)
            model.get_layer("head").set_weights(head)
            for variable in model.optimizer.variables:
                variable.assign(np.zeros(variable.shape))
            model.optimizer.learning_rate = rate
            model.fit(*data, batch_size=BATCH, shuffle=False, verbose=0)
            return model.get_layer("head").get_weights()

        train("scratch", SCRATCH, "all", new_body, new_head)
        train("leaky", HEAD, "none", leaky, new_head)
        head = train("frozen", HEAD, "none", body, new_head)
        train("head for 200 steps", HEAD, "none", body, head)
        train("fine-tuned", TUNED, "all but norms", body, head)
        train("rate of the head", HEAD, "all but norms", body, head)
        train("normalization in training", TUNED, "all", body, head)
        return found

    def _ready(self, way: str, free: str) -> Any:
        """The way's compiled model. `free`: its body trains all, none, or all but norms."""

        def build() -> Any:
            model = self._lesson.build(rate=SCRATCH, frozen=free == "none")
            if free == "all but norms":
                body = model.get_layer("body")
                self._lesson.unfreeze_except_norms(body, last=len(body.layers))
                self._lesson.compile_with(model, SCRATCH)
            return model

        if way not in self._models:
            self._models[way] = dl.distribute(build, self._strategy, batch_norm="replica")
        return self._models[way]


def lesson_functions() -> SimpleNamespace:
    """Returns all functions that the cells of lesson 19 define."""
    import keras

    names: dict[str, Any] = {"keras": keras, "np": np}
    tree = ast.parse(LESSON.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    exec(compile(tree, str(LESSON), "exec"), names)
    return SimpleNamespace(**names)


def arrays(split: Any) -> Any:
    """All images and labels of a data set, as two arrays."""
    images, labels = next(iter(split.batch(2000)))
    return images.numpy(), labels.numpy()


if __name__ == "__main__":
    main()
