"""The lesson's small transformer, the two texts that it learns, and its layers.

help_text, code = read_texts()      # Python's help, and source code of Python's own library
model = build()                     # new weights; `build(model.get_weights())` begins with these
parts(model)["head"]                # "embedding", "block", "norm" and "head"
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from distlab.course.lesson_19_fine_tuning.sent_numbers import CountedSums
from distlab.course.tiny_transformer import build_transformer, text_windows
from distlab.training.keras_private import models

LENGTH, BATCH = 32, 32
_STEPS, _TEST_ROWS = 100, 512
_PARTS = ("embedding", "block", "norm", "head")
# Long modules of the standard library that are written in Python.
_MODULES = ("argparse", "_pydecimal", "typing", "inspect")

Rows = tuple[np.ndarray, np.ndarray]


class Text(NamedTuple):
    """Rows of tokens with the next tokens: 100 batches to learn from, and 512 rows to test."""

    train: Rows
    test: Rows

    def first(self, steps: int) -> Rows:
        """Returns the rows of the first batches."""
        inputs, targets = self.train
        return inputs[: steps * BATCH], targets[: steps * BATCH]


def read_texts() -> tuple[Text, Text]:
    """Returns Python's help and Python's source code, in a fixed order that isn't the text's."""
    windows = next(iter(text_windows(LENGTH).batch(10**6)))
    return _shuffled(*(array.numpy() for array in windows)), _shuffled(*_source_code())


def build(knows: Sequence[np.ndarray] | None = None) -> keras.Model:
    """Returns a model of one block; its embedding is frozen if it begins with known weights."""
    keras.utils.set_random_seed(19)
    model = build_transformer(layers=1, length=LENGTH)
    if knows is not None:
        model.set_weights(knows)
        parts(model)["embedding"].trainable = False
    return model


def parts(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """Returns the four layers of the model by name, from the input to the logits."""
    return dict(zip(_PARTS, model.layers[1:], strict=True))


def inner_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yields every layer, also layers of layers, such as the dense ones of an attention."""
    yield from models.layers(model)


def compile_with(model: keras.Model, rate: float, metrics: Sequence[str] = ()) -> None:
    """Compiles a classifier with Adam at this rate."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=list(metrics))


def train(model: keras.Model, rows: Rows) -> None:
    """Trains on the rows in their order, in batches of 32."""
    model.fit(*rows, batch_size=BATCH, shuffle=False, verbose=0)


def loss_on(text: Text, model: keras.Model) -> float:
    """Returns the loss on the rows of a text that no model learns."""
    inputs, targets = text.test
    losses = keras.losses.sparse_categorical_crossentropy(targets, model(inputs), from_logits=True)
    return float(keras.ops.mean(losses))


def moved_by(model: keras.Model, text: Text) -> list[str]:
    """Trains for two steps, and returns the parts whose weights differ afterwards."""
    before = {name: [np.copy(w) for w in part.weights] for name, part in parts(model).items()}
    train(model, text.first(2))
    return [
        name
        for name, old in before.items()
        if not all(map(np.array_equal, old, parts(model)[name].weights))
    ]


def cost_of(model: keras.Model, text: Text, sums: CountedSums) -> dict[str, int]:
    """Returns the numbers of weights, of what a step sends and of Adam's state, after a step."""
    sent = sums.of_a_step(lambda: train(model, text.first(1)))
    return {"weights": model.count_params(), "sent": sent, "Adam": _state_of(model)}


def cost_by_shapes(model: keras.Model) -> dict[str, int]:
    """Returns the same for a trained model on one device, if replicas sent all its gradients."""
    sent = sum(weight.numpy().size for weight in model.trainable_weights)
    return {"weights": model.count_params(), "sent": sent, "Adam": _state_of(model)}


def assign(model: keras.Model, arrays: Sequence[np.ndarray], *, adapters: bool) -> None:
    """Gives the weights that LoRA has added their values, or all others."""
    weights = [weight for weight in model.weights if ("lora" in weight.path) == adapters]
    for weight, array in zip(weights, arrays, strict=True):
        weight.assign(array)


def adapters_of(model: keras.Model) -> list[Any]:
    """Returns copies of the weights that LoRA has added."""
    return [np.copy(weight) for weight in model.weights if "lora" in weight.path]


def _state_of(model: keras.Model) -> int:
    return sum(variable.numpy().size for variable in model.optimizer.variables)


def _source_code() -> Rows:
    specs = [importlib.util.find_spec(name) for name in _MODULES]
    files = [Path(spec.origin) for spec in specs if spec and spec.origin]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    tokens = np.frombuffer(text.encode("ascii", "ignore"), np.uint8).astype("int32")
    count = (len(tokens) - 1) // LENGTH
    inputs, targets = tokens[: count * LENGTH], tokens[1 : count * LENGTH + 1]
    return inputs.reshape(count, LENGTH), targets.reshape(count, LENGTH)


def _shuffled(inputs: np.ndarray, targets: np.ndarray) -> Text:
    order = np.random.default_rng(19).permutation(len(inputs))
    test, train = order[:_TEST_ROWS], order[_TEST_ROWS:][: _STEPS * BATCH]
    return Text((inputs[train], targets[train]), (inputs[test], targets[test]))
