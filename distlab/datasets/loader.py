"""Loads a data set by its name.

train, test = load_dataset("digits", batch_size=64)      # offline
train, test = load_dataset("mnist", batch_size=64)       # where the network allows
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import io
import os
import random
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core import constants
from tensorflow_datasets.core.utils import tqdm_utils

from distlab.datasets import digits  # noqa: F401  # importing it registers "digits"
from distlab.errors import DatasetError, InvalidArgument
from distlab.process_state import kept_state

# Several shards, so that sharding by file has files to share.
_SHARDS = 4

# What a TFRecord has besides its example: a length, and a checksum of each.
_FRAME_BYTES = 16

# Why a folder cannot be written, in the words of the system and of TFDS.
_WRITE_FAILS = (
    *map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS)),
    "Not enough disk space",
)

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
    """Loads a data set by name, as `tf.data` pipelines of (input, label) in a fixed order.

    The first call prepares the data set on disk, under a lock, so that several processes may ask at
    once; later calls read it. Nothing is shuffled and nothing is dropped, so the last batch may be
    partial.

    Args:
        name: "digits" (1,437 + 360 images of 8x8x1, which need no network), or any TFDS name.
        splits: TFDS splits, also slices such as "train[:10%]".
        batch_size: The GLOBAL batch size; None gives single examples.
        scale_images: Give uint8 images as float32 from 0 to 1.
        data_dir: Where data sets are kept; None means TFDS's own place (TFDS_DATA_DIR, or
            ~/tensorflow_datasets if that isn't set).

    Returns:
        One `tf.data.Dataset` for each split.

    Raises:
        DatasetError: The name or a split is unknown, the data can't be had here, or only a part
            of them is on disk.
        InvalidArgument: The batch size is below 1.

    Example:
        >>> train, test = dl.load_dataset("digits", batch_size=64)
        >>> len(train), len(test)  # batches, the partial ones included
        (23, 6)
        >>> images, labels = next(iter(train))
        >>> images.shape, labels.shape
        (TensorShape([64, 8, 8, 1]), TensorShape([64]))
    """
    if batch_size is not None and (isinstance(batch_size, bool) or batch_size < 1):
        raise InvalidArgument(
            asked=f"load_dataset({name!r}, batch_size={batch_size!r})",
            found=f"batch_size={batch_size!r}",
            do="pass the global batch size, for example 64, or None for single examples",
        )
    # TFDS draws from Python's generator, and its first message gives the root logger a handler.
    with kept_state():
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


def _prepare(name: str, data_dir: str | Path | None) -> Any:
    """Returns a builder with all its data on disk; the first process to ask prepares them."""
    builder = _find_builder(name, data_dir)
    folder = Path(builder.data_dir)
    if _is_prepared(builder, name, folder):
        return builder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        held = filelock.FileLock(folder.parent / f".{folder.name}.lock").acquire()
    except OSError as error:
        raise _unwritable(name, folder, str(error)) from error
    with held:
        # A builder remembers what it saw on disk, and that was before the lock was ours.
        builder = _find_builder(name, data_dir)
        if not _is_prepared(builder, name, folder):
            _download(builder, name)
            _is_prepared(builder, name, folder)  # on a full disk not every write fails
    return builder


def _find_builder(name: str, data_dir: str | Path | None) -> Any:
    if name != "digits":  # ours; to list the others takes a second
        known = tfds.list_builders(with_community_datasets=False)
        if name.partition("/")[0].partition(":")[0] not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise DatasetError(
                asked=f"load_dataset({name!r})",
                found=f"none of the {len(known)} data sets that TFDS {tfds.__version__} knows",
                do=(f"did you mean {near[0]!r}? " if near else "")
                + "'digits' needs no download; tfds.list_builders() lists all",
            )
    try:
        return tfds.builder(name, data_dir=data_dir)
    except ValueError:  # no such version or configuration
        raise
    except Exception as error:  # what it read on disk is of many kinds
        kept = Path(data_dir or constants.DATA_DIR).expanduser() / name.partition(":")[0]
        if isinstance(error, OSError):
            raise _unreadable(name, kept, str(error)) from error
        raise _incomplete(name, kept, "a readable dataset_info.json") from error


def _is_prepared(builder: Any, name: str, folder: Path) -> bool:
    """Whether the data are on disk; a folder that has only a part of them is refused.

    TFDS writes into a folder beside this one and renames it at the end, so a process that is
    killed leaves nothing here. What is lost or cut off later shows in the sizes of the files.
    """
    try:
        if not os.path.lexists(folder):
            return False
        if not (folder / "dataset_info.json").exists():
            raise _incomplete(name, folder, "dataset_info.json")
        if not builder.info.splits:
            raise _incomplete(name, folder, "any split in its dataset_info.json")
        for split in builder.info.splits.values():
            _check_shards(split, name, folder)
    except OSError as error:
        raise _unreadable(name, folder, str(error)) from error
    return True


def _check_shards(split: Any, name: str, folder: Path) -> None:
    size = 0  # in bytes
    for shard in map(Path, split.filepaths):
        if not shard.exists():
            raise _incomplete(name, folder, shard.name)
        if not os.access(shard, os.R_OK):
            raise _unreadable(name, folder, f"{shard.name} is not for this user")
        size += shard.stat().st_size
    whole = int(split.num_bytes)  # of the files, or of the examples in them
    if split.filename_template.filetype_suffix == "tfrecord" and size != whole:
        whole += _FRAME_BYTES * split.num_examples
    if size < whole:
        raise _incomplete(name, folder, f"{whole - size} bytes of its split {split.name!r}")


def _download(builder: Any, name: str) -> None:
    random.seed()  # TFDS draws the name of the folder that it writes into: no two may draw one
    try:
        if name == "digits":
            with _without_progress_bar(), contextlib.redirect_stdout(io.StringIO()):
                config = tfds.download.DownloadConfig(num_shards=_SHARDS)
                builder.download_and_prepare(download_config=config)
        else:
            # Without a network TFDS would try each file ten times, for minutes.
            with contextlib.suppress(urllib.error.HTTPError):  # any answer means it is reached
                urllib.request.urlopen(_REACHABLE, timeout=_REACHABLE_TIMEOUT_SECS).close()
            builder.download_and_prepare()
    except Exception as error:  # TensorFlow's errors of files come as RuntimeError, too
        reason = next((sign for sign in _WRITE_FAILS if sign in str(error)), "")
        if reason:
            raise _unwritable(name, Path(builder.data_dir), reason) from error
        if not isinstance(error, OSError | tfds.download.DownloadError):
            raise
        raise DatasetError(
            asked=f"load_dataset({name!r})",
            found=f"it is not in {builder.data_dir}, and the download failed: {error}",
            do="connect to the network (or set HTTPS_PROXY) and try again, or take 'digits', "
            "which needs no download",
        ) from error


@contextlib.contextmanager
def _without_progress_bar() -> Iterator[None]:
    """For a quick, local step; whether the user has switched it off can be asked nowhere else."""
    shown = tqdm_utils._active
    tfds.disable_progress_bar()
    try:
        yield
    finally:
        tqdm_utils._active = shown


def _unwritable(name: str, folder: Path, reason: str) -> DatasetError:
    return DatasetError(
        asked=f"load_dataset({name!r})",
        found=f"it is not in {folder}, and nothing can be written there: {reason}",
        do="pass data_dir=FOLDER, or set TFDS_DATA_DIR, to a folder that you can write in and "
        "that has space",
    )


def _unreadable(name: str, folder: Path, reason: str) -> DatasetError:
    return DatasetError(
        asked=f"load_dataset({name!r})",
        found=f"{folder} cannot be read: {reason}",
        do="ask its owner to let you read it, or pass data_dir=FOLDER, or set TFDS_DATA_DIR, to a "
        "folder of your own",
    )


def _incomplete(name: str, folder: Path, missing: str) -> DatasetError:
    return DatasetError(
        asked=f"load_dataset({name!r})",
        found=f"{folder} lacks {missing}, so it is only a part of the data set",
        do=f"delete {folder} and call this again, which prepares the data set again",
    )


def _pipeline(
    dataset: tf.data.Dataset, batch_size: int | None, scale_images: bool
) -> tf.data.Dataset:
    def scale(image: tf.Tensor, label: Any) -> tuple[tf.Tensor, Any]:
        return tf.cast(image, tf.float32) / 255.0, label

    first = dataset.element_spec[0]
    if scale_images and getattr(first, "dtype", None) == tf.uint8:
        dataset = dataset.map(scale, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset if batch_size is None else dataset.batch(batch_size)
