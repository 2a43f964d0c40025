"""A small model and its training, which tests of Resume stop in the middle and let go on."""

import functools
import os

import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from tests.support.parity import unlike

EXAMPLES, BATCH, BATCHES = 22, 4, 6  # the last batch is a partial one
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, 3)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) + RNG.normal(size=(EXAMPLES, 1)) / 9).astype("float32")
VALIDATION = (X[:8], Y[:8])


def dataset(examples=EXAMPLES):
    tf.random.set_seed(7)  # a shuffle's order comes from both seeds
    data = tf.data.Dataset.from_tensor_slices((X[:examples], Y[:examples]))
    return data.shuffle(examples, seed=1).batch(BATCH)


def build(*, optimizer=None, steps_per_execution=1, units=5, metrics=("mae",)):
    schedule = keras.optimizers.schedules.CosineDecay(0.05, decay_steps=20)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(units, "tanh"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        optimizer=optimizer() if optimizer else keras.optimizers.Adam(schedule),
        loss="mse",
        metrics=list(metrics),
        steps_per_execution=steps_per_execution,
    )
    return model


def make(kind="keras", *, seed=1, **options):
    """A model with weights and Dropout seeds that follow from `seed`."""
    keras.utils.set_random_seed(seed)
    if kind == "keras":
        return build(**options)
    devices = 2 if kind == "mirrored" else None
    strategy = dl.make_strategy(kind, devices=devices)
    return dl.distribute(functools.partial(build, **options), strategy)


class Stopped(Exception):
    pass


class Stop(keras.callbacks.Callback):
    """As if the process were killed when a batch was done, with all that follows from it."""

    def __init__(self, *, after):
        super().__init__()
        self.epoch, self.batch = after
        self.running = []

    def on_epoch_begin(self, epoch, logs=None):
        self.running[:] = [epoch]
        if epoch > self.epoch:
            raise Stopped

    def on_train_batch_begin(self, batch, logs=None):
        if self.running == [self.epoch] and batch > self.batch:
            raise Stopped

    def on_test_begin(self, logs=None):
        if self.running == [self.epoch]:
            raise Stopped


NEVER = Stop(after=(99, 0))


class Signal(keras.callbacks.Callback):
    """Sends this process a signal when a step is done, some times."""

    listens_to_executions = True

    def __init__(self, step, number, *, times=1):
        super().__init__()
        self.step, self.number, self.times = step, number, times

    def on_train_batch_end(self, batch, logs=None):
        if self.step is not None and self.model.optimizer.iterations >= self.step:
            self.step = None
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


class Diary(keras.callbacks.Callback):
    """A callback of one's own: what it was called for, and some state of several kinds."""

    def __init__(self, note=""):
        super().__init__()
        self.note = note
        self.calls = []
        self.sums = np.zeros(2)
        self.best = (float("inf"), None)

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(("epoch", epoch))

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("batch", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.sums += [1.0, logs["loss"]]
        self.best = min(self.best, (logs["loss"], batch), key=lambda pair: pair[0])


def fit(model, *callbacks, data=None, epochs=3, **options):
    data = dataset() if data is None else data
    options = {"verbose": 0, "shuffle": False, **options}
    return model.fit(data, epochs=epochs, callbacks=list(callbacks), **options)


def state_of(model):
    return [np.asarray(v) for v in model.get_weights()] + [
        keras.ops.convert_to_numpy(v) for v in model.optimizer.variables
    ]


# To the last bit: both have run the same shapes on the same machine.
unlike_in_bits = functools.partial(unlike, atol=0, logs=0)


def names(folder):
    return sorted(path.name for path in folder.iterdir())
