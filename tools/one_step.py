"""The numbers of the page "One step in slow motion", from real steps on four replicas.

    python -m tools.one_step         # seconds; writes docs/_static/one_step.json and the page

The model has a weight for each of 64 pixels and says how likely a digit is a 3. An epoch of 57
digits in batches of 16 leaves nine for its last step, which the page shows: once right, and once
for each mistake of lesson 03.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.course.lesson_12_ring_all_reduce.ring_schedule import all_reduce_steps

DOCS = Path(__file__).resolve().parent.parent / "docs"
DATA, PAGE = DOCS / "_static" / "one_step.json", DOCS / "one_step.md"
# The last nine have a 3 for each of three replicas. A learning rate of 1 subtracts the sum itself.
SPLIT, BATCH, LAST, RATE, L2 = "train[64:121]", 16, 9, 1.0, 0.15
REPLICAS, SHARES, WANTED = 4, (3, 3, 3, 0), 3
# The weight whose numbers are written out is in chunk 0, which starts at replica 0. Of those pixels
# it's the one whose rounded numbers add up in all runs, as a reader may check.
MARKED = 10

RIGHT, PENALTY = "right", "penalty-unscaled"
# For each run what one digit's loss counts, in the data's part of the loss.
WEIGHTS = {
    RIGHT: "1/9",
    "mean-of-means": "1/12",
    "full-batch": "1/16",
    "divided-twice": "1/48",
    "not-divided": "1/3",
    PENALTY: "1/9",
}


@dataclass(frozen=True)
class Step:
    """The step of a run: losses, gradients and updated weights, a row for each replica."""

    losses: Any
    gradients: Any
    copies: Any
    reference: Any  # one device's weights after its step

    @property
    def off(self) -> Any:
        return self.copies[0] - self.reference


@dataclass(frozen=True)
class Measured:
    """The nine digits, what the weights before the step make of them, and all runs."""

    images: Any
    labels: Any
    start: Any
    steps: dict[str, Step]

    def length(self, name: str) -> float:
        """How long the step of a run is, in one device's with the same loss."""
        step = self.steps[name]
        moves = [np.linalg.norm(after - self.start) for after in (step.copies[0], step.reference)]
        return float(moves[0] / moves[1])


def measure() -> Measured:
    """Takes the step on one device, and on the CPU split in four once for each run."""
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(REPLICAS))
    (digits,) = dl.load_dataset("digits", splits=[SPLIT], batch_size=BATCH)
    images, labels = (
        np.concatenate(part) for part in zip(*digits.as_numpy_iterator(), strict=True)
    )
    wanted = (labels == WANTED).astype(np.float32)[:, None]
    before = build()
    fit(before, images[:-LAST], wanted[:-LAST])
    (start,) = before.get_weights()
    references = {}
    for l2 in (0.0, L2):
        one_device = build(l2)
        one_device.set_weights([start])
        fit(one_device, images[-LAST:], wanted[-LAST:])
        references[l2] = one_device.get_weights()[0].ravel()
    data = tf.data.Dataset.from_tensor_slices((images, wanted)).batch(BATCH)
    *_, batch = strategy.experimental_distribute_dataset(data)
    assert tuple(map(len, strategy.experimental_local_results(batch[1]))) == SHARES
    steps = {}
    for name in WEIGHTS:
        l2 = L2 * (name == PENALTY)
        losses, gradients, copies = on_replicas(strategy, name, l2, start, batch)
        steps[name] = Step(losses, gradients, copies, references[l2])
    return Measured(images[-LAST:].reshape(LAST, 64), labels[-LAST:], start.ravel(), steps)


