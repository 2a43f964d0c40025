"""Whether a training on replicas is that of one device: the reference, and the comparison.

    expected, found = alone(build), dl.distribute(build, strategy)
    runs = [(model.fit(data).history, model.variables) for model in (expected, found)]
    assert unlike(*runs) == {}

Tests and tools share it, so it imports neither TensorFlow nor Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

# Two replicas take 6 and 5 examples of a batch, and 3 and 2 of the last, which is partial; three
# take 4, 4 and 3, and 2, 2 and 1.
ROWS, BATCH = 27, 11

# What a training ends with: numbers by name, as its logs are, and variables or arrays in their
# order, or what `snapshot` returned of them.
Run = tuple[Mapping[str, Any], Sequence[Any] | Mapping[str, Any]]


def alone(build: Callable[[], Any]) -> Any:
    """Returns a model that plain Keras trains without a graph, which spares the tracing.

    Of several losses Keras logs each, without a graph by other weights than in one: these stay.
    """
    model = build()
    several = isinstance(model.loss, dict | list) or len(getattr(model, "output_names", ())) > 1
    model.run_eagerly = not several
    return model


def snapshot(variables: Sequence[Any]) -> dict[str, list[np.ndarray]]:
    """Returns the copies of each variable on all local replicas, by its place and path."""
    copies = {}
    for place, variable in enumerate(variables):
        value = getattr(variable, "value", variable)  # an array is its own value
        name = f"{place} {getattr(variable, 'path', 'weight')}"
        copies[name] = [np.asarray(each) for each in getattr(value, "values", [value])]
    return copies


def differences(
    expected: Run, found: Run, *, floor: float = 1.0, equal_nan: bool = False
) -> dict[str, float]:
    """Returns the largest difference of each variable, over all copies, and of each log.

    It is infinite where shapes differ, a log is missing on one side, or one value is not finite.

    Args:
        expected: The run on one device. Its paths name the variables.
        found: The run to compare with it.
        floor: A log's difference is relative to its value, or to this if the value is smaller.
        equal_nan: Whether NaN is equal to NaN.
    """
    (expected_logs, variables), (logs, others) = expected, found
    far = {f"log {name}": np.inf for name in expected_logs.keys() ^ logs.keys()}
    for name in expected_logs.keys() & logs.keys():
        sizes = np.maximum(np.abs(np.asarray(expected_logs[name], "float64")), floor)
        far[f"log {name}"] = _difference(expected_logs[name], logs[name], sizes, equal_nan)
    pairs = [each if isinstance(each, Mapping) else snapshot(each) for each in (variables, others)]
    for (name, (value, *_)), copies in zip(pairs[0].items(), pairs[1].values(), strict=True):
        far[name] = max(_difference(value, copy, 1.0, equal_nan) for copy in copies)
    return far


def too_far(
    far: Mapping[str, float], *, atol: float = 1e-6, logs: float = 1e-5
) -> dict[str, float]:
    """Returns the differences above `atol`, and those of logs above `logs`."""
    limits = {name: logs if name.startswith("log ") else atol for name in far}
    return {name: value for name, value in far.items() if value > limits[name]}


def unlike(
    expected: Run, found: Run, *, atol: float = 1e-6, logs: float = 1e-5, **options: Any
) -> dict[str, float]:
    """Returns what differs by more than the limits of `too_far`; `options` are of `differences`."""
    return too_far(differences(expected, found, **options), atol=atol, logs=logs)


def _difference(expected: Any, found: Any, sizes: Any, equal_nan: bool) -> float:
    a, b = np.asarray(expected), np.asarray(found)
    if a.shape != b.shape:
        return np.inf
    if a.dtype.kind in "OSU":  # strings
        return 0.0 if np.array_equal(a, b) else np.inf
    a, b = a.astype("float64"), b.astype("float64")
    same = (a == b) | (np.isnan(a) & np.isnan(b) & equal_nan)
    with np.errstate(invalid="ignore"):
        far = np.where(same, 0.0, np.abs(a - b) / sizes)
    return float(np.where(np.isnan(far), np.inf, far).max(initial=0))
