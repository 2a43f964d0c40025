"""Lesson 11's small training: in a loop of one's own, by `fit`, and as a script.

training = Training()
for x, y in training.batches_of(epoch):     # 10 batches
    training.train_on(x, y)
fit(strategy, dl.Resume(folder))            # {"weights": one array, "steps": 40}
write_script(folder)                        # train.py: worker 1 gets SIGTERM in step 17
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

_EXAMPLES, _BATCH, _RATE = 320, 32, 0.03

_SCRIPT = """\
import signal
from pathlib import Path

import distlab as dl
import keras
import numpy as np

strategy = dl.make_strategy("multi_worker")  # before any other call of TensorFlow

def build():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model

class AskedOnce(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        me, asked = strategy.cluster_resolver.task_id, Path("asked")
        if me == 1 and self.model.optimizer.iterations == 17 and not asked.exists():
            asked.touch()
            signal.raise_signal(signal.SIGTERM)

print("life begins")
callbacks = [AskedOnce(), resume := dl.Resume("checkpoints", every_steps=1000)]
model, (x, y) = dl.distribute(build, strategy), (np.ones((320, 8)), np.zeros(320))
model.fit(x, y, batch_size=32, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
print("steps at the end:", int(model.optimizer.iterations.numpy()))
print("resumed from step", resume.resumed_from.step)
"""


class Training:
    """A model, its optimizer, how many steps are done, and a function that takes one step."""

    batches = _EXAMPLES // _BATCH  # in an epoch

    def __init__(self) -> None:
        import keras
        import tensorflow as tf

        self.model = _model()
        self.optimizer = keras.optimizers.Adam(_RATE)
        self.optimizer.build(self.model.trainable_variables)
        self.step = tf.Variable(0, dtype=tf.int64)
        self.train_on = tf.function(self._train_on)

    def batches_of(self, epoch: int) -> tf.data.Dataset:
        """Returns the batches of an epoch, in an order that follows from its number."""
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices(digits())
        return data.shuffle(_EXAMPLES, seed=epoch).batch(_BATCH)

    def loss(self) -> float:
        """Returns the mean loss on all digits, with the weights of this moment."""
        images, labels = digits()
        return float(_loss_of()(labels, self.model(images)))

    def _train_on(self, x: Any, y: Any) -> None:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = _loss_of()(y, self.model(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.model.trainable_variables))
        self.step.assign_add(1)


def fit(strategy: Any, *callbacks: Any, epochs: int = 4) -> dict[str, Any]:
    """Trains the same model by `fit`, and returns its weights and the optimizer's steps."""
    import tensorflow as tf

    import distlab as dl

    examples = digits()
    # The order of a shuffle follows from TensorFlow's seed, too.
    dl.set_seed(1, deterministic=True)
    data = tf.data.Dataset.from_tensor_slices(examples).shuffle(_EXAMPLES, seed=1).batch(_BATCH)
    model = dl.distribute(_build, strategy)
    model.fit(data, epochs=epochs, shuffle=False, verbose=0, callbacks=[*callbacks])
    weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
    return {"weights": weights, "steps": int(model.optimizer.iterations.numpy())}


def write_script(folder: Path) -> None:
    """Writes `train.py`: 40 steps, and in step 17 worker 1 once sends itself SIGTERM."""
    (folder / "train.py").write_text(_SCRIPT)


@functools.cache
def digits() -> tuple[Any, Any]:
    """Returns the images and the labels of 320 digits."""
    import distlab as dl

    (examples,) = dl.load_dataset("digits", splits=[f"train[:{_EXAMPLES}]"], batch_size=_EXAMPLES)
    images, labels = next(examples.as_numpy_iterator())
    return images, labels


def _loss_of() -> keras.losses.Loss:
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _model() -> keras.Model:
    import keras

    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu")]
    layers += [keras.layers.Dropout(0.1, seed=1), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers])


def _build() -> keras.Model:
    import keras

    model = _model()
    model.compile(keras.optimizers.Adam(_RATE), loss=_loss_of())
    return model