def build(l2: float = 0.0) -> Any:
    penalty = keras.regularizers.L2(l2) if l2 else None
    form = {"use_bias": False, "kernel_initializer": "zeros", "kernel_regularizer": penalty}
    layers = [keras.layers.Flatten(), keras.layers.Dense(1, **form)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile(keras.optimizers.SGD(RATE), keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def fit(model: Any, images: Any, wanted: Any) -> None:
    model.fit(images, wanted, batch_size=BATCH, shuffle=False, verbose=0)


def on_replicas(strategy: Any, name: str, l2: float, start: Any, batch: Any) -> tuple[Any, ...]:
    """Returns losses, gradients and updated weights, a row for each replica."""
    with strategy.scope():
        model = build(l2)
        model.set_weights([start])
        model.optimizer.build(model.trainable_variables)

    def replica_step(images: Any, wanted: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = LOSSES[name](model, images, wanted)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)  # sums over the replicas
        return tf.reduce_sum(loss), gradients[0]  # Keras's own loss of no examples is an empty list

    step = tf.function(lambda *args: strategy.run(replica_step, args=args))
    taken = *step(*batch), model.trainable_variables[0].value
    parts = map(strategy.experimental_local_results, taken)
    return tuple(np.array(part).reshape(REPLICAS, -1).squeeze() for part in parts)


# --- the losses of lesson 03


def each(model: Any, images: Any, wanted: Any) -> Any:
    loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
    return loss(wanted, model(images, training=True))


def counted(model: Any, images: Any, wanted: Any) -> Any:
    context = tf.distribute.get_replica_context()
    examples = context.all_reduce("SUM", tf.cast(tf.shape(wanted)[0], tf.float32))
    return tf.reduce_sum(each(model, images, wanted)) / examples


def kerass_own(model: Any, images: Any, wanted: Any) -> Any:
    """A mean that Keras has divided by the number of replicas."""
    return model.loss(wanted, model(images, training=True))


LOSSES: dict[str, Any] = {
    RIGHT: counted,
    "mean-of-means": kerass_own,
    "full-batch": lambda *args: tf.reduce_sum(each(*args)) / BATCH,
    "divided-twice": lambda *args: kerass_own(*args) / REPLICAS,
    "not-divided": lambda *args: tf.reduce_mean(each(*args)),
    PENALTY: lambda model, *args: counted(model, *args) + sum(model.losses),
}


# --- what the page gets


def numbers(measured: Measured) -> dict[str, Any]:
    """Returns what the figure draws, in thousandths, and the numbers in the page's words."""
    runs = {
        name: {
            "gradients": [thousandths(row) for row in step.gradients],
            "after": thousandths(step.copies[0]),
            "says": says(measured, step.copies[0]),
            "values": values(measured, name),
        }
        for name, step in measured.steps.items()
    }
    # The others are compared with one device's step without a penalty, as the right one is.
    runs[PENALTY]["one"] = thousandths(measured.steps[PENALTY].reference)
    return {
        "digits": np.rint(16 * measured.images).astype(int).tolist(),
        "labels": measured.labels.tolist(),
        "start": thousandths(measured.start),
        "marked": MARKED,
        "says": says(measured, measured.start),
        "losses": [f"{loss:.2f}" for loss in digit_losses(measured)],
        "ring": [
            [[send.source, send.target, *send.chunks, send.adds] for send in sends]
            for sends in all_reduce_steps("ring", REPLICAS)
        ],
        "runs": runs,
    }


def values(measured: Measured, name: str) -> dict[str, str]:
    """Returns the numbers of a run that stand in figure and text, as they stand there."""
    step = measured.steps[name]
    gradients = thousandths(step.gradients[:, MARKED])
    sums = np.cumsum(gradients)
    off = np.abs(step.off).max()
    assert (step.copies == step.copies[0]).all()
    is_right = off < 1e-6
    penalty = decimal(L2 * np.square(measured.start).sum())
    return {
        "weight": WEIGHTS[name],
        "plus": f", plus the whole penalty on each replica, {penalty}" if name == PENALTY else "",
        **{f"loss{n}": decimal(loss) for n, loss in enumerate(step.losses)},
        "logged": decimal(step.losses.sum()),
        **{f"gradient{n}": signed(gradient) for n, gradient in enumerate(gradients)},
        **{f"sum{n}": signed(sums[n]) for n in range(1, REPLICAS)},
        "before": signed(thousandths(measured.start)[MARKED]),
        "after": signed(thousandths(step.copies[0])[MARKED]),
        "one": signed(thousandths(step.reference)[MARKED]),
        **{f"says{n}": says(measured, step.copies[0])[n] for n in threes(measured)},
        "length": f"{measured.length(name):.2g}",
        "off": "nothing but rounding" if is_right else f"up to {off:.2g}",
    }


def threes(measured: Measured) -> list[int]:
    return [n for n, label in enumerate(measured.labels) if label == WANTED]


def thousandths(array: Any) -> list[int]:
    return [int(number) for number in np.rint(1000 * array)]


def signed(number: int) -> str:
    """Returns thousandths as a decimal, with a real minus sign."""
    return f"{number / 1000:.3f}".replace("-", "\N{MINUS SIGN}") if number else "0"


def decimal(loss: float) -> str:
    return "NaN" if np.isnan(loss) else f"{loss:.3f}" if loss else "0"


def says(measured: Measured, weights: Any) -> list[str]:
    """Returns how sure the weights are, for each digit, that it's the wanted one."""
    return [f"{sure:.2f}" for sure in 1 / (1 + np.exp(-measured.images @ weights))]


def digit_losses(measured: Measured) -> Any:
    scores = measured.images @ measured.start
    return np.log1p(np.exp(np.where(measured.labels == WANTED, -scores, scores)))


VALUE = re.compile(r'(<span data-value="(\w+)"(?: data-run="([\w-]+)")?>)[^<]*(?=</span>)')


def with_values(text: str, runs: dict[str, Any]) -> str:
    """Returns the page's text with the numbers of the right run, or of the run that is named."""
    return VALUE.sub(lambda match: match[1] + runs[match[3] or RIGHT]["values"][match[2]], text)


def main() -> None:
    data = numbers(measure())
    DATA.write_text(json.dumps(data, separators=(",", ":"), ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(with_values(PAGE.read_text("utf-8"), data["runs"]), "utf-8")


if __name__ == "__main__":
    main()
