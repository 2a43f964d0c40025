"""Families that give an answer for each place of a text, or another text."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from tests.zoo.family import batches, draw, family, labels, tokens
from tests.zoo.text_layers import DecoderBlock, EncoderBlock, TokensAndPositions

WORDS, LENGTH, WIDTH = 20, 8, 6
TAGS = 4


class MeanOverTags(keras.losses.Loss):
    """The mean over all words of a batch that have a tag."""

    def __init__(self):
        super().__init__(reduction=None, name="mean_over_tags")

    def call(self, y_true, y_pred):
        each = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
        there = ops.cast(y_true > 0, each.dtype)
        return ops.sum(each * there) / ops.sum(there)


def tagged():
    words = tokens(WORDS, LENGTH)
    return batches(words, np.where(words > 0, 1 + words % (TAGS - 1), 0))


@family("Named Entity Recognition using Transformers")
def entities_by_a_loss_of_their_own():
    def build():
        keras.utils.set_random_seed(33)
        x = keras.Input((None,), dtype="int32")
        y = EncoderBlock(WIDTH)(TokensAndPositions(WORDS, LENGTH, WIDTH)(x))
        y = layers.Dense(TAGS, activation="softmax")(layers.Dropout(0.1)(y))
        model = keras.Model(x, y)
        model.compile(keras.optimizers.SGD(0.05), MeanOverTags())
        return model

    return build, tagged()


@family("Named Entity Recognition with a mask")
def entities_by_mask():
    def build():
        keras.utils.set_random_seed(34)
        model = keras.Sequential(
            [
                keras.Input((LENGTH,), dtype="int32"),
                layers.Embedding(WORDS, WIDTH, mask_zero=True),
                layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
                layers.TimeDistributed(layers.Dense(TAGS, activation="softmax")),
            ]
        )
        model.compile(
            keras.optimizers.RMSprop(1e-2),
            keras.losses.SparseCategoricalCrossentropy(),
            metrics=["sparse_categorical_accuracy"],
            weighted_metrics=["sparse_categorical_crossentropy"],
        )
        return model

    return build, tagged()


@family("Character-level recurrent sequence-to-sequence model")
def letters_by_encoder_and_decoder():
    signs, read, written = 7, 6, 5

    def build():
        keras.utils.set_random_seed(35)
        source = keras.Input((None, signs))
        _, *state = layers.LSTM(6, return_state=True)(source)
        before = keras.Input((None, signs))
        decoder = layers.LSTM(6, return_sequences=True, return_state=True)
        after, _, _ = decoder(before, initial_state=state)
        y = layers.Dense(signs, activation="softmax")(after)
        model = keras.Model([source, before], y)
        model.compile("rmsprop", "categorical_crossentropy", metrics=["accuracy"])
        return model

    one_hot = np.eye(signs, dtype="float32")
    target = one_hot[labels(signs, (written + 1,))]
    source = one_hot[tokens(signs, read)]
    return build, batches((source, target[:, :-1]), target[:, 1:])


@family("English-to-Spanish translation with a sequence-to-sequence Transformer", core=True)
def translation_by_transformer():
    def build():
        keras.utils.set_random_seed(36)
        source = keras.Input((None,), dtype="int64", name="source")
        read = TokensAndPositions(WORDS, LENGTH, WIDTH, padded=True)(source)
        read = EncoderBlock(WIDTH, rate=0.0)(read)
        before = keras.Input((None,), dtype="int64", name="before")
        y = TokensAndPositions(WORDS, LENGTH, WIDTH, padded=True)(before)
        y = DecoderBlock(WIDTH)([y, read])
        y = layers.Dense(WORDS, activation="softmax")(layers.Dropout(0.5)(y))
        model = keras.Model({"source": source, "before": before}, y)
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(ignore_class=0),
            metrics=["accuracy"],
        )
        return model

    target = tokens(WORDS, LENGTH + 1, seed=6)
    inputs = {"source": tokens(WORDS, LENGTH), "before": target[:, :-1]}
    return build, batches(inputs, target[:, 1:])


@family("Sequence to sequence learning for performing number addition", core=True)
def addition_by_recurrence():
    signs, length, digits = 12, 7, 4

    def build():
        keras.utils.set_random_seed(38)
        model = keras.Sequential(
            [
                keras.Input((length, signs)),
                layers.LSTM(8),
                layers.RepeatVector(digits),
                layers.LSTM(8, return_sequences=True),
                layers.Dense(signs, activation="softmax"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), "categorical_crossentropy", metrics=["accuracy"])
        return model

    pairs = draw(9).integers(0, 1000, (27, 2))
    places = {sign: place for place, sign in enumerate("0123456789+ ")}

    def one_hot(texts, width):
        found = [[places[sign] for sign in text.ljust(width)] for text in texts]
        return np.eye(signs, dtype="float32")[np.asarray(found)]

    questions = one_hot([f"{a}+{b}" for a, b in pairs], length)
    return build, batches(questions, one_hot([str(a + b) for a, b in pairs], digits))


@family("Text Extraction with BERT")
def answers_by_start_and_end():
    def build():
        keras.utils.set_random_seed(39)
        x = keras.Input((LENGTH,), dtype="int32", name="words")
        kind = keras.Input((LENGTH,), dtype="int32", name="kind")
        y = TokensAndPositions(WORDS, LENGTH, WIDTH)(x) + layers.Embedding(2, WIDTH)(kind)
        y = EncoderBlock(WIDTH)(y)
        ends = [layers.Flatten()(layers.Dense(1, use_bias=False)(y)) for _ in range(2)]
        ends = [
            layers.Activation("softmax", name=name)(y)
            for name, y in zip(("start", "end"), ends, strict=True)
        ]
        model = keras.Model([x, kind], ends)
        losses = [keras.losses.SparseCategoricalCrossentropy() for _ in range(2)]
        model.compile(keras.optimizers.SGD(0.1, clipnorm=0.5), losses)
        return model

    kinds = (np.arange(LENGTH) > draw(3).integers(2, 6, 27)[:, None]).astype("int32")
    places = labels(LENGTH, (2,))
    return build, batches((tokens(WORDS, LENGTH), kinds), (places[:, 0], places[:, 1]))
