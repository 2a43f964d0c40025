"""Loads a data set by its name.

train, test = load_dataset("digits", batch_size=64)      # offline
train, test = load_dataset("mnist", batch_size=64)       # where the network allows
"""

from __future__ import annotations

import contextlib
import difflib
import io
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import filelock
import tensorflow as tf
import tensorflow_datasets as tfds

from distlab.datasets import digits  # noqa: F401  # importing it registers "digits"
from distlab.errors import DatasetError, InvalidArgument

# Several shards, so that sharding by file has files to share.
_SHARDS = 4

# Where TFDS keeps its own copies; reached first, so that being offline is known at once.
_REACHABLE = "https://storage.googleapis.com/"
_REACHABLE_TIMEOUT_SECS = 10


def load_dataset(
    name: str = "digits",
    *,
    splits: Sequence[str] = ("train", "test"),
    batch_size: int | None = None,
    scale_images: bool = True,
    data_dir: str | Path | None = None,
) -> tuple[tf.data.Dataset, ...]:
    """Loads a data set as `tf.data` pipelines of (input, label), in a fixed order.

    The first call prepares the data set on disk, under a lock, so that several processes may
    ask at once; later calls read it. Nothing is shuffled and nothing is dropped.

    Args:
        name: "digits" (1,437 + 360 images of 8x8x1, always there), or any TFDS name.
        splits: TFDS splits, also slices such as "train[:10%]".
        batch_size: The GLOBAL batch size; None gives single examples.
        scale_images: Give uint8 images as float32 from 0 to 1.
        data_dir: Where data sets are kept; TFDS's own place (TFDS_DATA_DIR, else
            ~/tensorflow_datasets) when None.

    Returns:
        One `tf.data.Dataset` for each split.

    Raises:
        DatasetError: The name or a split is unknown, or the data cannot be had here.
        InvalidArgument: The batch size is below 1.
    """
    if batch_size is not None and (isinstance(batch_size, bool) or batch_size < 1):
        raise InvalidArgument(
            asked=f"load_dataset({name!r}, batch_size={batch_size!r})",
            found="a batch size below 1",
            do="give the global batch size, for example 64, or None for single examples",
        )
    builder = _prepare(name, data_dir)
    try:
        loaded = builder.as_dataset(split=list(splits), as_supervised=True)
    except ValueError as error:
        names = ", ".join(repr(split) for split in builder.info.splits)
        raise DatasetError(
            asked=f"load_dataset({name!r}, splits={tuple(splits)!r})",
            found=str(error).splitlines()[0],
            do=f"{name!r} has the splits {names}, and pairs of (input, label) are needed",
        ) from error
    return tuple(_pipeline(dataset, batch_size, scale_images) for dataset in loaded)


def _find_builder(name: str, data_dir: str | Path | None) -> Any:
    if name == "digits":  # ours; to list the others takes a second
        return tfds.builder(name, data_dir=data_dir)
    known = tfds.list_builders(with_community_datasets=False)
    if name.partition("/")[0].partition(":")[0] not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise DatasetError(
            asked=f"load_dataset({name!r})",
            found=f"none of the {len(known)} data sets that TFDS {tfds.__version__} knows",
            do=(f"did you mean {near[0]!r}? " if near else "")
            + "'digits' needs no download; tfds.list_builders() lists all",
        )
    return tfds.builder(name, data_dir=data_dir)


def _prepare(name: str, data_dir: str | Path | None) -> Any:
    """Returns a builder whose data are on disk; whoever asks first prepares them."""
    builder = _find_builder(name, data_dir)
    if _is_prepared(builder):
        return builder
    folder = Path(builder.data_dir)
    lock = folder.parent / f".{folder.name}.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        held = filelock.FileLock(lock).acquire()
    except OSError as error:
        raise DatasetError(
            asked=f"load_dataset({name!r})",
            found=f"it is not in {folder}, and nothing can be written there: {error}",
            do="give data_dir=FOLDER, or set TFDS_DATA_DIR, to a folder that you can write in",
        ) from error
    with held:
        # A builder remembers what it saw on disk, and that was before the lock was ours.
        builder = _find_builder(name, data_dir)
        if not _is_prepared(builder):
            _download(builder, name)
    return builder


def _is_prepared(builder: Any) -> bool:
    return (Path(builder.data_dir) / "dataset_info.json").exists()


def _download(builder: Any, name: str) -> None:
    try:
        if name == "digits":
            tfds.disable_progress_bar()
            config = tfds.download.DownloadConfig(num_shards=_SHARDS)
            with contextlib.redirect_stdout(io.StringIO()):  # two lines on a quick, local step
                builder.download_and_prepare(download_config=config)
            tfds.enable_progress_bar()
        else:
            # Without a network TFDS would try each file ten times, for minutes.
            with contextlib.suppress(urllib.error.HTTPError):  # any answer means it is reached
                urllib.request.urlopen(_REACHABLE, timeout=_REACHABLE_TIMEOUT_SECS).close()
            builder.download_and_prepare()
    except (OSError, tfds.download.DownloadError) as error:
        raise DatasetError(
            asked=f"load_dataset({name!r})",
            found=f"it is not in {builder.data_dir}, and the download failed: {error}",
            do="connect to the network (or set HTTPS_PROXY) and try again, or take 'digits', "
            "which needs no download",
        ) from error


def _pipeline(
    dataset: tf.data.Dataset, batch_size: int | None, scale_images: bool
) -> tf.data.Dataset:
    def scale(image: tf.Tensor, label: Any) -> tuple[tf.Tensor, Any]:
        return tf.cast(image, tf.float32) / 255.0, label

    first = dataset.element_spec[0]
    if scale_images and getattr(first, "dtype", None) == tf.uint8:
        dataset = dataset.map(scale, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset if batch_size is None else dataset.batch(batch_size)
