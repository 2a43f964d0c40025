"""Attention over a ring of devices: each has a part of a text, and keys and values travel.

    work = pairs_by_turn([[0, 1], [2, 3]])       # pairs of tokens, by turn and device
    busy_share(work)                             # 0.7: the part of the time that devices work
    outputs = ring_attention(q, k, v, [[0, 1], [2, 3]])

Attention is causal: a token sees itself and the tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

Positions = Sequence[Sequence[int]]  # of each device's tokens in the text


def pairs_by_turn(positions: Positions) -> Any:
    """Returns how many pairs of tokens each device computes in each turn, `[turn, device]`.

    In turn t device d has the keys and values that device d - t began with.
    """
    count = len(positions)
    work = np.zeros((count, count), int)
    for turn, device in np.ndindex(count, count):
        keys = np.asarray(positions[(device - turn) % count])
        work[turn, device] = (np.asarray(positions[device])[:, None] >= keys).sum()
    return work


def busy_share(work: Any) -> float:
    """Returns the part of the time that the devices work, if each turn waits for the slowest."""
    return float(work.sum() / (work.max(axis=1).sum() * work.shape[1]))


def attention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """Returns causal attention on one device: `[tokens, width]` for a whole text."""
    import tensorflow as tf

    at = np.arange(len(q))
    return tf.nn.softmax(_scores(q, k, at, at)) @ v


def ring_attention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, positions: Positions) -> tf.Tensor:
    """Returns the same over a ring, one device for each entry of `positions`.

    No device holds more than its own queries and one other device's keys and values.
    """
    import tensorflow as tf

    count = len(positions)
    own = [[tf.gather(part, places) for part in (q, k, v)] for places in positions]
    states = [_start(queries) for queries, _, _ in own]
    passing = [(keys, values, positions[d]) for d, (_, keys, values) in enumerate(own)]
    for _ in range(count):
        for device, (keys, values, at_k) in enumerate(passing):
            with tf.device(f"CPU:{device}"):
                scores = _scores(own[device][0], keys, positions[device], at_k)
                states[device] = _add_piece(states[device], scores, values)
        passing = [passing[device - 1] for device in range(count)]  # one message for each device
    pieces = tf.concat([output / total for _, total, output in states], axis=0)
    places = np.concatenate([np.asarray(each) for each in positions])
    return tf.gather(pieces, np.argsort(places))


def max_differences(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, positions: Positions) -> Any:
    """Returns how far ring and one device differ at most: in the output, and in a gradient."""
    import tensorflow as tf

    def run(attend: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch((q, k, v))
            output = attend(q, k, v)
            loss = tf.reduce_sum(output**2)
        return output, tape.gradient(loss, (q, k, v))

    ring, gradients = run(lambda q, k, v: ring_attention(q, k, v, positions))
    whole, expected = run(attention)
    gaps = [np.abs(a - b).max() for a, b in zip(gradients, expected, strict=True)]
    return float(np.abs(ring - whole).max()), float(max(gaps))


def _scores(q: tf.Tensor, k: tf.Tensor, at_q: Any, at_k: Any) -> tf.Tensor:
    """How well each token's query fits each key; the smallest number for a key that comes later."""
    import tensorflow as tf

    sees = np.asarray(at_q)[:, None] >= np.asarray(at_k)
    return tf.where(sees, q @ tf.transpose(k) / q.shape[-1] ** 0.5, q.dtype.min)


def _start(queries: tf.Tensor) -> tuple[Any, Any, Any]:
    import tensorflow as tf

    rows = tf.zeros([len(queries), 1], queries.dtype)
    return rows + queries.dtype.min, rows, tf.zeros_like(queries)


def _add_piece(state: tuple[Any, Any, Any], scores: tf.Tensor, values: tf.Tensor) -> Any:
    """The highest score, the sum and the output after one more piece of the keys."""
    import tensorflow as tf

    highest, total, output = state
    new = tf.maximum(highest, tf.reduce_max(scores, axis=1, keepdims=True))
    shrink, weights = tf.exp(highest - new), tf.exp(scores - new)
    total = shrink * total + tf.reduce_sum(weights, axis=1, keepdims=True)
    return new, total, shrink * output + weights @ values
