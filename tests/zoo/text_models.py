"""Families of language models: hidden words, next words, and a tied embedding."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.zoo.family import batches, draw, family, tokens
from tests.zoo.text_layers import EncoderBlock, TokensAndPositions

WORDS, LENGTH, WIDTH = 20, 8, 6
MASK = WORDS - 1  # the token that stands where a word is hidden


class MaskedLanguageModel(keras.Model):
    """Counts the loss of hidden words alone, by sample weights."""

    def train_step(self, data):
        x, y, weight = data
        with tf.GradientTape() as tape:
            loss = self.word_loss(y, self(x, training=True), sample_weight=weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss, sample_weight=ops.shape(x)[0])
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


def language_model(kind, hidden=0.0):
    x = keras.Input((LENGTH,), dtype="int64")
    y = EncoderBlock(WIDTH)(TokensAndPositions(WORDS, LENGTH, WIDTH)(x))
    model = kind(x, layers.Dense(WORDS, activation="softmax")(y))
    model.loss_tracker = keras.metrics.Mean(name="loss")
    model.word_loss = keras.losses.SparseCategoricalCrossentropy()
    model.hidden, model.draws = hidden, keras.random.SeedGenerator(7)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    return model


@family("End-to-end Masked Language Modeling with BERT", core=True)
def words_hidden_in_the_data():
    def build():
        keras.utils.set_random_seed(31)
        return language_model(MaskedLanguageModel)

    words = tokens(WORDS - 1, LENGTH)
    hidden = (draw(5).uniform(size=words.shape) < 0.4) & (words > 0)
    hidden[:, 0] = True
    return build, batches(np.where(hidden, MASK, words), words, hidden.astype("float32"))


class HidesWords(MaskedLanguageModel):
    """Hides other words in every step; every example has as many weights as places."""

    def loss_of(self, words, training):
        drawn = keras.random.uniform(ops.shape(words), seed=self.draws)
        hidden = ops.logical_and(drawn < self.hidden, words > 0)
        seen = ops.where(hidden, ops.full_like(words, MASK), words)
        weight = ops.cast(hidden, "float32") * 2 + 0.1
        return self.word_loss(words, self(seen, training=training), sample_weight=weight)

    def train_step(self, words):
        with tf.GradientTape() as tape:
            loss = self.loss_of(words, training=True)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, words):
        self.loss_tracker.update_state(self.loss_of(words, training=False))
        return {"loss": self.loss_tracker.result()}


@family(
    "Pretraining BERT with Hugging Face Transformers",
    fit=lambda: {"validation_data": batches(tokens(WORDS - 1, LENGTH, seed=8))},
)
def words_hidden_in_the_step():
    def build():
        keras.utils.set_random_seed(32)
        return language_model(HidesWords, hidden=0.4)

    return build, batches(tokens(WORDS - 1, LENGTH))


@family("Text generation with a miniature GPT")
def miniature_gpt():
    def build():
        keras.utils.set_random_seed(37)
        x = keras.Input((LENGTH,), dtype="int32")
        y = EncoderBlock(WIDTH, causal=True)(TokensAndPositions(WORDS, LENGTH, WIDTH)(x))
        model = keras.Model(x, [layers.Dense(WORDS)(y), y])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05), loss=[loss, None])
        return model

    text = tokens(WORDS, LENGTH + 1)
    return build, batches(text[:, :-1], text[:, 1:])


class TiedWords(layers.Layer):
    """Embeds words, and gives back scores for words by the same matrix."""

    def __init__(self, words, width):
        super().__init__()
        self.words = layers.Embedding(words, width)

    def call(self, x, reverse=False):
        if reverse:
            return ops.matmul(x, ops.transpose(self.words.embeddings))
        return self.words(x)


@family("Language model whose output layer is its embedding")
def words_by_a_tied_embedding():
    class Tied(keras.Model):
        def __init__(self):
            super().__init__()
            self.words, self.memory = (
                TiedWords(WORDS, WIDTH),
                layers.GRU(WIDTH, return_sequences=True),
            )

        def call(self, x):
            return self.words(self.memory(self.words(x)), reverse=True)

    def build():
        keras.utils.set_random_seed(40)
        model = Tied()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        perplexity = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="words")
        model.compile(keras.optimizers.AdamW(1e-2, weight_decay=0.01), loss, metrics=[perplexity])
        return model

    text = tokens(WORDS, LENGTH + 1)
    return build, batches(text[:, :-1], text[:, 1:])
