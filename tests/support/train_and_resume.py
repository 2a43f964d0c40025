"""A small training that goes on where it was stopped; what `tools/chaos.py` disturbs.

    distlab launch --workers 2 --max-restarts 3 train_and_resume.py FOLDER --steps 40
    distlab launch --workers 2 --ps 1 --max-restarts 3 train_and_resume.py FOLDER --steps 40

Prints what the tool looks for: its process, where it goes on, and how far it is. What was trained
is left in FOLDER/trained.npz.
"""

# ruff: noqa: T201 (a script prints)
import argparse
import contextlib
import json
import os
import threading
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import distlab as dl

EPOCH, BATCH = 10, 16


class Progress(keras.callbacks.Callback):
    """Says how far training is, and slows it down, so that there is time to be killed in."""

    said = False  # of the class, for Resume brings back what the callback itself remembers

    def __init__(self, resume, step_secs):
        super().__init__()
        self.resume, self.step_secs, self.step = resume, step_secs, 0

    def on_epoch_begin(self, epoch, logs=None):
        if not Progress.said:
            position = self.resume.resumed_from
            print("goes on from", position.step if position else 0)
        Progress.said = True

    def done(self, steps):
        self.step += steps
        print("step", self.step)
        time.sleep(steps * self.step_secs)


class EachStep(Progress):
    def on_train_batch_end(self, batch, logs=None):
        self.done(1)


class EachEpoch(Progress):
    """Does not listen to steps: parameter servers would then take them one by one.

    Of the first steps it asks the optimizer, from beside the training.
    """

    def on_epoch_begin(self, epoch, logs=None):
        if not Progress.said:
            threading.Thread(target=self._tell_the_first, daemon=True).start()
        super().on_epoch_begin(epoch, logs)

    def _tell_the_first(self):
        count = self.model.optimizer.iterations
        with contextlib.suppress(tf.errors.OpError):  # its server is lost
            start = now = int(count.numpy())
            while now == start:
                time.sleep(0.01)
                now = int(count.numpy())
            print("step", now)

    def on_epoch_end(self, epoch, logs=None):
        self.done(EPOCH)


def build():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EPOCH * BATCH, 8)).astype("float32")
    y = x[:, :1] * x[:, 1:2] + x[:, 2:].sum(1, keepdims=True)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    return dataset.shuffle(len(x), seed=1).batch(BATCH)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True, help=f"a multiple of {EPOCH}")
    parser.add_argument("--step-secs", type=float, default=0.02)
    options = parser.parse_args()
    print("pid", os.getpid())
    dl.set_seed(1, deterministic=True)
    config = json.loads(os.environ["TF_CONFIG"])
    has_servers = "ps" in config["cluster"]
    strategy = dl.make_strategy("parameter_server" if has_servers else "multi_worker")
    model = dl.distribute(build, strategy)
    resume = dl.Resume(options.folder / "checkpoints", every_steps=4)
    progress = (EachEpoch if has_servers else EachStep)(resume, options.step_secs)
    epochs = options.steps // EPOCH
    history = model.fit(data(), epochs=epochs, callbacks=[resume, progress], verbose=0)
    if has_servers or config["task"]["index"] == 0:
        weights = {f"weight_{i}": value for i, value in enumerate(model.get_weights())}
        steps = model.optimizer.iterations.numpy()
        loss = history.history["loss"]
        np.savez(options.folder / "trained.npz", loss=loss, steps=steps, **weights)


main()
