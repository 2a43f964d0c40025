"""A table of tests for obstacles on a machine, each with what to do about it.

    for finding in findings(Machine()):
        print(finding)      # KERAS_BACKEND is 'jax', and ...: unset it, and start Python again

Importing this module imports no TensorFlow.
"""

from __future__ import annotations

import enum
import functools
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from distlab.cluster.gpus import installed_gpus
from distlab.cluster.proxies import proxy_variables
from distlab.environment import (
    BOUNDS,
    NEWEST_PYTHON,
    OLDEST_PYTHON,
    data_sets_problem,
    dotted,
    is_writable,
    requirement,
    version_numbers,
)


class Severity(enum.Enum):
    """The consequence of a finding for the use of distlab."""

    STOPS = "nothing trains"
    LIMITS = "a part does not work"
    NOTE = "worth knowing"


@dataclass(frozen=True)
class Finding:
    """An obstacle that was found, and what to do; `do` may be empty for a note."""

    severity: Severity
    found: str
    do: str

    def __str__(self) -> str:
        return f"{self.found}: {self.do}" if self.do else f"{self.found}."


def _installed() -> dict[str, str]:
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.name or "").lower()
        versions.setdefault(name, distribution.version)  # the first on the path is imported
    return versions


_LOADED = {
    "tensorflow": "tensorflow",
    "keras": "keras",
    "tf-keras": "tf_keras",
    "numpy": "numpy",
    "protobuf": "google.protobuf",
}


def _loaded() -> dict[str, str]:
    modules = {name: sys.modules.get(module) for name, module in _LOADED.items()}
    versions = {name: getattr(module, "__version__", "") for name, module in modules.items()}
    return {name: version for name, version in versions.items() if version}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The process and machine that the tests look at: by default this one."""

    python: tuple[int, ...] = tuple(sys.version_info[:2])
    installed: Mapping[str, str] = field(default_factory=_installed)  # distributions
    loaded: Mapping[str, str] = field(default_factory=_loaded)  # modules of this process
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    gpus: int = 0  # that TensorFlow sees
    load_error: str = ""  # why TensorFlow does not load

    @functools.cached_property
    def driver_gpus(self) -> int:
        """GPUs that NVIDIA's driver has, used or not."""
        return installed_gpus(self.root)

    @property
    def hides_gpus(self) -> bool:
        """Whether the user wants none of them used."""
        return self.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


_Found = Iterator[tuple[str, str]]  # what was found, and what to do


def _python(machine: Machine) -> _Found:
    if not OLDEST_PYTHON <= machine.python <= NEWEST_PYTHON:
        supported = f"{dotted(OLDEST_PYTHON)} to {dotted(NEWEST_PYTHON)}"
        yield f"Python {dotted(machine.python)} is not supported", f"install Python {supported}"


def _tensorflow_package(machine: Machine) -> _Found:
    packages = machine.installed.keys() & {"tensorflow", "tensorflow-tpu"}
    if not packages:
        yield "TensorFlow is not installed", "pip install tensorflow"
    if len(packages) > 1:
        yield (
            "tensorflow and tensorflow-tpu are both installed, and each overwrites the other",
            "keep one, in an environment of its own",
        )


def _old_packages(machine: Machine) -> _Found:
    for name in ("tensorflow", "keras"):
        version = machine.installed.get(name)
        if version and version_numbers(version) < BOUNDS[name][0]:
            yield f"{name} {version} is too old", f"pip install --upgrade '{requirement(name)}'"


def _backend(machine: Machine) -> _Found:
    backend = machine.environ.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        yield (
            f"KERAS_BACKEND is {backend!r}, and tf.distribute needs Keras on TensorFlow",
            "unset it, and start Python again",
        )


def _upgrade_under_a_live_process(machine: Machine) -> _Found:
    for name, loaded in machine.loaded.items():
        installed = machine.installed.get(name, loaded)
        if _release(loaded) != _release(installed):
            yield (
                f"{name} {loaded} is loaded, and {installed} has been installed since",
                "restart the kernel (or Python)",
            )


def _release(version: str) -> str:
    """Returns "2.21.0rc1" for "2.21.0-rc1", as TensorFlow writes it, and for "2.21.0rc1+nv26"."""
    return version.partition("+")[0].replace("-", "")


def _load_error(machine: Machine) -> _Found:
    if not machine.load_error or not machine.installed.keys() & {"tensorflow", "tensorflow-tpu"}:
        return
    cure = f"pip install --force-reinstall '{requirement('tensorflow')}'"
    if "tensorflow-metal" in machine.installed:
        cure = "pip uninstall tensorflow-metal, which TensorFlow loads with itself"
    yield f"TensorFlow does not load ({machine.load_error})", cure


