"""Waits for steps that are still running on workers after `fit` has moved on.

on_settle(model, flight.settle)     # by what sends steps away
settle(model)                       # by what reads or saves the model: all steps have ended
"""

from __future__ import annotations

from collections.abc import Callable

import keras

# On the model itself: a table of models would keep them alive.
_ATTRIBUTE = "_distlab_settle"


def on_settle(model: keras.Model, wait: Callable[[], None]) -> None:
    """Keeps what waits for the model's steps."""
    model.__dict__[_ATTRIBUTE] = wait


def settle(model: keras.Model) -> None:
    """Waits until no step of the model is under way; returns at once for most models."""
    wait = model.__dict__.get(_ATTRIBUTE)
    if wait is not None:
        wait()
