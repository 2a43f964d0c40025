"""Checkpoints of a training on disk: each whole or not there, the newest few kept.

save(folder, checkpoint, keep=3)
checkpoint = newest(folder)            # the newest whole one, or None
checkpoint = newest_of_all(folder, workers)   # the one that the chief finds, on every worker

A checkpoint is a folder of two files that need no distlab to be read: `state.json`, and
`values.npz` with the arrays that it names. There is no pickle: opening one runs no code.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from distlab.errors import InvalidArgument
from distlab.training.workers.workers import Workers

_NAME = re.compile(r"epoch-(\d+)-step-(\d+)")
_UNFINISHED = ".unfinished-"
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in a training.

    Attributes:
        epoch: Epochs that are done.
        batch: Batches that are done of the next one.
        batches: Batches in an epoch, where that is known.
        step: Steps that are done, over all epochs.
    """

    epoch: int
    batch: int
    batches: int | None
    step: int

    def __str__(self) -> str:
        """As in "step 240: epoch 3, batch 40 of 100"."""
        of = "" if self.batches is None else f" of {self.batches}"
        batch = f", batch {self.batch}{of}" if self.batch else ""
        return f"step {self.step}: epoch {self.epoch + 1}{batch}"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The contents of one checkpoint.

    Attributes:
        epoch: Epochs that are done.
        step: Steps that are done, over all epochs.
        state: What goes into `state.json`.
        values: Arrays by name, for `values.npz`.
    """

    epoch: int
    step: int
    state: dict[str, Any]
    values: dict[str, np.ndarray]

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"epoch-{self.epoch:04d}-step-{self.step:08d}"


def save(folder: Path, checkpoint: Checkpoint, *, keep: int) -> None:
    """Writes a checkpoint, then removes the oldest beyond `keep`.

    It is written beside the others, brought to disk, and only then gets its name: a process
    that is stopped in the middle leaves the checkpoints that were there before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{_UNFINISHED}{checkpoint.name}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    arrays = {
        key: {"dtype": value.dtype.name, "shape": list(value.shape)}
        for key, value in checkpoint.values.items()
    }
    stored: dict[str, Any] = {key: _storable(v) for key, v in checkpoint.values.items()}
    with (unfinished / "values.npz").open("wb") as file:
        np.savez(file, **stored)
        os.fsync(file.fileno())
    with (unfinished / "state.json").open("w", encoding="utf-8") as text:
        json.dump({**checkpoint.state, "values": arrays}, text, indent=1)
        text.flush()
        os.fsync(text.fileno())
    _folder_to_disk(unfinished)
    final = folder / checkpoint.name
    if final.exists():  # only one that was found damaged is ever reached again
        _remove(final)
    unfinished.rename(final)
    _folder_to_disk(folder)
    _prune(folder, final, keep)


def newest(folder: Path) -> Checkpoint | None:
    """Returns the newest whole checkpoint, or None where there is none at all."""
    damaged = []
    for path in reversed(_checkpoints(folder)):
        try:
            checkpoint = _read(path)
        except _DAMAGE as error:
            damaged.append(f"{path.name} ({type(error).__name__}: {error})")
            continue
        if damaged:
            warnings.warn(
                f"Resume: {', '.join(damaged)} in {folder} is damaged; "
                f"going on from {path.name}, the newest whole checkpoint",
                UserWarning,
                stacklevel=2,
            )
        return checkpoint
    if damaged:
        raise InvalidArgument(
            asked=f"Resume({str(folder)!r})",
            found=f"no whole checkpoint among {len(damaged)}: {', '.join(damaged)}",
            do="bring back a copy of one, or remove the folder to train from the start",
        )
    return None


def newer(folder: Path, than: Checkpoint | None) -> Iterator[Checkpoint]:
    """Yields whole checkpoints as they come, the oldest first."""
    for path in _checkpoints(folder):
        if than is None or _place_of(path) > (than.epoch, than.step):
            try:
                yield _read(path)
            except _DAMAGE:
                continue  # removed meanwhile, because it is no longer among the newest


def newest_of_all(folder: Path, workers: Workers) -> Checkpoint | None:
    """Returns on every worker the newest whole checkpoint that the chief finds."""
    checkpoint = newest(folder) if workers.is_chief else None
    name = workers.from_chief(None if checkpoint is None else checkpoint.name)
    failure = ""
    if name is not None and checkpoint is None:
        try:
            checkpoint = _read(folder / name)
        except _DAMAGE as error:
            failure = f"{type(error).__name__}: {error}"
    for worker, text in zip(workers.names, workers.exchange(failure), strict=True):
        if text:
            raise InvalidArgument(
                asked=f"Resume({str(folder)!r}) on {workers.count} workers",
                found=f"{worker} cannot read {name}, which the chief has found in its folder of "
                f"that name ({text})",
                do="name one folder that all workers share, such as one on a network disk",
            )
    return checkpoint


def _checkpoints(folder: Path) -> list[Path]:
    """All that have the name of a checkpoint, the oldest first."""
    existing = folder.iterdir() if folder.is_dir() else ()
    folders = [path for path in existing if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=_place_of)


def _place_of(path: Path) -> tuple[int, int]:
    """Epochs and steps that are done, by the name."""
    epoch, step = _NAME.fullmatch(path.name).groups()  # type: ignore[union-attr]
    return int(epoch), int(step)


def _read(path: Path) -> Checkpoint:
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    with np.load(path / "values.npz", allow_pickle=False) as stored:
        values = {
            key: _as_was(stored[key], array["dtype"]) for key, array in state["values"].items()
        }
    for key, array in state["values"].items():
        if list(values[key].shape) != array["shape"]:
            raise ValueError(f"{key} has the shape {values[key].shape}")
    position = state["position"]
    return Checkpoint(
        epoch=int(position["epoch"]), step=int(position["step"]), state=state, values=values
    )


def _storable(array: np.ndarray) -> np.ndarray:
    """`.npz` knows NumPy's own types only; the others (bfloat16) go in as whole numbers."""
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.isbuiltin == 2 else array


def _as_was(array: np.ndarray, dtype: str) -> np.ndarray:
    return array if array.dtype.name == dtype else array.view(getattr(ml_dtypes, dtype))


def _prune(folder: Path, saved: Path, keep: int) -> None:
    """Removes old checkpoints; those newer than the one just saved are damaged, and don't count."""
    existing = _checkpoints(folder)
    older = existing[: existing.index(saved)]
    for path in older[: max(0, len(older) - (keep - 1))]:
        _remove(path)
    for path in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)


def _remove(path: Path) -> None:
    """Takes the name away first, so that half a checkpoint never bears it."""
    unnamed = path.with_name(f"{_UNFINISHED}{path.name}-removed")
    shutil.rmtree(unnamed, ignore_errors=True)
    path.rename(unnamed)
    shutil.rmtree(unnamed, ignore_errors=True)


def _folder_to_disk(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Windows cannot open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
