"""A small model and its data, and models on one device and on replicas."""

import functools

import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from tests.support.parity import alone

EXAMPLES, BATCH, EPOCHS = 73, 32, 2  # the last batch has 9: shares 5 and 4 on two replicas
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(EXAMPLES, 8)).astype("float32")
Y = DRAW.integers(0, 4, EXAMPLES)

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "sgd_momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-2),
    "adam_clipnorm": lambda: keras.optimizers.Adam(1e-2, clipnorm=0.1),
    "adamw": lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1),
}
LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


def shuffled():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    return dataset.shuffle(EXAMPLES, seed=1).batch(BATCH)


def builder(optimizer="adam", *, loss=None, built=True, **compiled):
    def build():
        keras.utils.set_random_seed(3)
        l2 = keras.regularizers.L2(1e-2)
        layers = [
            keras.layers.Dense(6, activation="tanh", kernel_regularizer=l2),
            keras.layers.Dense(4),
        ]
        model = keras.Sequential([keras.Input((8,)), *layers] if built else layers)
        model.compile(
            optimizer=OPTIMIZERS[optimizer](),
            loss=LOSS() if loss is None else loss,
            metrics=["accuracy"],
            **compiled,
        )
        return model

    return build


def train(model, data=None, **options):
    data = shuffled() if data is None else data
    history = model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False, **options)
    return history.history, [weight.numpy() for weight in model.trainable_variables]


@functools.cache
def strategy_of(kind, replicas=None):
    return dl.make_strategy(kind, devices=replicas)


def seeded(make):
    """Returns a `build` whose initial weights are the same each time."""

    def build():
        keras.utils.set_random_seed(3)
        return make()

    return build


def pair(make, replicas=2, **options):
    """Returns the same model on one device and on the replicas of a mirrored strategy."""
    build = seeded(make)
    return alone(build), dl.distribute(build, strategy_of("mirrored", replicas), **options)
