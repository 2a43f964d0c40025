"""The picture at the top of README: one mistake of distributed training, from a real run.

    python tools/readme_picture.py            # trains, and writes docs/_static/one_mistake.svg

The same picture as preview.png, of the size that a link to the site shows.

The same small model is trained on the same batches of digits three times: on one device, on four
replicas by a loop with a common mistake, and on four replicas by `dl.distribute`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import distlab as dl

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "_static" / "one_mistake.svg"
PREVIEW = PICTURE.with_name("preview.png")  # 1200 by 630
REPLICAS, BATCH, EPOCHS, RATE, MOMENTUM = 4, 64, 4, 0.3, 0.8


@dataclass(frozen=True)
class Run:
    """A training: each step's loss and weights (a row), and the share of test digits right."""

    losses: Any
    weights: Any
    accuracy: float


def measure() -> dict[str, Run]:
    """Trains three times, on the CPU split in four."""
    devices = dl.split_devices(REPLICAS)
    train, test = dl.load_dataset("digits", batch_size=BATCH)
    batches = [(x.numpy(), y.numpy()) for x, y in train if len(x) == BATCH]
    data = tuple(np.concatenate(part) for part in zip(*batches, strict=True))
    strategy = dl.make_strategy("mirrored", devices=devices)
    return {
        "one device": by_fit(build(), data, test),
        "mistake": by_hand(strategy, data, test),
        "distribute": by_fit(dl.distribute(build, strategy), data, test),
    }


def numbers(runs: dict[str, Run]) -> dict[str, float]:
    """Returns what the picture shows: accuracies, and largest differences at the end."""
    accuracies = {f"accuracy, {name}": run.accuracy for name, run in runs.items()}
    return accuracies | {f"distance, {name}": distances(runs, name)[-1] for name in runs}


def distances(runs: dict[str, Run], name: str) -> Any:
    """Returns how far, after each step, a weight is from one device's at most."""
    return np.abs(runs[name].weights - runs["one device"].weights).max(axis=1)


def build() -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE, MOMENTUM), loss, metrics=["accuracy"])
    return model


def by_fit(model: Any, data: Any, test: Any) -> Run:
    losses: list[float] = []
    weights: list[Any] = []

    def keep(batch: int, logs: dict[str, float]) -> None:
        # Keras logs the mean since the epoch began; the loss of this batch follows from it.
        of_epoch = losses[len(losses) - batch :]
        losses.append(logs["loss"] * (batch + 1) - sum(of_epoch))
        weights.append(flat(model))

    kept = keras.callbacks.LambdaCallback(on_train_batch_end=keep)
    model.fit(*data, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[kept])
    accuracy = model.evaluate(test, verbose=0, return_dict=True)["accuracy"]
    return Run(np.array(losses), np.array(weights), float(accuracy))


def by_hand(strategy: Any, data: Any, test: Any) -> Run:
    """Trains with a common mistake: each replica takes the mean over its own examples."""
    with strategy.scope():
        model = build()
        model.optimizer.build(model.trainable_variables)

    def replica_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = model(images, training=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(each)  # the mistake: the mean over a quarter of the batch
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)  # sums four gradients
        return loss

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica_step, args=(images, labels)), axis=None)

    batches = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    losses, weights = [], []
    for _ in range(EPOCHS):
        for batch in strategy.experimental_distribute_dataset(batches):
            losses.append(float(step(*batch)))
            weights.append(flat(model))
    right = [np.argmax(model(x).numpy(), axis=1) == y.numpy() for x, y in test]
    return Run(np.array(losses), np.array(weights), float(np.concatenate(right).mean()))


def flat(model: Any) -> Any:
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def draw(runs: dict[str, Run]) -> None:
    """Draws the picture as SVG, the same bytes for the same runs, and as PNG."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    from distlab.course.palette import NOTE, ONE_DEVICE, RIGHT, WRONG, label_axes

    mpl.rcParams.update({"svg.hashsalt": "distlab", "font.size": 11})
    title = {"loc": "left", "fontsize": 12, "weight": "bold"}
    looks = {
        "one device": {"color": ONE_DEVICE.colour, "linewidth": 7, "alpha": 0.3},
        "mistake": {"color": WRONG.colour, "linewidth": 1.6},
        "distribute": {"color": RIGHT.colour, "linewidth": 1.8},
    }
    labels = {
        "mistake": "4 replicas, a common mistake",
        "distribute": "4 replicas, dl.distribute",
        "one device": "1 device",
    }
    steps = np.arange(1, len(runs["mistake"].losses) + 1)
    figure, (left, far) = plt.subplots(1, 2, figsize=(10.4, 3.9), layout="constrained")

    lines = {name: left.plot(steps, runs[name].losses, **looks[name])[0] for name in looks}
    left.set(xlim=(0, steps[-1] + 1), ylim=(0, 3.5))
    label_axes(left, x="step", y="training loss")
    left.set_title("No error message, and a different model", **title)
    left.legend(
        [lines[name] for name in labels],
        [
            f"{text}: {runs[name].accuracy:.0%} of test digits right"
            for name, text in labels.items()
        ],
        frameon=False,
        fontsize=10,
        loc="upper right",
        borderaxespad=0,
    )

    for name in ("mistake", "distribute"):
        far.semilogy(steps, distances(runs, name), color=looks[name]["color"], linewidth=1.8)
    far.set(xlim=(0, steps[-1] + 1), ylim=(1e-9, 100))
    label_axes(far, x="step", y="largest difference of a weight")
    far.set_title("How far from one device's weights", **title)
    far.axhline(6e-8, color=NOTE, linewidth=0.8, linestyle=":")
    for height, text, colour, size in (
        (9, "a common mistake", WRONG.colour, 10),
        (1.3e-6, "dl.distribute", RIGHT.colour, 10),
        (1.6e-8, "rounding of a float32 of 1", NOTE, 9),
    ):
        far.text(steps[-1], height, text, color=colour, ha="right", fontsize=size)
    figure.savefig(PICTURE, metadata={"Date": None, "Creator": None}, facecolor="white")
    padded = mpl.transforms.Bbox([[0, -0.78], [10.4, 4.68]])
    figure.savefig(PREVIEW, dpi=1200 / 10.4, bbox_inches=padded, facecolor="white")


if __name__ == "__main__":
    runs = measure()
    draw(runs)
    print(f"wrote {PICTURE}; its alternative text, in README and on the site, has these numbers:")
    for name, number in numbers(runs).items():
        print(f"{name}: {number:.3g}")
