"""Which worker writes: the chief, while what the others write goes to a place that is removed.

model.save = write_as_chief(model.save, workers)
with callbacks_elsewhere(callbacks, workers):  # what Keras's callbacks write while fit runs
    ...

All workers save, because reading a variable that replicas share may take all of them. None returns
before the chief's file is whole, so each of them can load it then.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras

from distlab.errors import InvalidArgument
from distlab.training.workers.workers import Workers, fail_together

# The attribute in which a callback of Keras keeps the place it writes to.
_PLACES = {
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.TensorBoard: "log_dir",
}


def write_as_chief(method: Callable[..., Any], workers: Workers) -> Callable[..., Any]:
    """Returns a `save`, `save_weights` or `export` that writes one file for all workers."""
    # A method of the user's may name its first parameter as it likes.
    first = next(iter(inspect.signature(method).parameters), "")

    @functools.wraps(method)
    def write(*args: Any, **kwargs: Any) -> Any:
        name = first if first in kwargs else "filepath"
        place = args[0] if args else kwargs.get(name)
        with (
            fail_together(workers, method.__name__),
            contextlib.ExitStack() as removed,
        ):
            if not workers.is_chief and isinstance(place, str | os.PathLike):
                folder = removed.enter_context(tempfile.TemporaryDirectory())
                elsewhere = Path(folder) / Path(place).name
                if args:
                    args = (elsewhere, *args[1:])
                else:
                    kwargs = kwargs | {name: elsewhere}
            result = method(*args, **kwargs)
            workers.exchange(None)  # so that none goes on before the chief is done
        return result

    return write


@contextlib.contextmanager
def callbacks_elsewhere(
    callbacks: list[keras.callbacks.Callback], workers: Workers
) -> Iterator[None]:
    """Inside the block, Keras's callbacks of all workers but the chief write to another place."""
    backups = [c for c in callbacks if isinstance(c, keras.callbacks.BackupAndRestore)]
    if backups and workers.count > 1:
        raise InvalidArgument(
            asked=f"fit(..., callbacks=[BackupAndRestore(...)]) on {workers.count} workers",
            found="a callback whose files all workers would write at once",
            do='take dl.Resume("checkpoints") in its place, on every worker',
        )
    if workers.is_chief:
        yield
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as moves:
        for number, callback in enumerate(callbacks):
            place = Path(folder) / str(number)
            place.mkdir()
            for kind, attribute in _PLACES.items():
                if isinstance(callback, kind):
                    moves.enter_context(_moved(callback, attribute, place))
        yield


@contextlib.contextmanager
def _moved(callback: keras.callbacks.Callback, attribute: str, folder: Path) -> Iterator[None]:
    before = getattr(callback, attribute)
    setattr(callback, attribute, str(folder / Path(before).name))
    try:
        yield
    finally:
        setattr(callback, attribute, before)
