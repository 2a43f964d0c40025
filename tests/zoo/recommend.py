"""Families that recommend: ratings by embeddings, and retrieval among a batch."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.zoo.family import ROWS, batches, draw, family, tokens
from tests.zoo.text_layers import EncoderBlock, TokensAndPositions

USERS, FILMS, WIDTH = 9, 12, 5


def pairs(seed=31):
    drawn = draw(seed)
    users, films = drawn.integers(0, USERS, ROWS), drawn.integers(0, FILMS, ROWS)
    return np.stack([users, films], axis=1).astype("int32")


def ratings():
    return draw(32).uniform(size=ROWS).astype("float32")


def embedding(count, width=WIDTH):
    return layers.Embedding(
        count,
        width,
        embeddings_initializer="he_normal",
        embeddings_regularizer=keras.regularizers.L2(1e-6),
    )


class Recommender(keras.Model):
    """How near a user's vector is to a film's, and a bias for each."""

    def __init__(self):
        super().__init__()
        self.user, self.film = embedding(USERS), embedding(FILMS)
        self.user_bias, self.film_bias = layers.Embedding(USERS, 1), layers.Embedding(FILMS, 1)

    def call(self, pair):
        user, film = pair[:, 0], pair[:, 1]
        near = ops.sum(self.user(user) * self.film(film), axis=1, keepdims=True)
        return ops.sigmoid(near + self.user_bias(user) + self.film_bias(film))


@family("Collaborative Filtering for Movie Recommendations")
def ratings_by_dot_product():
    def build():
        keras.utils.set_random_seed(101)
        model = Recommender()
        model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(0.01))
        return model

    return build, batches(pairs(), ratings())


def square(y_true, y_pred):
    return ops.square(ops.reshape(y_true, (-1, 1)) - y_pred)[:, 0]


@family("Ratings with a loss for each example and weights", core=True)
def ratings_by_a_loss_for_each():
    def build():
        keras.utils.set_random_seed(102)
        model = Recommender()
        model.compile(
            keras.optimizers.Adam(0.01, use_ema=True), loss=square, weighted_metrics=["mae"]
        )
        return model

    weights = draw(33).uniform(0.2, 2.0, ROWS).astype("float32")
    return build, batches(pairs(), ratings(), weights)


class SumsOverTheBatch(Recommender):
    """A step of its own whose loss is the sum of all squares in the batch."""

    def train_step(self, data):
        pair, rating = data
        with tf.GradientTape() as tape:
            loss = ops.sum(square(rating, self(pair, training=True))) + sum(self.losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.total.update_state(loss)
        return {"loss": self.total.result()}

    @property
    def metrics(self):
        return [self.total]


@family("Ratings with a loss that is a sum", core=True)
def ratings_by_a_sum():
    def build():
        keras.utils.set_random_seed(103)
        model = SumsOverTheBatch()
        model.total = keras.metrics.Mean(name="loss")
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9))
        return model

    return build, batches(pairs(), ratings())


class TwoTowers(keras.Model):
    """Finds the film of each user among all films of the batch."""

    def __init__(self):
        super().__init__()
        # No bias at the end of the film's tower: it would move all scores of a user alike.
        self.user = keras.Sequential([embedding(USERS), layers.Dense(WIDTH)])
        self.film = keras.Sequential([embedding(FILMS), layers.Dense(WIDTH, use_bias=False)])
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.first = keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="first")

    def call(self, pair):
        return self.user(pair[:, 0]), self.film(pair[:, 1])

    def scored(self, pair, training):
        user, film = self(pair, training=training)
        scores = ops.matmul(user, ops.transpose(film)) / 0.2
        right = ops.arange(ops.shape(scores)[0])
        each = keras.losses.sparse_categorical_crossentropy(right, scores, from_logits=True)
        return ops.mean(each), right, scores

    def train_step(self, pair):
        with tf.GradientTape() as tape:
            loss, right, scores = self.scored(pair, training=True)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.logs(loss, right, scores)

    def test_step(self, pair):
        return self.logs(*self.scored(pair, training=False))

    def logs(self, loss, right, scores):
        self.loss_tracker.update_state(loss)
        self.first.update_state(right, scores)
        return {metric.name: metric.result() for metric in (self.loss_tracker, self.first)}


@family(
    "Retrieval with two towers",
    fit=lambda: {"validation_data": batches(pairs(34))},
)
def films_by_two_towers():
    def build():
        keras.utils.set_random_seed(104)
        model = TwoTowers()
        model.compile(optimizer=keras.optimizers.Adagrad(0.1))
        return model

    return build, batches(pairs())


@family("A Transformer-based recommendation system")
def ratings_by_what_was_seen_before():
    length = 6

    def build():
        keras.utils.set_random_seed(105)
        x = {
            "seen": keras.Input((length,), dtype="int32", name="seen"),
            "stars": keras.Input((length,), name="stars"),
            "user": keras.Input((1,), dtype="int32", name="user"),
        }
        y = TokensAndPositions(FILMS, length, WIDTH + 1)(x["seen"]) * x["stars"][..., None]
        y = layers.Flatten()(EncoderBlock(WIDTH + 1)(y))
        y = layers.concatenate([y, layers.Flatten()(embedding(USERS)(x["user"]))])
        y = layers.LeakyReLU()(layers.BatchNormalization()(y))
        model = keras.Model(x, layers.Dense(1)(layers.Dropout(0.1)(y)))
        model.compile(
            optimizer=keras.optimizers.Adagrad(0.01),
            loss=keras.losses.MeanSquaredError(),
            metrics=[keras.metrics.MeanAbsoluteError()],
        )
        return model

    seen = tokens(FILMS, length)
    stars = draw(35).uniform(1, 5, seen.shape).astype("float32")
    inputs = {"seen": seen, "stars": stars, "user": pairs()[:, :1]}
    return build, batches(inputs, stars.mean(axis=1))
