"""The network of lesson 02 in Keras, its weights after an epoch, and its gradient on each replica.

build()                                   # 64 pixels, 32 hidden units, 10 classes
weights_after_an_epoch(build)             # one vector
gradients_of(model, strategy)(batch)      # [replicas, weights]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def build(rate: float = 0.4) -> Any:
    """Returns the compiled network, with SGD at this learning rate."""
    import keras

    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss)
    return model


def weights_after_an_epoch(make: Callable[[], Any]) -> Any:
    """Returns the weights as one vector, after 1,024 digits in batches of 64."""
    import distlab as dl

    (train,) = dl.load_dataset("digits", splits=["train[:1024]"], batch_size=64)
    dl.set_seed(1)
    model = make()
    model.fit(train, shuffle=False, verbose=0)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def gradients_of(model: Any, strategy: Any) -> Callable[[Any], Any]:
    """Returns a function of a batch: each replica's gradient of its own examples' mean loss."""
    import tensorflow as tf

    def replica_gradient(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        return tf.concat([tf.reshape(each, [-1]) for each in gradients], axis=0)

    def on_replicas(batch: Any) -> Any:
        return strategy.experimental_local_results(strategy.run(replica_gradient, args=batch))

    compiled = tf.function(on_replicas)
    return lambda batch: np.array(compiled(batch))
