"""The metric that Keras chooses for "accuracy", by the labels of the data.

Your own step may give it labels of a different form, such as indices for one-hot labels. On one
device Keras chooses in the first step, and so by the labels that the step gives.
"""

from __future__ import annotations

from typing import Any

import keras
from keras.src.trainers import compile_utils

from distlab.errors import ModelError
from distlab.training.keras_private import models

_NAMES = ("accuracy", "acc")


def check(model: keras.Model) -> None:
    """Makes the metrics refuse labels of a different form, if the model has its own step.

    Args:
        model: A built model.
    """
    compiled = model._compile_metrics
    if compiled is not None and models.has_own(model, "train_step", "test_step"):
        asked = keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
        names = {one for one in asked if isinstance(one, str) and one in _NAMES}
        if names:
            compiled.__dict__["update_state"] = _Checked(compiled, names)


class _Checked:
    """The `update_state` of a model's compiled metrics."""

    def __init__(self, compiled: Any, names: set[str]) -> None:
        self.compiled = compiled
        self.names = names

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Updates them.

        Raises:
            ModelError: Keras would have chosen a different metric for these labels.
        """
        labels, outputs = keras.tree.flatten(y_true), keras.tree.flatten(y_pred)
        if len(labels) == len(outputs) == 1:
            self._check(labels[0], outputs[0])
        type(self.compiled).update_state(self.compiled, y_true, y_pred, sample_weight)

    def _check(self, labels: Any, outputs: Any) -> None:
        if labels.shape.rank is None or outputs.shape.rank is None:
            return
        is_binary, is_sparse = compile_utils.is_binary_or_sparse_categorical(labels, outputs)
        fitting = keras.metrics.CategoricalAccuracy
        if is_binary:
            fitting = keras.metrics.BinaryAccuracy
        elif is_sparse:
            fitting = keras.metrics.SparseCategoricalAccuracy
        for metric in self.compiled.metrics:
            if metric.name in self.names and type(metric) is not fitting:
                raise ModelError(
                    asked=f"metrics=[{metric.name!r}], with a step of the model's own",
                    found=f"labels of shape {tuple(labels.shape)} from the step, and "
                    f"{type(metric).__name__}, which Keras has chosen by the data's labels",
                    do=f"compile with keras.metrics.{fitting.__name__}(name={metric.name!r})",
                )
