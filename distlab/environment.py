"""What must be set or known before TensorFlow loads: versions, settings, known-bad pairs.

Importing this module imports no TensorFlow:

    load_tensorflow()               # Keras on its TensorFlow backend, without the noise
    for problem in known_problems():
        print(problem)
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping

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

# The distributions whose versions `doctor` reports.
REPORTED_PACKAGES = (
    "tensorflow",
    "keras",
    "tf-keras",
    "tensorflow-tpu",
    "tensorflow-datasets",
    "tensorboard",
    "jupyterlab",
    "numpy",
)

# Those that are judged, and that belong in no report.
_JUDGED_PACKAGES = ("tensorflow-metadata", "protobuf")


def prepare(environ: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Sets what TensorFlow and Keras read while they load; what the user has set stays."""
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environ.setdefault("KERAS_BACKEND", "tensorflow")


@functools.cache  # once in a process: a level that the user sets afterwards stays
def load_tensorflow() -> None:
    """Imports TensorFlow, without the log lines that it prints on every machine."""
    if "tensorflow" in sys.modules:
        prepare()
        _warnings_only()
        return
    with quiet_start():
        import tensorflow  # noqa: F401


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Inside the block TensorFlow is imported, without the log lines that it prints everywhere.

    Those of its C++ come before any setting is read, so no variable can switch them off;
    whatever else is printed meanwhile is passed on. Its Python logger then reports warnings, not
    the name of every device at every reduction, and a warning about its own code is ignored.
    """
    prepare()
    with without_noise():
        yield
        # It looks for GPUs only now; logical devices can still be made after this.
        sys.modules["tensorflow"].config.list_physical_devices()
    _warnings_only()


def _warnings_only() -> None:
    logger = logging.getLogger("tensorflow")
    if logger.level == logging.INFO:  # TensorFlow's own choice
        logger.setLevel(logging.WARNING)
    # DTensor of TensorFlow 2.19 with protobuf 5, about its own code.
    warnings.filterwarnings("ignore", "MessageFactory class is deprecated")


# Said by TensorFlow 2.21 on every Linux machine without a GPU, and by oneDNN everywhere.
_NOISE = (
    b"All log messages before absl::InitializeLog()",
    b"oneDNN custom operations are on",
    b"Could not find cuda drivers on your machine",
    b"failed call to cuInit",
)


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
                if not any(noise in line for noise in _NOISE):
                    os.write(stderr, line)
            os.close(stderr)


def package_versions(names: Iterable[str] = REPORTED_PACKAGES) -> dict[str, str]:
    """Returns the installed versions of distributions, those absent left out."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def known_problems(
    *,
    python: tuple[int, ...] | None = None,
    versions: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[str]:
    """Returns what cannot work here, a sentence each with its cure."""
    python = sys.version_info[:2] if python is None else python[:2]
    if versions is None:
        versions = package_versions((*REPORTED_PACKAGES, *_JUDGED_PACKAGES))
    environ = os.environ if environ is None else environ
    problems = []
    if not OLDEST_PYTHON <= python <= NEWEST_PYTHON:
        problems.append(
            f"Python {_dotted(python)} is not supported: distlab needs Python "
            f"{_dotted(OLDEST_PYTHON)} to {_dotted(NEWEST_PYTHON)}. Install one of these."
        )
    if "tensorflow" not in versions and "tensorflow-tpu" not in versions:
        problems.append("TensorFlow is not installed: pip install tensorflow")
    if "tensorflow" in versions and "tensorflow-tpu" in versions:
        problems.append(
            "tensorflow and tensorflow-tpu are both installed, and each overwrites the other: "
            "keep one, in an environment of its own."
        )
    problems += [
        f"{name} {versions[name]} is too old: pip install --upgrade '{requirement(name)}'"
        for name in ("tensorflow", "keras")
        if name in versions and _numbers(versions[name]) < BOUNDS[name][0]
    ]
    if problem := data_sets_problem(versions):
        problems.append(problem)
    if environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        problems.append(
            f"KERAS_BACKEND is {environ['KERAS_BACKEND']!r}: tf.distribute needs Keras on "
            "TensorFlow. Unset it, or set it to 'tensorflow', and start Python again."
        )
    return problems


def requirement(name: str) -> str:
    """Returns what pip is asked for, "keras>=3.10,<3.16"."""
    oldest, below = BOUNDS[name]
    return f"{name}>={_dotted(oldest)},<{_dotted(below)}"


def newer_than_known(versions: Mapping[str, str]) -> list[str]:
    """Returns a sentence for each package that is newer than what distlab was run with."""
    return [
        f"{name} {versions[name]} is newer than what distlab was run with ({requirement(name)})."
        for name, (_, below) in BOUNDS.items()
        if name in versions and _numbers(versions[name]) >= below
    ]


def data_sets_problem(versions: Mapping[str, str]) -> str | None:
    """Returns why TFDS cannot load beside this protobuf, with the cure, or None.

    tensorflow-metadata 1.21 was made with protobuf 6.31 and does not say so; TensorFlow 2.19
    brings an older one.
    """
    metadata, protobuf = versions.get("tensorflow-metadata", "0"), versions.get("protobuf", "99")
    if _numbers(metadata) < (1, 21) or _numbers(protobuf) >= (6, 31):
        return None
    return (
        f"tensorflow-metadata {metadata} needs protobuf 6.31 or newer, and protobuf {protobuf} is "
        "installed: pip install 'tensorflow-metadata<1.21'"
    )


def require_keras(version: str) -> None:
    """Raises where Keras is older than what distlab's training was run with."""
    if _numbers(version) < BOUNDS["keras"][0]:
        raise UnsupportedEnvironment(
            asked="train with distlab",
            found=f"Keras {version}, of which distlab does not know the inner parts",
            do=f"pip install --upgrade '{requirement('keras')}'",
        )


def require_data_sets() -> None:
    """Raises where TFDS is installed, but cannot load."""
    if problem := data_sets_problem(package_versions(_JUDGED_PACKAGES)):
        found, _, cure = problem.partition(": ")
        raise UnsupportedEnvironment(asked="import tensorflow_datasets", found=found, do=cure)


def explain_missing(module: str) -> UnsupportedEnvironment:
    """Returns the error for a module that is not installed, with the command that brings it."""
    top = module.partition(".")[0]
    if top in ("tensorflow", "keras"):
        cure = "pip install distlab  (TensorFlow and Keras come with it)"
    else:
        cure = f'pip install "distlab[{_EXTRA_OF.get(top, "lab")}]"'
    return UnsupportedEnvironment(
        asked=f"import {module}",
        found=f"it is not installed for {platform.python_implementation()} "
        f"{platform.python_version()}",
        do=cure,
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Returns (3, 16) for "3.16.0.dev1"."""
    return tuple(int(part) for part in version.split(".")[:2])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
