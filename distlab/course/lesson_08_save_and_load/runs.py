"""Lesson 08: digits in batches, what is in a file, and a training run that continues.

folder = temporary_folder()
images, labels, data = first_digits()
numbers_of(model)                                            # {"weights": 2410, "optimizer": 4822}
numbers_in(Path("model.keras"))                              # 7232
complaint(tf.train.Checkpoint(model=model).read(path))       # "nothing", or what is missing
losses = train_on(model, epochs=2)                           # after each step
"""

from __future__ import annotations

import functools
import io
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import distlab as dl

if TYPE_CHECKING:
    import keras


def quiet() -> None:
    """Hides the reminders that we compile many small functions, and that a load skips variables."""
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    warnings.filterwarnings("ignore", message="Skipping")


@functools.cache
def _kept_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def temporary_folder() -> Path:
    """Returns this process's folder for files, which is removed when the process ends."""
    return Path(_kept_folder().name)


def first_digits() -> tuple[Any, Any, Any]:
    """Returns 320 images, their labels, and both in batches of 64."""
    import tensorflow as tf

    (digits,) = dl.load_dataset("digits", splits=["train[:320]"], batch_size=320)
    images, labels = next(iter(digits))
    return images, labels, tf.data.Dataset.from_tensor_slices((images, labels)).batch(64)


def numbers_of(model: keras.Model) -> dict[str, int]:
    """Returns how many numbers the weights and the optimizer of a model are."""
    groups = {"weights": model.weights, "optimizer": model.optimizer.variables}
    return {name: sum(int(np.size(each)) for each in group) for name, group in groups.items()}


def numbers_in(path: Path) -> int:
    """Returns how many numbers a file holds: .keras, .weights.h5 or a checkpoint."""
    import h5py  # type: ignore[import-untyped]
    import tensorflow as tf

    if path.suffix not in (".keras", ".h5"):
        found = tf.train.list_variables(str(path))
        return sum(int(np.prod(shape)) for name, shape in found if "/" in name)
    content = path.read_bytes()
    if path.suffix == ".keras":
        with zipfile.ZipFile(io.BytesIO(content)) as unpacked:
            content = unpacked.read("model.weights.h5")
    sizes: list[int] = []
    with h5py.File(io.BytesIO(content)) as file:
        file.visititems(lambda name, item: sizes.append(int(getattr(item, "size", 0))))
    return sum(sizes)


def complaint(status: Any, assertion: str = "assert_existing_objects_matched") -> str:
    """Returns what an assertion says, of an object that `read` or `restore` returned."""
    try:
        getattr(status, assertion)()
    except AssertionError as error:
        return str(error).split(",")[0].strip(".")
    return "nothing"


def train_on(model: keras.Model, epochs: int = 2) -> list[float]:
    """Trains further on the same digits and returns the loss of all of them after each step."""
    import keras

    images, labels, data = first_digits()
    losses: list[float] = []

    def note(batch: int, logs: Any) -> None:
        losses.append(float(model.loss(labels, model(images))))

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    model.fit(data, epochs=epochs, callbacks=[callback], shuffle=False, verbose=0)
    return losses


def max_difference(one: Any, other: Any) -> float:
    """Returns the largest difference between two arrays, or between two lists of weights."""
    ones, others = (each if isinstance(each, list) else [each] for each in (one, other))
    return max(float(np.abs(a - b).max()) for a, b in zip(ones, others, strict=True))
