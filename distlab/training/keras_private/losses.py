"""A loss or a metric of Keras: the function that it wraps, and how it weighs values."""

from __future__ import annotations

from typing import Any

from keras.src.losses.loss import apply_mask

__all__ = ["apply_mask", "arguments_of", "function_of", "values_of"]


def function_of(wrapper: Any) -> Any:
    """The function that a loss or a metric wraps; None of one that computes by itself."""
    return getattr(wrapper, "fn", getattr(wrapper, "_fn", None))


def arguments_of(wrapper: Any) -> dict[str, Any]:
    """The arguments that a loss or a metric gives the function that it wraps."""
    return getattr(wrapper, "_fn_kwargs", None) or {}


def values_of(metric: Any, y_true: Any, y_pred: Any) -> Any:
    """The values over which a MeanMetricWrapper takes its mean."""
    return metric._fn(y_true, y_pred, **metric._fn_kwargs)
