"""The error for something in a step that replicas cannot do, with the user's line.

raise refusal(step, "tape.jacobian", "take tape.gradient")
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import keras

from distlab.errors import ModelError, is_installed


def refusal(step: Any, found: str, do: str) -> ModelError:
    """The error of a step, which names the layer that runs and the line that is at fault."""
    where = "a step" if step.layer is None else f"{_kind_of(step.layer)} {step.layer.name!r}"
    return ModelError(
        asked=f"train or evaluate the model {step.model.name!r} on several replicas",
        found=f"{found}, in {where}{users_line()}",
        do=do,
    )


def _kind_of(part: Any) -> str:
    kinds = {keras.losses.Loss: "the loss", keras.metrics.Metric: "the metric"}
    return next((name for kind, name in kinds.items() if isinstance(part, kind)), "the layer")


def is_of_user(module: str | None) -> bool:
    """Whether code of a module is neither Keras's nor TensorFlow's nor distlab's."""
    return (module or "").partition(".")[0] not in ("keras", "tensorflow", "distlab")


def _is_written_by_user(file: str) -> bool:
    return not is_installed(file) and "__autograph_generated_file" not in file


def users_line() -> str:
    """The innermost line of the user's own that runs, as the end of a sentence."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _is_written_by_user(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    file, number = frame.f_code.co_filename, frame.f_lineno
    line = linecache.getline(file, number).strip()
    return f" ({Path(file).name}, line {number}: {line})" if line else ""
