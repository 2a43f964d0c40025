"""distlab: learn distributed training in TensorFlow by running it, for real.

`import distlab as dl` loads no TensorFlow, so that logical devices and seeds can still be
set; each name below is fetched from its room when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from distlab import cell_runs, quiet_imports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from distlab.batching import plan_batch as plan_batch
    from distlab.cluster.local.cluster import LocalCluster as LocalCluster
    from distlab.course.checks.notebook_check import check as check
    from distlab.course.predictions.prediction import predict as predict
    from distlab.course.show import show as show
    from distlab.datasets.loader import load_dataset as load_dataset
    from distlab.devices import split_devices as split_devices
    from distlab.diagnostics import doctor as doctor
    from distlab.memory import memory_limit as memory_limit
    from distlab.precision import mixed_precision as mixed_precision
    from distlab.seeding import set_seed as set_seed
    from distlab.strategy.description import describe as describe
    from distlab.strategy.factory import make_strategy as make_strategy
    from distlab.training.distribute import distribute as distribute
    from distlab.training.parity import check_parity as check_parity
    from distlab.training.resume.resume import Resume as Resume
    from distlab.training.rule.rows import all_gather as all_gather

# The public names, and the room each one lives in.
_ROOMS = {
    "LocalCluster": "cluster.local.cluster",
    "Resume": "training.resume.resume",
    "all_gather": "training.rule.rows",
    "check": "course.checks.notebook_check",
    "check_parity": "training.parity",
    "describe": "strategy.description",
    "distribute": "training.distribute",
    "doctor": "diagnostics",
    "load_dataset": "datasets.loader",
    "make_strategy": "strategy.factory",
    "memory_limit": "memory",
    "mixed_precision": "precision",
    "plan_batch": "batching",
    "predict": "course.predictions.prediction",
    "set_seed": "seeding",
    "show": "course.show",
    "split_devices": "devices",
}

# Names whose first use must not wait for TensorFlow, or must work where it is missing.
_WITHOUT_TENSORFLOW = {
    *("LocalCluster", "check", "doctor", "memory_limit", "plan_batch", "predict", "show"),
}

__all__ = [
    "LocalCluster",
    "Resume",
    "__version__",
    "all_gather",
    "check",
    "check_parity",
    "describe",
    "distribute",
    "doctor",
    "load_dataset",
    "make_strategy",
    "memory_limit",
    "mixed_precision",
    "plan_batch",
    "predict",
    "set_seed",
    "show",
    "split_devices",
]


quiet_imports.install()
cell_runs.install()


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'distlab' has no attribute {name!r}")
    from distlab import environment

    try:
        if name not in _WITHOUT_TENSORFLOW:
            environment.load_tensorflow()
        value = getattr(importlib.import_module(f"distlab.{_ROOMS[name]}"), name)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        raise environment.explain_missing(missing, asked=f"distlab.{name}") from error
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Gives a notebook the cell magic `%%workers`; called by `%load_ext distlab`."""
    from distlab.cluster.local.magics import register

    register(shell)


def __dir__() -> list[str]:
    return __all__
