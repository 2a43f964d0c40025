"""A small language model that predicts the next character, and the text that it learns.

    model = build_transformer()                       # 119,424 parameters
    data = text_windows(length=64).batch(32)          # 32 x 64 = 2,048 tokens a batch

The text is Python's own help, which every Python brings, so nothing is downloaded. Each character
is a token, and a batch counts its tokens: rows times length.
"""

from __future__ import annotations

import pydoc_data.topics

import keras
import numpy as np
import tensorflow as tf
from keras import ops

# Characters of ASCII. Token 0, which no text contains, fills up short rows.
VOCABULARY = 128


class Embed(keras.layers.Layer):  # type: ignore[misc]
    """A vector for each token: the sum of an embedding of its character and one of its place."""

    def __init__(self, width: int, length: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.length = length
        self.tokens = keras.layers.Embedding(VOCABULARY, width)
        self.positions = keras.layers.Embedding(length, width)

    def build(self, shape: tuple[int, ...]) -> None:
        """Makes the weights, whatever the batch."""
        self.tokens.build(shape)
        self.positions.build(shape)

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        """Returns a vector for each token, `[batch, length, width]`."""
        return self.tokens(tokens) + self.positions(ops.arange(self.length))


class Block(keras.layers.Layer):  # type: ignore[misc]
    """One layer of the model: attention to earlier tokens, then two dense layers for each token."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.norm_1 = keras.layers.LayerNormalization()
        self.attention = keras.layers.MultiHeadAttention(heads, width // heads, use_bias=False)
        self.norm_2 = keras.layers.LayerNormalization()
        self.up = keras.layers.Dense(4 * width, "gelu", use_bias=False)
        self.down = keras.layers.Dense(width, use_bias=False)
        self.dropout = keras.layers.Dropout(dropout)

    def build(self, shape: tuple[int, ...]) -> None:
        """Makes the weights for vectors `[batch, length, width]`."""
        for norm in (self.norm_1, self.norm_2):
            norm.build(shape)
        self.attention.build(shape, shape)
        self.up.build(shape)
        self.down.build((*shape[:-1], 4 * shape[-1]))

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns vectors of the shape of `x`."""
        seen = self.norm_1(x)
        x = x + self.attention(seen, seen, use_causal_mask=True)
        hidden = self.down(self.up(self.norm_2(x)))
        return x + self.dropout(hidden, training=training)


def build_transformer(
    width: int = 64, layers: int = 2, heads: int = 4, length: int = 64, dropout: float = 0.0
) -> keras.Model:
    """Returns a model from tokens `[batch, length]` to logits `[batch, length, 128]`."""
    tokens = keras.Input((length,), dtype="int32")
    x = Embed(width, length)(tokens)
    for _ in range(layers):
        x = Block(width, heads, dropout)(x)
    x = keras.layers.LayerNormalization()(x)
    return keras.Model(tokens, keras.layers.Dense(VOCABULARY, use_bias=False)(x))


def text_windows(length: int = 64) -> tf.data.Dataset:
    """Returns pairs of `length` tokens and the same tokens one place later, in a fixed order."""
    text = np.frombuffer(_help_text().encode(), np.uint8).astype("int32")
    count = (len(text) - 1) // length
    inputs, targets = text[: count * length], text[1 : count * length + 1]
    return tf.data.Dataset.from_tensor_slices(
        (inputs.reshape(count, length), targets.reshape(count, length))
    )


def text_lines(length: int = 64) -> tf.data.Dataset:
    """Returns single lines of text as tokens, next tokens and weights, each `[length]`.

    Lines differ in length: a weight is 1 for a token of the line and 0 for what fills it up.
    """
    lines = [line.strip()[: length + 1].encode() for line in _help_text().splitlines()]
    lines = [line for line in lines if len(line) > 1]
    rows = np.zeros((len(lines), length + 1), "int32")
    for row, line in zip(rows, lines, strict=True):
        row[: len(line)] = list(line)
    weights = (rows[:, 1:] != 0).astype("float32")
    return tf.data.Dataset.from_tensor_slices((rows[:, :-1], rows[:, 1:], weights))


def _help_text() -> str:
    """Returns Python's help on all topics, without what ASCII doesn't have."""
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))
    return text.encode("ascii", "ignore").decode()
