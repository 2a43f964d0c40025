"""Families that read a text and give one answer."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.zoo.family import batches, draw, family, labels, tokens
from tests.zoo.text_layers import EncoderBlock, TokensAndPositions

WORDS, LENGTH, WIDTH = 20, 8, 6


def compiled(x, y, optimizer=None, loss="binary_crossentropy", metrics=("accuracy",)):
    model = keras.Model(x, y)
    model.compile(optimizer or keras.optimizers.SGD(0.05), loss, metrics=list(metrics))
    return model


def reviews():
    return batches(tokens(WORDS, LENGTH), labels(2))


@family("Basic text classification", core=True)
def text_by_mean_of_words():
    def build():
        keras.utils.set_random_seed(11)
        x = keras.Input((LENGTH,), dtype="int32")
        y = layers.Embedding(WORDS, WIDTH, mask_zero=True)(x)
        y = layers.Dropout(0.2)(y)
        y = layers.GlobalAveragePooling1D()(y)
        y = layers.Dropout(0.2)(y)
        return compiled(x, layers.Dense(1, activation="sigmoid")(y))

    return build, reviews()


@family("Bidirectional LSTM on IMDB")
def text_by_bidirectional_lstm():
    def build():
        keras.utils.set_random_seed(12)
        x = keras.Input((None,), dtype="int32")
        y = layers.Embedding(WORDS, WIDTH)(x)
        y = layers.Bidirectional(layers.LSTM(4))(y)
        return compiled(x, layers.Dense(1, activation="sigmoid")(y))

    return build, reviews()


@family("Text classification with Transformer")
def text_by_transformer():
    def build():
        keras.utils.set_random_seed(13)
        x = keras.Input((LENGTH,), dtype="int32")
        y = TokensAndPositions(WORDS, LENGTH, WIDTH)(x)
        y = EncoderBlock(WIDTH)(y)
        y = layers.GlobalAveragePooling1D()(y)
        y = layers.Dense(2, activation="softmax")(layers.Dropout(0.1)(y))
        return compiled(x, y, loss="sparse_categorical_crossentropy")

    return build, reviews()


class Mixing(layers.Layer):
    """A Fourier transform over places and features where others have attention."""

    def __init__(self, width):
        super().__init__()
        self.network = layers.Dense(width, activation="gelu")
        self.norms = [layers.LayerNormalization() for _ in range(2)]

    def call(self, x):
        mixed, _ = ops.fft2((x, ops.zeros_like(x)))
        x = self.norms[0](x + mixed)
        return self.norms[1](x + self.network(x))


@family("Text Generation and classification using FNet", core=True)
def text_by_fourier_mixing():
    def build():
        keras.utils.set_random_seed(14)
        x = keras.Input((LENGTH,), dtype="int32")
        y = TokensAndPositions(WORDS, LENGTH, WIDTH)(x)
        y = Mixing(WIDTH)(y)
        y = layers.GlobalAveragePooling1D()(y)
        y = layers.Dropout(0.1)(y)
        return compiled(x, layers.Dense(1, activation="sigmoid")(y), keras.optimizers.SGD(0.05))

    return build, reviews()


@family("Text classification from scratch")
def text_by_convolutions():
    def build():
        keras.utils.set_random_seed(15)
        x = keras.Input((None,), dtype="int64")
        y = layers.Embedding(WORDS, WIDTH)(x)
        y = layers.Dropout(0.5)(y)
        y = layers.Conv1D(6, 3, strides=2, activation="relu")(y)
        y = layers.Conv1D(6, 2, activation="relu")(y)
        y = layers.GlobalMaxPooling1D()(y)
        y = layers.Dense(5, activation="relu")(y)
        return compiled(x, layers.Dense(1, activation="sigmoid")(y), "adam")

    return build, reviews()


VOCABULARY = ["the", "a", "cat", "dog", "runs", "sleeps", "fast", "never", "and", "then"]


def sentences():
    drawn = draw(21)
    return [" ".join(drawn.choice(VOCABULARY, drawn.integers(3, 9))) for _ in range(27)]


@family("Large-scale multi-label text classification")
def text_to_labels_from_vectorized_words():
    vectorize = layers.TextVectorization(output_mode="tf_idf", ngrams=2, max_tokens=24)
    vectorize.adapt(sentences())
    width = len(vectorize.get_vocabulary())

    def build():
        keras.utils.set_random_seed(16)
        x = keras.Input((width,))
        y = layers.Dense(8, activation="relu")(x)
        y = layers.Dense(3, activation="sigmoid")(y)
        return compiled(x, y, metrics=("binary_accuracy",))

    topics = labels(2, (3,)).astype("float32")
    data = batches(tf.constant(sentences()), topics)
    return build, data.map(lambda text, topic: (vectorize(text), topic))


class MeanOfRow(layers.Layer):
    """The mean over the words that a row has."""

    def call(self, x):
        return tf.reduce_mean(x, axis=1)

    def compute_output_spec(self, x):
        return keras.KerasTensor((x.shape[0], x.shape[-1]), dtype=x.dtype)


@family("Text classification from ragged rows", core=True)
def text_of_ragged_rows():
    def build():
        keras.utils.set_random_seed(17)
        x = keras.Input((None,), dtype="int32", ragged=True)
        y = layers.Embedding(WORDS, WIDTH)(x)
        y = layers.Dense(5, activation="relu")(MeanOfRow()(y))
        return compiled(x, layers.Dense(1, activation="sigmoid")(y))

    rows = tf.RaggedTensor.from_tensor(tokens(WORDS, LENGTH), padding=0)
    return build, batches(rows, labels(2))


@family(
    "Review Classification using Active Learning",
    fit=lambda: {"class_weight": {0: 1.0, 1: 2.5}},
)
def text_with_class_weight():
    def build():
        keras.utils.set_random_seed(18)
        model = keras.Sequential(
            [
                keras.Input((LENGTH,), dtype="int32"),
                layers.Embedding(WORDS, WIDTH),
                layers.LSTM(4, return_sequences=True),
                layers.GlobalMaxPool1D(),
                layers.Dropout(0.5),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(
            loss="binary_crossentropy",
            optimizer="rmsprop",
            metrics=[
                keras.metrics.BinaryAccuracy(),
                keras.metrics.FalseNegatives(name="missed"),
            ],
        )
        return model

    return build, reviews()


@family("Semantic Similarity with a shared encoder")
def two_texts_by_one_encoder():
    def build():
        keras.utils.set_random_seed(19)
        one, other = (keras.Input((LENGTH,), dtype="int32", name=name) for name in ("a", "b"))
        words = layers.Embedding(WORDS, WIDTH, mask_zero=True)
        steps = keras.Sequential([words, layers.GRU(4)], name="encoder")
        left, right = steps(one), steps(other)
        y = layers.concatenate([ops.absolute(left - right), left * right])
        y = layers.Dropout(0.3)(y)
        y = layers.Dense(3, activation="softmax")(y)
        return compiled([one, other], y, loss="categorical_crossentropy", metrics=("acc",))

    kinds = np.eye(3, dtype="float32")[labels(3)]
    return build, batches((tokens(WORDS, LENGTH), tokens(WORDS, LENGTH, seed=5)), kinds)


class Triplets(keras.Model):
    """Learns that a question is nearer to its answer than to another one."""

    def __init__(self, encoder, margin):
        super().__init__()
        self.encoder, self.margin = encoder, margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, inputs):
        anchor, near, far = (self.encoder(x) for x in inputs)
        return ops.sum((anchor - near) ** 2, -1), ops.sum((anchor - far) ** 2, -1)

    def loss_of(self, inputs):
        near, far = self(inputs)
        return ops.mean(ops.maximum(near - far + self.margin, 0.0))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(data)
        gradients = tape.gradient(loss, self.encoder.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.encoder.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        self.loss_tracker.update_state(self.loss_of(data))
        return {"loss": self.loss_tracker.result()}


def triplets(seed=0):
    parts = tuple(tokens(WORDS, LENGTH, seed=seed + part) for part in range(3))
    return batches(*parts)


@family(
    "Image similarity estimation using a Siamese Network with a triplet loss",
    fit=lambda: {"validation_data": triplets(6)},
)
def texts_by_triplets():
    def build():
        keras.utils.set_random_seed(20)
        encoder = keras.Sequential(
            [
                keras.Input((LENGTH,), dtype="int32"),
                layers.Embedding(WORDS, WIDTH, mask_zero=True),
                layers.GlobalAveragePooling1D(),
                layers.Dense(5, use_bias=False),  # a difference of two answers has no bias
            ]
        )
        model = Triplets(encoder, margin=1.0)
        model.compile(keras.optimizers.SGD(0.05))
        return model

    return build, triplets()
