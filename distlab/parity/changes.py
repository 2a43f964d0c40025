"""What an experiment takes out of a model, on both sides alike, before it trains."""

from __future__ import annotations

import keras

from distlab.parity.structure import layers_of
from distlab.training.keras_private.held import inner

CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def local_batch_norms(model: keras.Model) -> list[str]:
    """Returns the names of the BatchNormalization layers that look at one replica only."""
    return [layer.name for layer in _batch_norms(model) if not layer.synchronized]


def synchronise_batch_norms(model: keras.Model) -> None:
    """Lets every BatchNormalization take the statistics of the global batch."""
    for layer in _batch_norms(model):
        layer.synchronized = True


def clipping(model: keras.Model) -> str:
    """Returns how the optimizer clips, as "clipnorm=0.1", or ""."""
    optimizer = inner(model.optimizer)
    held = [(name, getattr(optimizer, name, None)) for name in CLIPPING]
    return ", ".join(f"{name}={value}" for name, value in held if value is not None)


def stop_clipping(model: keras.Model) -> None:
    """Lets the optimizer take gradients as they are."""
    for name in CLIPPING:
        setattr(inner(model.optimizer), name, None)


def is_regularised(model: keras.Model) -> bool:
    """Whether a weight or a layer's output has a regulariser."""
    weights = any(weight.regularizer is not None for weight in model.trainable_weights)
    return weights or any(layer.activity_regularizer is not None for layer in layers_of(model))


def zero_regularisers(model: keras.Model) -> None:
    """Keeps the regularisers, so that a loop that adds them up still finds some, but at zero."""
    nothing = keras.regularizers.L2(0.0)
    for weight in model.trainable_weights:
        if weight.regularizer is not None:
            weight.regularizer = nothing
    for layer in layers_of(model):
        if layer.activity_regularizer is not None:
            layer.activity_regularizer = nothing


def masks(model: keras.Model) -> list[str]:
    """Returns the names of the layers that mask steps of a sequence."""
    return [layer.name for layer in layers_of(model) if _masks(layer)]


def use_plain_sgd(model: keras.Model) -> None:
    """Gives the model an optimizer whose update is the gradient and nothing else."""
    model.optimizer = keras.optimizers.SGD(1.0)


def _batch_norms(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    kind = keras.layers.BatchNormalization
    return [layer for layer in layers_of(model) if isinstance(layer, kind)]


def _masks(layer: keras.layers.Layer) -> bool:
    embeds = isinstance(layer, keras.layers.Embedding) and layer.mask_zero
    return bool(embeds or isinstance(layer, keras.layers.Masking))
