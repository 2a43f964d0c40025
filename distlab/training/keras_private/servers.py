"""What a model on parameter servers, and whoever evaluates it beside, asks of Keras."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras


@contextlib.contextmanager
def without_strategy(model: keras.Model) -> Iterator[None]:
    """Inside the block the model takes itself for one that no strategy distributes."""
    strategy, model._distribute_strategy = model._distribute_strategy, None
    try:
        yield
    finally:
        model._distribute_strategy = strategy


def build(model: keras.Model, element_spec: Any) -> None:
    """Makes every variable of the model, its optimizer and its metrics that is not there yet."""
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=element_spec)
