"""The first table of the support matrix: which strategy trains with what."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import distlab as dl
from distlab.training.distributing import distribute
from tools.support_cells import (
    Cells,
    Run,
    against,
    cell,
    coordinated_loop,
    fit,
    in_order,
    in_scope,
    own_loop,
    sequential,
    theirs,
)

STRATEGIES: dict[str, Callable[[], tf.distribute.Strategy]] = {
    "default": lambda: dl.make_strategy("default"),
    "one_device": lambda: dl.make_strategy("one_device"),
    "mirrored, TensorFlow's all-reduce": theirs,
    "mirrored, of `make_strategy`": lambda: dl.make_strategy("mirrored", devices=2),
    "central_storage": lambda: dl.make_strategy("central_storage", devices=2),
}


def _of_keras(
    strategy: tf.distribute.Strategy, reference: Run, loop: Callable[..., Run] = own_loop
) -> dict[str, Callable[[], str]]:
    build, judge = sequential(), against(reference)
    return {
        "Keras 3 `fit`": lambda: cell(lambda: fit(in_scope(build, strategy)), judge),
        "Keras 3 own loop": lambda: cell(lambda: loop(build, strategy), judge),
        "`distribute`": lambda: cell(lambda: fit(distribute(build, strategy)), judge),
    }


def _of_tf_keras(
    strategy: tf.distribute.Strategy, reference: Run, **as_it_wants: Any
) -> dict[str, Callable[[], str]]:
    import tf_keras

    build, judge = sequential(library=tf_keras), against(reference)
    return {
        "tf_keras `fit`": lambda: cell(lambda: fit(in_scope(build, strategy), **as_it_wants), judge)
    }


def in_one_process() -> Cells:
    """Measures Keras 3's columns of the strategies that need no other process."""
    return _each(_of_keras, keras)


def in_one_process_of_tf_keras() -> Cells:
    """The same for the column of tf_keras."""
    return _each(_of_tf_keras, importlib.import_module("tf_keras"))


def _each(of: Callable[..., dict[str, Callable[[], str]]], library: Any) -> Cells:
    """Measures every strategy that one process makes, on two logical CPUs."""
    dl.split_devices(2, kind="cpu")
    reference = fit(sequential(library=library)())
    return {
        name: {column: run() for column, run in of(make(), reference).items()}
        for name, make in STRATEGIES.items()
    }


def workers() -> Cells:
    """Measures MultiWorkerMirroredStrategy in one of two processes (TF_CONFIG names them)."""
    return {"multi_worker, 2 processes": _on_cluster("multi_worker", own_loop)}


def servers() -> Cells:
    """Measures ParameterServerStrategy in its coordinator; the other processes serve, and stay."""

    def repeated() -> dict[str, Any]:
        return {"data": in_order().repeat(), "steps_per_epoch": int(in_order().cardinality())}

    cells = _on_cluster("parameter_server", coordinated_loop, as_tf_keras_wants=repeated)
    return {"parameter_server, 1 worker": cells}


def _on_cluster(
    kind: str, loop: Callable[..., Run], as_tf_keras_wants: Callable[[], dict[str, Any]] = dict
) -> dict[str, str]:
    """The cell that crashes is the last, so that several processes are in step before it."""
    import tf_keras

    strategy = dl.make_strategy(kind)  # in a process that serves, it does not return
    # What the reference has no strategy for is done first in each process, alike.
    cells = _of_tf_keras(strategy, fit(sequential(library=tf_keras)()), **as_tf_keras_wants())
    cells |= _of_keras(strategy, fit(sequential()()), loop)
    order = [name for name in cells if name != "Keras 3 `fit`"] + ["Keras 3 `fit`"]
    return {column: cells[column]() for column in order}
