"""Measures the second table of the support matrix: what of a model and of its data holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.training.distributing import distribute
from tools.support_cells import (
    BATCH,
    DEVICES,
    DRAW,
    Cells,
    X,
    Y,
    against,
    cell,
    fit,
    in_order,
    in_scope,
    sequential,
    theirs,
)
from tools.support_steps import (
    OwnStep,
    Positions,
    TwoOptimizers,
    added_up,
    nested,
    stepping,
)

TOKENS = DRAW.integers(0, 5, (64, 6))  # 0 is padding, of a different length in each
TOKENS[np.arange(6) >= DRAW.integers(1, 7, 64)[:, None]] = 0
OUTLIER = X[:64].copy()
OUTLIER[30] *= 1e4  # on the second replica, in the first batch

Make = Callable[[Callable[[], Any], bool], Any]
WAYS: dict[str, Make] = {
    "Keras 3 `fit`, mirrored": lambda build, raw: in_scope(build, _mirrored(raw)),
    "`distribute`, mirrored": lambda build, raw: distribute(build, _mirrored(raw)),
    "`distribute`, central_storage": lambda build, raw: distribute(build, _central(raw)),
}


def _mirrored(raw: bool) -> tf.distribute.Strategy:
    return theirs() if raw else dl.make_strategy("mirrored", devices=2)


def _central(raw: bool) -> tf.distribute.Strategy:
    if raw:
        return tf.distribute.experimental.CentralStorageStrategy(DEVICES)
    return dl.make_strategy("central_storage", devices=2)


Feature = Callable[[], dict[str, str]]


def each_way(run: Callable[[Make], Any], judge: Callable[[Any], str]) -> dict[str, str]:
    """Returns a row: what becomes of a run in each way of training."""
    return {way: cell(functools.partial(run, make), judge) for way, make in WAYS.items()}


def parity(
    build: Callable[[], Any],
    data: Callable[[], tf.data.Dataset] = in_order,
    *,
    raw: bool = False,
    **options: Any,
) -> Feature:
    """Returns a row: does each way of training agree with one device?"""

    def row() -> dict[str, str]:
        judge = against(fit(build(), data(), **options))
        return each_way(lambda make: fit(make(build, raw), data(), **options), judge)

    return row


def _optimizer(name: str, *args: Any, **options: Any) -> Callable[[], Any]:
    return sequential(optimizer=lambda: getattr(keras.optimizers, name)(*args, **options))


def predict_order() -> dict[str, str]:
    """Do predictions come in the order of the examples, a partial last batch included?"""
    build = sequential()
    expected = build().predict(X, batch_size=BATCH, verbose=0)

    def judge(found: Any) -> str:
        return "kept" if np.allclose(found, expected, atol=1e-6) else "changed"

    return each_way(lambda make: make(build, False).predict(X, batch_size=BATCH, verbose=0), judge)


def predict_one() -> dict[str, str]:
    """Is a batch predicted that has fewer examples than there are replicas?"""
    build = sequential(
        lambda: keras.layers.Reshape((4, 2, 1)),
        lambda: keras.layers.Conv2D(4, 2),
        keras.layers.Flatten,
        _dense(),
    )
    expected = build().predict(X[:1], verbose=0)

    def judge(found: Any) -> str:
        return "equal" if np.allclose(found, expected, atol=1e-6) else "differs"

    return each_way(lambda make: make(build, False).predict(X[:1], verbose=0), judge)


class AddsLoss(keras.layers.Layer):  # type: ignore[misc]
    """The mean of its inputs' squares."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Returns its inputs."""
        self.add_loss(0.1 * keras.ops.mean(x**2))
        return x


