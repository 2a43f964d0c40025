"""The two pictures of README and of the site's first page, with their numbers, from real runs.

    python tools/pictures.py         # half a minute; writes docs/_static/, README.md, docs/index.md

"Which run is right?" is a network that is trained five times on four replicas, and only once in the
steps of one device. The second picture moves: it's what a ring all-reduce of four gradients sends.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from jinja2 import Template

import distlab as dl
from distlab.course.lesson_12_ring_all_reduce.ring_schedule import all_reduce_steps
from distlab.course.lesson_12_ring_all_reduce.simulated_network import Network
from tools.write_tables import WITH_MAP, replace_between

STATIC = Path(__file__).resolve().parent.parent / "docs" / "_static"
DATA, RUNS, RING = STATIC / "which_run.json", STATIC / "which_run.svg", STATIC / "all_reduce.svg"
PREVIEW = STATIC / "preview.png"  # what a link to the site shows: 1200 by 630
MARKS = ("<!-- which run is right -->\n", "\n<!-- end of which run is right -->")
REPLICAS, BATCH, EPOCHS, RATE, MOMENTUM, L2 = 4, 64, 3, 0.15, 0.8, 1e-3

# What the replicas do, by the letter of the run.
PENALTY, SAME_SHARD, LOST, RIGHT, MEAN_OF_MEANS = "ABCDE"
NO_SEED = "no seed"  # only on the page where a reader makes the mistakes (`break_it.py`)
CAUSES = {
    PENALTY: "Every replica adds the whole L2 penalty to its loss, so their sum pulls four times "
    "as hard.",
    SAME_SHARD: "All replicas read the same 16 examples of each batch, and nobody ever sees the "
    "rest.",
    LOST: "The fourth replica's gradient never reaches the sum, so its share of each batch counts "
    "for nothing.",
    RIGHT: "`dl.distribute` trained it, and what is left is rounding.",
    MEAN_OF_MEANS: "Each replica takes the mean over its own examples, so those in the smallest "
    "share of a partial last batch count too much.",
}


# --- which run is right


@dataclass(frozen=True)
class Run:
    """A training: each batch's loss before its step, and how far a weight is from one device."""

    losses: Any
    distances: Any
    accuracy: float


def measure(epochs: int = EPOCHS) -> dict[str, Run]:
    """Trains on one device and five times on the CPU split in four; returns the five by letter."""
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(REPLICAS))
    train, test = digits()
    batches = [slice(begin, begin + BATCH) for begin in range(0, len(train[1]), BATCH)] * epochs
    one_device = by_fit(build(), train, epochs)
    runs = {}
    for letter in CAUSES:
        if letter == RIGHT:
            path = by_fit(dl.distribute(build, strategy), train, epochs)
        else:
            copies, _ = by_hand(strategy, {letter}, train, epochs)
            path = copies[:, 0]
        losses = [
            cross_entropy(weights, train[0][batch], train[1][batch])
            for weights, batch in zip(path[:-1], batches, strict=True)
        ]
        far = np.abs(path - one_device).max(axis=1)[1:]
        right = scores(path[-1], test[0]).argmax(axis=1) == test[1]
        runs[letter] = Run(np.array(losses), far, float(right.mean()))
    return runs


def digits() -> Any:
    """Returns images and labels, of the digits for training and of those for the test."""
    return [
        tuple(np.concatenate(part) for part in zip(*data.as_numpy_iterator(), strict=True))
        for data in dl.load_dataset("digits", batch_size=BATCH)
    ]


def build(seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    penalty = keras.regularizers.L2(L2)
    hidden = keras.layers.Dense(32, "relu", kernel_regularizer=penalty)
    layers = [keras.layers.Flatten(), hidden, keras.layers.Dense(10, kernel_regularizer=penalty)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE, MOMENTUM), loss)
    return model


