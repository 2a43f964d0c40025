"""Families of time series, and of films as series of pictures."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from tests.zoo.family import BATCH, batches, draw, family, images, labels, vectors

LENGTH, FEATURES, CLASSES = 12, 3, 3


def waves(examples=27, features=1, seed=0):
    """Returns waves of different lengths with noise on them."""
    drawn = draw(seed)
    speed, start = drawn.uniform(0.2, 1.5, (2, examples, 1, features))
    noise = drawn.normal(scale=0.1, size=(examples, LENGTH, features))
    return (np.sin(start + speed * np.arange(LENGTH)[:, None]) + noise).astype("float32")


def weather(first, seed):
    """Returns windows on one long series: 27 in the first part, 14 in the second."""
    values = vectors(FEATURES, 48, seed=seed)
    return keras.utils.timeseries_dataset_from_array(
        values[: first + LENGTH - 2],
        values[LENGTH - 1 :, :1],
        sequence_length=LENGTH - 1,
        batch_size=BATCH,
    )


@family(
    "Timeseries forecasting for weather prediction",
    fit=lambda: {
        "validation_data": weather(14, seed=3),
        "callbacks": [keras.callbacks.EarlyStopping(monitor="val_loss", patience=5)],
    },
)
def weather_by_lstm():
    def build():
        keras.utils.set_random_seed(51)
        x = keras.Input((LENGTH - 1, FEATURES))
        model = keras.Model(x, layers.Dense(1)(layers.LSTM(6)(x)))
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    return build, weather(27, seed=2)


def attention_block(x):
    y = layers.MultiHeadAttention(key_dim=4, num_heads=2, dropout=0.2)(x, x)
    x = x + layers.LayerNormalization(epsilon=1e-6)(layers.Dropout(0.2)(y))
    y = layers.Conv1D(4, 1, activation="relu")(x)
    y = layers.Conv1D(x.shape[-1], 1)(layers.Dropout(0.2)(y))
    return x + layers.LayerNormalization(epsilon=1e-6)(y)


@family("Timeseries classification with a Transformer model")
def series_by_transformer():
    def build():
        keras.utils.set_random_seed(52)
        x = keras.Input((LENGTH, FEATURES))
        y = attention_block(x)
        y = layers.GlobalAveragePooling1D(data_format="channels_last")(y)
        y = layers.Dense(CLASSES, activation="softmax")(layers.Dropout(0.4)(y))
        model = keras.Model(x, y)
        model.compile(
            optimizer=keras.optimizers.SGD(5e-3),
            loss="sparse_categorical_crossentropy",
            metrics=["sparse_categorical_accuracy"],
        )
        return model

    return build, batches(waves(features=FEATURES), labels(CLASSES))


def halve_the_rate():
    rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)
    return {"callbacks": [rate]}


@family("Timeseries classification from scratch", fit=halve_the_rate, core=True)
def series_by_convolutions():
    def build():
        keras.utils.set_random_seed(53)
        x = keras.Input((LENGTH, 1))
        y = layers.Conv1D(6, 3, padding="same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.GlobalAveragePooling1D()(y)
        model = keras.Model(x, layers.Dense(CLASSES, activation="softmax")(y))
        model.compile(
            keras.optimizers.SGD(0.05),
            keras.losses.SparseCategoricalCrossentropy(),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
        return model

    return build, batches(waves(), labels(CLASSES))


def held_back():
    found = waves(13, seed=6)
    return {"validation_data": (found, found), "validation_batch_size": 5}


@family("Timeseries anomaly detection using an Autoencoder", fit=held_back)
def anomalies_by_autoencoder():
    def build():
        keras.utils.set_random_seed(54)
        model = keras.Sequential(
            [
                keras.Input((LENGTH, 1)),
                layers.Conv1D(6, 5, padding="same", strides=2, activation="relu"),
                layers.Dropout(0.2),
                layers.Conv1DTranspose(1, 5, padding="same", strides=2),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), loss="mse")
        return model

    return build, batches(waves(), waves())


@family("Next-Frame Video Prediction with Convolutional LSTMs")
def frames_by_convolutional_lstm():
    frames, size = 4, 6

    def build():
        keras.utils.set_random_seed(55)
        x = keras.Input((None, size, size, 1))
        y = layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True, activation="relu")(x)
        y = layers.BatchNormalization()(y)
        y = layers.Conv3D(1, 3, padding="same", activation="sigmoid")(y)
        model = keras.Model(x, y)
        model.compile(keras.optimizers.SGD(0.05), keras.losses.BinaryCrossentropy())
        return model

    films = images(size, frames + 1).transpose(0, 3, 1, 2)[..., None]
    return build, batches(films[:, :-1], films[:, 1:])


@family("Traffic forecasting with a recurrent network")
def traffic_by_gru():
    def build():
        keras.utils.set_random_seed(56)
        x = keras.Input((LENGTH - 1, FEATURES))
        y = layers.TimeDistributed(layers.Dense(5, activation="relu"))(x)
        y = layers.GRU(6, return_sequences=True, stateful=False, recurrent_dropout=0.0)(y)
        y = layers.SimpleRNN(5, return_sequences=True)(y)
        model = keras.Model(x, layers.TimeDistributed(layers.Dense(FEATURES))(y))
        rate = keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.9)
        loss = keras.losses.Huber()
        model.compile(keras.optimizers.RMSprop(rate), loss, metrics=["mae", "mape"])
        return model

    values = waves(features=FEATURES)
    return build, batches(values[:, :-1], values[:, 1:])


@family(
    "Electroencephalogram Signal Classification",
    fit=lambda: {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}},
)
def signals_by_residual_convolutions():
    def build():
        keras.utils.set_random_seed(57)
        x = y = keras.Input((LENGTH, FEATURES))
        across = layers.SeparableConv1D(6, 3, padding="same", use_bias=False)(y)
        across = layers.BatchNormalization(momentum=0.9)(across)
        y = layers.add([layers.LeakyReLU()(across), layers.Conv1D(6, 1)(y)])
        y = layers.AveragePooling1D(2)(y)
        y = layers.Flatten()(y)
        y = layers.Dense(6, activation="relu", kernel_regularizer="l2")(y)
        model = keras.Model(x, layers.Dense(CLASSES, activation="softmax")(y))
        model.compile(
            optimizer=keras.optimizers.Adam(1e-2, amsgrad=True),
            loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
            metrics=[
                keras.metrics.TopKCategoricalAccuracy(k=2),
                keras.metrics.AUC(num_thresholds=20, name="auc"),
                keras.metrics.F1Score(average="macro"),
            ],
        )
        return model

    kinds = np.eye(CLASSES, dtype="float32")[labels(CLASSES)]
    return build, batches(waves(features=FEATURES, seed=7), kinds)
