"""The picture at the top of README: one mistake of distributed training, from a real run.

    python tools/readme_picture.py            # trains, and writes docs/_static/one_mistake.svg

The same small model is trained on the same batches of digits three times: on one device, on four
replicas by a loop with a common mistake, and on four replicas by `dl.distribute`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "_static" / "one_mistake.svg"
README = ROOT / "README.md"
REPLICAS, BATCH, EPOCHS, RATE, MOMENTUM = 4, 64, 4, 0.3, 0.8


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        losses: The loss of each step, over the whole batch.
        weights: All weights after each step, in one row each.
        accuracy: The share of test digits that are named right at the end.
    """

    losses: Any
    weights: Any
    accuracy: float


def main(argv: list[str]) -> int:
    """Trains, draws and writes the picture. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PICTURE, help="where to write the picture")
    options = parser.parse_args(argv)
    runs = measure()
    print(json.dumps(numbers(runs), indent=1))
    draw(runs, options.out)
    print(f"{options.out} has this alternative text, which README must have, too:\n{alt(runs)}")
    return 0


def measure() -> dict[str, Run]:
    """Trains three times, on the CPU split in four."""
    import distlab as dl

    devices = dl.split_devices(REPLICAS)
    import numpy as np

    train, test = dl.load_dataset("digits", batch_size=BATCH)
    batches = [(x.numpy(), y.numpy()) for x, y in train if len(x) == BATCH]
    data = tuple(np.concatenate(part) for part in zip(*batches, strict=True))
    strategy = dl.make_strategy("mirrored", devices=devices)
    return {
        "one device": _by_fit(_build, data, test),
        "mistake": _by_hand(strategy, data, test),
        "distribute": _by_fit(lambda: dl.distribute(_build, strategy), data, test),
    }


def numbers(runs: dict[str, Run]) -> dict[str, float]:
    """Returns what the picture shows: accuracies, and largest differences at the end."""
    import numpy as np

    one = runs["one device"]
    return {f"accuracy, {name}": run.accuracy for name, run in runs.items()} | {
        f"distance, {name}": float(np.abs(run.weights - one.weights).max(axis=1)[-1])
        for name, run in runs.items()
    }


def alt(runs: dict[str, Run]) -> str:
    """Returns the picture in words, with the numbers of these runs."""
    found = numbers(runs)
    right, wrong = (found[f"accuracy, {name}"] for name in ("distribute", "mistake"))
    close, far = (found[f"distance, {name}"] for name in ("distribute", "mistake"))
    steps = len(runs["mistake"].losses)
    return (
        f"Two charts of training over {steps} steps. Left, the loss: one device and four replicas "
        f"with distlab follow the same curve and name {right:.0%} of the test digits right; four "
        f"replicas with a common mistake jump up and down and end at {wrong:.0%}. Right, the "
        "largest difference of a weight from one device, on a logarithmic scale, after the last "
        f"step: {far:.1f} with the mistake, {close:.0e} with distlab."
    )


def _build() -> Any:
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE, MOMENTUM), loss, metrics=["accuracy"])
    return model


def _by_fit(build: Any, data: Any, test: Any) -> Run:
    import keras
    import numpy as np

    kept: list[Any] = []
    losses: list[float] = []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            # Keras logs the mean since the epoch began; the loss of this batch follows from two.
            total = logs["loss"] * (batch + 1)
            losses.append(total - (self.total if batch else 0.0))
            self.total = total
            kept.append(_flat(self.model))

    model = build()
    model.fit(*data, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[Keep()])
    accuracy = model.evaluate(test, verbose=0, return_dict=True)["accuracy"]
    return Run(np.array(losses), np.array(kept), float(accuracy))


def _by_hand(strategy: Any, data: Any, test: Any) -> Run:
    """A common mistake: each replica takes the mean over its own examples."""
    import numpy as np
    import tensorflow as tf

    with strategy.scope():
        model = _build()
        model.optimizer.build(model.trainable_variables)

    def replica_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = model(images, training=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(each)  # the mistake: the mean over a quarter of the batch
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)  # adds up four gradients
        return loss

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica_step, args=(images, labels)), axis=None)

    batches = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    losses, kept = [], []
    for _ in range(EPOCHS):
        for batch in strategy.experimental_distribute_dataset(batches):
            losses.append(float(step(*batch)))
            kept.append(_flat(model))
    right = [np.argmax(model(x).numpy(), axis=1) == y.numpy() for x, y in test]
    return Run(np.array(losses), np.array(kept), float(np.concatenate(right).mean()))


def _flat(model: Any) -> Any:
    import numpy as np

    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def draw(runs: dict[str, Run], path: Path) -> None:
    """Draws the picture as SVG, the same bytes for the same runs."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt
    import numpy as np

    from distlab.pictures.palette import NOTE, ONE_DEVICE, RIGHT, WRONG, label_axes

    mpl.rcParams.update({"svg.hashsalt": "distlab", "font.size": 11})
    found = numbers(runs)
    one, wrong, right = (runs[name] for name in ("one device", "mistake", "distribute"))
    steps = np.arange(1, len(one.losses) + 1)
    figure, (left, far) = plt.subplots(1, 2, figsize=(10.4, 3.9), layout="constrained")

    left.plot(steps, one.losses, color=ONE_DEVICE.colour, linewidth=7, alpha=0.3)
    left.plot(steps, wrong.losses, color=WRONG.colour, linewidth=1.6)
    left.plot(steps, right.losses, color=RIGHT.colour, linewidth=1.8)
    left.set(xlim=(0, steps[-1] + 1), ylim=(0, 3.5))
    label_axes(left, x="step", y="training loss")
    left.set_title(
        "No error message, and a different model", loc="left", fontsize=12, weight="bold"
    )
    names = {
        "mistake": ("4 replicas, a common mistake", wrong),
        "distribute": ("4 replicas, dl.distribute", right),
        "one device": ("1 device", one),
    }
    looks = {
        "mistake": {"color": WRONG.colour, "linewidth": 1.6},
        "distribute": {"color": RIGHT.colour, "linewidth": 1.8},
        "one device": {"color": ONE_DEVICE.colour, "linewidth": 7, "alpha": 0.3},
    }
    lines = [mpl.lines.Line2D([], [], **look) for look in looks.values()]
    labels = [
        f"{name}: {found[f'accuracy, {key}']:.0%} of test digits right"
        for key, (name, _) in names.items()
    ]
    left.legend(lines, labels, frameon=False, fontsize=10, loc="upper right", borderaxespad=0)

    for key, look in (("mistake", WRONG), ("distribute", RIGHT)):
        distance = np.abs(runs[key].weights - one.weights).max(axis=1)
        far.semilogy(steps, distance, color=look.colour, linewidth=1.8)
    far.set(xlim=(0, steps[-1] + 1), ylim=(1e-9, 100))
    label_axes(far, x="step", y="largest difference of a weight")
    far.set_title("How far from one device's weights", loc="left", fontsize=12, weight="bold")
    far.text(steps[-1], 9, "a common mistake", color=WRONG.colour, ha="right", fontsize=10)
    far.text(steps[-1], 1.3e-6, "dl.distribute", color=RIGHT.colour, ha="right", fontsize=10)
    far.axhline(6e-8, color=NOTE, linewidth=0.8, linestyle=":")
    far.text(steps[-1], 1.6e-8, "rounding of a float32 of 1", color=NOTE, ha="right", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
