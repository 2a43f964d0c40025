"""Accuracy by the number of labels: from scratch, on a frozen body, and fine-tuned.

    python benchmarks/label_curve.py --write      # about five minutes on two cores

Lesson 14 draws the result (`distlab/pictures/label_curve.json`). The model and the data are the
lesson's. A CNN is pretrained on the digits 0 to 4. For each seed and each number of labels a class,
five models learn the digits 5 to 9 in the same number of steps, on two replicas.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

import distlab as dl
from distlab.pictures.label_curve import RECORDED

LABELS = (1, 3, 10, 30, 140)
SEEDS = range(3)
BATCH, STEPS = 16, 100
RATES = {"scratch": 0.003, "frozen": 0.01, "fine-tuned": 0.001}


def main() -> None:
    """Measures, prints, and with `--write` keeps the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the result for the lesson")
    options = parser.parse_args()
    dl.split_devices(2)
    found = measure()
    text = json.dumps(found, indent=1)
    print(text)
    if options.write:
        RECORDED.write_text(text + "\n", encoding="utf-8")


def measure() -> dict[str, Any]:
    """Returns, by the way of training, a list of accuracies for each number of labels."""
    strategy = dl.make_strategy("mirrored", devices=2)
    (x, y), (test_x, test_y) = (arrays(split) for split in dl.load_dataset("digits"))
    old, new, test = y < 5, y >= 5, test_y >= 5
    source = dl.distribute(lambda: model(RATES["scratch"]), strategy)
    source.fit(x[old], y[old], batch_size=64, epochs=8, verbose=0)
    knows = source.get_layer("body").get_weights()
    x, y, test_x, test_y = x[new], y[new] - 5, test_x[test], test_y[test] - 5
    ways = ("scratch", "frozen", "fine-tuned", "rate of the head", "normalization in training")
    accuracies: dict[str, list[list[float]]] = {way: [[] for _ in LABELS] for way in ways}
    for place, count in enumerate(LABELS):
        for seed in SEEDS:
            draw = np.random.default_rng(seed)
            rows = [draw.permutation(np.flatnonzero(y == each))[:count] for each in range(5)]
            chosen, passes = np.concatenate(rows), -(-STEPS * BATCH // (5 * count))
            some = np.concatenate([draw.permutation(chosen) for _ in range(passes)])
            some = some[: STEPS * BATCH]  # one epoch of that many steps, for any number of labels
            found = train_all(strategy, knows, seed=seed, data=(x[some], y[some]))
            for way, trained in found.items():
                right = np.argmax(trained.predict(test_x, batch_size=256, verbose=0), 1) == test_y
                accuracies[way][place].append(round(float(np.mean(right)), 4))
        means = {way: f"{np.mean(all_[place]):.3f}" for way, all_ in accuracies.items()}
        print(count, "labels a class:", means, flush=True)
    return {
        "command": "python benchmarks/label_curve.py --write",
        "replicas": 2,
        "labels": list(LABELS),
        "accuracies": accuracies,
    }


_MODELS: dict[str, Any] = {}


def train_all(strategy: Any, knows: Any, *, seed: int, data: Any) -> dict[str, Any]:
    """Returns each way's trained model for one draw of labelled images."""
    import keras

    def ready(way: str, rate: float, free: str) -> Any:
        if way not in _MODELS:
            _MODELS[way] = dl.distribute(lambda: model(rate, free=free), strategy)
        return _MODELS[way]

    def fit(trained: Any, rate: float) -> Any:
        for variable in trained.optimizer.variables:
            variable.assign(np.zeros(variable.shape))
        trained.optimizer.learning_rate = rate
        trained.fit(*data, batch_size=BATCH, shuffle=False, verbose=0)
        return trained

    keras.utils.set_random_seed(100 + seed)
    fresh = model(0.1)
    found = {}
    scratch = ready("scratch", RATES["scratch"], "all")
    scratch.set_weights(fresh.get_weights())
    found["scratch"] = fit(scratch, RATES["scratch"])
    frozen = ready("frozen", RATES["frozen"], "none")
    frozen.get_layer("body").set_weights(knows)
    frozen.get_layer("head").set_weights(fresh.get_layer("head").get_weights())
    found["frozen"] = fit(frozen, RATES["frozen"])
    for way, rate, free in (
        ("fine-tuned", RATES["fine-tuned"], "kernels"),
        ("rate of the head", RATES["frozen"], "kernels"),
        ("normalization in training", RATES["fine-tuned"], "all"),
    ):
        tuned = ready(way, rate, free)
        tuned.get_layer("body").set_weights(knows)
        tuned.get_layer("head").set_weights(frozen.get_layer("head").get_weights())
        found[way] = fit(tuned, rate)
    return found


def model(rate: float, *, free: str = "all") -> Any:
    """A compiled CNN: a body of two blocks, and a head. `free`: "all", "kernels" or "none"."""
    import keras

    layers: list[Any] = [keras.Input((8, 8, 1))]
    for filters in (16, 32):
        layers.append(keras.layers.Conv2D(filters, 3, padding="same"))
        layers.append(keras.layers.BatchNormalization(momentum=0.9))
        layers += [keras.layers.ReLU(), keras.layers.MaxPooling2D()]
    body = keras.Sequential([*layers, keras.layers.Flatten()], name="body")
    body.trainable = free != "none"
    for layer in body.layers:
        if free == "kernels" and isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    whole = keras.Sequential([keras.Input((8, 8, 1)), body, keras.layers.Dense(5, name="head")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    whole.compile(keras.optimizers.Adam(rate), loss)
    return whole


def arrays(split: Any) -> Any:
    """All images and labels of a data set, as two arrays."""
    images, labels = next(iter(split.batch(2000)))
    return images.numpy(), labels.numpy()


if __name__ == "__main__":
    main()