def by_fit(model: Any, data: Any, epochs: int) -> Any:
    """Returns the weights before the first step and after each, a row a step."""
    path = [flat(model)]
    keep = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, logs: path.append(flat(model))
    )
    options = {"batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(*data, callbacks=[keep], **options)
    return np.array(path)


def by_hand(strategy: Any, mistakes: Collection[str], data: Any, epochs: int) -> tuple[Any, Any]:
    """Trains by a loop that is right but for the mistakes.

    Returns:
        Each replica's weights before the first step and after each, (steps + 1, replicas, weights),
        and the loss that the loop reports for each step, without the penalty.
    """
    with strategy.scope():
        model = build()
        model.optimizer.build(model.trainable_variables)
    if NO_SEED in mistakes:
        for replica in range(REPLICAS):
            own = build(seed=1 + replica).get_weights()
            for copies, weights in zip(copies_of(strategy, model), own, strict=True):
                copies[replica].assign(weights)

    def replica_step(images: Any, labels: Any) -> Any:
        context = tf.distribute.get_replica_context()
        examples = context.all_reduce("SUM", tf.cast(tf.shape(labels)[0], tf.float32))
        with tf.GradientTape() as tape:
            given = model(images, training=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, given)
            loss = tf.reduce_sum(each) / examples
            if MEAN_OF_MEANS in mistakes:
                loss = tf.reduce_mean(each) / REPLICAS
            penalty = tf.add_n(model.losses)
            total = loss + (penalty if PENALTY in mistakes else penalty / REPLICAS)
        gradients = tape.gradient(total, model.trainable_variables)
        if LOST in mistakes:
            arrives = tf.cast(context.replica_id_in_sync_group < REPLICAS - 1, tf.float32)
            gradients, loss = [arrives * gradient for gradient in gradients], arrives * loss
        model.optimizer.apply(gradients, model.trainable_variables)  # sums over the replicas
        return loss

    @tf.function
    def step(*batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    batches = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    if SAME_SHARD in mistakes:  # a plain tensor goes to every replica as it is
        share = BATCH // REPLICAS
        feed = batches.map(lambda images, labels: (images[:share], labels[:share]))
    else:
        feed = strategy.experimental_distribute_dataset(batches)
    path, losses = [flat_copies(strategy, model)], []
    for _ in range(epochs):
        for batch in feed:
            losses.append(float(step(*batch)))
            path.append(flat_copies(strategy, model))
    return np.array(path), np.array(losses)


def flat(model: Any) -> Any:
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def copies_of(strategy: Any, model: Any) -> list[Any]:
    """Returns the replicas' copies of each weight."""
    return [strategy.experimental_local_results(weight.value) for weight in model.weights]


def flat_copies(strategy: Any, model: Any) -> Any:
    replicas = zip(*copies_of(strategy, model), strict=True)
    return [np.concatenate([weight.numpy().ravel() for weight in copy]) for copy in replicas]


def scores(weights: Any, images: Any) -> Any:
    """Returns what the network answers with these weights, in NumPy for all runs alike."""
    first, shift, second, last = np.split(weights, np.cumsum([64 * 32, 32, 32 * 10]))
    hidden = np.maximum(images.reshape(-1, 64) @ first.reshape(64, 32) + shift, 0)
    return hidden @ second.reshape(32, 10) + last


def cross_entropy(weights: Any, images: Any, labels: Any) -> float:
    given = scores(weights, images)
    wanted = given[np.arange(len(labels)), labels]
    return float((np.log(np.exp(given).sum(axis=1)) - wanted).mean())


def numbers(runs: dict[str, Run]) -> dict[str, Any]:
    """Returns what the page's script reads and the text says; distances as powers of ten."""
    return {
        letter: {
            "right": letter == RIGHT,
            "why": CAUSES[letter].replace("`", ""),
            "accuracy": f"{100 * run.accuracy:.1f}\N{NO-BREAK SPACE}%",
            "distance": f"{run.distances[-1]:.1g}",
            "losses": [round(float(loss), 2) for loss in run.losses],
            "distances": [round(float(power), 2) for power in log10(run.distances)],
        }
        for letter, run in runs.items()
    }


def log10(distances: Any) -> Any:
    return np.log10(np.maximum(distances, 1e-9))


def in_words(data: dict[str, Any]) -> str:
    """Returns the picture with its alternative text, and the folded answer, in Markdown."""
    steps = len(data[RIGHT]["losses"])
    begin = max(run["losses"][0] for run in data.values())
    ends = sorted(np.mean(run["losses"][-10:]) for run in data.values())
    best = max(data, key=lambda letter: data[letter]["accuracy"])
    rows = "\n".join(
        f"| {letter} | {CAUSES[letter]} | {run['distance']} | {run['accuracy']} |"
        for letter, run in data.items()
    )
    return (
        f"![Five curves of the training loss over {steps} steps, A to E, which look much alike: "
        f"all fall from {begin:.1f} to between {ends[0]:.1f} and {ends[-1]:.1f}."
        f"](docs/_static/{RUNS.name})\n\n"
        f"<details><summary>The answer</summary>\n\n"
        f"**{RIGHT} is right**, and neither its loss nor its accuracy says so: {best} classifies "
        f"more test digits correctly, {data[best]['accuracy']} instead of "
        f"{data[RIGHT]['accuracy']}. What tells them apart is a comparison with one device, weight "
        f"by weight. You make {PENALTY} and {MEAN_OF_MEANS} yourself in [lesson 03]"
        f"(notebooks/03_custom_training_loop.ipynb).\n\n"
        f"| run | what happens | largest difference of a weight | test accuracy |\n"
        f"| --- | --- | --- | --- |\n{rows}\n\n</details>"
    )


def draw_runs(data: dict[str, Any]) -> str:
    """Returns five small charts of the loss as SVG."""
    steps = len(data[RIGHT]["losses"])
    top = max(max(run["losses"]) for run in data.values())
    curves = {
        letter: " ".join(
            f"{184 * step / (steps - 1):.0f},{164 * (1 - loss / top):.0f}"
            for step, loss in enumerate(run["losses"])
        )
        for letter, run in data.items()
    }
    return template(RUNS).render(curves=curves, steps=steps, top=top)


# --- the all-reduce that moves

GRADIENTS = np.array([[1, 3, 2, 5], [0, 3, 1, 1], [4, 1, 0, 2], [2, 2, 2, 0]], np.float32)


@dataclass(frozen=True)
class Move:
    """A number on its way: whose values it has, and what its target's cell holds from then on."""

    step: int
    source: int
    target: int
    chunk: int
    value: float
    ranks: int
    result: float
    result_ranks: int


def carry() -> tuple[list[Move], Network]:
    """Returns what a ring all-reduce of the gradients sends over the simulated network."""
    network, held, ranks = Network(REPLICAS), GRADIENTS.copy(), np.ones((REPLICAS, 4), int)
    moves = []
    for step, transfers in enumerate(all_reduce_steps("ring", REPLICAS)):
        sends = {(send.source, send.target): held[send.source, send.chunks] for send in transfers}
        received, before = network.step(sends), ranks.copy()
        for send in transfers:
            (chunk,), (value,) = send.chunks, received[send.target]
            cell, has = (send.target, chunk), int(before[send.source, chunk])
            held[cell] = value + held[cell] * send.adds
            ranks[cell] = has + before[cell] * send.adds
            result = float(held[cell]), int(ranks[cell])
            moves.append(Move(step, send.source, send.target, chunk, float(value), has, *result))
    assert (held == GRADIENTS.sum(axis=0)).all(), "not every rank holds the sum"
    return moves, network


def draw_ring() -> str:
    """Returns the all-reduce as an SVG that moves without a script: 15 seconds, again and again."""
    moves, network = carry()
    half = network.steps // 2
    times = [(6 + 12.5 * step, 15 + 12.5 * step) for step in range(network.steps)]  # in percent
    (vectors,) = set(network.bytes_sent / GRADIENTS[0].nbytes)
    does = ["each device adds what arrives"] * half + ["the finished sums go around"] * half
    lines = [["Four devices, four gradients"]]
    lines += [[f"step {n} of {len(does)}: {text}"] for n, text in enumerate(does, start=1)]
    lines += [["Everyone has the sum.", f"Each device sent {vectors:g} times its gradient."]]
    changes = [0, *(begin for begin, _ in times), times[-1][1], 100]
    given = "; ".join(map(in_row, GRADIENTS))
    words = (
        f"Four devices hold the gradients {given}. In {half} steps, each device adds what its "
        f"neighbour sends. In {half} more, the finished sums {in_row(GRADIENTS.sum(axis=0))} go "
        f"around. Each device has sent {vectors:g} times its gradient."
    )
    return template(RING).render(
        words=words,
        times=times,
        captions=list(zip(changes, changes[1:], lines, strict=False)),
        corners=dict(enumerate([(20, 40), (284, 40), (284, 190), (20, 190)])),
        gradients=GRADIENTS,
        moves=moves,
    )


def in_row(numbers: Any) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def template(picture: Path) -> Template:
    source = Path(__file__).with_name(f"{picture.name}.jinja")
    return Template(source.read_text(encoding="utf-8"), keep_trailing_newline=True)


def main() -> None:
    data = numbers(measure())
    DATA.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    RUNS.write_text(draw_runs(data), encoding="utf-8")
    RING.write_text(draw_ring(), encoding="utf-8")
    for page in WITH_MAP:
        text = replace_between(MARKS, in_words(data), page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")
    write_preview()


def write_preview() -> None:
    """Writes the five curves as PNG, of the size that a link to the site shows."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = {"executable_path": shutil.which("chromium"), "args": ["--no-sandbox"]}
        browser = playwright.chromium.launch(**options)
        page = browser.new_page(viewport={"width": 1200, "height": 630})
        look = "svg { width: 1100px; height: auto } body { font: 650 64px system-ui; margin: "
        words = f"<style>{look} 130px 50px }}</style>Which run is right?<p>"
        page.set_content(words + RUNS.read_text(encoding="utf-8"))
        page.screenshot(path=PREVIEW)
        browser.close()


if __name__ == "__main__":
    main()
