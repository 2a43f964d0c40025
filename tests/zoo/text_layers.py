"""Layers that several families of text share: positions and a transformer's blocks."""

from __future__ import annotations

import keras
from keras import layers, ops


@keras.saving.register_keras_serializable("zoo")
class TokensAndPositions(layers.Layer):
    """Adds an embedding of each place to that of the token there; 0 may be padding."""

    def __init__(self, vocabulary, length, width, padded=False, **options):
        super().__init__(**options)
        self.length = length
        self.tokens = layers.Embedding(vocabulary, width, mask_zero=padded)
        self.places = layers.Embedding(length, width)

    def call(self, x):
        return self.tokens(x) + self.places(ops.arange(ops.shape(x)[-1]))

    def compute_mask(self, x, mask=None):
        return self.tokens.compute_mask(x)

    def compute_output_shape(self, shape):
        return (*shape, self.tokens.output_dim)


@keras.saving.register_keras_serializable("zoo")
class EncoderBlock(layers.Layer):
    """Attention and a dense layer, with a sum and a normalization after each."""

    def __init__(self, width, rate=0.1, causal=False, **options):
        super().__init__(**options)
        self.supports_masking = True
        self.causal = causal
        self.attention = layers.MultiHeadAttention(2, width // 2, use_bias=False)
        self.network = layers.Dense(width, activation="relu")
        self.norms = [
            layers.LayerNormalization(epsilon=1e-6, name=name) for name in ("middle", "end")
        ]
        self.dropouts = [layers.Dropout(rate) for _ in range(2)]

    def call(self, x, training=False, mask=None):
        seen = None if mask is None else mask[:, None, :]
        found = self.attention(
            x, x, attention_mask=seen, use_causal_mask=self.causal, training=training
        )
        x = self.norms[0](x + self.dropouts[0](found, training=training))
        found = self.dropouts[1](self.network(x), training=training)
        return self.norms[1](x + found)


@keras.saving.register_keras_serializable("zoo")
class DecoderBlock(layers.Layer):
    """Causal attention to what was written, attention to what was read, a dense layer."""

    def __init__(self, width, **options):
        super().__init__(**options)
        self.supports_masking = True
        self.written = layers.MultiHeadAttention(2, width // 2, use_bias=False)
        self.read = layers.MultiHeadAttention(2, width // 2, use_bias=False)
        self.network = layers.Dense(width, activation="relu")
        self.norms = [layers.LayerNormalization() for _ in range(3)]

    def call(self, inputs, mask=None):
        x, source = inputs
        mask_x, mask_source = (None, None) if mask is None else mask
        x = self.norms[0](x + self.written(x, x, use_causal_mask=True, query_mask=mask_x))
        found = self.read(x, source, query_mask=mask_x, value_mask=mask_source)
        x = self.norms[1](x + found)
        return self.norms[2](x + self.network(x))

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else mask[0]