def two_outputs() -> keras.Model:
    """Builds a model of two outputs, whose losses are logged one by one."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,))
    heads = {
        "class": keras.layers.Dense(4, name="class"),
        "size": keras.layers.Dense(1, name="size"),
    }
    model = keras.Model(inputs, {name: head(inputs) for name, head in heads.items()})
    losses = {"class": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"}
    model.compile(keras.optimizers.SGD(0.1), losses, jit_compile=False)
    return model


def one_number(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """A loss that takes the mean itself."""
    targets = keras.ops.cast(keras.ops.reshape(y_true, (-1, 1)), y_pred.dtype)
    return 0.1 * keras.ops.mean(keras.ops.square(y_pred - targets))


def _loss(make: Callable[[], Any]) -> Callable[[], Any]:
    def build() -> Any:
        model = sequential()()
        model.compile(keras.optimizers.SGD(0.1), make(), jit_compile=False)
        return model

    return build


def _cross_entropy(**options: Any) -> Callable[[], Any]:
    return lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def _dense(units: int = 4, **options: Any) -> Callable[[], Any]:
    return lambda: keras.layers.Dense(units, **options)


def _scaled() -> Any:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**122)


L2 = keras.regularizers.L2(0.1)
SEVERAL = sequential(steps_per_execution=2)
ROWS: dict[str, Feature] = {
    "SGD with momentum": parity(_optimizer("SGD", 0.1, momentum=0.9)),
    "Adam": parity(_optimizer("Adam", 1e-2)),
    "AdamW": parity(_optimizer("AdamW", 1e-2, weight_decay=0.1)),
    "`clipnorm`": parity(_optimizer("SGD", 0.1, clipnorm=0.1)),
    "`global_clipnorm`": parity(_optimizer("SGD", 0.1, global_clipnorm=0.1)),
    "gradient accumulation": parity(_optimizer("SGD", 0.1, gradient_accumulation_steps=2)),
    "EMA of weights": parity(_optimizer("SGD", 0.1, use_ema=True, ema_momentum=0.5)),
    "EMA that overwrites weights": parity(
        _optimizer("SGD", 0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
    ),
    "`LossScaleOptimizer`, overflow on one replica": parity(
        sequential(_dense(), optimizer=_scaled), lambda: in_order(OUTLIER)
    ),
    "`steps_per_execution` > 1, TensorFlow's all-reduce": parity(SEVERAL, raw=True),
    "`steps_per_execution` > 1, of `make_strategy`": parity(SEVERAL),
    "partial last batch": parity(sequential(), lambda: in_order(X, Y)),
    "first batch that the replicas cannot share equally": parity(
        sequential(), lambda: in_order(X[:66], Y[:66], 33)
    ),
    "class weights": parity(sequential(), class_weight={0: 1.0, 1: 2.0, 2: 0.5, 3: 3.0}),
    "masked loss": parity(
        sequential(lambda: keras.layers.Embedding(5, 6, mask_zero=True), _dense(5), shape=(6,)),
        lambda: in_order(TOKENS, TOKENS),
    ),
    "loss that ignores a class": parity(_loss(_cross_entropy(ignore_class=1))),
    "loss that returns one number": parity(_loss(lambda: one_number)),
    "loss that calls a Keras loss": parity(_loss(lambda: nested)),
    "loss that adds up over the batch": parity(_loss(lambda: added_up)),
    "embedding of positions under Adam": parity(
        sequential(
            Positions,
            keras.layers.Flatten,
            _dense(),
            shape=(6,),
            optimizer=lambda: keras.optimizers.Adam(1e-2),
        ),
        lambda: in_order(TOKENS),
    ),
    "own `train_step`": parity(stepping(OwnStep)),
    "own `train_step`, `clipnorm`, partial last batch": parity(
        stepping(OwnStep, clipnorm=0.1), lambda: in_order(X, Y)
    ),
    "own `train_step` with two optimizers": parity(stepping(TwoOptimizers)),
    "two outputs": parity(
        two_outputs, lambda: in_order(X[:64], {"class": Y[:64], "size": X[:64, :1]})
    ),
    "regularisers": parity(sequential(_dense(kernel_regularizer=L2))),
    "`add_loss` of a layer": parity(sequential(_dense(), AddsLoss)),
    "`BatchNormalization(synchronized=True)`": parity(
        sequential(
            _dense(6, use_bias=False),
            lambda: keras.layers.BatchNormalization(synchronized=True),
            _dense(),
        )
    ),
    "plain `BatchNormalization`": parity(
        sequential(_dense(6), keras.layers.BatchNormalization, _dense())
    ),
    "dropout": parity(sequential(_dense(6), lambda: keras.layers.Dropout(0.5, seed=1), _dense())),
    "order of `predict`": predict_order,
    "`predict` of one image by a convolution": predict_one,
}


def measure(part: int) -> Cells:
    """Measures every second row, on two logical CPUs."""
    dl.split_devices(2, kind="cpu")
    return {name: ROWS[name]() for name in list(ROWS)[part::2]}
