"""Where Keras's callbacks write and restart, as far as they say it in private."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras


@contextlib.contextmanager
def backup_elsewhere(callback: keras.callbacks.BackupAndRestore, folder: Path) -> Iterator[None]:
    """Inside the block it restores from its own folder and then writes to another."""
    elsewhere = keras.callbacks.BackupAndRestore(str(folder))
    places = {
        name: getattr(callback, name)
        for name in (
            "backup_dir",
            "_weights_path",
            "_training_metadata_path",
            "_prev_weights_path",
            "_prev_training_metadata_path",
        )
    }
    restore = callback.on_train_begin

    def on_train_begin(logs: Any = None) -> None:
        restore(logs)
        for name in places:
            setattr(callback, name, getattr(elsewhere, name))

    callback.on_train_begin = on_train_begin
    try:
        yield
    finally:
        del callback.on_train_begin
        for name, place in places.items():
            setattr(callback, name, place)


def restored_epoch(model: keras.Model) -> int | None:
    """Returns the epoch at which a callback lets `fit` begin; None if no callback has chosen."""
    epoch: int | None = model._initial_epoch
    return epoch
