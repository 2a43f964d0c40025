"""Lesson 03: follows the weights of a model through training, and compares two models.

model, path = fit_path(build(), data)        # path[0] is before the first step
apart(model, reference)                      # 1.2e-07
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras


def kernel(model: keras.Model) -> Any:
    """Returns the weight matrix of a model's last layer, as a NumPy array."""
    return model.layers[-1].kernel.numpy()


def fit_path(model: keras.Model, data: Any) -> tuple[keras.Model, list[Any]]:
    """Trains a model for one epoch with Keras's `fit`, and keeps the last layer's weights."""
    import keras

    path = [kernel(model)]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: path.append(kernel(model))
    )
    model.fit(data, verbose=0, shuffle=False, callbacks=[note])
    return model, path


def apart(model: keras.Model, reference: keras.Model) -> float:
    """Returns the largest difference of a weight between two models."""
    pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
    return max(float(np.abs(path - exact).max()) for path, exact in pairs)