def _unmet_requirements(machine: Machine) -> _Found:
    for name in ("tensorflow", "tensorflow-tpu", "tf-keras"):
        if name not in machine.installed:
            continue
        from packaging.requirements import Requirement  # comes with TensorFlow

        try:
            requirements = map(Requirement, importlib.metadata.requires(name) or [])
        except importlib.metadata.PackageNotFoundError:
            continue
        for needed in requirements:
            version = machine.installed.get(needed.name.replace("_", "-").lower())
            applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if version and applies and not needed.specifier.contains(version, prereleases=True):
                yield (
                    f"{name} {machine.installed[name]} needs {needed.name}{needed.specifier}, and "
                    f"{version} is installed",
                    f"pip install '{needed.name}{needed.specifier}'",
                )


def _data_sets(machine: Machine) -> _Found:
    if problem := data_sets_problem(machine.installed):
        yield problem


def _home(machine: Machine) -> _Found:
    home = Path(machine.environ.get("HOME") or Path("~").expanduser())
    if not is_writable(home):
        yield (
            f"nothing can be written in the home folder {home}, where data sets and JupyterLab "
            "keep files",
            "set HOME to a folder that you can write in",
        )


def _unused_gpus(machine: Machine) -> _Found:
    if machine.gpus or machine.load_error or machine.hides_gpus or not machine.driver_gpus:
        return
    gpus = "the GPU" if machine.driver_gpus == 1 else f"the {machine.driver_gpus} GPUs"
    found = f"TensorFlow does not see {gpus} that NVIDIA's driver has"
    devices = machine.root / "dev"
    if not ((devices / "dxg").exists() or any(devices.glob("nvidia[0-9]*"))):
        yield (
            f"{found}, because this container was given none",
            "start it with --gpus all (Docker) or --device nvidia.com/gpu=all (Podman)",
        )
    elif not any(name.startswith("nvidia-cudnn") for name in machine.installed):
        yield (
            f"{found}, because NVIDIA's libraries are not installed",
            'pip install "distlab[gpu]", and start Python again',
        )
    else:
        yield (
            f"{found}, although NVIDIA's libraries are installed",
            "run nvidia-smi; if it fails, reinstall the driver, and if it shows a driver older "
            "than 525, update it",
        )


def _newer_packages(machine: Machine) -> _Found:
    for name, (_, below) in BOUNDS.items():
        version = machine.installed.get(name)
        if version and version_numbers(version) >= below:
            known = requirement(name)
            yield f"{name} {version} is newer than what distlab was run with ({known})", ""


def _no_gpu(machine: Machine) -> _Found:
    if machine.gpus or machine.load_error:
        return
    if machine.driver_gpus and machine.hides_gpus:
        yield "CUDA_VISIBLE_DEVICES hides all GPUs", "unset it to use them"
    if not machine.driver_gpus:
        yield (
            "No GPU: logical CPUs teach the same lessons. They share the cores, so more "
            "replicas are slower here, not faster",
            "",
        )
        if (machine.root / "dev/dxg").exists():
            yield (
                "WSL2 shows a GPU (/dev/dxg), and no driver of NVIDIA's",
                "if the GPU is NVIDIA's, install the driver on Windows, not in WSL2, and run "
                "`wsl --shutdown` there",
            )


def _metal(machine: Machine) -> _Found:
    if version := machine.installed.get("tensorflow-metal"):
        yield (
            f"tensorflow-metal {version} is installed, with which distlab was never run",
            "if results differ from a CPU's, pip uninstall tensorflow-metal",
        )


def _proxies(machine: Machine) -> _Found:
    if names := proxy_variables(machine.environ):
        yield (
            f"{' and '.join(names)} would send what TensorFlow's processes tell each other to a "
            "proxy, and distlab's clusters go around it",
            "only a script that makes its strategy without distlab needs "
            "`export no_grpc_proxy=HOST,HOST`, with all hosts of the cluster",
        )


def _legacy_keras(machine: Machine) -> _Found:
    if machine.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        yield "TF_USE_LEGACY_KERAS is set: tf.keras is tf_keras; distlab uses `keras` 3", ""


def _windows(machine: Machine) -> _Found:
    if platform.system() == "Windows":
        yield "Windows: lessons of one process run; clusters and grading need WSL2", ""


def _extras(machine: Machine) -> _Found:
    if "tensorflow-datasets" not in machine.installed:
        yield "Data sets are not installed", 'pip install "distlab[data]"'
    if "jupyterlab" not in machine.installed:
        yield "What the lessons need is not installed", 'pip install "distlab[lab]"'


_TABLE: dict[Severity, tuple[Callable[[Machine], _Found], ...]] = {
    Severity.STOPS: (
        _python,
        _tensorflow_package,
        _old_packages,
        _backend,
        _upgrade_under_a_live_process,
        _load_error,
    ),
    Severity.LIMITS: (_unmet_requirements, _data_sets, _home, _unused_gpus),
    Severity.NOTE: (
        _newer_packages,
        _no_gpu,
        _metal,
        _proxies,
        _legacy_keras,
        _windows,
        _extras,
    ),
}


def findings(machine: Machine) -> list[Finding]:
    """Returns what the tests find, the gravest first."""
    return [
        Finding(severity, found, do)
        for severity, tests in _TABLE.items()
        for test in tests
        for found, do in test(machine)
    ]
