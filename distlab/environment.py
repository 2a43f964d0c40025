"""Settings and versions to check before TensorFlow loads, and pairs known to be bad.

Importing this module imports no TensorFlow:

    load_tensorflow()               # Keras on its TensorFlow backend, without the noise
    require_keras("3.15.1")         # raises where it is too old
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import logging
import os
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from distlab.errors import UnsupportedEnvironment

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)

# What distlab was run with, as pyproject.toml bounds it: from, and below.
BOUNDS = {
    "tensorflow": ((2, 19), (2, 22)),
    "keras": ((3, 10), (3, 16)),
    "tf-keras": ((2, 19), (2, 22)),
}

# Which extra brings a module that the base install does not have; "lab" brings all others.
_EXTRA_OF = {
    "tensorflow_datasets": "data",
    "sklearn": "data",
    "filelock": "data",
    "tf_keras": "legacy",
    "jupytext": "test",
    "nbclient": "test",
    "nbformat": "test",
    "nbval": "test",
}


def prepare(environ: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Sets what TensorFlow and Keras read while they load; what the user has set stays."""
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environ.setdefault("KERAS_BACKEND", "tensorflow")


@functools.cache  # once in a process: a level that the user sets afterwards stays
def load_tensorflow() -> None:
    """Imports TensorFlow, without the log lines that it prints on every machine."""
    if "tensorflow" in sys.modules:
        prepare()
        _quiet_session()
        return
    with quiet_start():
        import tensorflow  # noqa: F401


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Inside the block TensorFlow is imported, without the log lines that it prints everywhere.

    Those of its C++ come before any setting is read, so no variable can switch them off;
    whatever else is printed meanwhile is passed on.
    """
    prepare()
    with without_noise():
        yield
        # It looks for GPUs only now; logical devices can still be made after this.
        sys.modules["tensorflow"].config.list_physical_devices()
    _quiet_session()


@functools.cache  # once in a process: what the user sets afterwards stays
def _quiet_session() -> None:
    """In an interactive session, TensorFlow's logger reports warnings, as it does in a script.

    There it would name every device at every reduction, and notebooks are kept with what they
    show. A script is left as it is.
    """
    if not (hasattr(sys, "ps1") or sys.flags.interactive):
        return
    logger = logging.getLogger("tensorflow")
    if logger.level == logging.INFO:  # TensorFlow's own choice
        logger.setLevel(logging.WARNING)
    if version_numbers(importlib.metadata.version("protobuf")) < (6,):
        # DTensor of TensorFlow 2.19, about its own code.
        warnings.filterwarnings("ignore", "MessageFactory class is deprecated")


# Said by TensorFlow 2.21 on every Linux machine without a GPU, and by oneDNN everywhere.
NOISE = (
    b"All log messages before absl::InitializeLog()",
    b"oneDNN custom operations are on",
    b"Could not find cuda drivers on your machine",
    b"failed call to cuInit",
)

# A line of native code that only informs, in the forms of TensorFlow 2.19 to 2.21 and of gRPC.
_INFORMS = re.compile(rb"I\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d .*: I ")


def is_noise(line: bytes) -> bool:
    """Whether a line of a log tells of nothing that went wrong."""
    return any(noise in line for noise in NOISE) or bool(_INFORMS.match(line))


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Holds back what native code writes to stderr, and passes on all but the noise."""
    try:
        stderr = os.dup(2)
    except OSError:  # a process without a stderr has no noise either
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            held.seek(0)
            for line in held:
                if not any(noise in line for noise in NOISE):
                    os.write(stderr, line)
            os.close(stderr)


def requirement(name: str) -> str:
    """Returns what pip is asked for, "keras>=3.10,<3.16"."""
    oldest, below = BOUNDS[name]
    return f"{name}>={dotted(oldest)},<{dotted(below)}"


def data_sets_problem(versions: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns why TFDS cannot load beside this protobuf, and the cure, or None.

    tensorflow-metadata 1.21 was made with protobuf 6.31 and does not say so; TensorFlow 2.19
    brings an older one.
    """
    metadata, protobuf = versions.get("tensorflow-metadata", "0"), versions.get("protobuf", "99")
    if version_numbers(metadata) < (1, 21) or version_numbers(protobuf) >= (6, 31):
        return None
    return (
        f"tensorflow-metadata {metadata} needs protobuf 6.31 or newer, and protobuf {protobuf} is "
        "installed",
        "pip install 'tensorflow-metadata<1.21'",
    )


def is_writable(path: Path) -> bool:
    """Whether this process may write in a folder, or may make it where it does not exist."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def require_keras(version: str) -> None:
    """Raises where Keras is older than what distlab's training was run with."""
    if version_numbers(version) < BOUNDS["keras"][0]:
        raise UnsupportedEnvironment(
            asked="train with distlab",
            found=f"Keras {version}, of which distlab does not know the inner parts",
            do=f"pip install --upgrade '{requirement('keras')}'",
        )


def require_data_sets() -> None:
    """Raises where TFDS is installed, but cannot load."""
    try:
        versions = {n: importlib.metadata.version(n) for n in ("tensorflow-metadata", "protobuf")}
    except importlib.metadata.PackageNotFoundError:
        return
    if problem := data_sets_problem(versions):
        found, do = problem
        raise UnsupportedEnvironment(asked="import tensorflow_datasets", found=found, do=do)


def require_modules(asked: str, *modules: str) -> None:
    """Raises where a module that a call will need is not installed, before anything is done."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise explain_missing(module, asked=asked)


def explain_missing(module: str, *, asked: str = "") -> UnsupportedEnvironment:
    """Returns the error for a module that is not installed, with the command that brings it."""
    top = module.partition(".")[0]
    if top in ("tensorflow", "keras"):
        cure = "pip install distlab  (TensorFlow and Keras come with it)"
    else:
        cure = f'pip install "distlab[{_EXTRA_OF.get(top, "lab")}]"'
    return UnsupportedEnvironment(
        asked=asked or f"import {module}",
        found=f"{module} is not installed for {platform.python_implementation()} "
        f"{platform.python_version()}",
        do=cure,
    )


def version_numbers(version: str) -> tuple[int, ...]:
    """Returns (3, 16) for "3.16.0.dev1"."""
    return tuple(int(part) for part in version.split(".")[:2])


def dotted(version: tuple[int, ...]) -> str:
    """Returns "3.16" for (3, 16)."""
    return ".".join(map(str, version))
